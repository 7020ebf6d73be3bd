"""No result of a private run tells that a level changes a probability by more than 1, or a mean beyond its range."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from command_line import run_command
from fedbnsl.graphs.files import read_edges
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph, consensus_graph
from fedbnsl_server.results import results
from fedbnsl_server.results.learned_graph import write_graph
from fedbnsl_workbench.estimator import FedSparseBNSL, SimulationWarning
from fedbnsl_workbench.report.effects import effect_table
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.run_files import read_run
from fedbnsl_workbench.scoring.evaluation import read_weights
from fedbnsl_workbench.simulate import simulate

DICTIONARY = Dictionary.model_validate(
    {
        "k": {"kind": "nominal", "levels": ["A", "B", "C"]},
        "m": {"kind": "binary", "levels": ["no", "yes"]},
        "x": {"range": [-6.0, 6.0]},
        "y": {"range": [-6.0, 6.0]},
    }
)
# k -> m -> x -> y, so that all of k and x reaches y, but x alone without k's coefficients.
REQUIRED = [["k", "m"], ["m", "x"], ["x", "y"]]


def tables() -> dict[str, Dataset]:
    rng = np.random.default_rng(1)
    k = rng.choice(3, 3000)
    m = (rng.random(3000) < np.array([0.2, 0.5, 0.8])[k]).astype(float)
    x = m - 0.5 + 0.5 * rng.normal(size=3000)
    y = 0.7 * x + 0.5 * rng.normal(size=3000)
    X = np.column_stack((k == 1, k == 2, m, x, y)).astype(float)
    return {f"site-{s}": Dataset(("k=B", "k=C", "m", "x", "y"), np.ascontiguousarray(X[s::3])) for s in range(3)}


def learns(monkeypatch: pytest.MonkeyPatch, of: tuple[str, str], weight: float) -> None:
    """Let runs learn this weight of a column in the regression of another."""

    def learned(*args: Any) -> ConsensusGraph:
        graph = consensus_graph(*args)
        weights = graph.weights.copy()
        names = graph.mask.columns.names
        weights[names.index(of[0]), names.index(of[1])] = weight
        return replace(graph, weights=weights)

    monkeypatch.setattr(results, "consensus_graph", learned)


def run_with(
    monkeypatch: pytest.MonkeyPatch,
    out: Path,
    *,
    plan: str = "private",
    of: tuple[str, str] = ("k=B", "m"),
    weight: float,
) -> dict[str, Any]:
    """result.json of a run that has learned this weight, by default of k=B in the regression of m."""
    learns(monkeypatch, of, weight)
    loaded = Plan.load(plan, epsilon=20.0) if plan == "private" else Plan.load(plan)
    settings = {"n_participants": 3, "bootstrap": 20, "knowledge": {"required": REQUIRED}}
    simulate(
        loaded.with_settings(**settings).with_dictionary(DICTIONARY, origin="here"),
        tables(),
        out,
        noise_seed=1 if plan == "private" else None,
    )
    return json.loads((out / "result.json").read_text(encoding="utf-8"))


def coefficient(result: dict[str, Any]) -> dict[str, Any]:
    (edge,) = [edge for edge in result["edges"] if edge["target"] == "m"]
    (found,) = [one for one in edge["coefficients"] if one["source"] == "k=B"]
    return found


def effect_of(capsys: pytest.CaptureFixture[str], run: Path, source: str, target: str) -> dict[str, Any]:
    answer = run_command(capsys, "effect", run, "--from", source, "--to", target, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


@pytest.mark.long
def test_a_change_beyond_1_is_told_nowhere_and_all_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    found = run_with(monkeypatch, run, weight=5253.25)
    one = coefficient(found)
    assert (one["weight"], one["standardised"], one["standard_error"], one["interval"]) == (None,) * 4
    (edge,) = [edge for edge in found["edges"] if edge["target"] == "m"]
    (other,) = [one for one in edge["coefficients"] if one["source"] == "k=C"]
    assert edge["weight"] == other["weight"] is not None  # the largest that is known
    assert edge["interval"] == other["interval"] is not None
    assert read_edges(run / "edges.csv", found["variables"]).weights[0, 1] == pytest.approx(other["weight"])
    assert any(place.endswith("/weight") for place in found["not_known"])
    assert any("1 weight is withheld, at k -> m" in text for text in found["warnings"])
    page = write_report(run).read_text(encoding="utf-8")
    files = [
        page,
        *((run / name).read_text("utf-8") for name in ("edges.csv", "graph.dot", "lgbn.json", "result.json")),
    ]
    assert not re.search(r"(?<![\d.])5253", "".join(files))  # among the digits of another number it may be


@pytest.mark.long
def test_what_does_not_rest_on_a_withheld_weight_still_has_its_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    run_with(monkeypatch, run, weight=5253.25)
    run_with(monkeypatch, whole, weight=0.3)
    network = json.loads((run / "lgbn.json").read_text(encoding="utf-8"))
    assert network["withheld"] == [["k=B", "m"]]
    assert network["cpds"]["m"]["coefficients"]["k=B"] == [1.0]
    told, as_known = (effect_of(capsys, folder, "x", "y")["effects"][0]["values"] for folder in (run, whole))
    assert told[0]["effect"] == pytest.approx(as_known[0]["effect"])
    rests = effect_of(capsys, run, "k", "y")
    by_level = {row["source"]: row for row in rests["effects"]}
    assert (by_level["k=B"]["verdict"], by_level["k=B"]["values"]) == ("withheld", [])
    assert by_level["k=C"]["values"]
    assert any("k=B -> m" in text for text in rests["in_words"])


@pytest.mark.long
def test_the_page_tells_no_effect_that_rests_on_a_withheld_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of k and m on x and y: the nearest possible weight, which the network has in its place, is no estimate."""
    run = tmp_path / "run"
    run_with(monkeypatch, run, of=("m", "x"), weight=99.0)
    assert "4 other pairs have an effect that is not told" in write_report(run).read_text(encoding="utf-8")


