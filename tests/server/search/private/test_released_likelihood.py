"""The likelihood of a DAG given noisy releases: its derivatives and its optimum."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.private import released_likelihood
from fedbnsl_server.search.private.levenberg_marquardt import inverse_of, step_of
from fedbnsl_server.search.private.released_likelihood import Release, ReleasedLikelihood
from fedbnsl_server.search.private.reversed_edges import reversal_growth
from noisy_releases import BLOCKED, DAG, NAMES, D, V, W, likelihood, mask, moments, release


def perturbed(rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    return W + np.where(DAG, rng.normal(0.0, 0.2, (D, D)), 0.0), V * rng.uniform(0.5, 2.0, D)


@pytest.mark.parametrize("fixed", [False, True], ids=["free variances", "known variances"])
@pytest.mark.parametrize("columns", [Columns.of(NAMES), BLOCKED], ids=["single columns", "a block"])
def test_gradient_and_information_are_the_derivatives_of_the_nll(columns: Columns, fixed: bool) -> None:
    """The gradient by finite differences, the information by dense derivatives of what the releases should be."""
    S = moments(W, V)
    releases = release(S, std=0.1, seed=1, c=0.8), release(S, std=0.2, seed=2)
    given = likelihood(*releases, of=mask(columns), fixed=fixed)
    edges, pairs = given.fitted(columns.joined(DAG))
    assert len(pairs) == (0 if fixed else len(np.argwhere(np.triu(columns.within()))))
    point = given._at(*perturbed(np.random.default_rng(3)))

    def moved(k: int, h: float) -> tuple[Matrix, Matrix]:
        other_W, other_V = point.weights.copy(), point.covariance.copy()
        if k < len(edges):
            other_W[tuple(edges[k])] += h
        else:
            i, j = pairs[k - len(edges)]
            other_V[i, j] += h
            other_V[j, i] = other_V[i, j]
        return other_W, other_V

    h, size = 1e-5, len(edges) + len(pairs)
    information, gradient = given._normal_equations(point, edges, pairs)
    numeric = [(given._at(*moved(k, h)).nll - given._at(*moved(k, -h)).nll) / (2 * h) for k in range(size)]
    assert -gradient[:size] == pytest.approx(numeric, rel=1e-5, abs=1e-6)
    assert (gradient[size:] == 0.0).all(), "scales are fitted"

    def told(k: int, c: float, A: Matrix) -> Matrix:
        up, down = (c * A.T @ moments(*moved(k, sign * h)) @ A for sign in (1, -1))
        return (up - down) / (2 * h)

    expected, free = np.zeros((size + 2, size + 2)), 2 if fixed else 1  # the last scale goes with free variances
    for t, (one, c) in enumerate(zip(releases, point.scales.tolist(), strict=True)):
        J = np.zeros((size + 2, D * D))
        J[:size] = [told(k, c, one.A).ravel() for k in range(size)]
        if t < free:
            J[size + t] = (c * one.A.T @ moments(point.weights, point.covariance) @ one.A).ravel()
        expected += 0.5 * given.share * J @ J.T / one.noise_std**2
    if not fixed:
        expected[-1, -1] = 1.0
    assert information == pytest.approx(expected, rel=1e-5, abs=1e-5 * expected.max())


def test_turns_grow_the_nll_about_as_much_as_a_refit_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two independent pairs: neither end of an edge has other parents, and both have variances of their own."""
    dag = np.zeros((D, D), dtype=bool)
    dag[0, 1] = dag[4, 3] = True
    weights, told = np.where(dag, 0.4, 0.0), list[Matrix]()
    given = likelihood(release(moments(weights, V), std=0.02, seed=3, exact=True), fixed=True)
    found = given.explained(dag, weights, V, steps=50)
    monkeypatch.setattr(
        released_likelihood, "reversal_growth", lambda *of: told.append(reversal_growth(*of)) or told[-1]
    )
    given.reversible(found)
    refitted = []
    for i, j in np.argwhere(dag).tolist():
        other = dag.copy()
        other[i, j], other[j, i] = False, True
        refitted.append(given.explained(other, 0.5 * weights.T + 0.5 * weights, V, steps=50).nll - found.nll)
    assert told[0] == pytest.approx(refitted, rel=0.2)


