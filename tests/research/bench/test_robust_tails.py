"""Alarms about sites, on few variables: none of sites that are alike, and the wrong one named."""

import pytest

from fedbnsl_research.bench import robust_tails as bench

ALIKE = "sites alike, 2 graphs: differ, name a site"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_ALARM_VARIABLES", 6)
    monkeypatch.setattr(bench, "_ALARM_ROWS", (500, 600))
    monkeypatch.setattr(bench, "_ALARM_SEEDS", range(2))
    monkeypatch.setattr(bench, "_WRONG_SEEDS", range(2))
    monkeypatch.setattr(bench, "_SITES", 4)


def test_alarms_are_counted_apart_for_sites_that_are_alike_and_a_wrong_one(small: None) -> None:
    row = bench._alarms("normal", 500)
    assert row[ALIKE] == "0, 0"
    for name in ("turned around", "ten times as large"):
        assert row[f"one variable of a site {name}, 2 graphs: differ, name it, name another"] == "2, 2, 0"


def test_heavy_tails_of_sites_that_are_alike_raise_no_alarm(small: None) -> None:
    assert bench._alarms("t with 2 degrees of freedom", 600) == {
        "figure": "alarms, noise t with 2 degrees of freedom; 4 x 600 rows, 6 variables",
        ALIKE: "0, 0",
    }
