"""What a drawing says of a variable, beside its name: what it is, its mean, and what its parents explain."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedbnsl.console.wording import first_few
from fedbnsl.plan.dictionary import Entry
from fedbnsl_workbench.report.run_files import ReportedRun

_MOST_LEVELS = 6


def words_of_variables(run: ReportedRun) -> list[str]:
    """By variable, lines; empty where nothing is known."""
    told: Mapping[str, Any] = run.result["preparation"] or {}
    means: Mapping[str, float] = told.get("means") or told.get("centres") or {}
    fit: Mapping[str, Mapping[str, Any]] = run.result["fit"]
    found: list[str] = []
    for name, own in zip(run.columns.variables, run.columns.members(), strict=True):
        entry = run.plan.dictionary[name] if name in run.plan.dictionary else Entry()
        places: list[int] = own.tolist()
        columns = [run.columns.names[k] for k in places]
        r2 = fit.get(name, {}).get("r2")
        lines = [
            what_it_is(entry) if name in run.plan.dictionary else "",
            mean_in_words(entry, name, columns, means),
            "" if not r2 else f"R\u00b2 {r2:.2f}: the part of its variance that its parents explain",
        ]
        found.append("\n".join(filter(None, lines)))
    return found


def what_it_is(entry: Entry) -> str:
    """Kind, unit, range and levels, as the data dictionary has them."""
    parts = [entry.kind, entry.unit, "" if entry.range is None else f"{entry.range[0]:g} to {entry.range[1]:g}"]
    if entry.levels:
        parts.append(f"levels {first_few(entry.levels, _MOST_LEVELS)}")
    return ", ".join(filter(None, parts))


def mean_in_words(entry: Entry, name: str, columns: Sequence[str], means: Mapping[str, float]) -> str:
    """Of a variable with these columns; empty where it is not told."""
    if not all(column in means for column in columns):
        return ""
    if entry.kind in ("binary", "nominal"):
        levels = entry.levels[-1:] if columns == [name] else [one.removeprefix(f"{name}=") for one in columns]
        shares = [f"{level} {means[column]:.3f}" for level, column in zip(levels, columns, strict=True)]
        return f"share of {first_few(shares, _MOST_LEVELS)}"
    if entry.has_levels:
        return f"mean position {means[name]:.3g}, counted from 0"
    of = entry.applied if entry.applied != "none" else ""
    return f"mean {of and f'of the {of} '}{means[name]:.4g}"
