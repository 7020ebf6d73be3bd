"""The search for the DAG of least score: finds the truth, reads few moments, keeps to what is known."""

import networkx as nx
import numpy as np
import pytest

from fedbnsl.graphs.family_moments import needed_moments
from fedbnsl.graphs.graph import is_acyclic, topological_order
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.gaussian_families import GaussianFamilies
from fedbnsl_server.search.graph_search import FoundGraph, search
from fedbnsl_server.search.hill_climb import descend, least_variance_order, pruned
from fedbnsl_server.search.kernels import start
from fedbnsl_server.search.kernels.change import Graph, refill, renew, room_to_work
from fedbnsl_server.search.kernels.hill_climb import find_ancestors, is_ancestor, leads_otherwise, sort
from fedbnsl_server.search.kernels.score import share
from fedbnsl_server.search.progress import Progress
from fedbnsl_server.search.score import Score
from fedbnsl_server.search.space import Space

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
) -> FoundGraph:
    """A search over moments that are not a number wherever they should not be read."""
    nothing = empty(len(candidates))
    required = nothing if required is None else required
    known = needed_moments(candidates)
    known |= known.T
    return search(
        [np.where(known, S, np.nan) for S in moments],
        Space(candidates, required, everything(len(candidates)) if allowed is None else allowed),
        start=required if start is None else start,
        n_samples=N_SAMPLES,
        threshold=threshold,
    )


def literal_residual_variance(S: Matrix, j: int, parents: list[int]) -> float:
    if not parents:
        return float(S[j, j])
    b = S[parents, j]
    return float(S[j, j] - b @ np.linalg.solve(S[np.ix_(parents, parents)], b))


HALF = Score.near(np.ones(1), logarithmic=False, n_samples=1.0, penalty=0.01)
"""The least-squares loss of children, by their residual variances."""

HALF_LOG = Score.near(np.ones(1), logarithmic=True, n_samples=np.inf, penalty=0.01)


def score(families: GaussianFamilies, dag: Mask, loss: Score) -> float:
    (variance,) = families.residual_variances(dag)
    terms = np.log(variance) if loss.logarithmic else variance
    return float(0.5 * terms.sum()) + loss.penalty * int(dag.sum())


def changes(families: GaussianFamilies, dag: Mask, loss: Score) -> Graph:
    """What every move would change."""
    graph, work, given = families.graph(dag), room_to_work(families.problem), families.room()
    for j in range(len(dag)):
        renew(families.problem, loss, given, graph, j, -1, work)
    return graph


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
    start = empty(2)
    start[0, 1] = True
    for required, end in ((empty(2), start.T), (start, start)):
        families = GaussianFamilies(exact_moments(W)[None], Space(everything(2), required), ridge=1e-9)
        assert np.array_equal(descend(families, start, HALF), end)


def test_the_order_has_required_parents_first() -> None:
    S, required = np.diag([1.0, 2.0, 3.0])[None], empty(3)
    assert least_variance_order(GaussianFamilies(S, Space(everything(3)), ridge=1e-9), everything(3)) == [0, 1, 2]
    required[2, 0] = True
    families = GaussianFamilies(S, Space(everything(3), required), ridge=1e-9)
    assert least_variance_order(families, everything(3)) == [1, 2, 0]


