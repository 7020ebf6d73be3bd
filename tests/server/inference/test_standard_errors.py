"""Standard errors from moments, against least squares on rows and against the spread of what simulations give."""

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl_server.inference.site_agreement import site_agreement
from fedbnsl_server.inference.standard_errors import (
    correlation_errors,
    log_variance_errors,
    standard_errors,
)
from fedbnsl_server.search.linear_network import Accuracy, LinearNetwork, SiteMoments, fitted

COLUMNS = Columns.of(["a", "b", "c", "d"])
# a -> b, a -> c, b -> c, c -> d; units of very different size.
DAG = np.zeros((4, 4), dtype=bool)
DAG[[0, 0, 1, 2], [1, 2, 2, 3]] = True
W = np.array([[0, 0.8, -0.5, 0], [0, 0, 30.0, 0], [0, 0, 0, 0.02], [0, 0, 0, 0]])
STD = np.array([1.0, 0.5, 20.0, 0.3])
BACK = np.linalg.inv(np.eye(4) - W)


def rows(n: int, rng: np.random.Generator) -> np.ndarray:
    return (rng.standard_normal((n, 4)) * STD) @ BACK


def moments(X: np.ndarray) -> np.ndarray:
    return X.T @ X / len(X)


def network(S: np.ndarray) -> LinearNetwork:
    return fitted(DAG, S, COLUMNS)


def test_they_are_those_of_least_squares_on_the_rows() -> None:
    X = rows(300, np.random.default_rng(1))
    found = standard_errors(network(moments(X)), moments(X), Accuracy(300))
    expected = []
    for i, j in np.argwhere(DAG):
        parents = np.flatnonzero(DAG[:, j])
        b, rest, _, _ = np.linalg.lstsq(X[:, parents], X[:, j], rcond=None)
        covariance = rest[0] / (300 - len(parents)) * np.linalg.inv(X[:, parents].T @ X[:, parents])
        k = parents.tolist().index(i)
        expected.append(np.sqrt(covariance[k, k]))
        assert network(moments(X)).weights[i, j] == pytest.approx(b[k])
    assert found == pytest.approx(expected, rel=1e-6)


def test_sites_that_weigh_as_their_rows_have_the_errors_of_all_rows_together() -> None:
    rng = np.random.default_rng(2)
    tables = [rows(n, rng) for n in (20_000, 60_000)]
    S = moments(np.vstack(tables))
    sites = [SiteMoments(moments(X), Accuracy(len(X))) for X in tables]
    together = standard_errors(network(S), S, Accuracy(80_000))
    assert standard_errors(network(S), S, Accuracy(80_000), sites=sites, weights=[2, 6]) == pytest.approx(
        together, rel=0.03
    )


def test_equal_votes_of_unequal_sites_have_the_errors_that_simulations_show() -> None:
    rng, sizes = np.random.default_rng(3), (100, 2000)
    estimates, errors = [], []
    for _ in range(400):
        tables = [rows(n, rng) for n in sizes]
        sites = [SiteMoments(moments(X), Accuracy(len(X))) for X in tables]
        S = np.mean([one.moments for one in sites], axis=0)
        estimates.append(network(S).weights[DAG])
        errors.append(standard_errors(network(S), S, Accuracy(380), sites=sites, weights=[1, 1]))
    assert np.mean(errors, axis=0) == pytest.approx(np.std(estimates, axis=0), rel=0.12)


def test_noise_on_moments_of_residuals_has_the_errors_that_simulations_show() -> None:
    rng, noise = np.random.default_rng(4), 0.03
    S = BACK.T @ np.diag(STD**2) @ BACK
    scales = STD * [1.0, 2.0, 1.0, 0.5]
    back = np.linalg.inv((np.eye(4) - W) / scales)
    accuracy = Accuracy(1e12, noise, scales)
    estimates, logs = [], []
    for _ in range(1500):
        N = rng.standard_normal((4, 4))
        noisy = S + back.T @ (noise * (N + N.T) / np.sqrt(2)) @ back
        found = network(noisy)
        estimates.append(found.weights[DAG])
        logs.append(np.log(found.residual_variance))
    assert standard_errors(network(S), S, accuracy) == pytest.approx(np.std(estimates, axis=0), rel=0.08)
    assert log_variance_errors(network(S), accuracy) == pytest.approx(np.std(logs, axis=0), rel=0.1)


def test_the_error_of_a_log_variance_is_what_simulations_show() -> None:
    rng = np.random.default_rng(5)
    logs = [np.log(network(moments(rows(200, rng))).residual_variance) for _ in range(1500)]
    S = BACK.T @ np.diag(STD**2) @ BACK
    assert log_variance_errors(network(S), Accuracy(200)) == pytest.approx(np.std(logs, axis=0), rel=0.08)


def test_columns_of_one_variable_keep_the_covariance_of_their_residuals() -> None:
    columns = Columns.of(["a", "b1", "b2", "c"], {"b1": "b", "b2": "b"})
    rng = np.random.default_rng(8)
    X = rng.standard_normal((400, 4))
    X[:, 2] += 0.7 * X[:, 1] + X[:, 0]
    X[:, 3] += X[:, 2]
    S = moments(X)
    dag = np.zeros((3, 3), dtype=bool)
    dag[0, 1] = dag[1, 2] = True
    found = fitted(dag, S, columns)
    beta = np.linalg.lstsq(X[:, [0]], X[:, 1:3], rcond=None)[0]
    residuals = X[:, 1:3] - X[:, [0]] @ beta
    assert found.residual_covariance[1:3, 1:3] == pytest.approx(residuals.T @ residuals / 400)
    assert found.residual_covariance[0, 1] == found.residual_covariance[2, 3] == 0.0
    assert not found.dag[1, 2]
    assert found.dag[1, 3]
    assert found.dag[2, 3]


