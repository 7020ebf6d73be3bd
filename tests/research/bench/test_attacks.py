"""The figures of attacks: every attack happens, the run ends as without it, and another graph would be said."""

from functools import partial

import pytest

from fedbnsl_research.bench import attacks as bench_attacks


@pytest.fixture
def small(monkeypatch):
    for name, value in {"_VARIABLES": 6, "_ROUNDS": 10, "_SAMPLES": 50, "_ATTACKERS": 3, "_IDLE": 40}.items():
        monkeypatch.setattr(bench_attacks, name, value)


def test_every_attack_is_made_and_changes_no_bit(small):
    rows = list(bench_attacks.attacks())
    assert len(rows) == len(bench_attacks._ATTACKS)
    assert [row["attempts"] == 0 for row in rows] == [True] + [False] * (len(rows) - 1)
    assert {row["run"] for row in rows} == {"finished, same bits"}
    assert all(row["MiB at most"] > 0 for row in rows)


def test_another_graph_is_said(small, monkeypatch):
    _, none = bench_attacks._ATTACKS["no attack"]
    monkeypatch.setattr(bench_attacks, "_ATTACKS", {"no attack": ("extra", none)})
    monkeypatch.setattr(bench_attacks, "simulate", partial(_of_other_tables, bench_attacks.simulate))
    (row,) = bench_attacks.attacks()
    assert row["run"] == "finished, other bits"


def _of_other_tables(simulate, plan, tables, out):
    return simulate(plan.with_settings(rounds=2), tables, out)