# ---- starts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kept", [1, 3, 64])
def test_the_next_of_an_order_has_the_least_variance_given_those_before(
    seed: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether few or all of the regressions' factors are kept."""
    for name in ("_recall", "_variance_with", "least_variance_order"):  # as they are in Python, to change a constant
        monkeypatch.setattr(start, name, getattr(start, name).py_func)
    monkeypatch.setattr(start, "_KEPT", kept)
    d = 8
    moments = [exact_moments(random_dag(d, 10 * seed + k, share=0.5)) for k in range(2)]
    candidates = everything(d) & (np.random.default_rng(seed).random((d, d)) < 0.8)
    order = least_variance_order(GaussianFamilies(np.stack(moments), Space(candidates), ridge=0.0), candidates)
    for k in range(d):
        before = order[:k]

        def variance(j: int) -> float:
            parents = [i for i in before if candidates[i, j]]  # noqa: B023
            return float(np.mean([literal_residual_variance(S, j, parents) for S in moments]))

        assert variance(order[k]) == pytest.approx(min(variance(j) for j in order[k:]))


@pytest.mark.parametrize("loss", [HALF, HALF_LOG])
@pytest.mark.parametrize("seed", range(3))
def test_pruning_drops_the_least_important_parent_as_long_as_that_lowers_the_score(seed: int, loss: Score) -> None:
    d = 7
    families = GaussianFamilies(exact_moments(random_dag(d, seed, share=0.4))[None], Space(everything(d)), ridge=1e-9)
    dag = np.triu(everything(d))[np.ix_(*[np.random.default_rng(seed).permutation(d)] * 2)]
    expected = dag.copy()
    for j in range(d):
        while expected[:, j].any():
            others: list[Mask] = []
            for i in np.flatnonzero(expected[:, j]):
                other = expected.copy()
                other[i, j] = False
                others.append(other)
            best = min(others, key=lambda one: score(families, one, loss))
            if score(families, best, loss) >= score(families, expected, loss):
                break
            expected = best
    assert np.array_equal(pruned(families, dag, loss), expected)
    assert (expected != dag).any()


# ---- the descent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [HALF, HALF_LOG])
@pytest.mark.parametrize("seed", range(5))
def test_the_descent_ends_where_no_single_move_lowers_the_score(seed: int, loss: Score) -> None:
    d = 6
    families = GaussianFamilies(exact_moments(random_dag(d, seed, share=0.5))[None], Space(everything(d)), ridge=1e-9)
    start = random_dag(d, seed + 100, share=0.5) != 0
    end = descend(families, start, loss)
    least = score(families, end, loss)
    assert is_acyclic(end)
    assert least < score(families, start, loss)
    for i, j in np.argwhere(everything(d)):
        for turn in (False, True):
            other = end.copy()
            other[i, j] = not other[i, j]
            other[j, i] = turn and end[i, j]
            if is_acyclic(other):
                assert score(families, other, loss) >= least - 1e-5 * loss.penalty


@pytest.mark.parametrize("loss", [HALF, HALF_LOG])
def test_every_move_changes_the_score_by_what_was_said(loss: Score) -> None:
    d = 10
    families = GaussianFamilies(exact_moments(random_dag(d, 1, share=0.4))[None], Space(everything(d)), ridge=1e-9)
    dag = random_dag(d, 2, share=0.4) != 0
    graph, before = changes(families, dag, loss), score(families, dag, loss)
    for i, j, change in zip(families.problem.source, families.problem.child, graph.change, strict=True):
        other = dag.copy()
        other[i, j] = not dag[i, j]
        assert score(families, other, loss) - before == pytest.approx(change, abs=1e-9)


def test_a_descent_that_is_enough_ends_where_it_is() -> None:
    families = GaussianFamilies(exact_moments(random_dag(10, 1, share=0.4))[None], Space(everything(10)), ridge=1e-9)
    progress = Progress()
    progress.enough()
    assert not descend(families, empty(10), HALF, progress=progress).any()
    assert descend(families, empty(10), HALF).any()


def test_a_better_start_is_not_given_up() -> None:
    W = random_dag(12, 5)
    S = exact_moments(W)
    nowhere, there = (found([S], everything(12), start=start) for start in (empty(12), W != 0))
    assert there.score <= nowhere.score


@pytest.mark.parametrize("seed", range(10))
def test_ancestors_are_those_from_whom_a_path_leads(seed: int) -> None:
    d = 70  # more than the bits of a word
    dag = random_dag(d, seed, share=0.03) != 0
    families = GaussianFamilies(np.eye(d)[None], Space(everything(d)), ridge=0.0)
    graph, work = families.graph(dag), room_to_work(families.problem)
    for j in range(d):
        refill(families.problem, graph, j)
    sort(families.problem, graph, work)
    ancestors = np.ones((d, 2), np.uint64)
    find_ancestors(families.problem, graph, work, ancestors)
    known = nx.from_numpy_array(dag, create_using=nx.DiGraph)
    for j in range(d):
        found = {i for i in range(d) if is_ancestor(ancestors, i, j)}
        assert found == nx.ancestors(known, j)
    for i, j in known.edges:
        others = nx.restricted_view(known, [], [(i, j)])
        assert leads_otherwise(families.problem, graph, ancestors, i, j) == nx.has_path(others, i, j)


@pytest.mark.parametrize("unknown", [False, True], ids=["all known", "some unknown"])
@pytest.mark.parametrize("seed", range(4))
def test_what_moves_change_after_one_is_what_they_change_if_computed_anew(seed: int, unknown: bool) -> None:
    """Parents come and go, near collinear ones among them."""
    rng, d = np.random.default_rng(seed), 12
    X = rng.normal(size=(2, 500, d)) @ np.where(random_dag(d, seed, share=0.6) != 0, 1.0, np.eye(d))
    X[:, :, 1] = X[:, :, 0] + 0.0005 * X[:, :, 1]
    X[:, :, 4] = X[:, :, 0] - X[:, :, 2] + 0.02 * X[:, :, 4]
    S = np.einsum("pni,pnj->pij", X, X) / 500.0
    if unknown:
        S[:, 2, 3] = S[:, 3, 2] = np.nan
    families = GaussianFamilies(S, Space(everything(d)), ridge=1e-9)
    loss = Score.near(np.ones(2), logarithmic=True, n_samples=500.0, penalty=0.01)
    problem, given, work = families.problem, families.room(), room_to_work(families.problem)
    graph = families.graph(empty(d))
    renew(problem, loss, given, graph, 5, -1, work)
    for _ in range(200):
        e = int(rng.integers(problem.start[5], problem.start[6]))
        if np.isposinf(graph.change[e]):  # a moment is unknown: no descent does that
            continue
        graph.present[e] = not graph.present[e]
        renew(problem, loss, given, graph, 5, int(problem.source[e]), work)
        anew = families.graph(families.dag(graph))
        renew(problem, loss, given, anew, 5, -1, room_to_work(problem))
        assert graph.share[5] == anew.share[5], "the same bits: otherwise moves could gain by rounding, for ever"
        of_5 = slice(problem.start[5], problem.start[6])
        assert graph.change[of_5] == pytest.approx(anew.change[of_5], rel=1e-6, abs=1e-8)


# ---- families ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logarithmic", [False, True])
def test_what_sites_leave_of_a_child_costs_the_same_for_loops_and_for_whole_graphs(logarithmic: bool) -> None:
    v, sizes, dag = np.array([[0.3, 2.0, 1.0], [0.5, 0.1, np.nan]]), np.array([1, 3, 2]), empty(3)
    columns = np.array([2, 3])  # in all: the first variable has one that only explains
    score = Score.near(np.array([0.7, 1.5]), logarithmic=logarithmic, n_samples=200.0, penalty=0.02)
    apart = v / score.common[:, None]
    found = [share(score, int(size), apart, j) for j, size in enumerate(sizes)]
    assert found[2] == np.inf, "a moment is unknown"
    log_v = np.log(v)
    literal = 0.5 * log_v + 0.5 * np.log(apart) ** 2 / 200.0 if logarithmic else 0.5 * apart
    assert found[:2] == pytest.approx(literal.mean(axis=0)[:2] * sizes[:2])
    if logarithmic:
        dag[0, 1] = True
        known = score.of_dag(dag[:2, :2], v[:, :2], columns, sizes[:2])
        assert known == pytest.approx(sum(found[:2]) + 6 * 0.02)


@pytest.mark.parametrize("parents", [[], [1], [1, 4], [1, 3, 4]])
def test_what_one_parent_more_or_less_changes_is_what_two_regressions_say(parents: list[int]) -> None:
    moments = [exact_moments(random_dag(5, seed, share=0.8)) for seed in (1, 2)]
    families = GaussianFamilies(np.stack(moments), Space(everything(5)), ridge=0.0)
    dag = empty(5)
    dag[parents, 2] = True
    loss = Score.near(np.array([0.5, 0.5]), logarithmic=False, n_samples=1.0, penalty=0.0)  # the mean of both variances
    graph = changes(families, dag, loss)

    def mean(given: list[int]) -> float:
        return float(np.mean([literal_residual_variance(S, 2, given) for S in moments]))

    assert graph.share[2] == pytest.approx(mean(parents))
    into_2 = families.problem.child == 2
    found = dict(zip(families.problem.source[into_2], graph.change[into_2], strict=True))
    for i in (0, 1, 3, 4):
        assert graph.share[2] + found[i] == pytest.approx(mean(sorted(set(parents) ^ {i})))


def test_a_family_has_the_same_variance_whatever_the_other_families() -> None:
    W = random_dag(8, 0, share=0.4)
    families = GaussianFamilies(exact_moments(W)[None], Space(everything(8)), ridge=1e-9)
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
    dag = empty(4)
    dag[0, 2] = True
    families = GaussianFamilies(S[None], Space(everything(4)), ridge=1e-9)
    change = changes(families, dag, HALF).change[families.problem.child == 2]
    assert np.isinf(change).tolist() == [False, False, True]  # without 0, with 1, with 3


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
    families = GaussianFamilies(S[np.ix_(copied, copied)][None], Space(everything(4)), ridge=1e-9)
    dag = empty(4)
    dag[0, 2] = True
    change = changes(families, dag, HALF).change[(families.problem.child == 2) & (families.problem.source == 1)]
    assert change == pytest.approx(HALF.penalty)
    dag[1, 2] = True  # both: either may go
    change = changes(families, dag, HALF).change[(families.problem.child == 2) & (families.problem.source < 2)]
    assert change == pytest.approx(-HALF.penalty, abs=1e-6)


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
