"""Which columns cost the rows: found greedily, never more than are needed one by one."""

from itertools import combinations

import numpy as np
import pytest

from fedbnsl_client.data.cell_forms import form_of, is_mark
from fedbnsl_client.data.costly_columns import costly_columns, patterns


def complete(lacking, out):
    """By plain counting."""
    kept = [k for k in range(lacking.shape[1]) if k not in out]
    return sum(not any(row[k] for k in kept) for row in lacking)


@pytest.mark.parametrize("seed", range(8))
def test_leaving_the_columns_out_gives_the_rows_and_each_of_them_is_needed(seed):
    drawn = np.random.default_rng(seed)
    lacking = drawn.random((60, 7)) < drawn.uniform(0.0, 0.5, 7)
    needed = 30
    out = costly_columns(*patterns(lacking), needed)
    assert complete(lacking, out) >= needed
    for k in out:
        assert complete(lacking, [one for one in out if one != k]) < needed
    fewest = min(n for n in range(8) if any(complete(lacking, few) >= needed for few in combinations(range(7), n)))
    assert fewest <= len(out) <= fewest + 1


def test_the_costliest_column_comes_back_where_others_alone_give_the_rows():
    """Column 0 is missing in most rows, always with column 2 or 3, so that leaving it out alone completes none."""
    lacking = np.zeros((20, 4), dtype=bool)
    lacking[:6, 0] = lacking[:3, 2] = lacking[3:6, 3] = lacking[6:10, 1] = True
    assert costly_columns(*patterns(lacking), 14) == [1]


def test_patterns_count_every_row():
    lacking = np.random.default_rng(1).random((50, 11)) < 0.2
    flags, counts = patterns(lacking)
    again = {tuple(flag): int(n) for flag, n in zip(flags.tolist(), counts, strict=True)}
    assert again == {row: lacking.tolist().count(list(row)) for row in map(tuple, lacking.tolist())}


@pytest.mark.parametrize(
    ("cell", "form"),
    [
        ("?", "mark"), ("N/A", "mark"), ("Not known", "mark"), ("2024-03-01", "date"), ("1.3.24 10:20", "date"),
        ("03-Mar-2020", "date"), ("08:15", "date"), ("12,5", "decimal comma"), ("1.234,50", "decimal comma"),
        ("<0.1", "limit"), (">= 40", "limit"), ("12 mg", "number and text"), ("5%", "number and text"),
        ("high", "word"), ("1st-4th", "word"), ("A-1", "word"),
    ],
)  # fmt: skip
def test_cells_that_are_no_numbers_are_told_apart(cell, form):
    assert form_of(cell) == form


def test_a_minus_or_none_may_be_a_result_among_words():
    assert [is_mark(cell, among_words=True) for cell in ("-", "None", "unknown", "*")] == [False, False, True, True]
    assert is_mark("-", among_words=False)
