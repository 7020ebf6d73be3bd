"""The likelihood of a DAG given noisy releases: its derivatives, its optimum, and the moves that it leads to."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.sparse import Mask, Matrix
from fedbnsl_server.search.released_likelihood import Explanation, Release, ReleasedLikelihood, _Point

NAMES = ("a", "b", "c", "d", "e")
D, ROWS = 5, 1e9
DAG = np.zeros((D, D), dtype=bool)
for i, j in ((0, 1), (1, 2), (0, 2), (3, 2), (3, 4)):
    DAG[i, j] = True
W = np.where(DAG, np.array([[0.0, 0.9, -0.7, 0, 0], [0, 0, 0.6, 0, 0], [0] * 5, [0, 0, 0.8, 0, -1.2], [0] * 5]), 0.0)
V = np.diag([1.0, 0.3, 2.0, 0.7, 0.1])
BLOCKED = Columns.of(NAMES, {"c": "levels", "d": "levels"})


def moments(W: Matrix, V: Matrix) -> Matrix:
    B = np.linalg.inv(np.eye(len(W)) - W)
    return B.T @ V @ B


def release(S: Matrix, *, std: float, seed: int, c: float = 1.0, exact: bool = False) -> Release:
    rng = np.random.default_rng(seed)
    A = (np.eye(D) - np.triu(rng.normal(0.0, 0.4, (D, D)), 1)) / rng.uniform(0.5, 2.0, D)
    E = rng.standard_normal((D, D))
    noise = 0.0 if exact else std * (E + E.T) / math.sqrt(2.0)
    return Release(c * A.T @ S @ A + noise, std, A, math.nan, math.inf, 0.0)


def mask(columns: Columns | None = None, **knowledge: tuple[tuple[str, str], ...]) -> EdgeMask:
    return EdgeMask(Knowledge(**knowledge), columns or Columns.of(NAMES))


def likelihood(*releases: Release, of: EdgeMask | None = None) -> ReleasedLikelihood:
    return ReleasedLikelihood(releases, ROWS, of or mask())


def perturbed(rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    return W + np.where(DAG, rng.normal(0.0, 0.2, (D, D)), 0.0), V * rng.uniform(0.5, 2.0, D)


@pytest.mark.parametrize("columns", [Columns.of(NAMES), BLOCKED], ids=["single columns", "a block"])
def test_gradient_and_information_are_the_derivatives_of_the_misfit(columns: Columns) -> None:
    """By finite differences; the information is exact where the releases are what the weights say."""
    S = moments(W, V)
    given = likelihood(release(S, std=0.1, seed=1, c=0.8), release(S, std=0.2, seed=2), of=mask(columns))
    edges, pairs = np.argwhere(DAG), np.argwhere(np.triu(columns.within()))
    at, cov, scales, _ = given._at(*perturbed(np.random.default_rng(3)))

    def moved(k: int, h: float) -> tuple[Matrix, Matrix]:
        other_W, other_V = at.copy(), cov.copy()
        if k < len(edges):
            other_W[tuple(edges[k])] += h
        else:
            i, j = pairs[k - len(edges)]
            other_V[i, j] += h
            other_V[j, i] = other_V[i, j]
        return other_W, other_V

    def gradient(W: Matrix, V: Matrix) -> Matrix:
        return given._normal_equations(_Point(W, V, scales, 0.0), edges, pairs)[1]

    h, size = 1e-5, len(edges) + len(pairs)
    numeric = [(given._at(*moved(k, h)).misfit - given._at(*moved(k, -h)).misfit) / (2 * h) for k in range(size)]
    assert -gradient(at, cov) == pytest.approx(numeric, rel=1e-5, abs=1e-6)

    exact = likelihood(
        release(moments(at, cov), std=0.1, seed=1, c=scales[0], exact=True),
        release(moments(at, cov), std=0.2, seed=2, exact=True),
        of=mask(columns),
    )
    information = exact._normal_equations(_Point(at, cov, scales, 0.0), edges, pairs)[0]
    second = [
        (
            exact._normal_equations(_Point(*moved(k, h), scales, 0.0), edges, pairs)[1]
            - exact._normal_equations(_Point(*moved(k, -h), scales, 0.0), edges, pairs)[1]
        )
        / (2 * h)
        for k in range(size)
    ]
    assert information == pytest.approx(-np.array(second), rel=1e-4, abs=1e-4 * information.max())


def test_releases_without_noise_tell_everything() -> None:
    S = moments(W, V)
    given = likelihood(release(S, std=1e-3, seed=1, c=0.7, exact=True), release(S, std=1e-3, seed=2, exact=True))
    start = perturbed(np.random.default_rng(4))
    found = given.explained(DAG, *start, steps=50)
    assert found.weights == pytest.approx(W, abs=1e-4)
    assert found.covariance == pytest.approx(V, abs=1e-4)
    assert found.scales == pytest.approx([0.7, 1.0], abs=1e-4)
    assert found.misfit == pytest.approx(0.0, abs=1e-2)
    assert found.score == pytest.approx(found.misfit + 5 * given.penalty)


def test_a_block_keeps_how_its_columns_are_correlated() -> None:
    together = V.copy()
    together[2, 3] = together[3, 2] = 0.8
    dag = np.zeros((4, 4), dtype=bool)  # a, b, levels, e
    dag[0, 2] = dag[2, 3] = True
    weights = np.zeros((D, D))
    weights[0, 2], weights[0, 3], weights[2, 4], weights[3, 4] = 0.5, -0.4, 0.7, 0.2
    S = moments(weights, together)
    given = likelihood(release(S, std=1e-3, seed=5, exact=True), of=mask(BLOCKED))
    found = given.explained(dag, 0.6 * weights, V, steps=50)
    assert found.weights == pytest.approx(weights, abs=1e-3)
    assert found.covariance == pytest.approx(together, abs=1e-3)
    assert found.score - found.misfit == pytest.approx(4 * given.penalty), "an edge costs as many as pairs of columns"


@pytest.mark.parametrize("rows", [1e9, 4000.0, 500.0], ids=["noise alone", "both", "sampling, most of it"])
def test_weights_err_as_their_errors_say(rows: float) -> None:
    """Releases in different residuals, of different noise; their sampling errors are the same."""
    rng, S, found = np.random.default_rng(0), moments(W, V), []
    for seed in range(200):
        drawn = S if rows > 1e8 else np.cov(rng.multivariate_normal(np.zeros(D), S, int(rows)).T)
        one, other = release(drawn, std=0.02, seed=2 * seed, c=0.8), release(drawn, std=0.03, seed=2 * seed + 1)
        given = ReleasedLikelihood([one, other], rows, mask())
        best = given.explained(DAG, W, V)
        found.append((best.weights - W)[DAG] / given.weight_errors(best))
    assert np.std(found, axis=0) == pytest.approx(np.ones(5), abs=0.17)
    assert np.mean(found, axis=0) == pytest.approx(np.zeros(5), abs=0.3)


def test_stretched_noise_counts_as_large_as_it_is_in_the_numbers() -> None:
    one, other = release(moments(W, V), std=0.02, seed=1), release(moments(W, V), std=0.02, seed=2)

    def errors(*releases: Release) -> Matrix:
        given = likelihood(*releases)
        return given.weight_errors(given.explained(DAG, W, V))

    plain, twice = errors(one, other), errors(replace(one, stretch=2.0), replace(other, stretch=2.0))
    assert twice == pytest.approx(2.0 * plain, rel=1e-4)
    assert (errors(replace(one, stretch=2.0), other) > plain).all()


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
    expected = given.explained(DAG, W, V).misfit - richer.misfit
    assert given._losses(richer)[1, 4] == pytest.approx(expected, rel=0.05, abs=0.05)
    poorer = given.explained(without(1, 2), W, V)
    assert given._gains(poorer)[1, 2] > given.penalty


def test_a_move_adds_what_is_missing_and_drops_what_is_not_there() -> None:
    given = noisy()
    best = given.explained(DAG, W, V)
    for dag in (with_edge(0, 3) & without(1, 2), with_edge(1, 4) | with_edge(0, 4), without(0, 1), without(3, 4)):
        found = given.improved(given.explained(dag, W, V))
        assert (found.dag == DAG).all() or found.score < best.score
    assert (given.improved(best).dag == DAG).all()


def test_moves_obey_knowledge() -> None:
    of = mask(forbidden=(("a", "b"), ("b", "a")), required=(("b", "e"),))
    given = noisy(of)
    start = without(0, 1)
    start[1, 4] = True
    found = given.improved(given.explained(start, W, V))
    assert found.dag[1, 4]
    assert not found.dag[0, 1]
    assert not found.dag[1, 0]


def test_an_edge_that_promises_most_and_closes_a_cycle_is_not_added() -> None:
    given = noisy(mask(forbidden=(("a", "c"),)))
    start = given.explained(without(0, 2), W, V)
    gains = given._gains(start)
    assert np.unravel_index(gains.argmax(), gains.shape) == (2, 0)
    found = given._with_one_more(start)
    assert found is None or is_acyclic(found.dag)


def test_few_edges_that_promise_much_and_do_not_help_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    given = noisy()
    start = given.explained(np.zeros((D, D), dtype=bool), W, V)
    tried: list[Mask] = []

    def explained(dag: Mask, *_: Matrix, steps: int) -> Explanation:
        tried.append(dag)
        return start

    monkeypatch.setattr(given, "explained", explained)
    assert given._with_one_more(start) is None
    assert len(tried) == 3
    assert len({dag.tobytes() for dag in tried}) == 3


def test_sampling_error_that_all_releases_share_counts_once() -> None:
    S = moments(W, V)
    one = release(S, std=1e-4, seed=1)
    few = ReleasedLikelihood([one], 100.0, mask())
    twice = ReleasedLikelihood([one, one], 100.0, mask())
    assert few.explained(without(3, 4), W, V).misfit == pytest.approx(
        twice.explained(without(3, 4), W, V).misfit, rel=0.01
    )
    assert few.penalty == pytest.approx(0.5 * math.log(100.0) + math.log(D), rel=0.01)


def test_noise_alone_is_explained_without_edges() -> None:
    nothing = np.zeros((D, D), dtype=bool)
    given = likelihood(release(np.eye(D), std=0.3, seed=8), release(np.eye(D), std=0.3, seed=9))
    empty: Explanation = given.explained(nothing, np.zeros((D, D)), np.eye(D))
    assert np.isfinite(empty.score)
    assert (empty.covariance.diagonal() > 0.0).all()
    assert not given.improved(empty).dag.any()
