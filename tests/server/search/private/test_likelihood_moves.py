"""Moves between DAGs by the likelihood of noisy releases: what they estimate, where they end, and what they obey."""

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.private import likelihood_moves
from fedbnsl_server.search.private.likelihood_moves import improved, losses, with_edges_reversed, with_one_more
from fedbnsl_server.search.private.released_likelihood import Fit, ReleasedLikelihood
from fedbnsl_server.search.progress import Progress
from noisy_releases import DAG, D, V, W, likelihood, mask, moments, release


def noisy(of: EdgeMask | None = None) -> ReleasedLikelihood:
    S = moments(W, V)
    return likelihood(release(S, std=0.01, seed=1, c=0.9), release(S, std=0.02, seed=2), of=of)


def without(i: int, j: int) -> Mask:
    dag = DAG.copy()
    dag[i, j] = False
    return dag


def with_edge(i: int, j: int) -> Mask:
    dag = DAG.copy()
    dag[i, j] = True
    return dag


def test_losses_and_gains_say_about_what_a_refit_says() -> None:
    given = noisy()
    richer = given.explained(with_edge(1, 4), W, V)
    expected = given.explained(DAG, W, V).nll - richer.nll
    assert losses(given, richer)[1, 4] == pytest.approx(expected, rel=0.05, abs=0.05)
    poorer = given.explained(without(1, 2), W, V)
    assert given.gains(poorer)[1, 2] > given.penalty


def test_a_graph_beyond_use_is_left_as_it_is() -> None:
    given = likelihood(release(moments(W, V), std=0.01, seed=1), fixed=True)
    beyond = given.explained(DAG, W, V, target=-1e9)
    assert beyond.score == np.inf
    assert with_edges_reversed(given, beyond, among=given.reversible) is beyond


def test_which_edges_are_tried_is_asked_again_after_each_turn() -> None:
    given = likelihood(release(moments(W, np.eye(D)), std=0.01, seed=1), fixed=True)
    wrong = DAG.copy()
    wrong[0, 1], wrong[1, 0], wrong[3, 4], wrong[4, 3] = False, True, False, True
    start, asked = given.explained(wrong, np.where(wrong, 0.5, 0.0), np.eye(D)), list[Mask]()

    def among(found: Fit) -> Mask:
        asked.append(found.dag)
        return found.dag

    end = with_edges_reversed(given, start, among=among)
    assert (end.dag == DAG).all()
    assert len(asked) >= 2
    assert any((dag == end.dag).all() for dag in asked)


def test_gains_know_how_scales_follow() -> None:
    S = moments(W, np.eye(D))
    given = likelihood(release(S, std=0.01, seed=1, c=0.9), release(S, std=0.02, seed=2, c=0.5), fixed=True)
    poorer = given.explained(without(1, 2), W, np.eye(D))
    expected = poorer.nll - given.explained(DAG, W, np.eye(D)).nll
    assert given.gains(poorer)[1, 2] == pytest.approx(expected, rel=0.15)


def test_progress_tells_how_few_edges_that_do_not_pay_are_left() -> None:
    class Told(Progress):
        def at(self, share: float) -> None:
            shares.append(share)
            super().at(share)

    shares: list[float] = []
    given = noisy()
    start = given.explained(with_edge(1, 4) | with_edge(0, 4) | with_edge(1, 3), W, V)
    improved(given, start, progress=Told())
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    assert shares == sorted(shares)


def test_a_move_adds_what_is_missing_and_drops_what_is_not_there() -> None:
    given = noisy()
    best = given.explained(DAG, W, V)
    for dag in (with_edge(0, 3) & without(1, 2), with_edge(1, 4) | with_edge(0, 4), without(0, 1), without(3, 4)):
        found = improved(given, given.explained(dag, W, V))
        assert class_distance(cpdag(found.dag), cpdag(DAG)) == 0 or found.score < best.score
    assert (improved(given, best).dag == DAG).all()


def test_moves_obey_knowledge() -> None:
    of = mask(forbidden=(("a", "b"), ("b", "a")), required=(("b", "e"),))
    given = noisy(of)
    start = without(0, 1)
    start[1, 4] = True
    found = improved(given, given.explained(start, W, V))
    assert found.dag[1, 4]
    assert not found.dag[0, 1]
    assert not found.dag[1, 0]


def test_an_edge_that_promises_most_and_closes_a_cycle_is_not_added() -> None:
    given = noisy(mask(forbidden=(("a", "c"),)))
    start = given.explained(without(0, 2), W, V)
    promised = given.gains(start)
    assert np.unravel_index(promised.argmax(), promised.shape) == (2, 0)
    found = with_one_more(given, start)
    assert found is None or is_acyclic(found.dag)


