"""Variance factors of rows that depend on each other, against tables drawn again and again."""

from dataclasses import replace

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.inference.bootstrap import draw
from fedbnsl_server.inference.standard_errors import correlation_errors, log_variance_errors, standard_errors
from fedbnsl_server.search.dependent_rows import DependentRows, icc, of_sites
from fedbnsl_server.search.linear_network import (
    Accuracy,
    LinearNetwork,
    SiteMoments,
    edges_of,
    fitted,
    pooled_accuracy,
)

W = np.zeros((5, 5))
W[0, 2], W[1, 2], W[2, 3], W[0, 3], W[1, 4] = 0.8, -0.6, 0.7, 0.5, 1.1
BACK = np.linalg.inv(np.eye(5) - W)
SHARES = np.array([0.9, 0.1, 0.5, 0.95, 0.0])
"""ICC of the noise of each variable."""
S, B = BACK.T @ BACK, BACK.T @ np.diag(SHARES) @ BACK
COLUMNS = Columns.of(list("abcde"))
SIZES = np.repeat([1, 2, 5, 16], 25)
ROWS, OTHERS = int(SIZES.sum()), float((SIZES * (SIZES - 1)).sum() / SIZES.sum())
ACCURACY = Accuracy(ROWS, dependent=DependentRows(OTHERS, B))
TABLES = 1500


def tables() -> list[Matrix]:
    rng, group = np.random.default_rng(3), np.repeat(np.arange(len(SIZES)), SIZES)

    def one() -> Matrix:
        lasting, own = rng.standard_normal((len(SIZES), 5))[group], rng.standard_normal((ROWS, 5))
        return np.asarray((np.sqrt(SHARES) * lasting + np.sqrt(1.0 - SHARES) * own) @ BACK)

    return [X.T @ X / ROWS for X in (one() for _ in range(TABLES))]


@pytest.fixture(scope="module")
def moments() -> np.ndarray:
    return np.stack(tables())


TRUE = fitted(W != 0, S, COLUMNS)


@pytest.mark.long
def test_mean_products_vary_as_the_factors_say(moments: np.ndarray) -> None:
    independent = (np.outer(S.diagonal(), S.diagonal()) + S**2) / ROWS
    factors = 1.0 + OTHERS * ACCURACY.dependent.excess(S)  # type: ignore[union-attr]
    assert moments.var(axis=0) / independent == pytest.approx(factors, rel=0.2)


@pytest.mark.long
def test_coefficients_and_residuals_vary_as_their_errors_say(moments: np.ndarray) -> None:
    networks = [fitted(W != 0, one, COLUMNS) for one in moments]
    i, j = edges_of(W != 0).T
    weights = np.array([one.weights[i, j] for one in networks])
    assert weights.std(axis=0) == pytest.approx(standard_errors(TRUE, S, ACCURACY), rel=0.08)
    logs = np.log([one.residual_variance for one in networks])
    assert logs.std(axis=0) == pytest.approx(log_variance_errors(TRUE, ACCURACY), rel=0.1)
    residuals = np.array([one.of_residuals(M) for one, M in zip(networks, moments, strict=True)])
    apart = np.triu(~((W != 0) | (W != 0).T), k=1)
    # b and d: the parents of d say part of b, and what they leave of b depends on other rows more than b does.
    assert residuals.std(axis=0)[apart] == pytest.approx(correlation_errors(TRUE, S, ACCURACY)[apart], rel=0.1)


@pytest.mark.long
def test_draws_vary_as_tables_do(moments: np.ndarray) -> None:
    rng, size = np.random.default_rng(4), np.sqrt(S.diagonal())
    # Groups of one size are drawn; those of the tables have several, and the same variances.
    network = LinearNetwork(W != 0, W, np.eye(5), BACK)
    drawn = np.stack([draw(network, np.eye(5), ACCURACY, rng) for _ in range(TABLES)]) / size / size[:, None]
    assert drawn.mean(axis=0) == pytest.approx(S / size / size[:, None], abs=0.04)
    assert drawn.std(axis=0) == pytest.approx(moments.std(axis=0) / size / size[:, None], rel=0.12)


def test_rows_that_are_copies_count_once() -> None:
    copies = Accuracy(400, dependent=DependentRows(3.0, S))
    assert standard_errors(TRUE, S, copies) == pytest.approx(2.0 * standard_errors(TRUE, S, Accuracy(400)), rel=0.01)
    assert correlation_errors(TRUE, S, copies) == pytest.approx(2.0 * correlation_errors(TRUE, S, Accuracy(400)))
    assert (
        Accuracy(400, dependent=DependentRows(3.0, S).counting(TRUE.excess(DependentRows(3.0, S)), COLUMNS)).counted
        == 100
    )


