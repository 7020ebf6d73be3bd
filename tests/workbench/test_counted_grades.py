"""Runs with ordinal variables: the tables tell whether counts or straight effects of grades describe them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.results.effect_report import effect_of
from fedbnsl_server.results.learned_network import read_network
from fedbnsl_server.store import checkpoint
from fedbnsl_server.store.result_file import learned_class
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.simulate import simulate

NAMES = ("a", "b", "c", "d")
GRADES = [str(k) for k in range(5)]
KINDS = {"a": "ordinal", "b": "nominal", "c": "ordinal", "d": "binary"}
DICTIONARY = Dictionary.model_validate(
    {name: {"kind": kind, "levels": GRADES[:2] if kind == "binary" else GRADES} for name, kind in KINDS.items()}
)
TRUE = np.zeros((4, 4), dtype=bool)
TRUE[0, 2] = TRUE[1, 2] = TRUE[2, 3] = True
BEND = np.array([4, 1, 0, 2, 4])


def c_of(kind: str, a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if kind == "straight":
        return np.digitize(0.5 * a + np.array([0.0, 1.0, 0.5, 1.5, 0.0])[b] + rng.normal(size=len(a)), [0.5, 1, 2, 3])
    return np.where(rng.random(len(a)) < 0.8, BEND[a] * (b % 2), rng.integers(0, 5, len(a)))


def table(kind: str, seed: int, n: int = 600) -> np.ndarray:
    """(n, 4) codes."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 5, (2, n))
    c = c_of(kind, a, b, rng)
    d = rng.random(n) < (0.2 + 0.15 * c if kind == "straight" else np.array([0.8, 0.2, 0.1, 0.3, 0.9])[c])
    return np.column_stack([a, b, c, d]).astype(float)


def run(kind: str, out: Path, states: list[AdmmState] | None = None, **settings: Any) -> dict[str, Any]:
    plan = plan_of(**settings)
    sites = {
        f"site-{k}": Dataset.of_values(NAMES, table(kind, k), origin="here", dictionary=DICTIONARY, warn=False)
        for k in range(3)
    }
    return simulate(plan, sites, out, follow=(lambda state: None) if states is None else states.append)


def plan_of(**settings: Any) -> Plan:
    return Plan.load("standard").with_dictionary(DICTIONARY, origin="here").with_settings(n_participants=3, **settings)


def of(result: dict[str, Any], key: str) -> set[str]:
    return {one[key] for one in result["taken"].values()}


def test_straight_grades_keep_the_graph_of_moments_bit_for_bit(tmp_path: Path) -> None:
    states: list[AdmmState] = []
    told = run("straight", tmp_path / "counts", states, bootstrap=5)
    before = run("straight", tmp_path / "moments", bootstrap=5, counts_rounds=0)
    assert "counts" in {entry["kind"] for entry in told["rounds"]}
    assert (learned_class(told) == cpdag(TRUE)).all()
    for key in ("edges", "regressions", "unsure", "paths", "fit", "estimation", "categories"):
        assert told[key] == before[key], key
    assert told["verdict"]["not_tested"] == before["verdict"]["not_tested"]
    assert any(text.startswith("straight lines describe how levels") for text in told["verdict"]["assumed"])
    assert of(told, "form") == {"ranks", "indicators", "indicator"}
    assert "not counted, as straight effects of grades describe the counts in" in told["taken"]["a"]["why"]
    plan, last = plan_of(bootstrap=5), states[-1]
    assert last.counted is not None
    checkpoint.save(tmp_path / "checkpoint.npz", last, plan_digest=plan.digest())
    again = checkpoint.load(tmp_path / "checkpoint.npz", plan_digest=plan.digest())
    assert again.counted is not None
    assert again.counted.choice == last.counted.choice
    assert not again.counted.decides


def test_grades_that_no_line_describes_are_counted(tmp_path: Path) -> None:
    result = run("crooked", tmp_path / "run", bootstrap=5)
    assert (learned_class(result) == cpdag(TRUE)).all()
    assert (learned_class(run("crooked", tmp_path / "moments", bootstrap=0, counts_rounds=0)) != cpdag(TRUE)).any()
    assert result["categories"]["c"]["parents"] == ["a", "b"]
    assert all(edge["bootstrap"]["adjacent"] > 0.5 for edge in result["edges"])
    assert of(result, "form") == {"table"}
    assert "tables of counts describe them in fewer bits than straight effects of grades" in result["taken"]["a"]["why"]
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as shown:
        print_summary(result, tmp_path / "run", console, seconds=1.0)
    assert "Grades need not act by straight lines" in " ".join(shown.get().split())
    assert "Categories given their parents" in write_report(tmp_path / "run").read_text(encoding="utf-8")


def test_effects_of_counted_grades_are_those_of_setting_levels(tmp_path: Path) -> None:
    run("crooked", tmp_path / "run", bootstrap=5)
    network, n, rng = read_network(tmp_path / "run"), 200_000, np.random.default_rng(9)
    report = effect_of(network, ["a"], "c")
    b = rng.integers(0, 5, n)
    for one in report["probabilities"]:
        drawn = c_of("crooked", np.full(n, int(one["set"])), b, rng)
        assert one["probability"] == pytest.approx(np.mean(drawn == int(one["level"])), abs=0.05)
    (row,) = report["effects"]
    mean = {
        level: sum(one["probability"] * int(one["level"]) for one in report["probabilities"] if one["set"] == level)
        for level in GRADES
    }
    assert row["values"][0]["effect"] == pytest.approx((mean["4"] - mean["0"]) / 4.0)
    (words,) = (text for text in report["in_words"] if text.startswith("by the tables of levels"))
    assert "changes of the mean grade of 'c', from the first to the last grade of 'a', for each step" in words


def test_knowledge_about_counted_grades_is_kept(tmp_path: Path) -> None:
    knowledge = {"required": [["d", "a"]], "forbidden": [["b", "c"], ["c", "b"]]}
    result = run("crooked", tmp_path / "run", bootstrap=0, knowledge=knowledge)
    edges = {(edge["source"], edge["target"]) for edge in result["edges"]}
    assert ("d", "a") in edges
    assert not {("b", "c"), ("c", "b")} & edges


def test_a_site_counts_the_grades_of_its_records(tmp_path: Path) -> None:
    states: list[AdmmState] = []
    run("crooked", tmp_path / "run", states, bootstrap=0)
    counted = states[-1].counted
    assert counted is not None
    for site, one in counted.told.items():
        X, start = table("crooked", int(site.removeprefix("site-"))), 0
        for variables, n in zip(counted.sets, one.n_cells.tolist(), strict=True):
            rows, counts = np.unique(X[:, list(variables)], axis=0, return_counts=True)
            sizes = [len(DICTIONARY[NAMES[v]].levels) for v in variables]
            assert one.cells[start : start + n].tolist() == np.ravel_multi_index(rows.astype(int).T, sizes).tolist()
            assert one.counts[start : start + n].tolist() == counts.tolist()
            start += n