def test_few_edges_that_promise_much_and_do_not_help_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    given = noisy()
    start = given.explained(np.zeros((D, D), dtype=bool), W, V)
    tried: list[Mask] = []

    def explained(dag: Mask, *_: Matrix, steps: int, target: float) -> Fit:
        tried.append(dag)
        return start

    monkeypatch.setattr(given, "explained", explained)
    assert with_one_more(given, start) is None
    assert len(tried) == 3
    assert len({dag.tobytes() for dag in tried}) == 3


def test_noise_alone_is_explained_without_edges() -> None:
    nothing = np.zeros((D, D), dtype=bool)
    given = likelihood(release(np.eye(D), std=0.3, seed=8), release(np.eye(D), std=0.3, seed=9))
    empty: Fit = given.explained(nothing, np.zeros((D, D)), np.eye(D))
    assert np.isfinite(empty.score)
    assert (empty.covariance.diagonal() > 0.0).all()
    assert not improved(given, empty).dag.any()


EQUAL = np.eye(D)


def equal_noise() -> ReleasedLikelihood:
    S = moments(W, EQUAL)
    return likelihood(release(S, std=0.01, seed=1, c=0.9), release(S, std=0.02, seed=2), fixed=True)


@pytest.mark.parametrize("edge", [(1, 2), (3, 2)])
def test_wrong_directions_are_turned_where_single_moves_leave_them(edge: tuple[int, int]) -> None:
    """Known noise variances tell them; single edges that mend a wrong one in part are in the way."""
    given, (i, j) = equal_noise(), edge
    dag = without(i, j)
    dag[j, i] = True
    stuck = improved(given, given.explained(dag, np.where(dag, W + W.T, 0.0), EQUAL))
    assert not (stuck.dag == DAG).all()
    found = with_edges_reversed(given, stuck)
    assert (found.dag == DAG).all()
    assert found.score < stuck.score - 10.0


@pytest.mark.parametrize("forbidden", [(), (("a", "d"),)])
def test_an_edge_is_reversed_with_the_parents_of_both_ends_that_may_be(
    forbidden: tuple[tuple[str, str], ...],
) -> None:
    """a -> d <- b, d -> e; in the wrong graph a and b are parents of e, and d has none but e."""
    truth, wrong = np.zeros((D, D)), np.zeros((D, D), dtype=bool)
    truth[[0, 1, 3], [3, 3, 4]] = 0.1, -0.7, 0.9
    wrong[[0, 1, 4], [4, 4, 3]] = True
    given = likelihood(release(moments(truth, EQUAL), std=0.01, seed=3), of=mask(forbidden=forbidden), fixed=True)
    start = given.explained(wrong, np.where(wrong, 0.5, 0.0), EQUAL)
    around = likelihood_moves._with_reversed(given, start, 4, 3)
    assert around is not None
    assert around.nll < start.nll
    every = [[0, 3], [0, 4], [1, 3], [1, 4], [3, 4]]
    assert np.argwhere(around.dag).tolist() == (every[1:] if forbidden else every)


def test_turns_obey_knowledge_and_keep_graphs_acyclic() -> None:
    of = mask(forbidden=(("a", "b"),), required=(("e", "d"),))
    S = moments(W, EQUAL)
    given = likelihood(release(S, std=0.01, seed=1), of=of, fixed=True)
    dag = without(0, 1) & without(3, 4)
    dag[1, 0] = dag[4, 3] = True
    found = with_edges_reversed(given, given.explained(dag, np.where(dag, W + W.T, 0.0), EQUAL))
    assert found.dag[4, 3]
    assert not found.dag[0, 1]
    assert is_acyclic(found.dag)


def test_residual_covariances_that_are_fixed_stay_in_proportion() -> None:
    S, told = moments(W, V), 3.0 * V
    given = likelihood(release(S, std=1e-3, seed=1), fixed=True)
    found = given.explained(DAG, 0.8 * W, told, steps=30)
    ratio = found.covariance.diagonal() / V.diagonal()
    assert ratio == pytest.approx(np.full(D, ratio[0]))
    assert ratio[0] == pytest.approx(1.0, rel=1e-2)
    assert found.weights == pytest.approx(W, abs=1e-2)


def test_a_search_that_is_told_that_it_is_enough_ends_with_what_it_has() -> None:
    S = moments(W, V)
    given = likelihood(release(S, std=0.01, seed=1))
    poor = given.explained(np.zeros((D, D), dtype=bool), np.zeros((D, D)), np.diag(S.diagonal()))
    progress = Progress()
    assert improved(given, poor, progress=progress).score < poor.score - 1.0
    progress.enough()
    assert improved(given, poor, progress=progress) is poor
    assert with_edges_reversed(given, poor, progress=progress) is poor
