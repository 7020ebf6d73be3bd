"""How a run has prepared its columns, in words and tables."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.plan.dictionary import Entry
from fedbnsl_server.results.sentences import UNITS, whole
from fedbnsl_server.results.warnings import units_of_variances
from fedbnsl_workbench.report.run_files import ReportedRun

_INTERCEPTS = {
    "site": "with an intercept of each site's own",
    "common": "with one intercept, by the mean of all records",
    "none": "without intercept",
}
_MISSING_INTERCEPTS = {"site": "each site its own", "none": "none in the model", "common": "not known"}


def preparation(run: ReportedRun) -> dict[str, Any] | None:
    """Sentences, and rows of the tables; None for a run that took the columns as they are."""
    if run.plan.preparation is None:
        return None
    told: Mapping[str, Any] = run.result["preparation"] or {}
    return {
        "steps": _steps(run),
        "rows_left_out": _rows_left_out(run),
        "blocks": _blocks(run),
        "variables": _variables(run),
        "has_centres": bool(told.get("centres")),
        "has_scales": bool(told.get("scales")),
        "has_icc": dependent_rows(run.result) is not None,
        "sites": [_of_site(site, of["n_samples"], of["rows_used"]) for site, of in run.result["sites"].items()],
    }


def _of_site(site: str, rows: int, used: int | None) -> dict[str, Any]:
    """Rows of a site; None where they are not known."""
    gone = rows - (used or 0)
    return {"site": site, "rows": rows, "used": used, "left_out": f"{gone:,} ({gone / rows:.1%})" if rows else "0"}


def in_short(result: Mapping[str, Any]) -> str:
    """One line for the terminal, from the content of result.json; empty: columns were taken as they are."""
    settings: Mapping[str, Any] | None = result.get("preparation")
    if settings is None:
        return ""
    noisy = "noisy " if result["privacy"] else ""
    off = {
        "site": f"own {noisy}means taken off at each site",
        "common": "the mean of all records taken off",
        "none": "nothing taken off",
    }
    by = {"pooled": f"columns divided by {noisy}pooled standard deviations", "none": "columns not scaled"}
    used = rows_used(result)
    if settings["missing"] == "refuse" and not result["privacy"]:
        rows = "tables with missing values refused"
    elif used is not None:
        rows = f"rows used {used:,} of {sum(of['n_samples'] for of in result['sites'].values()):,}"
        if gaps := result.get("gaps"):
            if (complete := gaps["complete_rows"]) is not None:
                rows += f" ({complete:,} without a missing value)"
            rows += f", by EM: effective sample size {gaps['known_share']:.0%}"
        if told := dependent_rows(result):
            rows += f"; they count as {told['counted']:,.0f}, for rows of a group depend on each other"
    else:
        rows = "rows used are known at the sites alone" if result["privacy"] else "rows used are not known"
    return f"{off[settings['intercept']]}, {by[settings['scale']]}; {rows}"


def dependent_rows(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How much rows of a group depend on each other; None: they count as independent."""
    estimation: Mapping[str, Any] = result.get("estimation") or {}
    return estimation.get("dependent_rows")


def rows_used(result: Mapping[str, Any]) -> int | None:
    """Rows without a missing value at all sites; None where any of them has not told it."""
    used: list[int | None] = [of.get("rows_used") for of in result["sites"].values()]
    told = [rows for rows in used if rows is not None]
    return sum(told) if told and len(told) == len(used) else None


def _intercept(run: ReportedRun) -> str:
    return "none" if run.plan.preparation is None else run.plan.preparation.intercept


def intercept_words(run: ReportedRun) -> str:
    """Which intercept the regressions of the run have."""
    return _INTERCEPTS[_intercept(run)]


def no_intercept(run: ReportedRun) -> str:
    """What a missing intercept means."""
    return _MISSING_INTERCEPTS[_intercept(run)]


def tables_units(run: ReportedRun) -> str:
    """In which units the tables are, as the run reads them."""
    return UNITS["dictionary" if run.plan.dictionary else "tables"]


def variance_units(run: ReportedRun) -> str:
    """In which units directions rest on equal residual variances."""
    return UNITS[units_of_variances(run.plan, searched=run.searched)] or "in their own units"