def test_few_steps_are_enough() -> None:
    """All weights together are nearly a scale: steps that do not know how scales follow get there by a share each."""
    S = moments(W, V)
    given = likelihood(release(S, std=0.01, seed=1, c=0.8), release(S, std=0.02, seed=2), fixed=True)
    start = perturbed(np.random.default_rng(3))[0], V
    soon, late = (given.explained(DAG, *start, steps=steps).nll for steps in (5, 50))
    assert given.explained(DAG, *start, steps=0).nll > late + 100.0
    assert soon == pytest.approx(late, abs=2e-4)


def test_without_noise_an_edge_of_nearly_no_weight_may_be_turned() -> None:
    faint = np.where(DAG, W, 0.0)
    faint[3, 4] = 1e-3
    given = likelihood(release(moments(faint, np.eye(D)), std=2e-4, seed=1, exact=True), fixed=True)
    found = given.reversible(given.explained(DAG, faint, np.eye(D)))
    assert found[3, 4]
    assert not (found & ~np.eye(D, dtype=bool))[0].any()


def test_what_rounding_has_made_indefinite_is_inverted_all_the_same() -> None:
    information = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert inverse_of(information) @ information == pytest.approx(np.eye(2), abs=1e-6)
    assert step_of(information, np.ones(2), 0.0) == pytest.approx(np.linalg.solve(information, np.ones(2)), rel=1e-6)


def test_edges_that_may_be_turned_are_those_that_explain_as_much_the_other_way() -> None:
    """What leaves a direction open: noise, and data that have it the other way."""
    same = V.copy()

    def reversible(variances: Matrix, std: float) -> Mask:
        given = likelihood(release(moments(W, variances), std=std, seed=1), fixed=True)
        return given.reversible(given.explained(DAG, W, same))

    assert (reversible(same, 30.0) == DAG).all(), "noise tells no direction"
    assert not reversible(same, 1e-4).any(), "nor is any open without noise"
    w, dag = W[3, 4], np.zeros((D, D), dtype=bool)
    dag[3, 4] = True
    only = np.where(dag, W, 0.0)
    turned = np.zeros((D, D))
    turned[4, 3] = w * V[3, 3] / (w**2 * V[3, 3] + V[4, 4])
    given = likelihood(release(moments(turned, V), std=1e-4, seed=1), fixed=True)
    assert given.reversible(given.explained(dag, only, V))[3, 4], "the data have it the other way"


def test_releases_without_noise_tell_everything() -> None:
    S = moments(W, V)
    given = likelihood(release(S, std=1e-3, seed=1, c=0.7, exact=True), release(S, std=1e-3, seed=2, exact=True))
    start = perturbed(np.random.default_rng(4))
    found = given.explained(DAG, *start, steps=50)
    assert found.weights == pytest.approx(W, abs=1e-4)
    assert found.covariance == pytest.approx(V, abs=1e-4)
    assert found.scales == pytest.approx([0.7, 1.0], abs=1e-4)
    assert found.nll == pytest.approx(0.0, abs=1e-2)
    assert found.score == pytest.approx(found.nll + 5 * given.penalty)


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
    assert found.score - found.nll == pytest.approx(4 * given.penalty), "an edge costs as many as pairs of columns"


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


FEWER = DAG.copy()
FEWER[3, 4] = False


def test_sampling_error_that_all_releases_share_counts_once() -> None:
    S = moments(W, V)
    one = release(S, std=1e-4, seed=1)
    few = ReleasedLikelihood([one], 100.0, mask())
    twice = ReleasedLikelihood([one, one], 100.0, mask())
    assert few.explained(FEWER, W, V).nll == pytest.approx(twice.explained(FEWER, W, V).nll, rel=0.01)
    assert few.penalty == pytest.approx(0.5 * math.log(100.0) + 2 * math.log(D), rel=0.01)


def test_no_step_is_taken_towards_a_target_out_of_reach() -> None:
    S = moments(W, V)
    given = likelihood(release(S, std=0.01, seed=1))
    start, best = given.explained(DAG, W * 1.02, V, steps=0), given.explained(DAG, W * 1.02, V)
    gain = start.nll - best.nll
    assert gain > 1.0, "steps are worth it"
    within = given.explained(DAG, W * 1.02, V, target=best.nll)
    assert (within.weights == best.weights).all()
    assert within.score == best.score
    beyond = given.explained(DAG, W * 1.02, V, target=start.nll - 3.0 * gain)
    assert (beyond.nll, beyond.score) == (start.nll, np.inf)
