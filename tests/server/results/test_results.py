"""The run folder: what result.json says, that it is true, and that every file tells parent from child."""

import csv
import errno
import hashlib
import itertools
import json
import math
import os
import platform
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from fedbnsl.console.wording import edges_in_words
from fedbnsl.errors import DivergenceError, FedbnslError, InterruptedRunError, ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, SiteState, Units
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.algorithm import admm
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.results.data_quality import QualityWarning
from fedbnsl_server.results.results import RunRecorder
from fedbnsl_server.results.sentences import directions_in_words
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.sites.mailbox import Traffic, UpdateCheck
from fedbnsl_server.store import checkpoint
from fedbnsl_server.store.result_file import learned_class, learned_graph
from fedbnsl_server.store.run_folder import RunFolder, default_folder
from fedbnsl_server.store.run_id import RunIdentity
from fedbnsl_workbench import simulate as simulation
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.scoring.evaluation import learned_weights
from fedbnsl_workbench.tables.synthetic import synthesise

AWKWARD = ("a/b", "IL 6", "naïve β", 'with "quotes"', "comma, here", "NF-κB\\p65")
D = len(AWKWARD)
SITES = ("a", "b", "c")
GRAPH_FILES = ("weights.csv", "edges.csv", "graph.graphml", "graph.dot", "dagitty.txt", "lgbn.json")
ORIENTATION = "edge source -> target: source is the parent"


def read(run: Path) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads((run / "result.json").read_text(encoding="utf-8"), parse_constant=refuse)


