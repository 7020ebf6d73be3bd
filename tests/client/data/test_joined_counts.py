"""What workers count of parts of a table, joined in order, is what one pass over the whole table counts."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.cell_problems import CellProblems
from fedbnsl_client.data.dataset import TablePass
from fedbnsl_client.data.reading import NO_DICTIONARY, Reading

NAMES = ("a", "b", "c", "d")
DESCRIBED = Dictionary.model_validate(
    {
        "a": {"range": [-1, 1]},
        "b": {"kind": "count"},
        "c": {"kind": "nominal", "levels": ["0", "1", "2"]},
        "d": {"transform": "log"},
    }
)


def outcome(table: TablePass) -> tuple[object, ...]:
    try:
        odd: object = table.odd()
    except DataError as error:
        odd = (str(error), error.remedy)
    return odd, table.gaps


def whole(X: Matrix, dictionary: Dictionary) -> TablePass:
    table = TablePass("here", NAMES, dictionary, min_rows=2)
    table.counted(X)
    return table


def joined(parts: Sequence[Matrix], dictionary: Dictionary) -> TablePass:
    table = TablePass("here", NAMES, dictionary, min_rows=2)
    for part in parts:
        table.join(whole(part, dictionary))
    return table


cells = st.sampled_from([0.0, -0.0, 1.0, 2.0, np.nan, 1.0, 2.0])
tables = st.lists(st.tuples(cells, cells, cells, cells), max_size=12).map(lambda rows: np.array(rows).reshape(-1, 4))


@given(tables, st.lists(st.integers(0, 12), max_size=3), st.sampled_from([NO_DICTIONARY, DESCRIBED]))
@example(np.array([[0.0, 0.0, 0.0, level] for level in (2, 1, 1, 1, 2, 2)]), [1], DESCRIBED)  # |mean of d| = its spread
@settings(max_examples=300, deadline=None)
@pytest.mark.long
def test_parts_of_a_table_join_to_what_the_whole_table_gives(
    X: Matrix, cuts: list[int], dictionary: Dictionary
) -> None:
    assert outcome(joined(np.split(X, sorted(min(cut, len(X)) for cut in cuts)), dictionary)) == outcome(
        whole(X, dictionary)
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda X: X[:, [0, 1, 2, 0]], "columns 'a' and 'd': equal in all 40 rows"),
        (lambda X: np.column_stack([X[:, :3], np.r_[X[:20, 0], X[20:, 1]]]), ""),  # equal in one part alone
        (lambda X: np.column_stack([X[:, :3], np.full(40, 7.0)]), "column 'd': the same value in all 40 rows"),
        (lambda X: np.column_stack([X[:, :3], np.repeat([7.0, 8.0], 20)]), "column 'd': 2 whole values"),
        (lambda X: X + 10.0, "means further from zero"),
        (lambda X: np.where(np.arange(40)[:, None] % 13 == 12, np.inf, X), "(data rows 13, 26, 39)"),
    ],
)
def test_what_only_all_parts_together_show_is_found(make: object, said: str) -> None:
    X = make(np.random.default_rng(1).standard_normal((40, 4)))  # type: ignore[operator]
    assert outcome(joined([X[:20], X[20:]], NO_DICTIONARY)) == outcome(whole(X, NO_DICTIONARY))
    found = str(outcome(joined([X[:20], X[20:]], NO_DICTIONARY))[0])
    assert said in found
    assert said or found == "()"


def test_cells_that_cannot_be_read_are_counted_with_the_rows_of_the_whole_table() -> None:
    levels = Reading(codes={"x": 0.0})
    first, second = (CellProblems(NAMES, "data row") for _ in range(2))
    first.add(2, levels, [3], ["p"])
    second.add(2, levels, [1, 2, 4], ["q", "p", "r"])
    second.add(0, Reading(), [2], ["s"])
    first.join(second, 10)
    assert first.lines() == [
        "column 'a': 1 row(s) are not numbers (data row 12)",
        "column 'c': 4 row(s) are no level of the data dictionary, such as 'p', 'q', 'r' (data rows 3, 11, 12, ...)",
    ]
