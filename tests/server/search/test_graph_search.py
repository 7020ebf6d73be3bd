"""The search for the DAG of least score: finds the truth, reads few moments, keeps to what is known."""

import numpy as np
import pytest

from fedbnsl.graphs.family_moments import needed_moments
from fedbnsl.graphs.graph import is_acyclic, topological_order
from fedbnsl.sparse import Mask, Matrix
from fedbnsl_server.search.families import Families
from fedbnsl_server.search.graph_search import (
    FoundGraph,
    _least_variance_order,  # pyright: ignore[reportPrivateUsage]
    search,
)
from fedbnsl_server.search.hill_climb import Loss, _Moves, descend, leads  # pyright: ignore[reportPrivateUsage]

N_SAMPLES = 5000


def random_dag(d: int, seed: int, *, share: float = 0.2) -> Matrix:
    """(d, d) weights of absolute value between 0.5 and 2, in a random order of the variables."""
    rng = np.random.default_rng(seed)
    edges = np.triu(rng.random((d, d)) < share, k=1)
    W = np.where(edges, rng.uniform(0.5, 2.0, (d, d)) * rng.choice([-1.0, 1.0], (d, d)), 0.0)
    order = rng.permutation(d)
    return W[np.ix_(order, order)]


def exact_moments(W: Matrix, noise_variance: float = 1.0) -> Matrix:
    """Second moments that rows of the network have in the limit."""
    mixing = np.linalg.inv(np.eye(len(W)) - W)
    return noise_variance * mixing.T @ mixing


def empty(d: int) -> Mask:
    return np.zeros((d, d), dtype=bool)


def everything(d: int) -> Mask:
    return ~np.eye(d, dtype=bool)


def found(
    moments: list[Matrix],
    candidates: Mask,
    *,
    start: Mask | None = None,
    allowed: Mask | None = None,
    required: Mask | None = None,
    threshold: float = 0.3,
    ridge: float = 1e-9,
) -> FoundGraph:
    """A search over moments that are not a number wherever they should not be read."""
    nothing = empty(len(candidates))
    required = nothing if required is None else required
    known = needed_moments(candidates)
    known |= known.T
    return search(
        [np.where(known, S, np.nan) for S in moments],
        starts=[required if start is None else start],
        candidates=candidates,
        allowed=everything(len(candidates)) if allowed is None else allowed,
        required=required,
        n_samples=N_SAMPLES,
        threshold=threshold,
        ridge=ridge,
    )


def literal_residual_variance(S: Matrix, j: int, parents: list[int]) -> float:
    if not parents:
        return float(S[j, j])
    b = S[parents, j]
    return float(S[j, j] - b @ np.linalg.solve(S[np.ix_(parents, parents)], b))


def half(variance: Matrix) -> Matrix:
    """The least-squares loss of children, from their residual variances (P, ...)."""
    return np.asarray(0.5 * variance.mean(axis=0))


def half_log(variance: Matrix) -> Matrix:
    return np.asarray(0.5 * np.log(variance).mean(axis=0))


def score(families: Families, dag: Mask, loss: Loss, penalty: float) -> float:
    return float(loss(families.residual_variances(dag)).sum()) + penalty * int(dag.sum())


