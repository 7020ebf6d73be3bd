"""Scores of classes, against scoring every member by itself."""

import numpy as np
import pytest

from all_members import all_members, random_dag, random_knowledge
from fedbnsl.errors import ResultError
from fedbnsl.graphs.cpdag import class_of, cpdag
from fedbnsl_workbench.scoring import class_scores as scoring
from fedbnsl_workbench.scoring.class_scores import Known, class_scores, random_class_shd, sid_interval
from fedbnsl_workbench.scoring.reference import read_reference
from fedbnsl_workbench.scoring.structural_intervention import sid


@pytest.mark.parametrize("seed", range(40))
def test_the_interval_of_the_sid_is_that_of_all_members(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dag, reference = random_dag(6, 0.4, rng), random_dag(6, 0.4, rng)
    allowed, required = random_knowledge(dag, rng)
    distances = [sid(member, reference) for member in all_members(dag, allowed, required)]
    marks = class_of(dag, allowed, required)
    assert sid_interval(marks, reference) == (min(distances), max(distances), True)


def test_a_class_with_too_many_members_has_an_interval_that_holds_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    reference = random_dag(5, 0.5, rng)
    complete = np.triu(np.ones((5, 5), dtype=bool), k=1)
    least, most, exact = sid_interval(complete | complete.T, reference)
    assert exact
    monkeypatch.setattr(scoring, "_MOST_DIRECTIONS", 100)
    low, high, still = sid_interval(complete | complete.T, reference)
    assert not still
    assert 0 <= low <= least <= most <= high
    monkeypatch.setattr(scoring, "_MOST_DIRECTIONS", 15)
    assert sid_interval(complete | complete.T, reference) is None, "each variable has 16 sets of parents"


def test_scores_count_pairs_whose_mark_differs_and_adjacent_pairs() -> None:
    """a - b against a -> b, b -> c in both, c - e missing, d - e too many."""
    mine, true = np.zeros((2, 5, 5), dtype=bool)
    mine[[0, 1, 1, 3, 4], [1, 0, 2, 4, 3]] = True
    true[[0, 1, 2, 4], [1, 2, 4, 2]] = True
    scores = class_scores(mine, true)
    assert scores.shd == 3
    assert (scores.n_directed, scores.n_undirected) == (1, 2)
    assert (scores.n_reference_directed, scores.n_reference_undirected) == (2, 1)
    assert scores.skeleton_precision == scores.skeleton_recall == scores.skeleton_f1 == pytest.approx(2 / 3)


def test_equivalent_graphs_are_at_distance_zero_unless_knowledge_tells_them_apart() -> None:
    forth, back = np.zeros((2, 3, 3), dtype=bool)
    forth[[0, 1], [1, 2]] = back[[2, 1], [1, 0]] = True
    nothing = Known.nothing(3)
    assert class_scores(nothing.class_of(forth), nothing.class_of(back)).shd == 0
    known = Known(nothing.allowed, np.where(forth & [[True], [False], [False]], True, False))
    assert class_scores(known.class_of(forth), known.class_of(back)).shd == 2


def test_random_graphs_have_as_many_edges_and_their_classes_are_compared() -> None:
    empty = np.zeros((4, 4), dtype=bool)
    assert random_class_shd(empty, 5, Known.nothing(4), n_draws=7) == {"mean": 5.0, "std": 0.0}


def test_a_reference_with_undirected_edges_is_a_class(tmp_path) -> None:
    """a -> b <- c and c - d, which b does not touch."""
    path = tmp_path / "truth.csv"
    path.write_text("source,target,directed\na,b,1\nc,b,1\nc,d,0\n", encoding="utf-8")
    reference = read_reference(path, "abcd")
    marks = Known.nothing(4).class_of(reference.edges, reference.directed)
    assert np.argwhere(marks).tolist() == [[0, 1], [2, 1], [2, 3], [3, 2]]
    np.testing.assert_array_equal(cpdag(reference.edges), marks)


@pytest.mark.parametrize("rows", ["a,b,0\nb,c,0\nc,d,0\nd,a,0\n", "a,b,0\nb,a,1\n", "a,b,1\nb,a,1\nc,d,0\n"])
def test_a_reference_that_is_no_class_is_refused(tmp_path, rows: str) -> None:
    path = tmp_path / "truth.csv"
    path.write_text("source,target,directed\n" + rows, encoding="utf-8")
    with pytest.raises(ResultError, match=r"truth\.csv is no class of graphs"):
        read_reference(path, "abcd")
