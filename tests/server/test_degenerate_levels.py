"""Levels and variables that the tables do not have: a run ends as if the data dictionary did not have them either."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.errors import RemoteProtocolError, ResultError
from fedbnsl.graphs.files import read_edges
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph, consensus_graph
from fedbnsl_server.inference.degenerate_columns import NO_UNUSED, unused_columns
from fedbnsl_server.results import results
from fedbnsl_server.results.effect_report import effect_report
from fedbnsl_server.results.learned_network import read_network
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.scoring.evaluation import evaluate
from fedbnsl_workbench.simulate import simulate

LEVELS = "ABCDE"


def described(**levels: Sequence[str]) -> Dictionary:
    nominal = {name: {"kind": "nominal", "levels": list(of)} for name, of in levels.items()}
    return Dictionary.model_validate({**nominal, **{name: {} for name in "xyz"}})


def drawn(seed: int, rows: int, present: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """x from k, m from x, y from both, z apart; each level that is present about as often as the others."""
    rng = np.random.default_rng(seed)
    k = rng.choice(list(present["k"]), rows)
    x = rng.normal(size=rows) + rng.normal(size=9)[[LEVELS.index(level) for level in k]]
    cut = np.searchsorted(np.quantile(x, np.linspace(0, 1, len(present["m"]) + 1)[1:-1]), x + rng.normal(size=rows))
    m = np.array(list(present["m"]))[cut]
    return {"k": k, "m": m, "x": x, "y": 0.8 * x + rng.normal(size=rows), "z": rng.normal(size=rows)}


def tables(cells: Mapping[str, Any], dictionary: Dictionary, n_sites: int = 3) -> dict[str, Dataset]:
    columns, values = dictionary.columns(), list[Any]()
    for name, entry in dictionary.items():
        codes = [entry.levels.index(cell) for cell in cells[name]] if entry.levels else cells[name]
        values.append(entry.values(np.array(codes, dtype=np.float64)))
    X = np.hstack(values)
    names = tuple(column.name for column in columns)
    return {f"site-{k}": Dataset(names, np.ascontiguousarray(X[k::n_sites])) for k in range(n_sites)}


def result_of(
    out: Path, cells: Mapping[str, Any], dictionary: Dictionary, *, plan: str = "standard", **settings: Any
) -> dict[str, Any]:
    """What result.json holds, read as strictly as JSON is meant."""
    settings = {"bootstrap": 0, **settings} if plan == "standard" else settings
    run = Plan.load(plan).with_settings(n_participants=3, **settings).with_dictionary(dictionary, origin="here")
    simulate(run, tables(cells, dictionary), out)

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    return json.loads((out / "result.json").read_text(encoding="utf-8"), parse_constant=refuse)


def numbers(result: Mapping[str, Any]) -> dict[tuple[str, str], list[float]]:
    """Weights and intervals of all coefficients, by their columns."""
    told = [one for edge in result["edges"] for one in edge.get("coefficients") or [edge]]
    return {(one["source"], one["target"]): [one["weight"], *one["interval"]] for one in told}


@pytest.mark.parametrize("share", [1e-2, 1e-3, 1e-4])
def test_a_reference_level_that_is_rare_is_no_absent_one(share: float) -> None:
    """The other two have the rest of the rows in halves."""
    columns = Columns.of(["k=B", "k=C"], {"k=B": "k", "k=C": "k"})

    def moments(share: float) -> np.ndarray:
        p = np.full(2, (1.0 - share) / 2.0)
        return np.diag(p) - np.outer(p, p)

    assert unused_columns(moments(share), columns) == NO_UNUSED
    assert unused_columns(moments(0.0), columns).redundant == (0,)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.long
def test_levels_that_occur_nowhere_change_no_number_and_are_named(tmp_path: Path, seed: int) -> None:
    """The first ones of two nominal variables, and others by chance."""
    rng = np.random.default_rng(seed)
    present = {name: [LEVELS[k] for k in sorted(rng.choice(4, 3, replace=False) + 1)] for name in "km"}
    cells = drawn(seed, 180, present)
    found = result_of(tmp_path / "all", cells, described(k=LEVELS, m=LEVELS))
    lean = result_of(tmp_path / "present", cells, described(**present))
    assert [(edge["source"], edge["target"], edge["directed"]) for edge in found["edges"]] == [
        (edge["source"], edge["target"], edge["directed"]) for edge in lean["edges"]
    ]
    assert numbers(found) == {pair: pytest.approx(told, rel=1e-4, abs=1e-6) for pair, told in numbers(lean).items()}
    assert (found["not_known"], lean["unused"]) == ([], [])
    named = {(one["variable"], one["level"], one["why"]) for one in found["unused"]}
    absent = {name: [level for level in LEVELS[1:] if level not in present[name]] for name in "km"}
    assert named == {(name, level, "no_row") for name in "km" for level in absent[name]} | {
        (name, present[name][0], "reference") for name in "km"
    }
    told = " ".join(found["warnings"])
    assert all(f"'{level}' of '{name}'" in told for name, level, _ in named)


def test_a_variable_with_one_value_everywhere_is_named_and_changes_no_number(tmp_path: Path) -> None:
    cells = drawn(1, 180, {"k": "ABC", "m": "ABC"})
    constant = {**cells, "z": np.full(180, 0.1), "m": ["B"] * 180}
    found = result_of(tmp_path / "all", constant, described(k="ABC", m="ABC"))
    few = Dictionary.model_validate({"k": {"kind": "nominal", "levels": list("ABC")}, "x": {}, "y": {}})
    lean = result_of(tmp_path / "varying", constant, few)
    assert numbers(found) == {pair: pytest.approx(told, rel=1e-4, abs=1e-6) for pair, told in numbers(lean).items()}
    assert (found["variables"], found["not_known"]) == (["k", "m", "x", "y", "z"], [])
    assert found["unused"] == [{"variable": name, "level": None, "why": "constant"} for name in "mz"]
    assert any(text.startswith("'m', 'z': one value in all rows") for text in found["warnings"])
    assert found["fit"]["z"]["r2"] is None


@pytest.mark.parametrize(
    ("why", "said"), [("constant", "'z': one value in all rows"), ("hidden", "'z': the noise of privacy hides")]
)
def test_the_effect_of_a_variable_of_which_nothing_is_known_is_not_known(tmp_path: Path, why: str, said: str) -> None:
    cells = {**drawn(1, 180, {"k": "ABC", "m": "ABC"}), "z": np.full(180, 0.1)}
    result = result_of(tmp_path / "run", cells, described(k="ABCD", m="ABC"))
    (of_z,) = (one for one in result["unused"] if one["variable"] == "z")
    of_z["why"] = why
    (tmp_path / "run" / "result.json").write_text(json.dumps(result), encoding="utf-8")
    network = read_network(tmp_path / "run")
    x, y, z = (network.columns.variables.index(name) for name in "xyz")
    for source, target in ((z, y), (x, z)):
        report = effect_report(network, [source], target, set(range(len(network.columns.names))))
        assert (report["verdict"], report["paths"]) == ("not known", None)
        assert all(row["values"] == [] for row in report["effects"])
        (words,) = report["in_words"]
        assert words.startswith(f"not known: {said}")
    for source in (x, network.columns.variables.index("k")):  # of k, only a level is in no row
        assert effect_report(network, [source], y, set(range(len(network.columns.names))))["verdict"] != "not known"


@pytest.mark.parametrize("levels", ["ABCD", "ZABC"], ids=["a later one", "the first"])
@pytest.mark.long
def test_a_level_that_occurs_nowhere_may_stand_beside_an_exact_sum(tmp_path: Path, levels: str) -> None:
    cells = drawn(1, 300, {"k": "ABC", "m": "ABC"})
    cells["z"] = cells["x"] + cells["y"]
    found, lean = (
        result_of(tmp_path / name, cells, described(k=of, m="ABC")) for name, of in (("all", levels), ("few", "ABC"))
    )
    assert found["verdict"]["functions"] == lean["verdict"]["functions"] == [["x", "y", "z"]]
    assert [(edge["source"], edge["target"], edge["directed_by"]) for edge in found["edges"]] == [
        (edge["source"], edge["target"], edge["directed_by"]) for edge in lean["edges"]
    ]


def test_levels_of_a_few_rows_are_warned_of_with_about_how_many_they_are(tmp_path: Path) -> None:
    cells = drawn(2, 900, {"k": "ABC", "m": "ABC"})
    k = np.where(cells["k"] == "C", "A", cells["k"])
    k[10:16] = "C"  # two rows of each site
    x = np.where(np.arange(900) % 30 == 0, np.nan, cells["x"])
    result = result_of(tmp_path / "run", {**cells, "k": k, "x": x}, described(k="ABC", m="ABC"))
    (warning,) = (text for text in result["warnings"] if "that is rarer" in text)
    assert warning.startswith(
        "fewer than 10 of 900 rows have the value that is rarer at their site of 'k=C' (about 6):"
    )


def test_a_level_or_a_number_that_varies_at_some_sites_alone_is_used(tmp_path: Path) -> None:
    """Level C of k at no row of the first site, and z constant there: what the other sites tell counts."""
    cells = drawn(2, 360, {"k": "ABC", "m": "ABC"})
    first = np.arange(360) % 3 == 0
    cells["k"] = np.where(first & (cells["k"] == "C"), "B", cells["k"])
    cells["z"] = np.where(first, 0.1, cells["z"])
    cells["y"] = cells["y"] + cells["z"]
    found = result_of(tmp_path / "run", cells, described(k="ABC", m="ABC"))
    assert (found["unused"], found["not_known"]) == ([], [])
    by_pair = {(edge["source"], edge["target"]): edge for edge in found["edges"]}
    assert set(by_pair["z", "y"]["sites"]["estimates"]) == {"site-1", "site-2"}  # site-0 has nothing to tell


@pytest.mark.parametrize("plan", ["fed-sparse", "standard"])
@pytest.mark.long
def test_no_plan_ends_without_a_result_where_levels_are_absent(tmp_path: Path, plan: str) -> None:
    cells = drawn(3, 180, {"k": "BC", "m": "BCD"})
    found = result_of(tmp_path / "run", cells, described(k=LEVELS, m=LEVELS), plan=plan)
    assert (found["state"], found["not_known"]) == ("finished", [])
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    head = page[: page.index('class="lead"')]
    assert all(text[1:].replace("'", "&#39;")[:60] in head for text in found["warnings"] if text.startswith("level"))
    assert np.isfinite(read_network(tmp_path / "run").covariance).all()


@pytest.mark.parametrize("plan", ["standard", "lean"])
@pytest.mark.long
def test_a_result_whose_nominal_variables_have_one_column_left_is_read_by_the_names_of_variables(
    tmp_path: Path, plan: str
) -> None:
    """The level C occurs nowhere: what is left of k and m is one column of zeros and ones each."""
    cells = drawn(0, 900, {"k": "AB", "m": "AB"})
    result = result_of(tmp_path / "run", cells, described(k="ABC", m="ABC"), plan=plan)
    assert result["columns"] == {"k=B": "k", "m=B": "m", "x": "x", "y": "y", "z": "z"}
    assert {"k", "m"} <= set(read_edges(tmp_path / "run" / "edges.csv").variables) <= {"k", "m", "x", "y", "z"}
    assert read_network(tmp_path / "run").columns.variables == ("k", "m", "x", "y", "z")
    assert write_report(tmp_path / "run").is_file()


def test_a_run_in_which_one_variable_varies_ends_with_a_reason(tmp_path: Path) -> None:
    cells = {"k": ["A"] * 60, "x": np.arange(60.0), "y": np.full(60, 2.0)}
    dictionary = Dictionary.model_validate({"k": {"kind": "nominal", "levels": list("ABC")}, "x": {}, "y": {}})
    with pytest.raises(RemoteProtocolError, match="of 3 variables 'x' alone varies"):
        result_of(tmp_path / "run", cells, dictionary)
    assert json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))["state"] == "failed"


@pytest.mark.long
def test_weights_that_are_not_finite_are_null_and_all_readers_of_the_run_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> ConsensusGraph:
        graph = consensus_graph(*args)
        return replace(graph, weights=np.where(graph.dag, np.nan, 0.0))

    monkeypatch.setattr(results, "consensus_graph", broken)
    run, truth = tmp_path / "run", tmp_path / "truth.csv"
    found = result_of(run, drawn(4, 180, {"k": "ABC", "m": "ABC"}), described(k="ABC", m="ABC"))
    assert found["state"] == "finished"
    assert all(edge["weight"] is None for edge in found["edges"])
    assert "edges/0/weight" in found["not_known"]
    assert any("null in result.json" in text for text in found["warnings"])
    assert "not finite" in found["not_written"]["lgbn.json"]
    assert not (run / "lgbn.json").exists()
    edges = read_edges(run / "edges.csv", found["variables"])
    assert np.isnan(edges.weights[edges.dag]).all()
    assert "nan" not in "".join((run / name).read_text("utf-8") for name in ("edges.csv", "graph.dot", "graph.graphml"))
    assert "not known" in write_report(run).read_text(encoding="utf-8")
    with StringIO() as text:
        print_summary(found, run, Console(file=text), no_hidden_causes=True, seconds=1.0)
        assert "not known" in text.getvalue()
    truth.write_text("source,target\nx,y\n", encoding="utf-8")
    assert evaluate(run, truth, tau=None)["scores"]["n_edges"] == len(found["edges"])
    with pytest.raises(ResultError, match="not finite"):
        read_network(run)
