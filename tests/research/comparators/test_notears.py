"""NOTEARS on second moments against a literal transcription of the published algorithm, which works on the rows."""

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.optimize import minimize

from fedbnsl.errors import DivergenceError
from fedbnsl.graphs.graph import extract_dag, threshold
from fedbnsl_research.comparators.notears import lagrangian, notears
from fedbnsl_workbench.tables.synthetic import synthesise
from oracles import finite_difference, literal_acyclicity


def table(d, n, seed):
    return synthesise(d, 1.5 * d, 1, n, seed).tables[0]


def moments(X):
    return X.T @ X / len(X)


def literal_notears(X, lam, h_tol, rho_max, max_iterations):
    """The augmented Lagrangian of the paper's section 4, on 2 d^2 bounded variables, with every W on the way."""
    n, d = X.shape

    def matrix(w):
        return (w[: d * d] - w[d * d :]).reshape(d, d)

    def h_of(W):
        return np.trace(expm(W * W)) - d

    def objective(w, rho, alpha):
        W = matrix(w)
        R = X - X @ W
        h = h_of(W)
        slope = -X.T @ R / n + (rho * h + alpha) * expm(W * W).T * 2 * W
        value = np.sum(R**2) / (2 * n) + rho / 2 * h**2 + alpha * h + lam * np.sum(w)
        return value, np.concatenate([(slope + lam).ravel(), (lam - slope).ravel()])

    bounds = [(0, 0) if i == j else (0, None) for _ in range(2) for i in range(d) for j in range(d)]
    w, rho, alpha, h, path = np.zeros(2 * d * d), 1.0, 0.0, np.inf, []
    for _ in range(max_iterations):
        while rho < rho_max:
            w_new = minimize(objective, w, args=(rho, alpha), method="L-BFGS-B", jac=True, bounds=bounds).x
            h_new = h_of(matrix(w_new))
            if h_new > 0.25 * h:
                rho *= 10
            else:
                break
        w, h = w_new, h_new
        alpha += rho * h
        path.append(matrix(w))
        if h <= h_tol or rho >= rho_max:
            break
    return path


@pytest.mark.parametrize("seed", range(4))
def test_value_and_gradient_are_those_of_the_rows(seed):
    rng = np.random.default_rng(seed)
    X = table(5, 50, seed)
    W, rho, alpha = rng.standard_normal((5, 5)), 3.0, 0.7

    def literal(V):
        h = literal_acyclicity(V)
        return np.sum((X - X @ V) ** 2) / (2 * len(X)) + alpha * h + rho / 2 * h**2

    value, gradient = lagrangian(moments(X), rho, alpha)(W)
    assert value == pytest.approx(literal(W), rel=1e-10)
    assert gradient == pytest.approx(finite_difference(literal, W), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_it_ends_where_the_published_algorithm_on_the_rows_ends(seed):
    X = table(6, 300, seed)
    path = []
    W = notears(moments(X), lam=0.1, follow=path.append)
    expected = literal_notears(X, 0.1, 1e-8, 1e16, 100)
    # L-BFGS-B stops early and magnifies rounding on its way: the two paths start together and end side by side.
    assert np.abs(path[0] - expected[0]).max() <= 1e-3
    assert abs(len(path) - len(expected)) <= 1
    assert np.abs(W - expected[-1]).max() <= 2e-2
    assert (threshold(W, 0.3) == threshold(expected[-1], 0.3)).all()
    assert (path[-1] == W).all()
    assert not np.diagonal(W).any()


def test_the_graph_of_twenty_variables_is_found_from_forty_thousand_rows():
    federation = synthesise(20, 20, 8, 5000, 3)
    W = notears(moments(np.vstack(federation.tables)), lam=0.1)
    assert literal_acyclicity(W) <= 1e-8
    assert (extract_dag(threshold(W, 0.3), W)[0] == (federation.W != 0)).all()


def test_it_stops_where_it_is_told_to():
    S = moments(table(6, 300, 1))

    def iterations(**settings):
        path = []
        notears(S, lam=0.1, follow=path.append, **settings)
        return path

    whole = iterations()
    assert len(iterations(max_iterations=2)) == 2
    assert literal_acyclicity(iterations(h_tol=1e-2)[-1]) <= 1e-2 < literal_acyclicity(whole[0])
    assert len(iterations(rho_max=10.0)) < len(whole)


def test_without_an_l1_term_two_variables_are_a_regression():
    X = np.array([[1.0, 2.0], [2.0, 4.1], [-1.0, -1.9], [0.5, 1.2]])
    W = notears(moments(X), lam=0.0)
    i, j = np.unravel_index(np.argmax(np.abs(W)), W.shape)
    assert W[i, j] == pytest.approx((X[:, i] @ X[:, j]) / (X[:, i] @ X[:, i]), rel=1e-3)


def test_a_weight_that_outweighs_everything_gives_no_edge():
    assert not notears(moments(table(5, 100, 0)), lam=1e6).any()


def test_moments_without_a_finite_value_are_refused():
    with pytest.raises(DivergenceError, match="comparable units"):
        notears(np.full((3, 3), np.inf), lam=0.1)
