"""Alarms about sites, on few variables: none of sites that are alike, and the wrong one named."""

import pytest

from fedbnsl_research.bench import robust_tails as bench


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_ALARM_VARIABLES", 6)
    monkeypatch.setattr(bench, "_ALARM_SEEDS", range(2))
    monkeypatch.setattr(bench, "_WRONG_SEEDS", range(2))
    monkeypatch.setattr(bench, "_SITES", 4)


def test_alarms_are_counted_apart_for_sites_that_are_alike_and_a_wrong_one(small: None) -> None:
    row = bench._alarms("normal", 500)
    assert row["sites alike: runs that say that sites differ"] == row["sites alike: runs that name a site"] == 0
    for name in ("turned around", "ten times as large"):
        assert row[f"one variable of a site {name}: differ, name it, name another"] == "2, 2, 0"


def test_heavy_tails_of_sites_that_are_alike_raise_no_alarm(small: None) -> None:
    row = bench._alarms("t with 2 degrees of freedom", 500)
    assert row["sites alike: runs that say that sites differ"] == row["sites alike: runs that name a site"] == 0
