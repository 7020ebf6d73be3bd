"""Tables of the sites together: which sites count, margins, and what is drawn from a network."""

import numpy as np
import pytest

from fedbnsl_server.search.counts.redrawn import Records, Redrawn
from fedbnsl_server.search.counts.tables import Counted, PooledTables, SiteTables

LEVELS = np.array([2, 3])
NONE = np.zeros((2, 2), dtype=bool)


def of(table: list[list[int]]) -> SiteTables:
    """What a site sends of the set of both variables."""
    cells = np.array(table).ravel()
    there = np.flatnonzero(cells)
    return SiteTables(np.array([there.size]), there, cells[there])


ONE, OTHER = of([[1, 0, 2], [0, 0, 4]]), of([[0, 3, 0], [1, 1, 0]])


def test_the_table_of_all_sites_is_the_sum() -> None:
    tables = PooledTables(Counted(NONE).with_answers(((0, 1),), {"a": ONE, "b": OTHER}), LEVELS)
    found = tables.table((0, 1))
    assert found is not None
    assert found.tolist() == [[1, 3, 2], [1, 1, 4]]
    assert tables.n_samples == 12


def test_a_smaller_set_is_the_margin_of_a_larger_one() -> None:
    counted = Counted(NONE).with_answers(((0, 1),), {"a": ONE, "b": OTHER})
    found = PooledTables(counted, LEVELS).table((1,))
    assert found is not None
    assert found.tolist() == [2, 4, 6]
    assert PooledTables(counted, LEVELS).table((0, 2)) is None


def test_a_site_that_missed_a_round_counts_in_no_table() -> None:
    first = Counted(NONE).with_answers(((0, 1),), {"a": ONE, "b": OTHER})
    alone = SiteTables(np.array([2]), np.array([0, 1]), np.array([3, 4]))
    for late in ({"a": alone}, {"a": alone, "new": alone}):
        found = PooledTables(first.with_answers(((0,),), late), LEVELS)
        both = found.table((0, 1))
        assert list(found.counted.told) == ["a"]
        assert both is not None
        assert both.sum() == 7


def test_where_every_site_missed_a_round_only_the_last_one_counts() -> None:
    found = Counted(NONE).with_answers(((0, 1),), {"a": ONE}).with_answers(((0,),), {"b": OTHER})
    assert (found.sets, list(found.told)) == (((0,),), ["b"])


def test_a_set_that_one_site_withholds_is_not_known_nor_is_one_that_holds_it() -> None:
    """Nor does a withheld table give margins, of the sites that sent it alone."""
    levels, sets = np.array([2, 3, 2]), ((1,), (0, 1), (2,), (0, 2))
    nothing = np.empty(0, dtype=np.int64)
    one = SiteTables(np.array([1, 1, 1, 1]), np.zeros(4, np.int64), np.full(4, 9))
    other = SiteTables(np.array([1, 0, 1, 0]), np.zeros(2, np.int64), np.full(2, 5))
    counted = Counted(NONE).with_answers(sets, {"a": one, "b": other})
    tables = PooledTables(counted, levels)
    assert [tables.is_withheld(s) for s in [(0, 1), (0, 1, 2), (1,), (0,), (1, 2)]] == [True, True, False, False, False]
    assert tables.table((0, 1)) is None
    assert tables.table((0,)) is None
    found = tables.table((1,))
    assert found is not None
    assert found.tolist() == [14, 0, 0]
    assert tables.n_samples == 14
    assert counted.withheld == {"b": {(0, 1), (0, 2)}}
    silent = SiteTables(np.zeros(4, np.int64), nothing, nothing)
    assert PooledTables(Counted(NONE).with_answers(sets, {"a": one, "b": silent}), levels).n_samples == 9


def test_draws_have_the_conditional_probabilities_of_the_tables() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2, 4000)
    y = np.where(rng.random(4000) < 0.9, x, 2)
    source, dag = Records([x, y], LEVELS), np.array([[False, True], [False, False]])
    drawn = Redrawn(source, LEVELS, dag, dag | dag.T, NONE).records(np.random.default_rng(2))
    assert drawn.n_samples == 4000
    before, after = source.table((0, 1)), drawn.table((0, 1))
    assert after == pytest.approx(before, abs=4 * np.sqrt(4000 / 4))
    assert after[0, 1] == after[1, 0] == 0.0
