"""What result.json says of values that are missing, and of how EM used the rows that have gaps."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.completion import LEAST_ROWS
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.algorithm.consensus_graph import never_together
from fedbnsl_server.inference.missing_values import differences_of_means
from fedbnsl_server.results.sentences import Note, note

# Chance that any mean differs where values are missing completely at random.
_LEVEL = 0.05


def gaps_of(state: AdmmState | None, plan: Plan, columns: Columns) -> dict[str, Any] | None:
    """Iterations of EM, and how many rows have a value, by site and variable; None: EM was not needed, or not used."""
    if state is None or state.completion is None or not state.completion.n_pairs:
        return None
    told, first = state.completion, [int(own[0]) for own in columns.members()]
    return {
        "iterations": told.iterations,
        "converged": told.has_converged,
        "known_share": told.known_share,
        "values": {
            site: dict(zip(columns.variables, n.diagonal()[first].astype(int).tolist(), strict=True))
            for site, n in told.n_pairs.items()
        },
        "never_together": [list(pair) for pair in _unknown(state, columns)],
        "complete_rows": sum(told.complete_rows.values()),
        "differ": _differing(told, plan, columns)[1],
    }


def complete_cases(state: AdmmState | None, plan: Plan, columns: Columns) -> list[Note]:
    """What the rows without a gap would have been; empty: every row is, or EM was not used."""
    if state is None or state.completion is None or not state.completion.n_pairs:
        return []
    told = state.completion
    tests, found = _differing(told, plan, columns)
    rows = sum(state.complete_rows[site] for site in told.n_pairs)
    numbers: dict[str, Any] = {"complete": sum(told.complete_rows.values()), "rows": rows}
    if not tests:
        return [note("complete_cases_untested", **numbers, groups=not plan.dictionary.rows.one_record_a_group)]
    if not found:
        return [note("complete_cases_alike", **numbers, tests=tests)]
    differ = [note("rows_differ", name=name, others=others) for name, others in found.items()]
    return [note("complete_cases_biased", **numbers, differ=differ)]


def _differing(told: Completion, plan: Plan, columns: Columns) -> tuple[int, dict[str, list[str]]]:
    """How many means were compared, and by variable in which others the rows without it differ, the surest first.

    Rows of a group are not independent: there nothing is compared.
    """
    if not plan.dictionary.rows.one_record_a_group:
        return 0, {}
    pairs, p = differences_of_means(told, columns, LEAST_ROWS)
    order, found, names = np.argsort(p, kind="stable"), dict[str, list[str]](), columns.variables
    differing: list[list[int]] = pairs[order[p[order] < _LEVEL]].tolist()
    for v, column in differing:
        others = found.setdefault(names[v], [])
        if (other := names[int(columns.variable_of[column])]) not in others:
            others.append(other)
    return len(p), found


def of_gaps(state: AdmmState, columns: Columns) -> Iterator[Note]:
    """Warn of pairs of variables that nothing is known about, and of EM that did not end."""
    told = state.completion
    if told is None or not told.n_pairs:
        return
    pairs = [f"{one} and {other}" for one, other in _unknown(state, columns)]
    if pairs:
        yield note("never_together", pairs=pairs, one=len(pairs) == 1)
    if told.done and not told.has_converged:
        yield note("not_converged", iterations=told.iterations, change=told.change)


def _unknown(state: AdmmState, columns: Columns) -> list[tuple[str, str]]:
    """Pairs of variables that no row has a value of both of."""
    found, names = never_together(state, columns), columns.variables
    pairs: list[list[int]] = [] if found is None else np.argwhere(np.triu(found, k=1)).tolist()
    return [(names[i], names[j]) for i, j in pairs]
