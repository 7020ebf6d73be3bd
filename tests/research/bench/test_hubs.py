"""The figure of graphs with hubs, on few variables and rows: what it draws, and what its rows hold."""

import json
import statistics

import networkx as nx
import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench import hubs
from fedbnsl_research.trials.harness import megabytes_sent, run_plan


@pytest.mark.parametrize("m", [1, 2])
def test_a_hub_graph_is_the_drawn_one_and_directed_along_a_random_order(m):
    edges = hubs.hub_graph(300, m, np.random.default_rng(7), seed=7)
    graph = nx.from_numpy_array(edges, create_using=nx.DiGraph)
    assert nx.is_directed_acyclic_graph(graph)
    drawn = nx.barabasi_albert_graph(300, m, seed=7)
    assert {frozenset(pair) for pair in graph.edges} == {frozenset(pair) for pair in drawn.edges}
    hub = max(drawn, key=drawn.degree)
    assert min(graph.in_degree(hub), graph.out_degree(hub)) > 3, "parents and children: not the order of the drawing"


def test_every_variable_has_noise_of_its_own_and_no_site_another_network():
    drawn = hubs.federation(1, seed=3, n_variables=40, n_samples=20_000)
    residues = [(X - X @ drawn.W).std(axis=0) for X in drawn.tables]
    assert len(residues) == 8
    assert np.ptp(residues, axis=0).max() < 0.1
    assert 0.45 < min(residues[0]) < 0.7 < 1.7 < max(residues[0]) < 2.1
    sizes = np.abs(drawn.W[drawn.W != 0])
    assert 0.5 <= sizes.min() <= sizes.max() <= 2.0


def test_the_graphs_and_plans_are_those_that_the_project_states():
    assert hubs.PLANS == {1: ("lean", "fed-sparse", "standard"), 2: ("lean", "fed-sparse")}
    assert (hubs.VARIABLES, hubs.N_SITES, hubs.ROWS, hubs.NOISE) == (300, 8, 1000, (0.5, 2.0))
    assert [*hubs.SEEDS] == [0, 1, 2]


def test_a_row_has_the_graph_the_bytes_and_the_seconds_of_a_plan_on_the_same_tables(monkeypatch):
    asked, ran = [], []

    def small(m, *, seed, **others):
        if not others:
            asked.append((m, seed))
        return federation(m, seed=seed, n_variables=8, n_samples=80)

    def noting(plan, drawn, **options):
        ran.append((plan, drawn, run_plan(plan, drawn, **options)))
        return ran[-1][2]

    federation = hubs.federation
    monkeypatch.setattr(hubs, "federation", small)
    monkeypatch.setattr(hubs, "run_plan", noting)
    plans = ("lean", "fed-sparse", "standard")
    monkeypatch.setattr(hubs, "PLANS", {2: plans})
    monkeypatch.setattr(hubs, "SEEDS", range(4, 6))
    rows = list(hubs.hubs())
    assert asked == [(2, 4), (2, 5)]
    del ran[: len(plans)]  # compiled
    for k, (name, row) in enumerate(zip(plans, rows, strict=True)):
        found = ran[2 * k : 2 * k + 2]
        assert row["figure"].endswith(f"m=2, P=8, 1000 rows a site, noise sd 0.5 to 2, plan {name}")
        assert (row["seeds"], row["true edges"]) == ("4..5", 12)
        shds = []
        for plan, drawn, result in found:
            assert plan == Plan.load(name).with_settings(bootstrap=0)
            learned = {(edge["source"], edge["target"]) for edge in result["edges"]}
            true = {(drawn.variables[i], drawn.variables[j]) for i, j in np.argwhere(drawn.W)}
            shds.append(len({frozenset(edge) for edge in learned ^ true}))
        assert row["SHD by seed"] == " ".join(map(str, shds))
        assert len(row["CPDAG SHD by seed"].split()) == 2
        megabytes = statistics.mean(megabytes_sent(result, "serialised") for _, _, result in found)
        assert row["MB serialised"] == pytest.approx(megabytes, rel=0.005)
        assert 0 < row["s of the processor, its last round"] < row["s of the processor, a run"]
        assert json.dumps(row, allow_nan=False)
    assert [drawn for _, drawn, _ in ran] == [ran[0][1], ran[1][1]] * 3, "the same tables"
