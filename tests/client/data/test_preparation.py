"""What a site's columns are like and how they are prepared, against records worked out by hand."""

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.plan.preparation import Preparation
from fedbnsl.protocol.messages import Units
from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.mapped_array import gathered
from fedbnsl_client.data.preparation import column_means, column_statistics, prepared
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.rounds.kinds import LocalProblem

# Two columns of four records: means 3 and 10, variances 5 and 8.
X = np.array([[0.0, 8.0], [2.0, 14.0], [4.0, 8.0], [6.0, 10.0]])


@pytest.mark.parametrize(
    ("intercept", "means", "variances"),
    [("site", [], [5.0, 6.0]), ("common", [3.0, 10.0], [5.0, 6.0]), ("none", [], [14.0, 106.0])],
)
def test_a_site_tells_its_means_only_where_all_sites_share_one(intercept, means, variances):
    told = column_statistics(X, Preparation(intercept=intercept))
    assert [numbers.tolist() for numbers in told] == [means, variances, []]


def test_with_em_a_column_is_told_by_the_values_that_it_has():
    gaps = np.column_stack([X, np.full(4, np.nan)])
    gaps[3, 0] = np.nan  # leaves 0, 2, 4
    means, variances, n_values = column_statistics(gaps, Preparation(intercept="common", missing="em"))
    assert n_values.tolist() == [3, 4, 0]
    assert means.tolist() == [2.0, 10.0, 0.0]
    np.testing.assert_allclose(variances, [8.0 / 3.0, 6.0, 0.0], rtol=1e-15)


@pytest.mark.parametrize(
    ("intercept", "units", "record"),
    [
        # The second record, (2, 14): less the site's own means (3, 10), over the scales (2, 4).
        ("site", Units(np.empty(0), np.array([2.0, 4.0])), [-0.5, 1.0]),
        # Less the centres that all sites share.
        ("common", Units(np.array([1.0, 6.0]), np.array([2.0, 4.0])), [0.5, 2.0]),
        ("none", Units(np.empty(0), np.array([2.0, 4.0])), [1.0, 3.5]),
        ("site", None, [-1.0, 4.0]),
    ],
)
def test_a_record_becomes_what_the_plan_says(intercept, units, record):
    centre, scale = prepared(X, Preparation(intercept=intercept), units)
    assert ((X[1] - centre) / scale).tolist() == record


def test_the_loss_is_that_of_the_prepared_table():
    plan = Plan(preparation=Preparation())
    units = Units(np.empty(0), np.array([2.0, 4.0]))
    problem = LocalProblem(plan, X, None, None, None, units)
    by_hand = (X - [3.0, 10.0]) / [2.0, 4.0]
    np.testing.assert_allclose(problem.loss.S, by_hand.T @ by_hand / 4, rtol=1e-15)
    raw = LocalProblem(Plan(), X, None, None, None).loss.S
    assert raw.tolist() == SecondMoments.of(X).S.tolist() == (X.T @ X / 4).tolist()


def test_means_that_are_large_beside_the_spread_cost_no_digits():
    rng = np.random.default_rng(1)
    spread, far = rng.standard_normal((50_000, 3)), np.array([1e3, 1e6, 1e9])
    means, variances, _ = column_statistics(spread + far, Preparation(intercept="common"))
    np.testing.assert_allclose(means - far, spread.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(variances, spread.var(axis=0), rtol=1e-6)


def test_a_table_in_a_file_is_prepared_block_by_block(monkeypatch):
    table = np.random.default_rng(2).standard_normal((700, 4)) + 5.0
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 1)
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 8 * 4 * 64)
    mapped = gathered(iter([table]), 4)
    assert mapped_array.lies_in_file(mapped)
    np.testing.assert_allclose(column_means(mapped), table.mean(axis=0), rtol=1e-14)
    of_file = column_statistics(mapped, Preparation())[1]
    np.testing.assert_allclose(of_file, table.var(axis=0), rtol=1e-12)
