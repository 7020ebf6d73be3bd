"""Tests of independence by tables, against scipy's and against records that are known to be independent."""

import numpy as np
import pytest
from scipy import stats

from fedbnsl_server.inference.counted_dependence import CountedDependence
from fedbnsl_server.search.counts.redrawn import Records

LEVELS = np.array([2, 3, 3, 4])


def drawn(rng, n=2000):
    """Variable 0 acts on 1 and on 2; 3 goes with nothing."""
    a = rng.integers(0, 2, n)
    b, c = ((rng.random(n)[:, None] > np.array([[0.5, 0.8], [0.2, 0.5]])[a]).sum(axis=1) for _ in range(2))
    return Records([a, b, c, rng.integers(0, 4, n)], LEVELS)


def test_the_p_value_of_a_pair_is_that_of_the_g_test():
    records = drawn(np.random.default_rng(1))
    expected = stats.chi2_contingency(records.table((2, 3)), correction=False, lambda_="log-likelihood").pvalue
    tests = CountedDependence(records)
    assert tests.p_value(2, 3, ()) == pytest.approx(expected)
    assert tests.p_value(3, 2, ()) == pytest.approx(expected)


def test_p_values_are_even_where_others_separate():
    rng, found = np.random.default_rng(2), []
    for _ in range(300):
        tests = CountedDependence(drawn(rng))
        found.append(tests.p_value(1, 2, (0,)))
    assert stats.kstest(found, "uniform").pvalue > 0.001
    assert tests.p_value(1, 2, ()) < 1e-4
    assert tests.shows(0, 1, (), ())
    assert not tests.shows(0, 3, (), ())


def test_levels_that_do_not_occur_count_as_none():
    records = drawn(np.random.default_rng(3))
    wider = Records(records.of, LEVELS + 1)
    assert CountedDependence(wider).p_value(1, 2, (0,)) == pytest.approx(CountedDependence(records).p_value(1, 2, (0,)))


def test_what_few_records_or_no_table_tell_is_not_told():
    few = CountedDependence(drawn(np.random.default_rng(4), n=40))
    assert few.p_value(1, 2, (3,)) is None
    assert not few.shows(1, 2, (3,), ())

    class Nothing(Records):
        def table(self, variables):
            return None

    assert CountedDependence(Nothing([], LEVELS)).p_value(0, 1, ()) is None
