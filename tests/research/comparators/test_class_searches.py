"""The adapters of FLOP, BOSS, GES and FCI: marks of a known graph, penalties in one unit, what they leave alone."""

import math
import random
from itertools import combinations

import numpy as np
import pytest

from fedbnsl.errors import SetupError
from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.graphs.pag import ARROW, CIRCLE, NONE, TAIL
from fedbnsl_research.comparators import causal_learn_adapter, flop_adapter
from fedbnsl_research.comparators.causal_learn_adapter import boss, causal_learn_installed, fci, ges
from fedbnsl_research.comparators.class_searches import CLASS_SEARCHES, rows_centred_by_site
from fedbnsl_research.comparators.flop_adapter import flop, flop_installed
from moment_rows import gaussian_score, rows_with_moments

needs_peers = pytest.mark.skipif(
    not (flop_installed() and causal_learn_installed()), reason="needs flopsearch and causal-learn (extra `compare`)"
)

# a -> c <- b, c -> d, e - f: two edges of a collider, one that it directs, and one that nothing directs.
GRAPH = np.zeros((6, 6), dtype=bool)
for i, j in ((0, 2), (1, 2), (2, 3), (4, 5)):
    GRAPH[i, j] = True


def rows(n: int, seed: int = 0) -> np.ndarray:
    X = np.random.default_rng(seed).normal(size=(n, 6)) * [1.0, 3.0, 0.5, 2.0, 1.0, 0.2]
    for j in range(6):
        X[:, j] += X @ (0.9 * GRAPH[:, j])
    return X - X.mean(axis=0)


@needs_peers
@pytest.mark.parametrize("search", [flop, boss, ges])
def test_a_search_finds_the_class_of_a_small_graph_and_leaves_everything_else_alone(search, capfd) -> None:
    X = rows(3000)
    given, states = X.copy(), (random.getstate(), np.random.get_state()[1].copy())
    marks = search(X)
    by_hand = GRAPH.copy()
    by_hand[5, 4] = True
    assert marks.dtype == bool
    np.testing.assert_array_equal(marks, by_hand)
    assert (given == X).all()
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()
    assert capfd.readouterr() == ("", "")


@needs_peers
@pytest.mark.parametrize("search", [flop, boss, ges])
def test_an_edge_is_found_from_the_gain_on_that_its_penalty_asks_for(search) -> None:
    """Of two columns with correlation r, the edge lowers n/2 log(v) by -n/2 log(1 - r^2)."""
    r = 0.6
    X = rows_with_moments(np.array([[1.0, r], [r, 1.0]]))
    gain = -0.5 * len(X) * math.log(1.0 - r**2)
    assert search(X, penalty=0.98 * gain).any()
    assert not search(X, penalty=1.02 * gain).any()


@needs_peers
def test_without_a_penalty_a_search_takes_that_of_its_package() -> None:
    """BIC's penalty is log(n) / 2; a correlation is chosen between the gains that two strengths ask for."""
    for search, times_bic in ((flop, 2.0), (boss, 4.0), (ges, 1.0)):
        for factor, found in ((0.95, False), (1.05, True)):
            n = 4 * 50
            gain = factor * times_bic * math.log(n) / 2.0
            R = np.eye(50)
            R[0, 1] = R[1, 0] = math.sqrt(1.0 - math.exp(-2.0 * gain / n))
            assert search(rows_with_moments(R)).any() == found, search.__name__


def test_rows_have_the_moments_that_they_stand_for_and_no_means() -> None:
    A = np.random.default_rng(3).normal(size=(7, 7))
    R = A @ A.T + 0.1 * np.eye(7)
    X = rows_with_moments(R)
    assert X.shape == (28, 7)
    np.testing.assert_allclose(X.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(X.T @ X / 28, R, atol=1e-12)


def test_the_score_is_that_of_regressions_on_rows_and_the_same_for_all_members_of_a_class() -> None:
    X = rows(200)
    R = X.T @ X / len(X)
    residuals = [X[:, j] - X[:, p] @ np.linalg.lstsq(X[:, p], X[:, j])[0] for j, p in enumerate(GRAPH.T)]
    by_rows = sum(100.0 * math.log(float(e @ e) / 200) for e in residuals) + 7.0 * 4
    assert gaussian_score(R, GRAPH, n_samples=200, penalty=7.0) == pytest.approx(by_rows, rel=1e-12)
    scores = {}
    for i, j in combinations(range(6), 2):
        if GRAPH[i, j]:
            turned = GRAPH.copy()
            turned[i, j], turned[j, i] = False, True
            scores[i, j] = (turned, gaussian_score(R, turned, n_samples=200, penalty=7.0))
    same = {edge for edge, (turned, _) in scores.items() if (cpdag(turned) == cpdag(GRAPH)).all()}
    assert same == {(4, 5)}
    assert {edge for edge, (_, value) in scores.items() if value == pytest.approx(by_rows, rel=1e-12)} == same


def test_rows_of_sites_lose_the_means_of_their_own_site() -> None:
    tables = [np.array([[1.0, 2.0], [3.0, 2.0]]), np.array([[10.0, 0.0], [10.0, 4.0]])]
    np.testing.assert_array_equal(rows_centred_by_site(tables), [[-1, 0], [1, 0], [0, -2], [0, 2]])


def test_a_search_that_is_not_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    of_causal_learn = [(causal_learn_adapter, search) for search in (boss, ges, fci)]
    for adapter, search in ((flop_adapter, flop), *of_causal_learn):
        monkeypatch.setattr(adapter.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(SetupError, match="not installed") as caught:
            search(rows(10))
        assert "pip install" in caught.value.remedy
    assert CLASS_SEARCHES["FLOP"].not_run(5) == "not run (flopsearch is not installed)"
    monkeypatch.undo()
    if causal_learn_installed():
        assert CLASS_SEARCHES["GES"].not_run(100) == ""
        assert CLASS_SEARCHES["GES"].not_run(101) == "not run (slow)"


@pytest.mark.skipif(not causal_learn_installed(), reason="needs causal-learn")
def test_marks_of_fci_stand_at_the_ends_that_they_are_about():
    rng = np.random.default_rng(3)
    a, b, c, d = rng.standard_normal((4, 4000))
    c += a + b
    found = fci(np.column_stack([a, b, c, c + d]))
    assert found.tolist() == [
        [NONE, NONE, ARROW, NONE],
        [NONE, NONE, ARROW, NONE],
        [CIRCLE, CIRCLE, NONE, ARROW],
        [NONE, NONE, TAIL, NONE],
    ]