def events(run: Path) -> list[dict[str, Any]]:
    text = (run / "events.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


class Tapped(simulation.InProcessExchange):
    """Remembers every message that it carries."""

    carried: list[tuple[Mapping[str, RoundTask], Mapping[str, LocalUpdate]]]
    run: int

    def __init__(self, plan: Plan, participants: Mapping[str, Participant], *, run: int, threads: int = 1) -> None:
        super().__init__(plan, participants, run=run, threads=threads)
        type(self).carried, type(self).run = [], run

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        updates = super().exchange(tasks, snapshots, check)
        self.carried.append((tasks, updates))
        return updates


@pytest.fixture(scope="module")
def tables() -> dict[str, Dataset]:
    drawn = synthesise(D, 7, len(SITES), 80, 11, weight_variance=0.05)
    return {site: Dataset(AWKWARD, X) for site, X in zip(SITES, drawn.tables, strict=True)}


PLAN = Plan(name="awkward", rounds=5, refit_rounds=2, l1_weight=0.05)


@pytest.fixture(scope="module")
def finished(tables: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run over a table with awkward names; its messages stay in Tapped."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    with pytest.MonkeyPatch.context() as tapping:
        tapping.setattr(simulation, "InProcessExchange", Tapped)
        returned = simulation.simulate(PLAN, tables, out, seeds={"data": 11, "split": -3})
    assert returned == read(out)
    assert len(read(out)["edges"]) > 3
    return out


# ---- result.json ---------------------------------------------------------------------------------------------------


def test_the_schema_is_versioned_and_its_keys_are_those_of_version_1(finished: Path) -> None:
    result = read(finished)
    assert result["schema"] == "fedbnsl.result/1"
    assert set(result) == {
        "schema", "state", "reason", "orientation", "variables", "columns", "units", "levels", "references",
        "graph_class", "verdict", "edges", "unsure", "paths", "fit", "estimation", "unused", "dropped_edges",
        "hidden_causes",
        "experiments",
        "preparation", "gaps", "warnings", "not_known", "privacy", "not_written", "influence", "acyclicity", "sites",
        "ejected", "bytes", "seconds", "rounds", "manifest", "rarely_drawn", "warning_codes", "outlying", "regressions",
            "categories",
            "curves",
            "validation",
            "taken",
    }  # fmt: skip
    assert set(result["manifest"]) == {
        "run", "study", "plan_digest", "private", "seeds", "versions", "site_versions", "created_at", "resumed_at",
        "ended_at", "sha256",
    }  # fmt: skip
    assert set(result["seconds"]) == {"total", "local", "global"}
    for site in SITES:
        assert set(result["sites"][site]) == {"n_samples", "rows_used", "rounds_contributed", "bytes", "control_bytes"}
    for entry in result["rounds"]:
        assert set(entry) == {
            "round", "kind", "contributed", "acyclicity", "edges", "local_s", "global_s", "bytes", "influence"
        }  # fmt: skip
    assert (result["state"], result["reason"]) == ("finished", "")


def test_the_rounds_are_all_there_in_order(finished: Path) -> None:
    rounds = read(finished)["rounds"]
    assert [(entry["round"], entry["kind"]) for entry in rounds] == [
        *((t, "admm") for t in range(1, 6)),
        *((t, "refit") for t in (6, 7)),
    ]
    assert all(entry["contributed"] == list(SITES) for entry in rounds)


def test_the_edges_are_those_of_edges_csv_by_decreasing_absolute_weight(finished: Path) -> None:
    result = read(finished)
    assert result["variables"] == list(AWKWARD)
    edges = {(edge["source"], edge["target"]): edge["weight"] for edge in result["edges"]}
    assert edges == csv_edges(finished)
    sizes = [abs(edge["weight"]) for edge in result["edges"]]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > PLAN.threshold


def test_the_manifest_names_versions_seeds_plan_run_and_times(finished: Path) -> None:
    manifest = read(finished)["manifest"]
    blas = manifest["versions"].pop("blas")
    assert blas.split()[0] in str(np.show_config(mode="dicts"))
    assert manifest["versions"] == {
        "python": platform.python_version(),
        "architecture": platform.machine(),
        **{name: version(name) for name in ("fedbnsl", "numpy", "scipy", "numba", "grpcio", "protobuf")},
    }
    assert manifest["site_versions"] == {}, "one process was all parties"
    assert manifest["seeds"] == {"data": 11, "split": -3}
    assert manifest["private"] is False
    assert int(manifest["run"], 16) == Tapped.run
    assert len(manifest["run"]) == 16
    plan = Plan.from_toml((finished / "plan.toml").read_text(encoding="utf-8"))
    assert plan == PLAN
    assert manifest["plan_digest"] == plan.digest().hex()
    begun, ended = (datetime.fromisoformat(manifest[key]) for key in ("created_at", "ended_at"))
    assert begun <= ended
    assert begun.utcoffset() == ended.utcoffset() is not None


def test_the_manifest_holds_the_sha256_of_every_other_file(finished: Path) -> None:
    noted = read(finished)["manifest"]["sha256"]
    there = {file.name for file in finished.iterdir()}
    assert there == {*noted, "events.jsonl", "result.json"}
    assert set(noted) == {*GRAPH_FILES, "plan.toml", "checkpoint.npz", "network.json"}
    for name, digest in noted.items():
        assert digest == hashlib.sha256((finished / name).read_bytes()).hexdigest(), name


def test_bytes_are_those_of_the_formula_and_of_the_real_messages_and_add_up(finished: Path) -> None:
    """The formula by hand: 8 bytes a value, and for 36 = d^2 indices ceil(5.17 / 8) = 1 byte an index."""
    result = read(finished)
    assert math.ceil(math.log2(D**2) / 8) == 1
    totals = {site: {("up", "formula"): 0, ("up", "serialised"): 0, ("down", "formula"): 0, ("down", "serialised"): 0}
              for site in SITES}  # fmt: skip
    for entry, (tasks, updates) in zip(result["rounds"], Tapped.carried, strict=True):
        for site in SITES:
            reply = federation.PullReply(task=codec.encode_task(tasks[site], value_type="float64"))
            update = codec.encode_update(updates[site], run=Tapped.run, value_type="float64")
            expected = {
                ("up", "formula"): 9 * updates[site].content.weights.nnz,
                ("up", "serialised"): len(update.SerializeToString()),
                ("down", "formula"): 9 * tasks[site].content.entries(dense=False)[0],
                ("down", "serialised"): len(reply.SerializeToString()),
            }
            for (direction, kind), count in expected.items():
                assert entry["bytes"][site][direction][kind] == count, (entry["round"], site, direction, kind)
                totals[site][direction, kind] += count
    for site in SITES:
        for (direction, kind), count in totals[site].items():
            assert result["sites"][site]["bytes"][direction][kind] == count > 0
    for key in totals["a"]:
        direction, kind = key
        assert result["bytes"][direction][kind] == sum(totals[site][key] for site in SITES)
    assert result["bytes"]["control"] == 0, "nothing but tasks and updates in one process"
    for word in ("formula", "serialised", "control"):
        assert word in result["bytes"]["meaning"]


def test_seconds_add_up_and_the_acyclicity_is_that_of_the_last_round(finished: Path) -> None:
    result = read(finished)
    for part in ("local", "global"):
        assert result["seconds"][part] == pytest.approx(sum(r[f"{part}_s"] for r in result["rounds"]), abs=1e-4)
    assert result["seconds"]["local"] + result["seconds"]["global"] <= result["seconds"]["total"] + 1e-4
    assert result["acyclicity"] == result["rounds"][-1]["acyclicity"]
    W = csv_weights(finished)
    assert result["acyclicity"] == pytest.approx(
        sum(np.trace(np.linalg.matrix_power(W * W, k)) / math.factorial(k) for k in range(1, 30)), abs=1e-9
    )


def test_weights_csv_is_the_last_w_before_any_refit_and_the_edges_are_the_refit(finished: Path) -> None:
    state = checkpoint.load(finished / "checkpoint.npz", plan_digest=PLAN.digest())
    assert state.round == 7
    assert csv_weights(finished).tobytes() == state.global_weights.to_dense().tobytes()
    assert state.refitted is not None
    refitted = state.refitted.to_dense()
    for (source, target), weight in csv_edges(finished).items():
        assert weight == refitted[AWKWARD.index(source), AWKWARD.index(target)]
    network = json.loads((finished / "lgbn.json").read_text(encoding="utf-8"))
    variances = [network["cpds"][name]["variance"] for name in AWKWARD]
    assert variances == [[v] for v in state.residual_variance.tolist()]


# ---- the other files -----------------------------------------------------------------------------------------------


def csv_edges(run: Path) -> dict[tuple[str, str], float]:
    with (run / "edges.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    known = ["source", "target", "weight", "directed", "undecided", "directed_by"]
    shares = ["adjacent", "forward", "backward"]
    assert header == [*known, *shares, "mark_source", "mark_target", "mark_source_share", "mark_target_share"]
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    by = {(edge["source"], edge["target"]): edge["directed_by"] for edge in result["edges"]}
    assert all(row[3:6] == ["1", "0", by[row[0], row[1]]] for row in rows)
    assert all(row[6:] == [""] * 7 for row in rows), "no run here has bootstrap draws or hidden causes"
    return {(source, target): float(weight) for source, target, weight, *_ in rows}


def csv_weights(run: Path) -> Matrix:
    with (run / "weights.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["source\\target", *AWKWARD]
    assert [row[0] for row in rows] == list(AWKWARD)
    return np.array([[float(cell) for cell in row[1:]] for row in rows])


def test_every_file_says_which_end_of_an_edge_is_the_parent(finished: Path) -> None:
    text = {name: (finished / name).read_text(encoding="utf-8") for name in GRAPH_FILES}
    assert read(finished)["orientation"] == ORIENTATION
    assert text["edges.csv"].splitlines()[0].startswith("source,target,weight,directed,")
    assert text["weights.csv"].startswith("source\\target,")
    assert text["graph.dot"].startswith(f"// {ORIENTATION}\n")
    assert ORIENTATION in json.loads(text["lgbn.json"])["orientation"]
    assert nx.read_graphml(finished / "graph.graphml").graph["orientation"] == ORIENTATION
    assert ET.fromstring(text["graph.graphml"]).find("{*}graph").get("edgedefault") == "directed"  # type: ignore[union-attr]
    assert '" -> "' in text["dagitty.txt"]


def test_names_with_slashes_spaces_quotes_and_other_letters_survive_in_every_file(finished: Path) -> None:
    edges = csv_edges(finished)
    assert csv_weights(finished).shape == (D, D)
    graph = nx.read_graphml(finished / "graph.graphml")
    assert list(graph.nodes) == list(AWKWARD)
    assert {(s, t): weight for s, t, weight in graph.edges(data="weight")} == edges
    network = json.loads((finished / "lgbn.json").read_text(encoding="utf-8"))
    assert network["nodes"] == list(AWKWARD)
    assert [tuple(arc) for arc in network["arcs"]] == list(edges)
    assert list(network["cpds"]) == list(AWKWARD)
    dot = (finished / "graph.dot").read_text(encoding="utf-8")
    dagitty = (finished / "dagitty.txt").read_text(encoding="utf-8")
    in_dot = ['"a/b"', '"IL 6"', '"naïve β"', r'"with \"quotes\""', '"comma, here"', r'"NF-κB\\p65"']
    in_dagitty = ['"a/b"', '"IL 6"', '"naïve β"', r'"with \"quotes\""', '"comma, here"', r'"NF-κB\p65"']
    for names, text in ((in_dot, dot), (in_dagitty, dagitty)):
        assert all(f"\n{name}" in text or f"\n  {name}" in text for name in names)
        for source, target in edges:
            assert f"{names[AWKWARD.index(source)]} -> {names[AWKWARD.index(target)]} [" in text


def test_no_unfinished_file_is_left(finished: Path) -> None:
    assert not list(finished.glob("*.part"))


def test_events_are_one_json_object_a_line_each_with_its_time(finished: Path) -> None:
    lines = events(finished)
    assert [line["event"] for line in lines] == ["started", *["round"] * 7, "finished"]
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert times == sorted(times)
    assert lines[0]["variables"] == list(AWKWARD)
    assert lines[0]["n_samples"] == dict.fromkeys(SITES, 80)
    for line, entry in zip(lines[1:-1], read(finished)["rounds"], strict=True):
        assert {key: line[key] for key in entry} == entry


# ---- a recorder by hand --------------------------------------------------------------------------------------------


def sparse(entries: Mapping[tuple[int, int], float], d: int = 3) -> SparseMatrix:
    W = np.zeros((d, d))
    for edge, weight in entries.items():
        W[edge] = weight
    return SparseMatrix.from_dense(W)


def state_of(
    t: int, W: SparseMatrix, refitted: SparseMatrix | None = None, variance: tuple[float, ...] = (1.0, 1.0, 1.0)
) -> AdmmState:
    zero = SparseMatrix.zeros(W.n_variables)
    sites = dict.fromkeys("ab", SiteState(zero, zero))
    known = np.array(variance if refitted is not None else ())
    return AdmmState(t, W, 0.0, 0.25, frozenset("ab"), sites, refitted, known)


def record_of(t: int, contributed: str, kind: str = "admm") -> RoundRecord:
    return RoundRecord(t, kind, tuple(contributed), dict.fromkeys(contributed, 10 * t), t, 0.25, 1, 0.5, 0.25)


def recorder_in(path: Path, plan: Plan, *, d: int = 3) -> tuple[RunRecorder, Traffic]:
    recorder, traffic = RunRecorder(RunFolder.create(path, plan), run=5), Traffic()
    recorder.start([f"v{k}" for k in range(d)], {"b": 40, "a": 30}, traffic)
    return recorder, traffic


def test_who_contributed_to_which_round_is_told_and_counted(tmp_path: Path) -> None:
    recorder, traffic = recorder_in(tmp_path / "run", Plan())
    for t, present in enumerate(["ab", "a", "", "a"], start=1):
        for site in present:
            traffic.up[site][t] = 1000 * t
        recorder.on_round(state_of(t, sparse({(0, 1): 0.9})), record_of(t, present))
    traffic.control["b"] += 77
    result = recorder.finish("finished")
    assert [entry["contributed"] for entry in result["rounds"]] == [["a", "b"], ["a"], [], ["a"]]
    assert [result["sites"][site]["rounds_contributed"] for site in "ab"] == [3, 1]
    assert [result["sites"][site]["n_samples"] for site in "ab"] == [30, 40]
    assert result["rounds"][1]["bytes"]["b"]["up"] == {"formula": 0, "serialised": 0}
    assert result["rounds"][1]["bytes"]["a"]["up"] == {"formula": 9 * 20, "serialised": 2000}
    assert result["sites"]["a"]["bytes"]["up"] == {"formula": 9 * (10 + 20 + 40), "serialised": 7000}
    assert result["sites"]["b"]["control_bytes"] == result["bytes"]["control"] == 77


def test_the_formula_takes_a_second_index_byte_beyond_16_variables(tmp_path: Path) -> None:
    for d, bytes_an_entry in ((16, 9), (17, 10), (256, 10), (257, 11)):
        recorder, _ = recorder_in(tmp_path / str(d), Plan(), d=d)
        recorder.on_round(state_of(1, sparse({(0, 1): 0.9}, d)), record_of(1, "a"))
        assert recorder.finish("finished")["bytes"]["up"]["formula"] == 10 * bytes_an_entry


def test_edges_that_were_dropped_for_a_cycle_are_listed_with_their_weight_in_w(tmp_path: Path) -> None:
    W = sparse({(0, 1): 0.9, (1, 0): -0.5, (1, 2): 0.8, (2, 0): 0.1})
    recorder, _ = recorder_in(tmp_path / "run", Plan(refit_rounds=0))
    recorder.on_round(state_of(1, W), record_of(1, "ab"))
    result = recorder.finish("finished")
    assert result["dropped_edges"] == [{"source": "v1", "target": "v0", "weight": -0.5, "before": "graph"}]
    assert [(edge["source"], edge["target"]) for edge in result["edges"]] == [("v0", "v1"), ("v1", "v2")]
    recorder, _ = recorder_in(tmp_path / "refitted", Plan())
    recorder.on_round(state_of(1, W), record_of(1, "ab"))
    recorder.on_round(state_of(2, W, sparse({(0, 1): 1.0, (1, 2): 1.1})), record_of(2, "ab", "refit"))
    result = recorder.finish("finished")
    assert result["dropped_edges"] == [
        {"source": "v2", "target": "v0", "weight": 0.1, "before": "refit"},
        {"source": "v1", "target": "v0", "weight": -0.5, "before": "refit"},
    ]
    assert [edge["weight"] for edge in result["edges"]] == [1.1, 1.0]


@pytest.mark.parametrize(
    ("variance", "warnings"),
    [
        ((1.0, 1.5, 1.9), []),
        ((0.5, 1.5, 0.75), ["residual variances differ (v0 0.5, v1 1.5): directions rest on their being about equal"]),
        ((0.0, 1.0, 1.0), ["residual variances differ (v0 0, v1 1): directions rest on their being about equal"]),
    ],
)
def test_residual_variances_that_are_far_from_equal_are_warned_of(
    variance: tuple[float, ...], warnings: list[str], tmp_path: Path
) -> None:
    recorder, _ = recorder_in(tmp_path / "run", Plan())
    W = sparse({(0, 1): 0.9})
    recorder.on_round(state_of(1, W), record_of(1, "ab"))
    recorder.on_round(state_of(2, W, W, variance), record_of(2, "ab", "refit"))
    assert recorder.finish("finished")["warnings"] == warnings


IN_TABLES = {"moments_rounds": 1, "refit_rounds": 0, "preparation": {}}
IN_DICTIONARY = {**IN_TABLES, "dictionary": {f"v{k}": {"unit": "kg"} for k in range(3)}}


@pytest.mark.parametrize(
    ("settings", "scale", "told"),
    [
        ({"preparation": {}}, 10.0, ""),  # 100 kg^2 is the variance 1 of a column that was divided by 10 kg
        ({"preparation": {}}, 1.0, "(v1 1, v0 100; without units, as shares of the columns' pooled variances)"),
        ({"preparation": {"scale": "none"}}, 1.0, "(v1 1, v0 100; in the tables' units)"),
        (IN_TABLES, 10.0, "(v1 1, v0 100; in the tables' units)"),
        (IN_DICTIONARY, 10.0, "(v1 1, v0 100; in the data dictionary's units, after its transforms)"),
    ],
)
def test_residual_variances_of_prepared_columns_are_compared_where_directions_rest_on_them(
    settings: dict[str, Any], scale: float, told: str, tmp_path: Path
) -> None:
    recorder, _ = recorder_in(tmp_path / "run", Plan.parse(settings))
    W, units = sparse({(0, 1): 0.9}), Units(np.empty(0), np.array([scale, 1.0, 1.0]))
    recorder.on_round(admm.in_units(state_of(1, W, W, (100.0, 1.0, 1.0)), units), record_of(1, "ab", "refit"))
    warnings = recorder.finish("finished")["warnings"]
    assert len(warnings) == bool(told)
    assert all(told in warning for warning in warnings)


@pytest.mark.parametrize("private", [False, True])
def test_rows_used_are_told_in_runs_without_privacy_alone(private: bool, tmp_path: Path) -> None:
    plan = Plan.load("private", epsilon=1.0) if private else Plan.load("standard")
    plan = plan.with_settings(dictionary={f"v{k}": {"range": [0.0, 1.0]} for k in range(3)})
    recorder, _ = recorder_in(tmp_path / "run", plan)
    state = replace(state_of(1, sparse({(0, 1): 0.9})), complete_rows={"a": 27})
    recorder.on_round(state, record_of(1, "ab", "statistics"))
    sites = recorder.finish("finished")["sites"]
    assert {site: of["rows_used"] for site, of in sites.items()} == {"a": None if private else 27, "b": None}


def test_what_sites_told_of_their_tables_is_still_known_when_a_run_goes_on(tmp_path: Path) -> None:
    plan, names, rows = Plan(), ["v0", "v1", "v2"], {"b": 40, "a": 30}
    folder = RunFolder.create(tmp_path / "run", plan, RunIdentity(5, datetime.now(UTC), {}))
    recorder = RunRecorder(folder, run=5)
    recorder.start(names, rows, Traffic())
    told = (QualityWarning("means_far_from_zero", (0, 2), "b"), QualityWarning("looks_categorical", (1,), "a"))
    recorder.on_round(state_of(1, sparse({(0, 1): 0.9})), replace(record_of(1, "ab"), findings=told))
    before = recorder.pause()["warnings"]
    assert len(before) == 2
    assert "means of 'v0', 'v2' further from zero than the standard deviation (at b)" in before[0]
    folder.close()
    folder = RunFolder.resume(tmp_path / "run", plan)
    again = RunRecorder(folder, run=5)
    again.start(names, rows, folder.past.traffic())
    late = replace(record_of(2, "ab"), findings=(QualityWarning("looks_categorical", (1,), "b"),))
    again.on_round(state_of(2, sparse({(0, 1): 0.9})), late)
    result = again.finish("finished")
    folder.close()
    assert result["warnings"][0] == before[0]
    assert "few whole values of 'v1' look like categories (at a, b)" in result["warnings"][1]
    assert len(result["warnings"]) == 2
    assert ["findings" in entry for entry in result["rounds"]] == [True, True]


def test_many_names_are_cut_short_in_a_warning(tmp_path: Path) -> None:
    recorder, _ = recorder_in(tmp_path / "run", Plan(), d=8)
    told = tuple(QualityWarning("means_far_from_zero", tuple(range(8)), site) for site in "ab")
    recorder.on_round(state_of(1, sparse({(0, 1): 0.9}, 8)), replace(record_of(1, "ab"), findings=told))
    (warning,) = recorder.finish("finished")["warnings"]
    assert warning.startswith("means of 'v0', 'v1', 'v2', 'v3', 'v4' and 3 more further from zero")


def test_a_required_edge_of_weight_zero_is_an_edge_in_every_file(tmp_path: Path) -> None:
    plan = Plan(refit_rounds=0).with_settings(knowledge={"required": [["v2", "v1"]]})
    recorder, _ = recorder_in(tmp_path / "run", plan)
    recorder.on_round(state_of(1, sparse({(0, 1): 0.9})), record_of(1, "ab"))
    edges = recorder.finish("finished")["edges"]
    assert edges[1] == {
        "source": "v2", "target": "v1", "weight": 0.0, "directed": True, "directed_by": "knowledge"
    }  # fmt: skip
    assert csv_edges(tmp_path / "run") == {("v0", "v1"): 0.9, ("v2", "v1"): 0.0}
    assert nx.read_graphml(tmp_path / "run" / "graph.graphml").has_edge("v2", "v1")


def test_a_run_under_cpdag_says_which_edges_are_directed_by_whom_and_keeps_the_dag_of_its_weights(
    tmp_path: Path,
) -> None:
    """v3 -> v1 <- v2 is a v-structure; v4 -> v5 is required; v7 -> v6 could be either way."""
    plan = Plan(refit_rounds=0, moments_rounds=1, graph_class="cpdag")
    plan = plan.with_settings(knowledge={"required": [["v4", "v5"]]})
    recorder, _ = recorder_in(tmp_path / "run", plan, d=8)
    W = sparse({(3, 1): 0.9, (2, 1): 0.8, (4, 5): 0.7, (7, 6): 0.6}, 8)
    recorder.on_round(state_of(1, W, W, (1.0, 9.0, *(1.0,) * 6)), record_of(1, "ab", "moments"))
    result = recorder.finish("finished")
    assert result["graph_class"] == "cpdag"
    assert result["warnings"] == []
    assert result["verdict"]["directed_by"] == {
        "data": 2, "knowledge": 1, "assumption": 0, "untested": 0, "undecided": 0, "nobody": 1
    }  # fmt: skip
    assert [(edge["source"], edge["target"], edge["directed"], edge["directed_by"]) for edge in result["edges"]] == [
        ("v3", "v1", True, "data"),
        ("v2", "v1", True, "data"),
        ("v4", "v5", True, "knowledge"),
        ("v7", "v6", False, "nobody"),
    ]
    assert edges_in_words(result["edges"]) == "3 directed edges, 1 undirected"
    dag, marks = learned_graph(result), learned_class(result)
    assert np.argwhere(dag).tolist() == [[2, 1], [3, 1], [4, 5], [7, 6]]
    assert np.argwhere(marks & ~dag).tolist() == [[6, 7]]
    np.testing.assert_array_equal(learned_weights(result), W.to_dense())
    assert (tmp_path / "run" / "edges.csv").read_text(encoding="utf-8").splitlines()[
        -1
    ] == "v7,v6,0.6,0,0,nobody,,,,,,,"


def test_what_only_a_required_edge_directs_is_directed_by_knowledge(tmp_path: Path) -> None:
    """Without v4 -> v5, nothing tells the direction of v6 -> v5."""
    plan = Plan(refit_rounds=0, moments_rounds=1, graph_class="cpdag")
    plan = plan.with_settings(knowledge={"required": [["v4", "v5"]]})
    recorder, _ = recorder_in(tmp_path / "run", plan, d=8)
    W = sparse({(4, 5): 0.7, (6, 5): 0.6}, 8)
    recorder.on_round(state_of(1, W, W, (1.0,) * 8), record_of(1, "ab", "moments"))
    assert recorder.finish("finished")["verdict"]["directed_by"] == {
        "data": 0, "knowledge": 2, "assumption": 0, "untested": 0, "undecided": 0, "nobody": 0
    }  # fmt: skip


@pytest.mark.parametrize("graph_class", ["cpdag", "dag-equal-variance"])
def test_a_run_that_ends_before_its_search_says_that_directions_are_not_tested(
    graph_class: str, tmp_path: Path
) -> None:
    """v3 -> v1 <- v2 is a v-structure of the ADMM's graph; v4 -> v5 is required."""
    plan = Plan(refit_rounds=0, moments_rounds=1).with_settings(
        graph_class=graph_class, knowledge={"required": [["v4", "v5"]]}
    )
    recorder, _ = recorder_in(tmp_path / "run", plan, d=8)
    W = sparse({(3, 1): 0.9, (2, 1): 0.8, (4, 5): 0.7, (7, 6): 0.6}, 8)
    recorder.on_round(state_of(1, W), record_of(1, "ab"))
    result = recorder.finish("interrupted", "interrupted in round 2")
    last = (False, "nobody") if graph_class == "cpdag" else (True, "untested")
    assert [(edge["directed"], edge["directed_by"]) for edge in result["edges"]] == [
        (True, "untested"), (True, "untested"), (True, "knowledge"), last,
    ]  # fmt: skip
    assert result["verdict"]["directed_by"]["data"] == result["verdict"]["directed_by"]["assumption"] == 0
    untested = 2 + (graph_class != "cpdag")
    assert f"Not tested, as the run ended before its search: {untested}." in directions_in_words(result["verdict"])
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "direction not tested" in page
    assert "The run ended before its search: directions are not tested" in page
    assert "directed by the data" not in page


def test_directions_that_only_equal_variances_give_are_said_to_be_assumed(tmp_path: Path) -> None:
    recorder, _ = recorder_in(tmp_path / "run", Plan(refit_rounds=0))
    recorder.on_round(state_of(1, sparse({(0, 1): 0.9})), record_of(1, "ab"))
    result = recorder.finish("finished")
    assert result["graph_class"] == "dag-equal-variance"
    assert [(edge["directed"], edge["directed_by"]) for edge in result["edges"]] == [(True, "assumption")]


def test_a_round_is_noted_before_its_state_is_saved_and_counts_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, _ = recorder_in(tmp_path / "run", Plan())
    recorder.on_round(state_of(1, sparse({(0, 1): 0.9})), record_of(1, "ab"))

    def full(*arguments: object, **options: object) -> None:
        raise ResultError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(checkpoint, "save", full)
        with pytest.raises(ResultError):
            recorder.on_round(state_of(2, sparse({(0, 1): 0.8})), record_of(2, "ab"))
    result = recorder.finish("failed", "the disk is full")
    assert [line["event"] for line in events(tmp_path / "run")] == ["started", "round", "round", "failed"]
    assert [entry["round"] for entry in result["rounds"]] == [1]
    assert result["edges"][0]["weight"] == 0.9, "the results are those of the saved state"


def test_a_round_and_results_for_which_there_was_no_room_are_written_once_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, _ = recorder_in(tmp_path / "run", Plan())
    genuine = os.fsync
    full = {"checkpoint.npz.part", "edges.csv.part"}

    def fsync(descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).name in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        genuine(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    state, record = state_of(1, sparse({(0, 1): 0.9})), record_of(1, "ab")
    for _ in range(3):
        with pytest.raises(ResultError, match=r"checkpoint\.npz cannot be written"):
            recorder.on_round(state, record)
    full.remove("checkpoint.npz.part")
    recorder.on_round(state, record)
    for _ in range(2):
        with pytest.raises(ResultError, match=r"edges\.csv cannot be written"):
            recorder.finish("finished")
    full.clear()
    result = recorder.finish("finished")
    assert read(tmp_path / "run") == result
    assert (result["state"], [entry["round"] for entry in result["rounds"]]) == ("finished", [1])
    assert [line["event"] for line in events(tmp_path / "run")] == ["started", "round", "finished"]


def test_the_checkpoint_is_that_of_the_last_round(tmp_path: Path) -> None:
    recorder, _ = recorder_in(tmp_path / "run", Plan())
    for t in (1, 2):
        state = state_of(t, sparse({(0, 1): 0.9 / t}))
        recorder.on_round(state, record_of(t, "ab"))
        saved = checkpoint.load(tmp_path / "run" / "checkpoint.npz", plan_digest=Plan().digest())
        assert saved.round == t
        assert saved.global_weights == state.global_weights
    recorder.finish("interrupted", "asked to")


def test_a_round_that_comes_after_the_end_changes_nothing(tmp_path: Path) -> None:
    recorder, _ = recorder_in(tmp_path / "run", Plan())
    recorder.on_round(state_of(1, sparse({(0, 1): 0.9})), record_of(1, "ab"))
    recorder.finish("interrupted", "interrupted in round 2")
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    with pytest.raises(InterruptedRunError, match="round 2 was complete after the run had ended"):
        recorder.on_round(state_of(2, sparse({(0, 1): 0.1})), record_of(2, "ab"))
    recorder.event("notice", text="too late")
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before


# ---- how a run can end ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["finished", "interrupted", "failed"])
@pytest.mark.parametrize("begun", [True, False], ids=["sites were there", "no site came"])
def test_a_run_that_ended_before_its_first_round_has_a_readable_result(
    outcome: str, begun: bool, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    if begun:
        recorder, _ = recorder_in(run, Plan())
    else:
        recorder = RunRecorder(RunFolder.create(run, Plan()), run=5)
    assert recorder.finish(outcome, "because") == read(run)
    result = read(run)
    assert (result["state"], result["reason"]) == (outcome, "because")
    assert result["schema"] == "fedbnsl.result/1"
    assert result["orientation"] == ORIENTATION
    assert result["rounds"] == result["edges"] == result["dropped_edges"] == []
    assert result["acyclicity"] is None
    assert result["variables"] == (["v0", "v1", "v2"] if begun else [])
    assert sorted(result["sites"]) == (["a", "b"] if begun else [])
    assert result["bytes"]["up"] == result["bytes"]["down"] == {"formula": 0, "serialised": 0}
    assert {file.name for file in run.iterdir()} == {"plan.toml", "events.jsonl", "result.json"}
    assert set(result["manifest"]["sha256"]) == {"plan.toml"}
    assert [line["event"] for line in events(run)] == [*(["started"] if begun else []), outcome]
    assert events(run)[-1]["reason"] == "because"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (DivergenceError("the local weights of round 9 are not finite"), "failed"),
        (InterruptedRunError("interrupted by SIGTERM"), "interrupted"),
    ],
    ids=["failed", "interrupted"],
)
@pytest.mark.parametrize("in_round", [1, 4, 7])
def test_a_run_that_breaks_off_keeps_what_it_learned(
    error: FedbnslError,
    outcome: str,
    in_round: int,
    tables: dict[str, Dataset],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = Participant.handle

    def break_off(participant: Participant, task: RoundTask) -> LocalUpdate:
        if task.round == in_round and participant.site == "b":
            raise error
        return handle(participant, task)

    monkeypatch.setattr(Participant, "handle", break_off)
    with pytest.raises(type(error)):
        simulation.simulate(PLAN, tables, tmp_path / "run")
    result = read(tmp_path / "run")
    assert (result["state"], result["reason"]) == (outcome, str(error))
    assert [entry["round"] for entry in result["rounds"]] == list(range(1, in_round))
    assert events(tmp_path / "run")[-1]["event"] == outcome
    written = {name for name in GRAPH_FILES if (tmp_path / "run" / name).exists()}
    # Without the residual variances of a refit there is no lgbn.json.
    assert written == (set() if in_round == 1 else set(GRAPH_FILES) - ({"lgbn.json"} if in_round < 7 else set()))
    assert set(result["not_written"]) == ({"lgbn.json"} if 1 < in_round < 7 else set())
    if in_round > 1:
        state = checkpoint.load(tmp_path / "run" / "checkpoint.npz", plan_digest=PLAN.digest())
        assert state.round == in_round - 1
        assert csv_weights(tmp_path / "run").tobytes() == state.global_weights.to_dense().tobytes()
        assert {(e["source"], e["target"]): e["weight"] for e in result["edges"]} == csv_edges(tmp_path / "run")


# ---- the folder ----------------------------------------------------------------------------------------------------


def test_a_folder_with_a_run_is_never_overwritten(finished: Path, tables: dict[str, Dataset]) -> None:
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in finished.iterdir()}
    with pytest.raises(ResultError, match=r"folder .*finished holds a run already; results are never overwritten"):
        RunFolder.create(finished, PLAN)
    with pytest.raises(ResultError, match="never overwritten"):
        simulation.simulate(PLAN, tables, finished)
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in finished.iterdir()} == before


def test_a_run_that_ended_before_its_first_round_has_no_results_to_keep(tmp_path: Path) -> None:
    run = tmp_path / "run"
    RunRecorder(RunFolder.create(run, Plan()), run=5).finish("failed", "a column was refused")
    RunFolder.create(run, Plan()).events.close()
    assert not (run / "result.json").exists()
    assert (run / "events.jsonl").read_text() == "", "nothing of the first try is in the record of the second"


def test_a_new_folder_is_made_with_its_parents_and_an_empty_one_is_used(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "some" / "where" / "run", Plan()).events.close()
    assert (tmp_path / "some" / "where" / "run" / "plan.toml").exists()
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty", Plan()).events.close()
    assert (tmp_path / "empty" / "plan.toml").exists()


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ResultError, match=rf"run folder {path} cannot be written: "):
            RunFolder.create(path, Plan())
    assert (tmp_path / "file").read_text() == "in the way"


def test_the_default_folder_is_named_for_the_plan_and_the_time() -> None:
    folder = default_folder("asia")
    assert folder.parent == Path("runs")
    name, date, clock = folder.name.split("-")
    assert name == "asia"
    datetime.strptime(date + clock, "%Y%m%d%H%M%S")


# ---- numbers that are not finite -----------------------------------------------------------------------------------


def test_a_run_that_leaves_the_finite_numbers_is_still_written_as_json(
    tables: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, calls = admm.global_step, itertools.count(1)

    def diverging(*arguments: Any, **options: Any) -> Any:
        if next(calls) == 3:
            raise DivergenceError("the global step left the finite numbers")
        return genuine(*arguments, **options)

    monkeypatch.setattr(admm, "acyclicity_of", lambda W: math.inf)
    monkeypatch.setattr(admm, "global_step", diverging)
    with pytest.raises(DivergenceError):
        simulation.simulate(PLAN, tables, tmp_path / "run")
    for text in [(tmp_path / "run" / "result.json").read_text(encoding="utf-8"),
                 *(tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()]:  # fmt: skip
        json.loads(text, parse_constant=pytest.fail)
    result = read(tmp_path / "run")
    assert (result["state"], result["reason"]) == ("failed", "the global step left the finite numbers")
    assert [entry["acyclicity"] for entry in result["rounds"]] == [None, None]
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "The run did not finish (the global step left the finite numbers)" in page