def test_rows_without_dependence_count_as_they_are() -> None:
    alone = Accuracy(400, dependent=DependentRows(3.0, np.zeros((5, 5))))
    assert (standard_errors(TRUE, S, alone) == standard_errors(TRUE, S, Accuracy(400))).all()
    assert alone.counted == 400


def test_sites_with_one_row_a_group_count_all_their_rows_among_others() -> None:
    """Copies at one site, single rows at the other: 400 rows of 100 groups, and 400 of 400."""
    told = of_sites({"a": S, "b": np.zeros((5, 5))}, {"a": 1200, "b": 0}, {"a": 400, "b": 400})
    assert {site: one.others for site, one in told.items()} == {"a": 3.0, "b": 0.0}
    assert told["b"].between == pytest.approx(S)
    accuracies = [Accuracy(400, dependent=one) for one in told.values()]
    pooled = pooled_accuracy(accuracies, [400.0, 400.0])
    # The mean of two means with variances 1 / 100 and 1 / 400.
    assert standard_errors(TRUE, S, pooled)[0] ** 2 == pytest.approx(
        (4 + 1) / 4 * TRUE.residual_variance[2] * np.linalg.inv(S[:2, :2])[0, 0] / 400, rel=0.01
    )
    sites = [SiteMoments(S, one) for one in accuracies]
    sandwich = standard_errors(TRUE, S, pooled, sites=sites, weights=[400.0, 400.0])
    assert sandwich == pytest.approx(standard_errors(TRUE, S, pooled), rel=0.01)


def test_no_site_says_more_than_its_rows_can_have() -> None:
    (told,) = of_sites({"a": 1e6 * S}, {"a": 10**12}, {"a": 10}).values()
    assert told.others == 9.0
    assert icc(told.between, S).tolist() == [1.0] * 5
    assert (told.excess(S) <= 1.0).all()
    assert (DependentRows(9.0, -S).excess(S) == 0.0).all()
    assert not of_sites({"a": S}, {"a": 0}, {"a": 10})


def test_two_groups_of_many_rows_count_as_two_groups() -> None:
    told = of_sites({"a": B, "b": S}, {"a": 100 * 20, "b": 2 * 1500 * 1499}, {"a": 500, "b": 3000})
    assert told["a"].between == pytest.approx((100 * B + 2 * S) / 102)
    few = of_sites({"a": B, "b": S}, {"a": 100 * 20, "b": 20}, {"a": 500, "b": 1000})  # 980 rows alone: no groups
    assert few["a"].between == pytest.approx((100 * B + 10 * S) / 110)


def test_products_of_two_columns_are_those_of_the_sites_that_have_both() -> None:
    """The first site lacks e, the second a; no site has both, and what they expect has the other sign."""
    expected, has_a, has_e = -B, np.ones((5, 5)), np.ones((5, 5))
    has_a[4] = has_a[:, 4] = has_e[0] = has_e[:, 0] = 0.0
    products = {"a": np.where(has_a > 0.0, B, expected), "e": np.where(has_e > 0.0, B, expected)}
    told = of_sites(products, {"a": 4000, "e": 1000}, {"a": 1000, "e": 250}, {"a": has_a, "e": has_e})
    known = (has_a + has_e) > 0.0
    assert told["a"].between == pytest.approx(np.where(known, B, expected))
    assert (~known).sum() == 2


def test_products_count_by_the_rows_that_have_both_columns() -> None:
    products, n = {"a": B, "b": S}, {"a": 900, "b": 900}
    few = of_sites(products, n, {"a": 100, "b": 100}, {"a": np.full((5, 5), 0.9), "b": np.full((5, 5), 0.1)})
    assert few["a"].between == pytest.approx(0.9 * B + 0.1 * S)


def test_columns_of_one_variable_have_no_edge_to_count_with() -> None:
    columns = Columns.of(["a", "b", "c", "d", "e"])
    columns = replace(columns, variables=("ab", "c", "d", "e"), variable_of=np.array([0, 0, 1, 2, 3]))
    excess = np.full((5, 5), 0.1)
    excess[0, 1] = excess[1, 0] = 0.9
    assert DependentRows(3.0, B).counting(excess, columns).largest == 0.1
    assert DependentRows(3.0, B).counting(excess, COLUMNS).largest == 0.9


def test_unknown_products_and_columns_without_variance_add_nothing() -> None:
    between, moments = B.copy(), S.copy()
    between[0, 1] = between[1, 0] = np.nan
    moments[4] = moments[:, 4] = between[4] = between[:, 4] = 0.0
    excess = DependentRows(2.0, between).excess(moments)
    assert np.isfinite(excess).all()
    assert not excess[4].any()
