"""The search of a class in noisy moments of residuals: what noise hides, what it does not, and the units of it all."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.graphs.graph import is_acyclic, topological_order
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl_server.inference.confidence import Again, Evidence, confidence_of
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.linear_network import Accuracy
from fedbnsl_server.search.order_search import best_dag
from fedbnsl_server.search.private import noisy_class_search
from fedbnsl_server.search.private.combined_releases import Released, released
from fedbnsl_server.search.private.noisy_class_search import NoisyClassSearch, next_residuals
from fedbnsl_server.search.private.released_likelihood import Release, ReleasedLikelihood
from fedbnsl_server.search.score import extended_penalty
from fedbnsl_server.search.space import Space

D, ROWS = 8, 40_000.0
NAMES = [f"x{k}" for k in range(D)]


def network(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(d, d) weights in a random order, and the moments that they give with unequal noise variances."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(D)
    W = np.zeros((D, D))
    for a in range(D):
        for b in range(a + 1, D):
            if rng.random() < 0.3:
                W[order[a], order[b]] = rng.uniform(0.5, 1.5) * rng.choice([-1, 1])
    back = np.linalg.inv(np.eye(D) - W)
    return W, back.T @ np.diag(rng.uniform(0.25, 4.0, D)) @ back


def noise(rng: np.random.Generator, std: float) -> np.ndarray:
    """Symmetric; sqrt(2) times as large on the diagonal."""
    E = rng.standard_normal((D, D))
    return std * (E + E.T) / math.sqrt(2.0)


def asked_with(S: np.ndarray, W: np.ndarray, scales: np.ndarray, std: float, seed: int) -> Release:
    A = (np.eye(D) - W) / scales
    S_z = A.T @ S @ A + noise(np.random.default_rng(seed), std)
    return released(S_z, noise_std=std, W=W, scales=scales)


def mask(knowledge: Knowledge | None = None) -> EdgeMask:
    return EdgeMask(knowledge or Knowledge(), NAMES)


@pytest.mark.parametrize("seed", range(6))
def test_little_noise_hides_nothing_even_if_the_residuals_were_those_of_an_empty_graph(seed: int):
    _, S = network(seed)
    scales = np.sqrt(S.diagonal())
    search = NoisyClassSearch(mask(), 0.0, 0)
    found, *_ = search.found([asked_with(S, np.zeros((D, D)), scales, 1e-4, seed)], ROWS)
    everything, penalty = ~np.eye(D, dtype=bool), extended_penalty(ROWS, D)
    exact = best_dag(S, Space(everything), penalty=penalty, seed=0)
    assert class_distance(cpdag(found.dag), cpdag(exact)) == 0


@pytest.mark.parametrize("seed", range(6))
def test_noise_that_would_hide_edges_of_the_columns_hides_none_in_residuals_of_the_true_graph(seed: int):
    W, S = network(seed)
    residual = ((np.eye(D) - W).T @ S @ (np.eye(D) - W)).diagonal()
    given = asked_with(S, W, np.sqrt(residual), 0.01, seed)
    found, *_, of_residuals = NoisyClassSearch(mask(), 0.0, 0).found([given], ROWS)
    assert class_distance(cpdag(found.dag), cpdag(W != 0)) == 0
    assert of_residuals.noise_std == pytest.approx(given.noise_std, rel=0.2)


def test_no_residual_variance_is_below_the_noise_that_hides_it() -> None:
    """x5 is x0 but for next to nothing; residuals were asked for as if no column depended on another."""
    std, scales = 0.2, np.ones(D)
    S = np.eye(D)
    S[0, 5] = S[5, 0] = 0.999
    hidden = 0
    for seed in range(5):
        found, *_ = NoisyClassSearch(mask(), 0.0, 0).found([asked_with(S, np.zeros((D, D)), scales, std, seed)], ROWS)
        assert (found.residual_variance >= 0.8 * math.sqrt(2.0) * std).all()
        hidden += bool((found.residual_variance < 2.0 * math.sqrt(2.0) * std).any())
    assert hidden, "noise hides it in some draw"


def test_the_moments_that_a_graph_says_have_its_weights():
    _, S = network(1)
    given = asked_with(S, np.zeros((D, D)), np.sqrt(S.diagonal()), 0.05, 4)
    found, said, *_ = NoisyClassSearch(mask(), 0.0, 0).found([given], ROWS)
    assert np.linalg.eigvalsh(said)[0] > 0.0
    for j in np.flatnonzero(found.dag.any(axis=0)):
        parents = np.flatnonzero(found.dag[:, j])
        expected = np.linalg.solve(said[np.ix_(parents, parents)], said[parents, j])
        assert found.weights[parents, j] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("what", ["negative", "huge", "nothing"])
def test_moments_that_no_records_have_end_in_finite_numbers(what: str):
    _, S = network(1)
    given = asked_with(S, np.zeros((D, D)), np.sqrt(S.diagonal()), 0.05, 4)
    wrong = {"negative": -20.0 * np.eye(D), "huge": 1e25 * (1.0 - np.eye(D)), "nothing": np.zeros((D, D))}[what]
    bad = released(wrong, noise_std=0.05, W=np.zeros((D, D)), scales=np.sqrt(S.diagonal()), weight=0.5, norm_bound=2.0)
    for releases in ([bad], [given, bad], [bad, given]):
        search = NoisyClassSearch(mask(), 0.0, 0)
        found, said, accuracy, errors, _, seen = search.found(releases, ROWS)
        assert is_acyclic(found.dag)
        assert np.isfinite(found.weights).all()
        confidence = confidence_of(
            found.dag,
            Evidence(said, accuracy, errors, seen.of_columns),
            mask().columns,
            Again(search, cpdag, 3, np.random.default_rng(0)),
        )
        assert np.isfinite(confidence.standard_error).all()


@pytest.mark.parametrize("what", ["negative", "huge", "nothing"])
def test_with_squares_moments_that_no_records_have_end_in_finite_numbers(what: str) -> None:
    """Squares that wrong moments say are far from those of any numbers."""
    _, S = network(1)
    numbers = [f"x{k}" for k in range(D // 2)]
    squares = {f"{name}^2": name for name in numbers}
    search = NoisyClassSearch(
        EdgeMask(Knowledge(), Columns.of([*numbers, *squares], squares)), 0.0, 0, np.arange(D // 2)
    )
    given = replace(
        asked_with(S, np.zeros((D, D)), np.sqrt(S.diagonal()), 0.05, 4), weight=0.9, norm_bound=2.0, constant=1.0
    )
    wrong = {"negative": -20.0 * np.eye(D), "huge": 1e25 * (1.0 - np.eye(D)), "nothing": np.zeros((D, D))}[what]
    bad = replace(
        released(wrong, noise_std=0.05, W=np.zeros((D, D)), scales=np.sqrt(S.diagonal()), weight=0.5, norm_bound=2.0),
        constant=1.0,
    )
    for releases in ([bad], [given, bad], [bad, given]):
        learned = search.found(releases, ROWS)
        assert is_acyclic(learned.graph.dag)
        assert np.isfinite(learned.graph.weights).all()
        assert np.isfinite(learned.moments).all()
        assert learned.accuracy.noise_std > 0.0
        assert learned.searched.size in {D // 2, D}


@pytest.mark.parametrize("said", [False, True])
def test_squares_take_part_where_a_number_is_said_to_bend_and_otherwise_where_one_does(said: bool) -> None:
    """A chain of straight lines between standard normal numbers, and the squares of these."""
    u = D // 2
    R = 0.7 ** np.abs(np.subtract.outer(np.arange(u), np.arange(u)))
    S = np.block([[R, np.zeros((u, u))], [np.zeros((u, u)), R**2]])
    names = [f"x{k}" for k in range(u)]
    squares = {f"{name}^2": name for name in names}
    search = NoisyClassSearch(
        EdgeMask(Knowledge(), Columns.of([*names, *squares], squares)), 0.0, 0, np.arange(u), np.arange(D) == said - 1
    )
    given = replace(
        asked_with(S, np.zeros((D, D)), np.ones(D), 1e-3, 0), weight=0.98, norm_bound=2.5 * math.sqrt(D), constant=1.0
    )
    learned = search.found([given], ROWS)
    assert learned.searched.tolist() == list(range(D if said else u))
    assert (
        (learned.graph.dag | learned.graph.dag.T) == (np.abs(np.subtract.outer(np.arange(u), np.arange(u))) == 1)
    ).all()
    used = learned.graph.weights[u:, :u]
    assert said or not used.any(), "squares say nothing of numbers"


def test_moments_of_clipped_records_are_less_exact_than_their_noise() -> None:
    W, S = network(1)
    scales = np.sqrt(S.diagonal())
    one, other = asked_with(S, 0.0 * W, scales, 0.01, 1), asked_with(S, W, scales, 0.01, 2)
    assert NoisyClassSearch(mask(), 0.0, 0).found([one, other], ROWS).accuracy.noise_std < 0.02
    short = replace(other, weight=0.5, norm_bound=0.7 * math.sqrt(D), constant=1.0)
    learned = NoisyClassSearch(mask(), 0.0, 0).found([short], ROWS)
    stretch = short.unclipped(learned.moments).stretch
    assert stretch > 1.1
    unit = np.median(learned.seen.units / np.sqrt(learned.graph.residual_variance))
    assert learned.accuracy.noise_std == pytest.approx(stretch * learned.seen.noise_std * unit**2)


def test_a_column_whose_scale_is_not_its_spread_has_noise_of_its_own() -> None:
    """Far more noise in units of its residual; the numbers of confidence know it."""
    W, S = network(1)
    residual = ((np.eye(D) - W).T @ S @ (np.eye(D) - W)).diagonal()
    scales = np.sqrt(residual)
    scales[2] *= 5.0
    accuracy = NoisyClassSearch(mask(), 0.0, 0).found([asked_with(S, W, scales, 0.005, 1)], ROWS).accuracy
    assert accuracy.scales is not None
    ratio = accuracy.scales / np.sqrt(residual)
    assert np.median(ratio) == pytest.approx(1.0, rel=0.1)
    assert ratio[2] == pytest.approx(5.0, rel=0.2)


def test_draws_are_searched_with_the_noise_of_each_column():
    W, S = network(0)
    search, start = NoisyClassSearch(mask(), 0.0, 0), W != 0
    i, j = np.argwhere(start)[0].tolist()
    start[i, j] = False  # what is missing must stand out of the noise to be found
    order = topological_order(start)
    scales = np.sqrt(((np.eye(D) - W).T @ S @ (np.eye(D) - W)).diagonal())
    found = search.on(S, Accuracy(ROWS, 0.002, scales), start).found(patience=0, start=order).dag
    assert (found | found.T)[i, j]
    scales[j] *= 1000.0
    found = search.on(S, Accuracy(ROWS, 0.002, scales), start).found(patience=0, start=order).dag
    assert not (found | found.T)[i, j]


def test_a_pruned_graph_is_explained_again():
    W, S = network(0)
    given = [asked_with(S, np.zeros((D, D)), np.sqrt(S.diagonal()), 1e-3, 0)]
    threshold = float(np.median(np.abs(W[W != 0])))
    pruned = NoisyClassSearch(mask(), threshold, 0).found(given, ROWS)
    likelihood = ReleasedLikelihood(given, ROWS, mask())
    graph = pruned.graph
    again = likelihood.explained(graph.dag, graph.weights, np.diag(graph.residual_variance), steps=30)
    assert graph.weights == pytest.approx(again.weights, abs=1e-3)
    assert pruned.weight_error == pytest.approx(likelihood.weight_errors(again), rel=1e-2)


def test_required_and_forbidden_edges_are_kept():
    W, S = network(2)
    i, j = np.argwhere(W != 0)[0].tolist()
    knowledge = Knowledge(forbidden=((f"x{i}", f"x{j}"),), required=((f"x{j}", f"x{i}"),))
    given = asked_with(S, np.zeros((D, D)), np.sqrt(S.diagonal()), 0.01, 0)
    found, *_ = NoisyClassSearch(mask(knowledge), 0.0, 0).found([given], ROWS)
    assert found.dag[j, i]
    assert not found.dag[i, j]


def test_a_scale_is_not_below_what_noise_lets_us_tell():
    _, S = network(5)
    given = asked_with(S, np.zeros((D, D)), np.sqrt(S.diagonal()), 0.05, 0)
    found, moments, *_ = NoisyClassSearch(mask(), 0.0, 0).found([given], ROWS)
    _, scales = next_residuals(found.dag, moments, given, Columns.of(NAMES))
    assert (scales**2 >= 3.0 * given.noise_std * S.diagonal() * (1 - 1e-12)).all()
    assert (scales**2 >= found.residual_variance * (1 - 1e-12)).all()


def test_noise_of_parents_that_nearly_determine_each_other_makes_no_large_residuals_to_ask_for():
    """Two columns differ by little, so that moments with noise give their child any weights of opposite signs."""
    S = np.eye(D)
    S[0, 1] = S[1, 0] = 0.999
    S[2, :2] = S[:2, 2] = 0.5
    dag = np.zeros((D, D), dtype=bool)
    dag[0, [1, 2]] = dag[1, 2] = True
    for seed in range(20):
        given = asked_with(S, np.zeros((D, D)), np.ones(D), 0.01, seed)
        W, scales = next_residuals(dag, given.moments, given, Columns.of(NAMES))
        A = (np.eye(D) - W) / scales
        assert np.abs(W).max() < 1.5
        assert ((A.T @ S @ A).diagonal() < 1.3).all()


def test_residuals_to_ask_for_are_uncorrelated_within_a_variable():
    """Levels exclude each other, and nearly always one of them holds: without it, one direction hardly varies."""
    shares = np.array([0.5, 0.3, 0.19])
    levels = np.diag(shares) - np.outer(shares, shares)
    S = np.eye(D)
    S[:3, :3] = levels / np.sqrt(np.outer(levels.diagonal(), levels.diagonal()))
    S[3, :3] = S[:3, 3] = S[:3, :3] @ [0.4, 0.0, 0.2]
    columns = Columns.of(NAMES, dict.fromkeys(NAMES[:3], "k"))
    dag = np.zeros((6, 6), dtype=bool)
    dag[0, 1] = True
    given = released(S, noise_std=1e-6, W=np.zeros((D, D)), scales=np.ones(D))
    W, scales = next_residuals(dag, S, given, columns)
    A = (np.eye(D) - W) / scales
    np.testing.assert_allclose(A.T @ S @ A, np.eye(D), atol=1e-3)
    assert not W.diagonal().any()


def test_an_early_wrong_graph_does_not_stay():
    """A first release in residuals of a wrong graph, much noise; later ones in better residuals."""
    W, S = network(1)
    wrong = np.zeros((D, D))
    for i, j in np.argwhere((W == 0) & (W.T == 0) & np.triu(np.ones((D, D)), 1).astype(bool))[:3]:
        wrong[i, j] = 0.4
    right = ((np.eye(D) - W).T @ S @ (np.eye(D) - W)).diagonal()
    releases = [
        asked_with(S, wrong, np.sqrt(S.diagonal()), 0.05, 1),
        asked_with(S, W, np.sqrt(right), 0.02, 2),
        asked_with(S, W, np.sqrt(right), 0.02, 3),
    ]
    found, *_, of_residuals = NoisyClassSearch(mask(), 0.0, 0).found(releases, ROWS)
    assert class_distance(cpdag(found.dag), cpdag(W != 0)) == 0
    assert of_residuals.noise_std < min(one.noise_std for one in releases)


def test_weights_within_the_threshold_are_dropped_in_the_end():
    W, S = network(0)
    given = [asked_with(S, np.zeros((D, D)), np.sqrt(S.diagonal()), 1e-3, 0)]
    threshold = float(np.median(np.abs(W[W != 0])))
    found, *_ = NoisyClassSearch(mask(), threshold, 0).found(given, ROWS)
    kept = np.abs(found.weights[found.dag])
    assert kept.size
    assert (kept > threshold).all()


@pytest.mark.parametrize("told", [(1, 1.0), (1, 2.0), (2, 1.0), (2, 2.0)], ids=str)
def test_the_graph_that_explains_most_is_kept_whichever_search_and_price_proposed_it(
    monkeypatch: pytest.MonkeyPatch, told: tuple[int, float]
) -> None:
    """Proposals are made up, so that no rounding decides: the true graph once, and the empty one everywhere else."""
    W, S = network(1)
    A = np.eye(D) - W
    true = FoundGraph(W != 0, W, (A.T @ S @ A).diagonal(), 0.0)
    empty = FoundGraph(0.0 * W != 0, 0.0 * W, S.diagonal(), 0.0)
    searches: list[Released] = []

    def proposed(self: NoisyClassSearch, given: Released, price: float) -> SimpleNamespace:
        if not any(given is one for one in searches):
            searches.append(given)
        proposal = true if (len(searches), price) == told else empty
        return SimpleNamespace(found=lambda **settings: proposal)

    monkeypatch.setattr(NoisyClassSearch, "_problem", proposed)
    monkeypatch.setattr(noisy_class_search, "improved", lambda likelihood, found, progress: found)
    found, *_ = NoisyClassSearch(mask(), 0.0, 0).found([asked_with(S, 0.0 * W, np.sqrt(S.diagonal()), 0.01, 1)], ROWS)
    assert (found.dag == true.dag).all()


@pytest.mark.parametrize("std", [0.2, 0.5, 5.0])
@pytest.mark.long
def test_noise_larger_than_all_else_ends_in_a_graph(std: float):
    """In residuals of the best graph an error may then be larger than a variance: an edge must not cost less for it."""
    W = np.diag([0.9, -0.8, 0.7], k=1)
    back = np.linalg.inv(np.eye(4) - W)
    S, search = back.T @ back, NoisyClassSearch(EdgeMask(Knowledge(), list("abcd")), 0.0, 0)
    scales = np.sqrt(S.diagonal())
    for seed in range(12):
        rng = np.random.default_rng(seed)
        releases = list[Release]()
        for _ in range(3):
            E = rng.standard_normal((4, 4))
            S_z = S / scales / scales[:, None] + std * (E + E.T) / math.sqrt(2.0)
            releases.append(released(S_z, noise_std=std, W=np.zeros((4, 4)), scales=scales))
            found = search.found(releases, 2000.0)
            assert is_acyclic(found.graph.dag)
            near = found.graph.dag
        again = search.on(S, Accuracy(2000.0, std, np.ones(4)), near).found(patience=0)
        assert is_acyclic(again.dag)
