"""Which site has which variables, and in how many of its rows: a table of dots, of what the run or its plan tells."""

from typing import Any

from fedbnsl_server.store.run_folder import OTHER_NAME, SITE_FORGOTTEN
from fedbnsl_workbench.report.run_files import ReportedRun


def who_has_what(run: ReportedRun) -> dict[str, Any] | None:
    """Of each variable that some site lacks a value of, the rows that have one by site; None: there is none.

    What a site that was forgotten has is not told: it is left out. Where no run has counted them (a private one does
    not), the plan tells which sites lack the variable altogether.
    """
    known = {site: int(of["n_samples"]) for site, of in run.result["sites"].items()}
    is_changed = SITE_FORGOTTEN in run.result.get("warning_codes", ())
    sites = {site: n for site, n in known.items() if not (is_changed and OTHER_NAME.fullmatch(site))}
    gaps = run.result.get("gaps")
    counts: dict[str, dict[str, int]] = gaps["values"] if gaps else {}
    rows = [_row(run, name, sites, counts) for name in run.variables]
    shown = [row for row in rows if any(cell["share"] != 1.0 for cell in row["cells"])]
    if not shown:
        return None
    together = gaps["never_together"] if gaps else run.plan.absent.never_together(len(known))
    return {
        "sites": list(sites),
        "counted": bool(counts),
        "variables": shown,
        "n_others": len(rows) - len(shown),
        "n_forgotten": len(known) - len(sites),
        "never_together": [" and ".join(pair) for pair in together],
    }


def _row(run: ReportedRun, name: str, sites: dict[str, int], counts: dict[str, dict[str, int]]) -> dict[str, Any]:
    absent_at = {site for site in sites if {*run.plan.dictionary.present([name]), name} & {*run.plan.absent.of(site)}}
    cells: list[dict[str, Any]] = []
    for site, n in sites.items():
        count = counts.get(site, {}).get(name)  # None: the site was not there, or the variable is not in the result
        share = float(site not in absent_at) if count is None else count / n
        cells.append({"site": site, "rows": count, "share": share, "of": n})
    told = [cell["rows"] for cell in cells if cell["rows"] is not None]
    total = sum(told) if len(told) == len(sites) else None
    return {"name": name, "cells": cells, "rows": total, "of": sum(sites.values())}
