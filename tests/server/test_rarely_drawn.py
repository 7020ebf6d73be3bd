"""An edge of a private run that hardly any draw of the bootstrap has is none, in all that the run writes."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.graphs.files import read_edges
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.inference import confidence
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.store import checkpoint
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.simulate import simulate

NAMES = ("a", "b", "c", "d")


def result_of(out: Path, *, bootstrap: int = 20) -> dict[str, Any]:
    """Of a -> b -> c -> d, of which c -> d is required."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 4))
    for k in (1, 2, 3):
        X[:, k] = 0.8 * X[:, k - 1] + 0.6 * X[:, k]
    tables = {f"site-{s}": Dataset(NAMES, np.ascontiguousarray(X[s::3])) for s in range(3)}
    ranges = Dictionary.model_validate({name: {"range": [-5.0, 5.0]} for name in NAMES})
    plan = Plan.load("private", epsilon=20.0).with_settings(
        n_participants=3, bootstrap=bootstrap, knowledge={"required": [["c", "d"]]}
    )
    simulate(plan.with_dictionary(ranges, origin="here"), tables, out, noise_seed=1)
    return json.loads((out / "result.json").read_text(encoding="utf-8"))


def drawn(counts: list[int], draws: int) -> tuple[Confidence, np.ndarray]:
    """So many draws have an edge from the first variable to each of the others."""
    V = len(counts) + 1
    values: dict[str, Any] = {one.name: np.zeros(0) for one in fields(Confidence)}
    pairs = np.array([[0, k] for k in range(1, V)])
    told = replace(Confidence(**values), draws=draws, pairs=pairs, counts=np.array([[n, n, 0, 0] for n in counts]))
    dag = np.zeros((V, V), dtype=bool)
    dag[0, 1:] = True
    return told, dag


def test_an_edge_is_rare_below_a_twentieth_of_enough_draws() -> None:
    told, dag = drawn([4, 5, 100], draws=100)
    assert told.rarely_drawn(dag)[0].tolist() == [False, True, False, False]
    told, dag = drawn([0, 1], draws=19)  # too few to say so
    assert not told.rarely_drawn(dag).any()


@pytest.mark.long
def test_edges_that_are_rare_leave_the_result_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = result_of(tmp_path / "whole")
    assert whole["rarely_drawn"] == []
    monkeypatch.setattr(confidence, "_RARE", 1.1)  # no edge is in so many draws
    run = tmp_path / "run"
    found = result_of(run)
    assert [(edge["source"], edge["target"]) for edge in found["edges"]] == [("c", "d")]
    assert {frozenset(pair) for pair in found["rarely_drawn"]} == {frozenset("ab"), frozenset("bc")}
    assert any(text.startswith("2 edges were taken out, between") for text in found["warnings"])
    assert read_edges(run / "edges.csv", NAMES).dag.sum() == 1
    assert [edge["bootstrap"] for edge in found["edges"]] == [
        edge["bootstrap"] for edge in whole["edges"] if edge["target"] == "d"
    ]
    (kept,), (before,) = ([edge for edge in one["edges"] if edge["target"] == "d"] for one in (found, whole))
    # Its own, not another edge's; the others' squares are no part of its residual any more.
    assert kept["standard_error"] == pytest.approx(before["standard_error"], rel=1e-3)
    assert found["paths"] == whole["paths"]
    network = json.loads((run / "lgbn.json").read_text(encoding="utf-8"))
    (variance,) = network["cpds"]["b"]["variance"]
    assert variance == pytest.approx(1.0, abs=0.2)  # all of it: nothing explains b any more
    assert "2 edges were taken out" in write_report(run).read_text(encoding="utf-8")


def test_what_was_taken_out_is_in_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confidence, "_RARE", 1.1)
    result_of(tmp_path / "run")
    plan = Plan.load(tmp_path / "run" / "plan.toml")
    state = checkpoint.load(tmp_path / "run" / "checkpoint.npz", plan_digest=plan.digest())
    assert state.confidence is not None
    assert len(state.confidence.taken_out) == 2
