"""What result.json says of variables whose parents were found by counts: conditional probability tables."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedbnsl.graphs.contingency import VariableSet, cells_of, levels_of
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.inference.heterogeneity import chi_square_tails
from fedbnsl_server.inference.table_agreement import agreement_of
from fedbnsl_server.search.counts.climb import parents_of
from fedbnsl_server.search.counts.redrawn import conditional, counts_given
from fedbnsl_server.search.counts.tables import PooledTables

FEW_RECORDS = 10
"""Probabilities that rest on fewer are shown as hardly known."""


def categories_of(state: AdmmState | None, plan: Plan, columns: tuple[str, ...]) -> dict[str, Any] | None:
    """By variable its parents and levels, and a row for each combination of the parents' levels that has records.

    Of one that has parents also whether sites agree. None: the graph is not by counts.

    Parameters
    ----------
    columns
        d names, of all columns of the run.
    """
    if state is None or state.counted is None or not state.counted.decides or state.confidence is None:
        return None
    of_run, counted = plan.columns(columns), state.counted
    levels, names = levels_of(of_run, plan.dictionary), of_run.variables
    tables = PooledTables(counted, levels)
    of_sites = [PooledTables(replace(counted, told={site: told}), levels) for site, told in counted.told.items()]
    entries = [plan.dictionary[name].levels for name in names]
    found: dict[str, Any] = {}
    for x, name in enumerate(names):
        parents = parents_of(counted.dag, x)
        records, probabilities = conditional(tables, x, parents)
        given = np.unravel_index(np.arange(cells_of(parents, levels)), tuple(levels[list(parents)])) if parents else ()
        found[name] = {
            "parents": [names[p] for p in parents],
            "levels": list(entries[x]),
            "rows": [
                {
                    "given": [entries[p][int(codes[k])] for p, codes in zip(parents, given, strict=True)],
                    "records": round(float(records[k]), 2),
                    "probabilities": [round(float(p), 6) for p in probabilities[k]],
                }
                for k in np.flatnonzero(records).tolist()
            ],
            "agreement": _agreement(of_sites, x, parents) if parents else None,
        }
    return found


def _agreement(of_sites: Sequence[PooledTables], x: int, parents: VariableSet) -> dict[str, Any] | None:
    """Whether sites agree on a variable given its parents; None: records are too few to tell."""
    q, degrees = agreement_of([counts_given(tables, x, parents) for tables in of_sites])
    p = chi_square_tails(np.array([q]), np.array([degrees])) if degrees else None
    return None if p is None else {"q": q, "degrees": degrees, "p": float(p[0])}