def _steps(run: ReportedRun) -> list[str]:
    settings, private = run.plan.preparation, run.plan.privacy is not None
    if settings is None:
        return []
    steps: list[str] = []
    if run.plan.dictionary:
        steps.append(
            "Cells became numbers as the data dictionary of the plan says: values outside a range counted as missing, "
            "the others were transformed. Levels count from 0; a nominal variable became one column of zeros and ones "
            "for each level but the first."
        )
    if rows := run.plan.dictionary.rows:
        all_count = run.plan.counts_rows_of_persons
        shares = "; of a level, the share of rows that have it" if rows.averages and not all_count else ""
        steps.append(
            f"{whole(rows.in_words(all_count=all_count) + shares)} What tells the rows apart stayed at the site."
        )
    own = "own noisy means off its columns, as its paid release told them" if private else "own means off its columns"
    steps.append(
        {
            "site": f"Each site took its {own}. "
            + ("Sites told them" if run.plan.tells_means else "They stayed at the site")
            + "; shifts between sites do not count.",
            "common": "The mean of each column over all sites was taken off, the same number at every site.",
            "none": "Nothing was taken off the columns: their means count as part of what parents explain.",
        }[settings.intercept]
    )
    if settings.scale == "pooled":
        about = "about zero" if settings.intercept == "none" else "about what was taken off"
        noisy = " The scales come from noisy variances, and none is below the size of the noise."
        if run.result["estimation"] and run.result["estimation"]["noise_std"]:
            noisy += " So weights without units are shown in the standard deviations that the learned network implies."
        robust = ""
        if names := list(run.result.get("outlying", {})):
            robust = f" (of {first_few(map(repr, names))}, 1.4826 times the median distance from the median)"
        steps.append(
            f"Each column was divided by one scale, its standard deviation {about}{robust}, pooled over all sites. "
            "Weights without units are between these columns, and the thresholds of the plan cut them."
            f"{noisy if private else ''}"
        )
    else:
        steps.append(f"The columns were not divided by anything: weights and thresholds are {tables_units(run)}.")
    same = "each site weighs the same, whatever its rows"
    return [*steps, f"In means over sites, {'a site weighs as its rows' if settings.weighting == 'rows' else same}."]


def _rows_left_out(run: ReportedRun) -> str:
    settings, private = run.plan.preparation, run.plan.privacy is not None
    if settings is None:
        return ""
    if run.plan.completes_privately:
        return (
            "A record that lacks values counts for those that it has: what was released before completes it, as if "
            "values were missing at random. How many records these are, only the site knows."
        )
    if private:  # a private run refuses nothing for what is missing
        return (
            "A row that lacks a value counts as zeros, so that it adds nothing to what a site sends. How many rows "
            "these are, only the site knows."
        )
    if settings.missing == "em":
        gaps = run.result.get("gaps")
        if not gaps:
            return "No row lacked a value."
        return (
            "Rows with gaps were used: means and covariances of maximum likelihood completed their sums, in "
            f"{gaps['iterations']} iterations of EM. It assumes that values are missing at random. The effective "
            f"sample size, which scores and intervals count, is {gaps['known_share']:.0%} of the rows."
        )
    if settings.missing == "refuse":
        return "No row lacks a value: a site would have been refused with such a table."
    most = f"A site where that is more than {settings.missing_most:.0%} of the rows would have been refused."
    return f"Rows that lack a value of a used variable were left out. {most}"


def _blocks(run: ReportedRun) -> str:
    columns = run.columns
    blocks = [name for name, size in zip(columns.variables, columns.sizes.tolist(), strict=True) if size > 1]
    if not blocks:
        return ""
    subject, verb = first_few(blocks, 12), "is a block" if len(blocks) == 1 else "are blocks"
    return (
        f"{subject} {verb} of indicator columns, one for each level but the first; coefficients of a child among them "
        "are those of linear probabilities."
    )


def _variables(run: ReportedRun) -> list[dict[str, str]]:
    """What was done with each variable: centre and scale are in its unit and after the transform, by column."""
    told: Mapping[str, Any] = run.result["preparation"] or {}
    dependent = dependent_rows(run.result) or {"icc": {}}
    rows: list[dict[str, str]] = []
    for name, places in zip(run.columns.variables, run.columns.members(), strict=True):
        entry = run.plan.dictionary[name] if name in run.plan.dictionary else Entry()
        of = np.array(run.columns.names, dtype=object)[places].tolist()
        rows.append(
            {
                "name": name,
                "kind": entry.kind,
                "unit": entry.unit,
                "bounds": "" if entry.range is None else f"{entry.range[0]:g} to {entry.range[1]:g}",
                "transform": entry.applied if entry.applied != "none" else "",
                "levels": ", ".join(entry.levels),
                "centre": _said(told.get("centres"), of, name),
                "scale": _said(told.get("scales"), of, name),
                "icc": _said(dependent["icc"], of, name),
            }
        )
    return rows


def _said(numbers: Mapping[str, float] | None, columns: list[str], variable: str) -> str:
    if not numbers:
        return ""
    if columns == [variable]:
        return f"{numbers[variable]:.4g}"
    return ", ".join(f"{name.removeprefix(f'{variable}=')} {numbers[name]:.4g}" for name in columns)
