"""The numbers of an undirected edge are those of its row's source -> target, in every file that has them."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.report.page import write_report
from fedbnsl_workbench.simulate import simulate
from report_runs import Page

# A chain, of which no edge has a direction: c -> a -> e -> b -> d. So no order of the names fits all edges of a member.
NAMES = ("a", "b", "c", "d", "e")
CHAIN = ("c", "a", "e", "b", "d")
UNITS = (1.0, 30.0, 0.2, 7.0, 400.0)
Edges = dict[tuple[str, str], dict[str, Any]]


def drawn() -> dict[str, Dataset]:
    rng = np.random.default_rng(5)
    tables: dict[str, Dataset] = {}
    for k, n in enumerate((900, 1500, 2000), start=1):
        X, last = np.zeros((n, len(NAMES))), np.zeros(n)
        for name in CHAIN:
            last = 0.8 * last + rng.standard_normal(n)
            X[:, NAMES.index(name)] = last
        tables[f"site-{k}"] = Dataset(NAMES, 10.0 * k + X * np.array(UNITS))
    return tables


TABLES = drawn()


def coefficient(rows: Matrix, source: str, target: str, parents: list[str]) -> float:
    """Of the source, in the least-squares regression of the target on its parents."""
    of_parents = rows[:, [NAMES.index(name) for name in parents]]
    found = np.linalg.lstsq(of_parents, rows[:, NAMES.index(target)], rcond=None)[0]
    return float(found[parents.index(source)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chain") / "run"
    simulate(Plan.load("standard").with_settings(n_participants=3, value_type="float64"), TABLES, out)
    return out


@pytest.fixture(scope="module")
def parents(run: Path) -> dict[str, list[str]]:
    cpds = json.loads((run / "lgbn.json").read_text(encoding="utf-8"))["cpds"]
    return {name: of_node["parents"] for name, of_node in cpds.items()}


@pytest.fixture(scope="module")
def expected(run: Path, parents: dict[str, list[str]]) -> dict[tuple[str, str], float]:
    """Coefficients of every edge of lgbn.json's DAG from all rows, each less the means of its site."""
    centred = np.concatenate([table.X - table.X.mean(axis=0) for table in TABLES.values()])
    return {(s, target): coefficient(centred, s, target, of) for target, of in parents.items() for s in of}


@pytest.fixture(scope="module")
def edges(run: Path) -> Edges:
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    found = {(edge["source"], edge["target"]): edge for edge in result["edges"]}
    assert not any(edge["directed"] for edge in found.values())
    assert {source < target for source, target in found} == {True, False}, "or the order of names tells nothing"
    return found


def test_result_json_has_the_least_squares_coefficients_of_target_on_source(
    edges: Edges, expected: dict[tuple[str, str], float]
) -> None:
    assert {pair: edge["weight"] for pair, edge in edges.items()} == pytest.approx(expected, rel=1e-6)
    for pair, edge in edges.items():
        low, high = edge["interval"]
        assert low < expected[pair] < high
        assert (low + high) / 2 == pytest.approx(expected[pair], rel=1e-6)


def test_an_estimate_of_a_site_is_its_own_regression_of_target_on_source(
    edges: Edges, parents: dict[str, list[str]]
) -> None:
    for (source, target), edge in edges.items():
        for site, (estimate, _) in edge["sites"]["estimates"].items():
            rows = TABLES[site].X - TABLES[site].X.mean(axis=0)
            assert estimate == pytest.approx(coefficient(rows, source, target, parents[target]), rel=1e-6)


def test_every_file_of_the_graph_and_the_page_name_the_edge_as_its_weight_is_meant(
    run: Path, expected: dict[tuple[str, str], float]
) -> None:
    with (run / "edges.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["directed"] for row in rows} == {"0"}
    listed = {(row["source"], row["target"]): float(row["weight"]) for row in rows}
    graphml = nx.read_graphml(run / "graph.graphml")
    dagitty = re.findall(r'"(\w)" -- "(\w)" \[beta="(.*)"\]', (run / "dagitty.txt").read_text(encoding="utf-8"))
    dot = re.findall(r'"(\w)" -> "(\w)" \[label="(.*?)"', (run / "graph.dot").read_text(encoding="utf-8"))
    assert listed == pytest.approx(expected, rel=1e-6)
    assert {(s, t): w for s, t, w in graphml.edges(data="weight")} == pytest.approx(expected, rel=1e-6)
    assert {(s, t): float(w) for s, t, w in dagitty} == pytest.approx(expected, rel=1e-6)
    assert {(s, t): float(w) for s, t, w in dot} == pytest.approx(expected, rel=1e-2)
    page = Page(write_report(run).read_text(encoding="utf-8"))
    shown = {(row["source"], row["target"]): float(row["estimate, 95 %"].split()[0]) for row in page.rows("edges")}
    assert shown == pytest.approx(expected, rel=1e-2)
    assert "The estimate of an undirected edge is that of source \u2192 target in this DAG" in page.text
