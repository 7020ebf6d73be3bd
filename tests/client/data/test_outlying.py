"""What a site tells of values far from its medians, against counts of a plain loop, and what it leaves out."""

import math

import numpy as np
import pytest

from fedbnsl.plan.preparation import BINS_AN_OCTAVE, FIRST_BIN, NORMAL
from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.mapped_array import gathered, lies_in_file
from fedbnsl_client.data.outlying import tails, without_outlying
from fedbnsl_client.refit import known_values


def table():
    rng = np.random.default_rng(0)
    X = rng.standard_t(2, size=(2000, 3)) * [1.0, 1e-5, 300.0] + [0.0, 7.0, 5000.0]
    X[rng.random(X.shape) < 0.1] = np.nan
    return np.column_stack([X, np.full(2000, np.nan)])


def test_far_values_are_counted_by_column_and_distance():
    X = table()
    spreads, far = tails(X, np.array([True, True, False, True]))
    counts = {}
    for k in (0, 1):
        values = [x for x in X[:, k].tolist() if not math.isnan(x)]
        median = float(np.median(values))
        distances = [x - median for x in values]
        assert spreads[k] == pytest.approx(NORMAL * float(np.median(np.abs(distances))), rel=1e-12)
        for distance in distances:
            away = abs(distance) / spreads[k]
            if away >= 2.0 ** (FIRST_BIN / BINS_AN_OCTAVE):
                place = (k, (1 if distance > 0 else -1) * math.floor(BINS_AN_OCTAVE * math.log2(away)))
                counts[place] = counts.get(place, 0) + 1
    assert {(column, one): n for column, one, n in far.tolist()} == counts
    assert far[:, :2].tolist() == sorted(far[:, :2].tolist())
    assert spreads[2:].tolist() == [0.0, 0.0], "levels, and no value at all"


def test_a_table_in_a_file_tells_the_same_and_stays_in_one(monkeypatch):
    X = table()
    every = np.ones(4, dtype=bool)
    expected, limits = tails(X, every), np.array([[5.0, math.inf, 8.0, 1.0], [7.0, 9.0, math.inf, 1.0]])
    known = without_outlying(X, limits)
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 1000)
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 4096)
    mapped = gathered(iter([X]), 4)
    assert lies_in_file(mapped)
    found = tails(mapped, every)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    of_file = without_outlying(mapped, limits)
    assert lies_in_file(of_file)
    np.testing.assert_array_equal(of_file, known)


def test_values_beyond_a_limit_are_missing_and_all_others_stay():
    X = table()
    known = without_outlying(X, np.array([[5.0, math.inf, 8.0, 1.0], [7.0, math.inf, math.inf, 1.0]]))
    distance = X[:, :3] - np.nanmedian(X[:, :3], axis=0)
    distance /= NORMAL * np.nanmedian(np.abs(distance), axis=0)
    lost = np.isnan(known) & ~np.isnan(X)
    np.testing.assert_array_equal(lost[:, 0], (distance[:, 0] >= 5.0) | (distance[:, 0] <= -7.0))
    np.testing.assert_array_equal(lost[:, 2], distance[:, 2] >= 8.0)
    assert not lost[:, [1, 3]].any()
    np.testing.assert_array_equal(known[~lost], X[~lost])


def test_a_site_is_told_how_many_values_and_where_they_are():
    X = np.array([[float(k % 9), k % 7 + 0.5] for k in range(100)])
    X[5, 0] = 4000.0
    for below, words in ((30.0, "below -84.956 or above 92.956"), (math.inf, "above 92.956")):
        known, lines = known_values(Dataset(("age", "crp"), X), np.array([[30.0, math.inf], [below, math.inf]]))
        (line,) = lines  # the median is 4, half of the others are within 2, and the spread is 2 * 1.4826
        assert line.startswith(f"1 value of 'age' {words} counted as missing: so far apart")
        assert known.complete_cases().n_samples == 99


def test_each_site_loses_what_it_has_counted_whatever_the_others_spreads_are():
    rng = np.random.default_rng(3)
    narrow, wide = rng.normal(size=(2000, 2)), 10.0 * rng.normal(size=(2000, 2))
    wide[7, 0] = 900.0
    every = np.ones(2, dtype=bool)
    for X, lost in ((narrow, 0), (wide, 1)):
        _, far = tails(X, every)
        told = sum(n for column, one, n in far.tolist() if abs(one) >= 4 * BINS_AN_OCTAVE)
        gone = int(np.isnan(without_outlying(X, np.full((2, 2), 16.0))).sum())
        assert told == gone == lost
    constant = np.column_stack([np.repeat([5.0, 9.0], [1999, 1]), rng.normal(size=2000)])
    assert tails(constant, every)[0][0] == 0.0
    assert not np.isnan(without_outlying(constant, np.array([[16.0, np.inf]] * 2))).any()