@pytest.mark.parametrize("weight", [1.02, -1.02])
def test_an_interval_is_cut_where_no_probability_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: float
) -> None:
    run = tmp_path / "run"
    found = coefficient(run_with(monkeypatch, run, weight=weight))
    assert found["weight"] is None
    network = json.loads((run / "lgbn.json").read_text(encoding="utf-8"))
    assert network["cpds"]["m"]["coefficients"]["k=B"] == [math.copysign(1.0, weight)]
    low, high = found["interval"]
    assert (high, low > 0.9) == (1.0, True) if weight > 0 else (low, high < -0.9) == (-1.0, True)


@pytest.mark.parametrize(
    ("source", "target", "weight", "is_told"),
    [("m", "x", 12.5, False), ("m", "x", -11.5, True), ("x", "y", 12.5, True)],
    ids=["beyond the range", "within the range", "of no level"],
)
@pytest.mark.long
def test_a_level_moves_no_mean_beyond_the_range_of_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, target: str, weight: float, is_told: bool
) -> None:
    found = run_with(monkeypatch, tmp_path / "run", of=(source, target), weight=weight)
    (edge,) = [edge for edge in found["edges"] if (edge["source"], edge["target"]) == (source, target)]
    assert edge["weight"] == (weight if is_told else None)
    assert is_told or found["edges"][-1] == edge  # after those whose size is known


def test_without_privacy_least_squares_are_told_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_with(monkeypatch, tmp_path / "run", plan="standard", weight=1.02)
    assert coefficient(found)["weight"] == 1.02
    assert found["not_known"] == []
    (row,) = (row for row in effect_of(capsys, tmp_path / "run", "k", "m")["effects"] if row["source"] == "k=B")
    assert [one["effect"] for one in row["values"]] == pytest.approx([1.02])


def test_the_weights_as_searched_withhold_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """weights.csv, which is not of the final graph."""
    run = tmp_path / "run"

    def learned(graph: Any, state: Any, *others: Any) -> None:
        W = state.refitted.to_dense()
        W[0, 2] = 5253.25
        write_graph(graph, replace(state, refitted=SparseMatrix.from_dense(W)), *others)

    monkeypatch.setattr(results, "write_graph", learned)
    run_with(monkeypatch, run, weight=0.3)
    assert "5253" not in (run / "weights.csv").read_text(encoding="utf-8")
    assert read_weights(run / "weights.csv", ["k=B", "k=C", "m", "x", "y"])[1, 2] != 0.0


def test_an_effect_beyond_1_is_withheld_where_no_weight_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ways of 0.9 each would be enough; a file that says so is quicker."""
    run = tmp_path / "run"
    run_with(monkeypatch, run, weight=0.3)
    network = json.loads((run / "lgbn.json").read_text(encoding="utf-8"))
    network["cpds"]["m"]["coefficients"]["k=B"] = [1.8]
    (run / "lgbn.json").write_text(json.dumps(network), encoding="utf-8")
    by_level = {row["source"]: row["verdict"] for row in effect_of(capsys, run, "k", "m")["effects"]}
    assert by_level == {"k=B": "withheld", "k=C": "identified"}
    answer = run_command(capsys, "effect", run, "--from", "k=B", "--to", "m")
    assert (answer.code, "withheld: noise took it" in answer.out, "1.8" in answer.out) == (0, True, False)


def test_the_interval_of_an_effect_is_cut_where_no_probability_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run_with(monkeypatch, run, weight=-0.99)
    (row,) = (row for row in effect_of(capsys, run, "k", "m")["effects"] if row["source"] == "k=B")
    (value,) = row["values"]
    assert value["interval"] == [-1.0, pytest.approx(-0.99 + 1.959964 * value["standard_error"], rel=1e-4)]
    assert value["interval"][0] > -0.99 - 1.959964 * value["standard_error"]
    (shown,) = (row for row in effect_table(read_run(run)).rows if row.source == "k=B" and row.target == "m")
    assert shown.interval == pytest.approx(tuple(value["interval"]))


def test_a_withheld_weight_is_nan_in_the_edges_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    learns(monkeypatch, ("m", "x"), 100.0)
    names = ("m", "x", "y")
    frames = [
        pd.DataFrame({"m": np.where(X[:, 2] > 0, "yes", "no"), "x": X[:, 3], "y": X[:, 4]})
        for X in (table.X for table in tables().values())
    ]
    described = Dictionary.model_validate({name: DICTIONARY[name] for name in names})
    plan = Plan.load("private", epsilon=20.0).with_settings(knowledge={"required": [["m", "x"], ["x", "y"]]})
    with pytest.warns(SimulationWarning, match="guarantees nothing"):
        model = FedSparseBNSL(plan=plan, dictionary=described, noise_seed=1).fit(frames)
    weights = {(source, target): weight for source, target, weight in model.edges_}
    assert math.isnan(weights["m", "x"])
    assert 0.5 < weights["x", "y"] < 0.9
