"""Steps that a private run has released: what they say, and the graph that explains them best."""

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.private.released_likelihood import total_effects
from fedbnsl_server.search.private.released_steps import ReleasedSteps
from fedbnsl_server.search.private.steps_likelihood import StepsLikelihood
from fedbnsl_server.search.private.steps_search import search_steps
from noisy_releases import DAG, D, W, mask

ROWS = 100_000
SHARE = 0.004
OFF = ~np.eye(D, dtype=bool)


def tables(std: Matrix, seed: int = 0) -> Matrix:
    """Records of the small network."""
    noise = np.random.default_rng(seed).standard_normal((ROWS, D)) * std
    return noise @ total_effects(W)


def told(X: Matrix, *, n_steps: int, seed: int, bound: float = 2.0) -> Matrix:
    """Steps at random places, to weights about the true ones, with the clipped means of these records."""
    rng = np.random.default_rng(seed)
    B, rows = np.zeros((D, D)), list[tuple[float, ...]]()
    for _ in range(n_steps):
        i, j = divmod(int(rng.choice(np.flatnonzero(OFF))), D)
        mean = float(np.clip(-X[:, i] * (X[:, j] - X @ B[:, j]), -bound, bound).mean())
        B[i, j] = W[i, j] + rng.normal(0.0, 0.2) if rng.random() < 0.7 else 0.0
        rows.append((i * D + j, mean + SHARE * bound * rng.standard_normal(), bound, B[i, j]))
    return np.array(rows)


def steps_of(std: Matrix) -> ReleasedSteps:
    X = tables(std)
    return ReleasedSteps.merged([ReleasedSteps.of_site(told(X, n_steps=150, seed=k), D, SHARE) for k in range(2)])


def test_a_step_tells_of_the_residual_before_it() -> None:
    rows = np.array([[0 * D + 2, 0.1, 1.0, 0.5], [1 * D + 2, 0.2, 3.0, 0.0], [0 * D + 2, 0.3, 1.0, -0.25]])
    found = ReleasedSteps.of_site(rows, D, 0.1)
    assert found.parent.tolist() == [0, 1, 0]
    assert found.residual.tolist() == [[0, 0, 1, 0, 0], [-0.5, 0, 1, 0, 0], [-0.5, 0, 1, 0, 0]]
    assert found.mean.tolist() == [-0.1, -0.2, -0.3]
    np.testing.assert_allclose(found.noise_std, [0.1, 0.3, 0.1])


def test_steps_under_the_same_column_become_one_with_less_noise_and_others_stay_apart() -> None:
    rows = np.array([[2, 0.1, 1.0, 0.0], [2, 0.3, 1.0, 0.5], [2, 0.5, 1.0, 0.5]])
    merged = ReleasedSteps.merged([ReleasedSteps.of_site(rows, D, 0.1), ReleasedSteps.of_site(rows[:1], D, 0.2)])
    # Three before the weight became 0.5, of which one is from a site of twice the noise; then one.
    assert sorted(merged.mean) == pytest.approx(sorted([-(0.1 + 0.3 + 0.25 * 0.1) / 2.25, -0.5]))
    assert sorted(merged.noise_std) == pytest.approx([0.1 / 2.25**0.5, 0.1])


@pytest.mark.parametrize("fixed", [True, False])
def test_derivatives_are_those_of_the_nll(fixed: bool) -> None:
    V = np.diag(np.linspace(0.5, 1.5, D))
    likelihood = StepsLikelihood(steps_of(np.ones(D)), ROWS, mask(), W, V, fixed=fixed)
    edges = np.argwhere(DAG)
    J, missed = likelihood._derivatives(W, V, edges)
    for k, (i, j) in enumerate(edges):
        up, down = W.copy(), W.copy()
        up[i, j] += 1e-5
        down[i, j] -= 1e-5
        slope = (likelihood._nll(up, V) - likelihood._nll(down, V)) / 2e-5
        assert -(J.T @ missed)[k] == pytest.approx(slope, rel=1e-3, abs=0.05)
    for k in range(J.shape[1] - len(edges)):
        factor = np.ones(D) if fixed else np.eye(D)[k]
        slope = (likelihood._nll(W, V * np.exp(1e-5 * factor)) - likelihood._nll(W, V * np.exp(-1e-5 * factor))) / 2e-5
        assert -(J.T @ missed)[len(edges) + k] == pytest.approx(slope, rel=1e-3, abs=0.05)


def test_an_edge_that_is_missing_gains_about_what_a_refit_says() -> None:
    likelihood = StepsLikelihood(steps_of(np.ones(D)), ROWS, mask(), W, np.eye(D))
    poorer = DAG.copy()
    poorer[3, 4] = False
    found = likelihood.explained(poorer, W, np.eye(D))
    gains = likelihood.gains(found)
    assert max(gains[3, 4], gains[4, 3]) == gains.max() > likelihood.penalty
    richer = DAG.copy()
    richer[0, 3] = True
    full = likelihood.explained(DAG, W, np.eye(D))
    gained = full.nll - likelihood.explained(richer, W, np.eye(D)).nll
    assert likelihood.gains(full)[0, 3] == pytest.approx(gained, rel=0.1, abs=0.2)


def test_the_graph_its_weights_and_the_size_of_the_noise_are_found_from_one_of_the_starts() -> None:
    starts = [DAG.T, np.zeros((D, D), dtype=bool)]
    found = search_steps(steps_of(np.full(D, 1.3)), ROWS, mask(), W.T, starts, threshold=0.3)
    assert (found.dag == DAG).all()
    np.testing.assert_allclose(found.weights, W, atol=0.05)
    np.testing.assert_allclose(found.covariance, 1.69 * np.eye(D), rtol=0.1, atol=1e-9)


def test_steps_that_contradict_equal_variances_are_explained_without() -> None:
    std = np.array([1.0, 1.0, 0.4, 2.0, 0.3])
    found = search_steps(steps_of(std), ROWS, mask(), W, [DAG], threshold=0.3)
    assert (found.dag == DAG).all()
    np.testing.assert_allclose(np.sqrt(found.covariance.diagonal()), std, rtol=0.15)


def test_knowledge_holds() -> None:
    of = mask(forbidden=(("a", "b"), ("b", "a")), required=(("b", "e"),))
    start = np.zeros((D, D), dtype=bool)
    start[1, 4] = True
    found = search_steps(steps_of(np.ones(D)), ROWS, of, W, [start], threshold=0.3)
    assert found.dag[1, 4]
    assert not found.dag[0, 1]
    assert not found.dag[1, 0]
