"""How a run went, as its report shows it: settings, rounds, bytes, and who contributed."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.messages import Yields
from fedbnsl.rounds.kinds import KINDS
from fedbnsl_server.results.influence import outliers, who_was_left_out
from fedbnsl_server.sites.ejection import in_short
from fedbnsl_workbench.report import charts as report_charts
from fedbnsl_workbench.report.run_files import ReportedRun

_MOST_SITES = 60


@dataclass(frozen=True)
class Setting:
    """A setting of the plan.

    Attributes
    ----------
    default
        As shown; empty if there is none.
    changed
        Whether the plan differs from the default.
    """

    name: str
    value: str
    default: str
    meaning: str
    changed: bool


@dataclass(frozen=True)
class Attendance:
    """In which rounds a site contributed.

    Attributes
    ----------
    missed
        Such as "3, 7-9"; empty: none.
    stretches
        First round and number of rounds of each stretch without a gap.
    ejected
        When it was taken out of the run; empty: it was not.
    """

    site: str
    n_samples: int
    contributed: int
    missed: str
    stretches: list[tuple[int, int]]
    ejected: str = ""


def settings(run: ReportedRun) -> list[Setting]:
    """Every setting of the plan, in its order; the tables' as knowledge.required and so on."""
    rows: list[Setting] = []
    for key, info in type(run.plan).model_fields.items():
        value = getattr(run.plan, key)
        if isinstance(value, Dictionary):
            for name, entry in value.items():
                said = _shown(entry.model_dump(mode="json", exclude_defaults=True))
                rows.append(Setting(f"{key}.{name}", said, "", info.description or "", True))
        elif isinstance(value, BaseModel):
            for inner, inner_info in type(value).model_fields.items():
                rows.append(_setting(f"{key}.{inner}", getattr(value, inner), inner_info))
        else:
            rows.append(_setting(key, value, info))
    return rows


def _setting(name: str, value: object, info: FieldInfo) -> Setting:
    default: object = None if info.is_required() else info.get_default()
    shown = "" if info.is_required() else _shown(default)
    return Setting(name, _shown(value), shown, info.description or "", info.is_required() or value != default)


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def charts(run: ReportedRun) -> dict[str, str]:
    """Convergence, times and bytes by round, as SVG; `acyclicity` is empty without ADMM rounds."""
    steps = [entry for entry in run.rounds if KINDS[entry["kind"]].YIELDS is Yields.W]
    numbers = [entry["round"] for entry in steps]
    every = [entry["round"] for entry in run.rounds]
    sites = [*run.result["sites"], *(one["site"] for one in ejected(run))]
    up, down = (
        np.array([[_serialised(entry, site, way) for entry in run.rounds] for site in sites]) for way in ("up", "down")
    )
    return {
        "acyclicity": report_charts.acyclicity(numbers, [entry["acyclicity"] for entry in steps]) if steps else "",
        "edges": report_charts.edges_by_round(every, [entry["edges"] for entry in run.rounds]),
        "seconds": report_charts.seconds_by_round(
            every, [entry["local_s"] for entry in run.rounds], [entry["global_s"] for entry in run.rounds]
        ),
        "bytes": report_charts.bytes_by_round(every, up.sum(axis=0).tolist(), down.sum(axis=0).tolist()),
        "bytes_by_site": report_charts.bytes_by_site(every, sites, (up + down).astype(float)),
    }


def _serialised(entry: Mapping[str, Any], site: str, way: str) -> int:
    counted = entry["bytes"].get(site)  # of an ejected site, later rounds have none
    return 0 if counted is None else counted[way]["serialised"]


def ejected(run: ReportedRun) -> list[dict[str, Any]]:
    """Sites that were taken out of the run, with what a table says of them in `words`."""
    found = run.result.get("ejected", [])  # older runs have none
    return [{**one, "words": in_short(one["after_round"], one["from_round"])} for one in found]


def attendance(run: ReportedRun) -> list[Attendance]:
    """Of each site; where they are many, of those that missed a round or were ejected."""
    numbers = [entry["round"] for entry in run.rounds]
    rows: list[Attendance] = []
    for site, of in run.result["sites"].items():
        there = [entry["round"] for entry in run.rounds if site in entry["contributed"]]
        missed = sorted(set(numbers) - set(there))
        words = ", ".join(f"{first}" if n == 1 else f"{first}\u2013{first + n - 1}" for first, n in _stretches(missed))
        rows.append(Attendance(site, of["n_samples"], len(there), words, _stretches(there)))
    for one in ejected(run):
        there = [entry["round"] for entry in run.rounds if one["site"] in entry["contributed"]]
        rows.append(Attendance(one["site"], one["n_samples"], len(there), "", _stretches(there), one["words"]))
    return rows if len(rows) <= _MOST_SITES else [row for row in rows if row.missed or row.ejected]


def influence(run: ReportedRun) -> dict[str, Any] | None:
    """How far each site's numbers were from the others', and who stands out; None for a run that did not compare."""
    found = run.result.get("influence")  # older runs have none
    if found is None:
        return None
    rows = sorted(({"site": site, **of} for site, of in found["sites"].items()), key=lambda row: -row["largest"])
    return {**found, "rows": rows[:_MOST_SITES], "outliers": outliers(found), "left_out": who_was_left_out(run.rounds)}


def _stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and sum(found[-1]) == number:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((number, 1))
    return found


def bytes_rows(run: ReportedRun) -> list[dict[str, Any]]:
    """Bytes by site, ejected ones included, and a last row of all."""
    result = run.result
    rows = [{"site": site, **of["bytes"], "control": of["control_bytes"]} for site, of in result["sites"].items()]
    rows += [
        {"site": f"{one['site']} ({one['words']})", **one["bytes"], "control": one["control_bytes"]}
        for one in ejected(run)
    ]
    return [*rows, {"site": "all", **{key: result["bytes"][key] for key in ("up", "down", "control")}}]
