"""How a run went, as its report shows it: settings, rounds, bytes, and who contributed."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from fedbnsl.plan.absent import Absent
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.messages import Yields
from fedbnsl.rounds.kinds import KINDS, n_rounds
from fedbnsl_server.results.outlier_scores import outliers, who_was_left_out
from fedbnsl_server.results.sentences import in_words
from fedbnsl_server.sites.ejection import in_short
from fedbnsl_workbench.report import charts as report_charts
from fedbnsl_workbench.report.run_files import ReportedRun

_MOST_SITES = 60


Row = dict[str, Any]
"""Of a table, by the template's name of each column."""


def planned_rounds(run: ReportedRun) -> int:
    """Rounds of the whole run, with those of the iterated kinds that there were."""
    kinds = (entry["kind"] for entry in run.rounds)
    return n_rounds(run.plan, Counter(kind for kind in kinds if hasattr(KINDS[kind], "most_iterations")))


def settings(run: ReportedRun) -> list[Row]:
    """Every setting of the plan, in its order; the tables' as knowledge.required and so on."""
    rows: list[Row] = []
    for key, info in type(run.plan).model_fields.items():
        value = getattr(run.plan, key)
        if isinstance(value, Dictionary):
            said = {name: entry.model_dump(mode="json", exclude_defaults=True) for name, entry in value.root.items()}
            if plain := [name for name, entry in said.items() if not entry]:
                rows.append(_row(key, f"as numbers, with nothing else said: {', '.join(plain)}", info))
            rows += [_row(f"{key}.{name}", _shown(entry), info) for name, entry in said.items() if entry]
        elif isinstance(value, Absent):
            rows += [_row(f"{key}.{site}", _shown(names), info) for site, names in value.root.items()]
        elif isinstance(value, BaseModel):
            for inner, inner_info in type(value).model_fields.items():
                rows.append(_setting(f"{key}.{inner}", getattr(value, inner), inner_info))
        else:
            rows.append(_setting(key, value, info))
    return rows


def _setting(name: str, value: object, info: FieldInfo) -> Row:
    if info.is_required():
        return _row(name, _shown(value), info)
    default: object = info.get_default()
    return {**_row(name, _shown(value), info), "default": _shown(default), "changed": value != default}


def _row(name: str, value: str, info: FieldInfo) -> Row:
    """Of a setting without a default."""
    return {"name": name, "value": value, "default": "", "meaning": info.description or "", "changed": True}


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(to_jsonable_python(value), ensure_ascii=False)


def charts(run: ReportedRun) -> dict[str, str]:
    """Convergence, times and bytes by round, as SVG; `acyclicity` is empty where no round has one above 0."""
    steps = [entry for entry in run.rounds if KINDS[entry["kind"]].YIELDS is Yields.W]
    numbers = [entry["round"] for entry in steps]
    every = [entry["round"] for entry in run.rounds]
    sites = [*run.result["sites"], *(one["site"] for one in ejected(run))]
    up, down = (
        np.array([[_serialised(entry, site, way) for entry in run.rounds] for site in sites]) for way in ("up", "down")
    )
    return {
        "acyclicity": report_charts.acyclicity(numbers, [entry["acyclicity"] for entry in steps])
        if any(entry["acyclicity"] for entry in steps)
        else "",
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
    return [{**one, "words": in_short(one["after_round"], one["from_round"])} for one in run.result["ejected"]]


def attendance(run: ReportedRun) -> list[Row]:
    """In which rounds each site contributed; where sites are many, of those that missed a round or were ejected.

    `missed` is such as "3, 7-9"; `stretches` are the first round and the number of rounds of each without a gap.
    """
    rows: list[Row] = []
    of_all = [{"site": site, "words": "", **of} for site, of in run.result["sites"].items()] + ejected(run)
    for one in of_all:
        there = [entry["round"] for entry in run.rounds if one["site"] in entry["contributed"]]
        away = [] if one["words"] else _stretches(entry["round"] for entry in run.rounds if entry["round"] not in there)
        rows.append(
            {
                "site": one["site"],
                "n_samples": one["n_samples"],
                "contributed": len(there),
                "missed": ", ".join(f"{first}" if n == 1 else f"{first}\u2013{first + n - 1}" for first, n in away),
                "stretches": _stretches(there),
                "ejected": one["words"],
            }
        )
    return rows if len(rows) <= _MOST_SITES else [row for row in rows if row["missed"] or row["ejected"]]


def outlier_scores(run: ReportedRun) -> dict[str, Any]:
    """How far each site's numbers were from the others', and who stands out."""
    found = run.result["influence"]
    rows = sorted(({"site": site, **of} for site, of in found["sites"].items()), key=lambda row: -row["largest"])
    notes = in_words({"outliers": outliers(found), "left_out": who_was_left_out(run.rounds)})
    return {**found, **notes, "rows": rows[:_MOST_SITES]}


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
