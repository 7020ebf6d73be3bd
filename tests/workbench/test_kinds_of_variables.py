"""Runs on tables with levels: blocks in the graph, levels that are rare or missing at a site, knowledge, privacy."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.network import Network
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.report.summary import print_summary
from fedbnsl_workbench.simulate import simulate

DICTIONARY = Dictionary.model_validate(
    {
        "age": {"range": [0.0, 100.0]},
        "ward": {"kind": "nominal", "levels": ["a", "b", "c"]},
        "rare": {"kind": "binary", "levels": ["no", "yes"]},
        "crp": {"range": [-20.0, 20.0]},
        "weight": {"range": [0.0, 200.0]},
    }
)
VARIABLES = DICTIONARY.variables


def codes(n: int, seed: int, *, share_of_rare: float = 0.02, wards: int = 3) -> np.ndarray:
    """(n, 5) codes of: age -> weight <- ward, ward -> crp; rare by itself."""
    rng = np.random.default_rng(seed)
    age, ward = rng.normal(50, 10, n), rng.integers(0, wards, n).astype(float)
    crp = np.array([0.0, 3.0, -2.0])[ward.astype(int)] + rng.normal(0, 1, n)
    weight = 80 + 0.5 * (age - 50) + np.array([0.0, -6.0, 5.0])[ward.astype(int)] + rng.normal(0, 5, n)
    rare = (rng.random(n) < share_of_rare).astype(float)
    return np.column_stack([age, ward, rare, crp, weight])


def run(tables: list[np.ndarray], out: Path, plan: Plan, **settings: Any) -> dict[str, Any]:
    plan = plan.with_dictionary(DICTIONARY, origin="here").with_settings(n_participants=len(tables), **settings)
    read = {
        f"site-{k}": Dataset.of_values(VARIABLES, X, origin="here", dictionary=DICTIONARY, warn=False)
        for k, X in enumerate(tables, start=1)
    }
    if plan.privacy is None:
        read = {site: table.complete_cases() for site, table in read.items()}
    return simulate(plan, read, out, noise_seed=1 if plan.privacy else None)


def skeleton(result: dict[str, Any]) -> set[frozenset[str]]:
    return {frozenset((edge["source"], edge["target"])) for edge in result["edges"]}


TRUE = {frozenset(pair) for pair in (("age", "weight"), ("ward", "weight"), ("ward", "crp"))}
STANDARD, PRIVATE = Plan.load("standard"), Plan.load("private", epsilon=20.0)


@pytest.mark.parametrize("plan", [STANDARD, PRIVATE], ids=lambda plan: plan.name)
def test_the_graph_is_one_between_variables(tmp_path: Path, plan: Plan) -> None:
    result = run([codes(2000, seed) for seed in range(3)], tmp_path / "run", plan)
    assert skeleton(result) == TRUE
    assert result["variables"] == list(VARIABLES)
    assert result["columns"] == {
        "age": "age", "ward=b": "ward", "ward=c": "ward", "rare": "rare", "crp": "crp", "weight": "weight"
    }  # fmt: skip
    (of_ward,) = [edge for edge in result["edges"] if {edge["source"], edge["target"]} == {"ward", "crp"}]
    pairs = {frozenset((one["source"], one["target"])) for one in of_ward["coefficients"]}
    assert pairs == {frozenset(("ward=b", "crp")), frozenset(("ward=c", "crp"))}
    assert abs(of_ward["weight"]) == max(abs(one["weight"]) for one in of_ward["coefficients"])


def test_one_coefficient_stands_for_an_edge_with_levels_in_every_file_and_is_named(tmp_path: Path) -> None:
    """Level c is rare: its coefficient is the largest in the tables' units, and that of b without units."""
    tables = [codes(2000, seed) for seed in range(3)]
    for table, seed in zip(tables, range(3), strict=True):
        rng = np.random.default_rng(10 + seed)
        table[:, 1] = rng.choice(3, len(table), p=[0.49, 0.49, 0.02])
        table[:, 3] = np.array([0.0, 3.0, 5.0])[table[:, 1].astype(int)] + rng.normal(0, 1, len(table))
    result = run(tables, tmp_path / "run", STANDARD.with_settings(knowledge={"required": [["ward", "crp"]]}))
    (edge,) = [edge for edge in result["edges"] if edge["source"] == "ward" and edge["target"] == "crp"]
    assert edge["source_level"] == "b"
    assert edge["weight"] < max(one["weight"] for one in edge["coefficients"])
    with (tmp_path / "run" / "edges.csv").open(encoding="utf-8", newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if row["target"] == "crp"]
    assert (float(row["weight"]), row["source_level"], row["target_level"]) == (edge["weight"], "b", "")
    assert result["references"] == {"ward": "a"}
    text = io.StringIO()
    print_summary(result, tmp_path / "run", Console(file=text, width=250), seconds=1.0)
    assert "ward=b" in text.getvalue()
    assert "ward=c" not in text.getvalue()
    assert "ward: each level against a" in text.getvalue()
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert 'data-sort="ward">ward=b<' in page
    assert "ward: each level against a." in page
    (told,) = [text for text in Network.load(tmp_path / "run").effect("ward", "crp")["in_words"] if "level" in text]
    assert told == "levels: ward: each level against a"


def test_a_level_that_does_not_occur_at_a_site_leaves_the_graph_right_and_is_told_as_that(tmp_path: Path) -> None:
    tables = [codes(2000, 0), codes(1500, 1, wards=2), codes(1000, 2, share_of_rare=0.0)]
    result = run(tables, tmp_path / "run", STANDARD)
    assert result["state"] == "finished"
    assert skeleton(result) == TRUE
    (told,) = [warning for warning in result["warnings"] if "site-3" in warning]
    assert told.startswith("'rare' with one value in all rows (at site-3), but not elsewhere"), "it does not stand out"