# ---- the truth -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_exact_moments_give_the_graph_and_its_weights_away(seed: int) -> None:
    W = random_dag(12, seed)
    graph = found([exact_moments(W)], everything(12))
    assert np.array_equal(graph.dag, W != 0)
    np.testing.assert_allclose(graph.weights, W, atol=1e-6)
    np.testing.assert_allclose(graph.residual_variance, 1.0, atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_the_neighbours_alone_are_enough_and_far_moments_are_never_read(seed: int) -> None:
    W = random_dag(30, seed, share=0.05)
    candidates = (W != 0) | (W != 0).T
    assert needed_moments(candidates).sum() < 30 * 31 / 2
    assert np.array_equal(found([exact_moments(W)], candidates).dag, W != 0)


def test_an_edge_that_the_path_over_a_child_hides_is_found_among_the_known_moments() -> None:
    W = np.zeros((4, 4))
    W[0, 1], W[0, 2], W[1, 2], W[2, 3] = 1.0, 1.0, 0.9, 1.0
    S = exact_moments(W)
    assert np.linalg.inv(S)[0, 1] == pytest.approx(-0.1)  # given all others, the two are almost independent
    neighbours = W != 0
    neighbours[0, 1] = False
    candidates = neighbours | neighbours.T
    assert np.array_equal(found([S], candidates).dag, W != 0)


def test_the_unit_of_all_variables_does_not_matter() -> None:
    W = random_dag(12, 3)
    near, far = (found([exact_moments(W, variance)], everything(12)) for variance in (1.0, 1e12))
    assert np.array_equal(near.dag, far.dag)
    assert far.score - near.score == pytest.approx(0.5 * 12 * np.log(1e12))
    np.testing.assert_allclose(near.weights, far.weights, atol=1e-9)


def test_regressions_by_site_find_what_one_regression_for_all_sites_does_not() -> None:
    rng = np.random.default_rng(0)
    missed_pooled = missed_by_site = 0
    for seed in range(10):
        W = random_dag(10, seed, share=0.3)
        site_weights = [np.where(W != 0, W + 0.5 * rng.standard_normal(W.shape), 0.0) for _ in range(5)]
        moments = [exact_moments(site) for site in site_weights]
        by_site = found(moments, everything(10), threshold=0.0)
        pooled = found([np.mean(moments, axis=0)], everything(10), threshold=0.0)
        missed_by_site += int((by_site.dag != (W != 0)).sum())
        missed_pooled += int((pooled.dag != (W != 0)).sum())
        np.testing.assert_allclose(by_site.weights, np.mean(site_weights, axis=0), atol=1e-6)
    assert missed_by_site == 0 < missed_pooled


def test_without_equal_noise_variances_what_the_moments_decide_is_found_all_the_same() -> None:
    """Two causes of one effect, which is a cause of a fourth: no edge can be turned. Started with one edge too many."""
    W = np.zeros((4, 4))
    W[0, 2], W[1, 2], W[2, 3] = 1.0, -0.8, 0.7
    noise_std = np.array([3.0, 2.0, 0.5, 0.2])  # against the order
    mixing = np.diag(noise_std) @ np.linalg.inv(np.eye(4) - W)
    start = W != 0
    start[0, 3] = True
    graph = found([mixing.T @ mixing], everything(4), start=start)
    assert np.array_equal(graph.dag, W != 0)
    np.testing.assert_allclose(graph.residual_variance, noise_std**2, rtol=1e-5)


def test_a_direction_that_the_moments_leave_open_follows_the_more_equal_variances() -> None:
    for first, second in ((0, 1), (1, 0)):
        W = np.zeros((2, 2))
        W[first, second] = 1.0
        assert np.array_equal(found([exact_moments(W)], everything(2)).dag, W != 0)


def test_small_weights_are_dropped_and_the_others_adjusted_to_the_parents_that_stay() -> None:
    W = np.zeros((3, 3))
    W[0, 1], W[0, 2], W[1, 2] = 1.0, 0.2, 1.0
    graph = found([exact_moments(W)], everything(3))
    assert np.argwhere(graph.dag).tolist() == [[0, 1], [1, 2]]
    # cov(1, 2) / var(1), with var(1) = 2 and cov(1, 2) = 2 + 0.2.
    assert graph.weights[1, 2] == pytest.approx(1.1)
    assert graph.residual_variance[2] == pytest.approx(1.0 + 0.2**2 / 2)


# ---- knowledge -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_required_edges_are_kept_and_no_others_than_the_candidates_come(seed: int) -> None:
    W = random_dag(10, seed, share=0.3)
    order = topological_order(W != 0)
    required = empty(10)
    required[order[-1], order[0]] = required[order[5], order[2]] = True  # both against the truth
    forbidden = empty(10)
    forbidden[tuple(np.argwhere(W)[0])] = True
    allowed = everything(10) & ~forbidden & ~required.T
    candidates = allowed | required
    graph = found([exact_moments(W)], candidates, allowed=allowed, required=required)
    assert graph.dag[required].all()
    assert not graph.dag[~candidates].any()
    assert is_acyclic(graph.dag)


def test_a_required_edge_stays_whatever_its_weight() -> None:
    required = empty(3)
    required[0, 1] = True
    graph = found([np.eye(3)], everything(3), allowed=everything(3) & ~required.T, required=required)
    assert np.array_equal(graph.dag, required)
    assert graph.weights[0, 1] == pytest.approx(0.0)


def test_a_required_edge_is_not_turned_though_the_moments_say_so() -> None:
    W = np.zeros((2, 2))
    W[1, 0] = 1.0
    families = Families(exact_moments(W)[None], everything(2), ridge=1e-9)
    start = empty(2)
    start[0, 1] = True
    assert np.array_equal(descend(families, start, half, required=empty(2), penalty=0.01), start.T)
    assert np.array_equal(descend(families, start, half, required=start, penalty=0.01), start)


def test_the_order_has_required_parents_first() -> None:
    families = Families(np.diag([1.0, 2.0, 3.0])[None], everything(3), ridge=1e-9)
    required = empty(3)
    assert _least_variance_order(families, everything(3), required) == [0, 1, 2]
    required[2, 0] = True
    assert _least_variance_order(families, everything(3), required) == [1, 2, 0]


# ---- the descent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [half, half_log])
@pytest.mark.parametrize("seed", range(5))
def test_the_descent_ends_where_no_single_move_lowers_the_score(seed: int, loss: Loss) -> None:
    d, penalty = 6, 0.01
    families = Families(exact_moments(random_dag(d, seed, share=0.5))[None], everything(d), ridge=1e-9)
    start = random_dag(d, seed + 100, share=0.5) != 0
    end = descend(families, start, loss, required=empty(d), penalty=penalty)
    least = score(families, end, loss, penalty)
    assert is_acyclic(end)
    assert least < score(families, start, loss, penalty)
    for i, j in np.argwhere(everything(d)):
        for turn in (False, True):
            other = end.copy()
            other[i, j] = not other[i, j]
            other[j, i] = turn and end[i, j]
            if is_acyclic(other):
                assert score(families, other, loss, penalty) >= least - 1e-5 * penalty


def test_every_move_lowers_the_score_by_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    d, penalty = 10, 0.01
    families = Families(exact_moments(random_dag(d, 1, share=0.4))[None], everything(d), ridge=1e-9)
    seen: list[tuple[float, float]] = []
    changes = _Moves.changes

    def noted(self: _Moves, dag: Mask) -> tuple[Matrix, Matrix]:
        toggle, turn = changes(self, dag)
        seen.append((score(families, dag, half, penalty), float(min(toggle.min(), turn.min()))))
        return toggle, turn

    monkeypatch.setattr(_Moves, "changes", noted)
    descend(families, empty(d), half, required=empty(d), penalty=penalty)
    scores = [s for s, _ in seen]
    assert len(seen) > 10
    assert scores == sorted(scores, reverse=True)
    # The first move closes no cycle: it is the best of all.
    assert scores[1] - scores[0] == pytest.approx(seen[0][1])


def test_a_better_start_is_not_given_up() -> None:
    W = random_dag(12, 5)
    S = exact_moments(W)
    nowhere, there = (found([S], everything(12), start=start) for start in (empty(12), W != 0))
    assert there.score <= nowhere.score


def test_a_path_leads_along_the_edges_only() -> None:
    children = [{1}, {2}, set[int](), set[int]()]
    assert leads(children, 0, 2)
    assert leads(children, 3, 3)
    assert not leads(children, 2, 0)
    assert not leads(children, 0, 3)


# ---- families ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parents", [[], [1], [1, 4], [1, 3, 4]])
def test_what_one_parent_more_or_less_changes_is_what_two_regressions_say(parents: list[int]) -> None:
    moments = [exact_moments(random_dag(5, seed, share=0.8)) for seed in (1, 2)]
    families = Families(np.stack(moments), everything(5), ridge=0.0)
    before, after = families.toggled(2, np.array(parents, dtype=np.int64))
    assert before == pytest.approx([literal_residual_variance(S, 2, parents) for S in moments])
    assert families.candidates[2].tolist() == [0, 1, 3, 4]
    for i, variance in zip([0, 1, 3, 4], after.T, strict=True):
        other = sorted(set(parents) ^ {i})
        assert variance == pytest.approx([literal_residual_variance(S, 2, other) for S in moments])


def test_a_family_has_the_same_variance_whatever_the_other_families() -> None:
    W = random_dag(8, 0, share=0.4)
    families = Families(exact_moments(W)[None], everything(8), ridge=1e-9)
    whole = families.residual_variances(W != 0)
    for j in range(8):
        family = empty(8)
        family[:, j] = W[:, j] != 0
        assert families.residual_variances(family)[:, j] == whole[:, j]


def test_a_family_needs_the_moments_of_its_members_alone() -> None:
    candidates = empty(5)
    candidates[0, 2] = candidates[1, 2] = candidates[3, 4] = True
    pairs = {(0, 2), (1, 2), (0, 1), (3, 4)}
    expected = np.eye(5, dtype=bool)
    for i, j in pairs:
        expected[i, j] = expected[j, i] = True
    assert np.array_equal(needed_moments(candidates), np.triu(expected))


def test_a_family_with_an_unknown_moment_is_no_choice() -> None:
    S = exact_moments(random_dag(4, 0, share=0.9))
    S[0, 3] = S[3, 0] = np.nan
    _, after = Families(S[None], everything(4), ridge=1e-9).toggled(2, np.array([0]))
    assert np.isinf(after[0]).tolist() == [False, False, True]  # without 0, with 1, with 3


# ---- moments that are hard to regress on ---------------------------------------------------------------------------


def test_a_copied_and_a_constant_column_add_nothing() -> None:
    W = np.zeros((4, 4))
    W[0, 2] = 1.0
    S = exact_moments(W)
    S[1], S[:, 1] = S[0], S[0]  # a copy of the first variable
    S[1, 1] = S[0, 0]
    S[3], S[:, 3] = 0.0, 0.0
    graph = found([S], everything(4))
    assert is_acyclic(graph.dag)
    assert np.isfinite(graph.weights).all()
    assert not graph.dag[3].any()
    assert not graph.dag[:, 3].any()
    assert graph.dag[[0, 1], 2].sum() == 1


def test_a_copy_of_a_parent_changes_nothing() -> None:
    S = exact_moments(random_dag(3, 0, share=1.0))
    copied = np.array([0, 0, 1, 2])
    before, after = Families(S[np.ix_(copied, copied)][None], everything(4), ridge=1e-9).toggled(2, np.array([0]))
    assert after[0, 1] == before[0]


def test_a_ridge_keeps_noisy_moments_from_explaining_more_than_there_is() -> None:
    rng = np.random.default_rng(4)
    noise = rng.standard_normal((12, 12))
    S = np.eye(12) + 0.4 * (noise + noise.T) / np.sqrt(2)
    least = float(np.linalg.eigvalsh(S)[0])
    assert least < 0
    size = float(S.diagonal().min())
    graph = found([S], everything(12), ridge=-2 * least / size)
    assert (graph.residual_variance > 0.1).all()
    assert (np.abs(graph.weights) < 2).all()


@pytest.mark.parametrize("seed", range(6))
def test_a_search_ends_where_one_column_is_nearly_the_sum_of_two(seed: int) -> None:
    """What the others leave of it is rounding: moves seem to gain and gain nothing."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((2000, 4)) @ np.linalg.inv(np.eye(4) - random_dag(4, seed, share=0.6))
    moments: list[Matrix] = []
    for part in np.split(np.column_stack([X, np.round(X[:, 0] + X[:, 1], 7)]), 2):
        moments.append((part.T @ part / len(part)).astype(np.float32).astype(np.float64))
    graph = found(moments, everything(5))
    assert is_acyclic(graph.dag)
    assert graph.dag.any()
