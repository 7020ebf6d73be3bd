"""Combinations of levels that few records have, which the rule `least_cell` of a site's policy protects.

A missing value counts as a level; of a number only whether it is missing. Numbers themselves are no counts.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import PolicyRefusal
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.data.mapped_array import RowsElsewhere, sum_over_rows


def refuse_small_cells(X: Matrix | RowsElsewhere, columns: Columns, plan: Plan, least_cell: int) -> None:
    """Refuse a plan without privacy whose sums would tell smaller counts than `least_cell` of an (n, d) table.

    Raises PolicyRefusal with the variables, which stay at the site.
    """
    if plan.privacy is not None or least_cell < 2:
        return
    if small := small_pairs(X, columns, plan.dictionary, least_cell):
        named = first_few(" and ".join(map(repr, one)) for one in small)
        raise PolicyRefusal(
            f"rule `least_cell` = {least_cell}: without privacy, means and products of columns tell how many rows "
            f"have each level, or lack a value, and each two of these; fewer than {least_cell} rows have some of "
            f"{named}",
            remedy="No value of the table was sent. Use a private plan; or leave these variables out (--columns), or "
            "merge rare levels in the consortium's dictionary. Or have the site's owner say allow_small_pairs = true "
            "in policy.toml: then sums may tell smaller counts of single levels and of pairs of them, and none of "
            "more variables.",
        )


def small_pairs(
    X: Matrix | RowsElsewhere, columns: Columns, dictionary: Dictionary, least_cell: int
) -> list[tuple[str, ...]]:
    """Variables and pairs of them of which 1 to least_cell - 1 rows of an (n, d) table have some levels."""
    n_levels = _n_levels(columns, dictionary)
    of_level = np.repeat(np.arange(len(n_levels)), n_levels)
    counts = sum_over_rows(X, partial(_pair_counts, columns=columns, dictionary=dictionary))
    small = {
        tuple(sorted((int(of_level[a]), int(of_level[b]))))
        for a, b in np.argwhere((counts > 0.0) & (counts < least_cell)).tolist()
    }
    return [tuple(columns.variables[v] for v in dict.fromkeys(pair)) for pair in sorted(small)]


def has_small_cell(
    X: Matrix | RowsElsewhere, columns: Columns, dictionary: Dictionary, variables: Sequence[int], least_cell: int
) -> bool:
    """Whether 1 to least_cell - 1 rows have some combination of levels of these variables."""
    count = partial(_cells, columns=columns, dictionary=dictionary, sets=[variables])
    return _has_small(sum_over_rows(X, count)[0], least_cell)


def small_beside_gaps(
    X: Matrix | RowsElsewhere,
    columns: Columns,
    dictionary: Dictionary,
    sets: Sequence[Sequence[int]],
    least_cell: int,
) -> Mask:
    """(S,) whether 1 to least_cell - 1 of the rows with a gap have some combination of levels of a set of variables.

    Sums over the rows that have some variables, and counts of those without any gap, tell such numbers together.
    """

    def count(block: Matrix) -> Matrix:
        return _cells(block[np.isnan(block).any(axis=1)], columns=columns, dictionary=dictionary, sets=sets)

    return np.array([_has_small(cells, least_cell) for cells in sum_over_rows(X, count)], dtype=bool)


def _levels_in(block: Matrix, columns: Columns, dictionary: Dictionary) -> Index:
    """(n, V) the level of each variable; one more than the last where it is missing, and 0 of a number."""
    found = np.zeros((len(block), len(columns.variables)), dtype=np.int64)
    for v, (own, n) in enumerate(zip(columns.members(), _n_levels(columns, dictionary).tolist(), strict=True)):
        gaps = np.isnan(block[:, own[0]])
        if n > 2:
            level = np.where(gaps[:, None], 0.0, block[:, own]) @ np.arange(1.0, len(own) + 1.0)
            found[:, v] = np.clip(np.rint(level), 0, n - 2)  # within groups, deviations are no levels
        found[gaps, v] = n - 1
    return found


def _pair_counts(block: Matrix, *, columns: Columns, dictionary: Dictionary) -> Matrix:
    n_levels = _n_levels(columns, dictionary)
    there = _levels_in(block, columns, dictionary) + np.cumsum(n_levels) - n_levels
    indicators = np.zeros((len(block), int(n_levels.sum())))
    np.put_along_axis(indicators, there, 1.0, axis=1)
    return np.asarray(indicators.T @ indicators)


def _has_small(cells: Counter[tuple[int, ...]], least_cell: int) -> bool:
    return any(n < least_cell for n in cells.values())


def _cells(block: Matrix, *, columns: Columns, dictionary: Dictionary, sets: Sequence[Sequence[int]]) -> Matrix:
    levels = _levels_in(block, columns, dictionary)
    found = np.empty(len(sets), dtype=object)  # `Counter`s add up
    for k, variables in enumerate(sets):
        cells, counts = np.unique(levels[:, list(variables)], axis=0, return_counts=True)
        rows: list[list[int]] = cells.tolist()
        found[k] = Counter({tuple(row): int(n) for row, n in zip(rows, counts, strict=True)})
    return found


def _n_levels(columns: Columns, dictionary: Dictionary) -> Index:
    """(V,) with one for a missing value."""
    own = [len(dictionary[name].levels) if name in dictionary else 0 for name in columns.variables]
    return np.array([max(n, 1) + 1 for n in own], dtype=np.int64)