def test_unknown_moments_are_unknown_residuals_where_they_matter_and_nowhere_else() -> None:
    S = BACK.T @ np.diag(STD**2) @ BACK
    S[0, 3] = S[3, 0] = np.nan
    found = network(S).of_residuals(S)
    # d's residual takes c alone, a's nothing: their moment takes (a, d); that of b and d takes (a, d) as well.
    assert np.isnan(found[[0, 1, 2], 3]).all()
    assert not np.isnan(found[:3, :3]).any()
    assert not np.isnan(found[3, 3])


@pytest.mark.parametrize(("n", "noise"), [(400, 0.0), (10**9, 0.03), (400, 0.05)])
@pytest.mark.long
def test_residuals_without_an_edge_are_correlated_by_chance_as_much_as_the_error_says(n: int, noise: float) -> None:
    """Chain and collider: for a and c the parents of c say most of a, for b and d none of it is left, a and d some."""
    dag = np.zeros((4, 4), dtype=bool)
    dag[[0, 1, 1], [1, 2, 3]] = True
    strengths = np.zeros((4, 4))
    strengths[[0, 1, 1], [1, 2, 3]] = [3.0, 1.0, 0.2]
    scales = STD * [1.0, 0.7, 1.0, 2.0]
    back = np.linalg.inv(np.eye(4) - strengths)
    rng = np.random.default_rng(9)
    accuracy, z = Accuracy(n, noise, scales), []
    L = np.linalg.cholesky(back.T @ np.diag(STD**2) @ back)
    for _ in range(1500):
        if n < 1000:
            Z = rng.standard_normal((n, 4)) @ L.T
            S = Z.T @ Z / n
        else:
            S = L @ L.T
        N = rng.standard_normal((4, 4))
        S = S + back.T @ (noise * scales * scales[:, None] * (N + N.T) / np.sqrt(2)) @ back
        found = fitted(dag, S, COLUMNS)
        size = np.sqrt(found.residual_variance)
        z.append(
            (found.of_residuals(S) / size / size[:, None] / correlation_errors(found, S, accuracy))[
                [0, 0, 2], [2, 3, 3]
            ]
        )
    assert np.std(z, axis=0) == pytest.approx([1.0, 1.0, 1.0], rel=0.1)


def test_coefficients_on_parents_that_are_functions_of_each_other_have_no_error_and_the_others_have() -> None:
    """a and b twice the same; the regression on c and on one of the two tells what is identified."""
    rng = np.random.default_rng(7)
    X = rows(300, rng)
    X[:, 1] = -3.0 * X[:, 0]
    X[:, 3] = X[:, 0] + X[:, 2] + rng.standard_normal(300)
    dag = np.zeros((4, 4), dtype=bool)
    dag[:3, 3] = True
    S = moments(X).astype(np.float32).astype(np.float64)  # as the wire rounds them
    of_network, sites = fitted(dag, S, COLUMNS), [SiteMoments(S, Accuracy(150))] * 2
    g = X[:, [0, 2]]
    b, rest, _, _ = np.linalg.lstsq(g, X[:, 3], rcond=None)
    error = np.sqrt(rest[0] / (300 - 3) * np.linalg.inv(g.T @ g)[1, 1])
    for found in (
        standard_errors(of_network, S, Accuracy(300)),
        standard_errors(of_network, S, Accuracy(300), sites=sites, weights=[1, 1]),
    ):
        assert np.isnan(found[:2]).all()
        assert found[2] == pytest.approx(error, rel=0.05)
    assert of_network.weights[2, 3] == pytest.approx(b[1], rel=1e-3)
    assert X[:, :3] @ of_network.weights[:3, 3] == pytest.approx(g @ b, rel=1e-2, abs=1e-3)
    estimates, errors = site_agreement(of_network, S, sites, COLUMNS).of_edges()
    assert np.isnan(estimates[:, :2]).all()
    assert np.isfinite(errors[:, 2]).all()


def test_errors_are_wider_where_few_rows_have_a_parent_with_its_child() -> None:
    """b -> c in a ninth of the rows: the error of x_b times the residual is three times as large."""
    rng, X = np.random.default_rng(9), rows(400, np.random.default_rng(8))
    S, widening = moments(X), np.ones((4, 4))
    widening[1, 2] = widening[2, 1] = 3.0
    alike, found = (standard_errors(network(S), S, Accuracy(400, widening=w)) for w in (None, widening))
    S_gg = S[:2, :2]
    products = rng.multivariate_normal(np.zeros(2), S_gg, 200_000) * [1.0, 3.0]  # of a and b with the residual
    spread = (np.linalg.inv(S_gg) @ products.T).std(axis=1) * np.sqrt(network(S).residual_variance[2] / 398)
    assert found == pytest.approx([alike[0], spread[0], spread[1], alike[3]], rel=0.01)  # ab, ac, bc, cd
    assert found[1] > alike[1]
    apart = correlation_errors(network(S), S, Accuracy(400, widening=widening * 2.0))
    assert apart == pytest.approx(correlation_errors(network(S), S, Accuracy(400)) * 2.0 * widening)