def test_rare_levels_do_not_make_honest_sites_stand_out(tmp_path: Path) -> None:
    tables = [codes(3000, seed, share_of_rare=0.004) for seed in range(4)]
    result = run(tables, tmp_path / "run", STANDARD)
    largest = {site: of["largest"] for site, of in result["influence"]["sites"].items()}
    assert max(largest.values()) < 6.0, largest


def test_what_is_known_of_a_nominal_variable_holds_for_its_block(tmp_path: Path) -> None:
    tables = [codes(2000, seed) for seed in range(3)]
    forbidden = {"forbidden": [["ward", "crp"], ["crp", "ward"]], "required": [["rare", "ward"]]}
    result = run(tables, tmp_path / "run", STANDARD, knowledge=forbidden)
    edges = {(edge["source"], edge["target"]) for edge in result["edges"]}
    assert ("rare", "ward") in edges
    assert frozenset(("ward", "crp")) not in skeleton(result)


def test_rows_with_a_missing_value_cost_rows_and_nothing_else(tmp_path: Path) -> None:
    tables = [codes(2000, seed) for seed in range(3)]
    rng = np.random.default_rng(9)
    for X in tables:
        X[rng.random(len(X)) < 0.1, rng.integers(0, 5)] = np.nan
    found = run(tables, tmp_path / "run", STANDARD)
    assert skeleton(found) == TRUE
    private = run(tables, tmp_path / "private", PRIVATE)
    assert skeleton(private) == TRUE
    assert all(site["n_samples"] == 2000 for site in private["sites"].values()), "the public number is that of all rows"


def test_a_private_run_without_noise_finds_the_weights_in_the_tables_units(tmp_path: Path) -> None:
    """Columns in other units and another order than the dictionary; least squares by hand is the oracle."""
    rng = np.random.default_rng(4)
    n, p = 4000, 3
    a = rng.normal(7.0, 2.0, (p, n))
    b = 300.0 + 50.0 * (a - 7.0) + rng.normal(0.0, 40.0, (p, n))
    c = -0.5 + 0.004 * (b - 300.0) + rng.normal(0.0, 0.3, (p, n))
    dictionary = {"c": {"range": [-6, 6]}, "a": {"range": [-5, 19]}, "b": {"range": [-500, 1100]}}
    plan = Plan.load("private", epsilon=1000.0).with_settings(n_participants=p, dictionary=dictionary)
    tables = {
        f"site-{k}": Dataset.of_values(
            ("a", "b", "c"),
            np.column_stack([a[k], b[k], c[k]]),
            origin="here",
            dictionary=Dictionary.model_validate(dictionary),
        )
        for k in range(p)
    }
    result = simulate(plan.with_settings(variables=["a", "b", "c"]), tables, tmp_path / "run", noise_seed=1)
    weights = {frozenset((edge["source"], edge["target"])): edge for edge in result["edges"]}
    assert set(weights) == {frozenset(("a", "b")), frozenset(("b", "c"))}
    columns = {"a": a, "b": b, "c": c}
    for edge in result["edges"]:
        x, y = columns[edge["source"]], columns[edge["target"]]
        within_x, within_y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
        slope = (within_x * within_y).sum() / (within_x**2).sum()
        assert edge["weight"] == pytest.approx(slope, rel=0.05)
        assert edge["standardised"] == pytest.approx(slope * within_x.std() / within_y.std(), rel=0.1)
    scales = result["preparation"]["scales"]
    for name, values in columns.items():
        within = values - values.mean(axis=1, keepdims=True)
        assert scales[name] == pytest.approx(within.std(), rel=0.05)
    network = json.loads((tmp_path / "run" / "lgbn.json").read_text(encoding="utf-8"))
    roots = [name for name in columns if not network["cpds"][name]["parents"]]
    for name in roots:
        within = columns[name] - columns[name].mean(axis=1, keepdims=True)
        assert network["cpds"][name]["variance"][0] == pytest.approx(within.var(), rel=0.2)


def test_with_little_noise_coefficients_of_a_variable_whose_first_level_is_rare_are_those_without_privacy(
    tmp_path: Path,
) -> None:
    """Nearly always one of the other levels holds: along their sum the columns hardly vary, and noise weighs most."""
    dictionary = {
        "job": {"kind": "nominal", "levels": ["a", "b", "c", "d"]},
        "age": {"range": [-6, 6]},
        "pay": {"range": [-12, 12]},
    }
    tables = {}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        job, age = rng.choice(4, 2500, p=[0.005, 0.4, 0.3, 0.295]), rng.normal(size=2500)
        pay = 0.8 * (job == 1) - 0.8 * (job == 3) + 0.5 * age + rng.normal(size=2500)
        tables[f"site-{seed}"] = Dataset.of_values(
            tuple(dictionary),
            np.column_stack([job, age, pay]),
            origin="here",
            dictionary=Dictionary.model_validate(dictionary),
        )

    def coefficients(plan: Plan, name: str, noise_seed: int | None) -> dict[str, float]:
        plan = plan.with_settings(n_participants=3, dictionary=dictionary, variables=list(dictionary))
        result = simulate(plan, tables, tmp_path / name, noise_seed=noise_seed)
        (edge,) = [edge for edge in result["edges"] if {edge["source"], edge["target"]} == {"job", "pay"}]
        return {one["source"]: one["weight"] for one in edge["coefficients"]}

    without = coefficients(Plan.load("standard"), "standard", None)
    assert len(without) == 3
    for seed in range(2):
        private = coefficients(Plan.load("private", epsilon=1000.0), f"private-{seed}", seed)
        assert private == pytest.approx(without, abs=0.15)
