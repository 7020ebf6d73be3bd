"""Whole runs in one process, on networks small enough to know the answer."""

import csv
import json
import math
from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from fedbnsl.errors import DivergenceError, InterruptedRunError, PlanError, ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.site_files import site_files
from fedbnsl_client.refit import personalise
from fedbnsl_server.algorithm import admm
from fedbnsl_server.run import round_loop
from fedbnsl_workbench.scoring.evaluation import evaluate
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import split
from fedbnsl_workbench.tables.synthetic import synthesise

GRAPH_FILES = ["weights.csv", "edges.csv", "graph.graphml", "graph.dot", "dagitty.txt", "lgbn.json"]

# A collider and a chain: dose -> response <- age, response -> outcome.
VARIABLES = ("dose [mg/l]", "âge", "response", "outcome")
DOSE, AGE, RESPONSE, OUTCOME = VARIABLES
TRUE_WEIGHTS = {(DOSE, RESPONSE): 1.5, (AGE, RESPONSE): -1.2, (RESPONSE, OUTCOME): 1.8}


def draw(n, rng):
    dose, age, e, u = rng.standard_normal((4, n))
    response = 1.5 * dose - 1.2 * age + e
    outcome = 1.8 * response + u
    return Dataset(VARIABLES, np.column_stack([dose, age, response, outcome]))


@pytest.fixture
def tables():
    rng = np.random.default_rng(5)
    return {f"site-{k}": draw(n, rng) for k, n in ((1, 1500), (2, 1000), (3, 1200))}


def read_edges(run):
    with (run / "edges.csv").open(encoding="utf-8", newline="") as file:
        return {(row["source"], row["target"]): float(row["weight"]) for row in csv.DictReader(file)}


def read_weights(run):
    """Raw W as {(source, target): weight}, zeros included."""
    with (run / "weights.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return {(row[0], target): float(x) for row in rows for target, x in zip(header[1:], row[1:], strict=True)}


def read_result(run):
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


def least_squares(table, target, sources):
    """Weights of one regression without intercept, from the rows themselves."""
    column = {name: table.X[:, k] for k, name in enumerate(table.variables)}
    fitted = np.linalg.lstsq(np.column_stack([column[name] for name in sources]), column[target], rcond=None)[0]
    return dict(zip(sources, fitted.tolist(), strict=True))


def permuted(table, order):
    return Dataset(tuple(table.variables[k] for k in order), np.ascontiguousarray(table.X[:, list(order)]))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"refit_rounds": 0},
        {"acyclicity_schedule": "augmented"},
        {"value_type": "float32", "step_size": 0.5},
        {"local_solver": "closed-form"},
        {"local_solver": "closed-form", "refit_rounds": 0, "value_type": "float32"},
        {"local_solver": "frank-wolfe", "local_steps": 2000},
    ],
    ids=["default", "no refit", "augmented", "float32", "closed-form", "closed-form float32", "frank-wolfe"],
)
def test_a_small_network_with_strong_weights_is_found_exactly(settings, tables, tmp_path):
    plan = Plan(rounds=40, **settings)
    result = simulate(plan, tables, tmp_path / "run")
    learned = {(edge["source"], edge["target"]): edge["weight"] for edge in result["edges"]}
    assert set(learned) == set(TRUE_WEIGHTS)
    # Without a refit the L1 term shrinks the weights.
    assert learned == pytest.approx(TRUE_WEIGHTS, abs=0.1 if plan.refit_rounds else 0.3)
    assert result["state"] == "finished"
    assert read_edges(tmp_path / "run") == learned
    assert read_result(tmp_path / "run") == result


def test_refitted_weights_are_the_plain_mean_of_the_sites_own_regressions(tables, tmp_path):
    simulate(Plan(rounds=40), tables, tmp_path / "run")
    parents = {RESPONSE: [DOSE, AGE], OUTCOME: [RESPONSE]}
    expected = {}
    for target, sources in parents.items():
        fits = [least_squares(table, target, sources) for table in tables.values()]
        expected |= {(source, target): sum(fit[source] for fit in fits) / 3 for source in sources}
    assert read_edges(tmp_path / "run") == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("intercept", [False, True])
def test_personalised_weights_are_numpys_least_squares_on_the_sites_own_rows(tables, intercept):
    table = replace(tables["site-2"], X=tables["site-2"].X + 3.0)
    dag = np.zeros((4, 4), dtype=bool)
    for source, target in [(0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]:
        dag[source, target] = True
    fitted = personalise(table, dag, intercept=intercept)
    X = np.column_stack([table.X, np.ones(len(table.X))]) if intercept else table.X
    assert (fitted.dag == dag).all()
    for j, sources in {0: [], 1: [], 2: [0, 1], 3: [0, 1, 2]}.items():
        weights, columns = np.zeros(X.shape[1]), [*sources, *([4] if intercept else [])]
        if columns:
            weights[columns] = np.linalg.lstsq(X[:, columns], X[:, j], rcond=None)[0]
        residue = X[:, j] - X @ weights
        assert fitted.weights[:, j] == pytest.approx(weights[:4], abs=1e-10)
        assert fitted.residual_variance[j] == pytest.approx(np.mean(residue**2), rel=1e-10)


@pytest.mark.parametrize("solver", ["pgcd", "closed-form"])
@pytest.mark.parametrize("refit_rounds", [0, 1, 2])
def test_a_forbidden_edge_is_in_no_consensus_and_in_no_graph_however_strong_it_is(
    refit_rounds, solver, tables, tmp_path
):
    plan = Plan(rounds=40, refit_rounds=refit_rounds, local_solver=solver)
    simulate(plan, tables, tmp_path / "free")
    assert abs(read_weights(tmp_path / "free")[RESPONSE, OUTCOME]) > 1
    simulate(plan.with_settings(knowledge={"forbidden": [[RESPONSE, OUTCOME]]}), tables, tmp_path / "run")
    assert read_weights(tmp_path / "run")[RESPONSE, OUTCOME] == 0
    assert (RESPONSE, OUTCOME) not in read_edges(tmp_path / "run")


@pytest.mark.parametrize("refit_rounds", [0, 1, 2])
def test_a_required_edge_is_in_the_graph_however_weak_it_is(refit_rounds, tables, tmp_path):
    plan = Plan(rounds=40, refit_rounds=refit_rounds, knowledge={"required": [[AGE, DOSE]]})
    simulate(plan, tables, tmp_path / "run")
    edges = read_edges(tmp_path / "run")
    assert set(edges) == {*TRUE_WEIGHTS, (AGE, DOSE)}
    assert abs(edges[AGE, DOSE]) < 0.1
    assert read_weights(tmp_path / "run")[DOSE, AGE] == 0, "its reverse would close a cycle"


def test_a_required_edge_against_the_data_turns_the_others_that_would_close_a_cycle(tables, tmp_path):
    plan = Plan(rounds=40, knowledge={"required": [[OUTCOME, RESPONSE], [RESPONSE, DOSE]]})
    simulate(plan, tables, tmp_path / "run")
    edges, W = read_edges(tmp_path / "run"), read_weights(tmp_path / "run")
    assert {(OUTCOME, RESPONSE), (RESPONSE, DOSE)} <= set(edges)
    for source, target in ((RESPONSE, OUTCOME), (DOSE, RESPONSE), (DOSE, OUTCOME)):
        assert W[source, target] == 0


def test_no_edge_points_from_a_later_tier_to_an_earlier_one(tables, tmp_path):
    tiers = [[OUTCOME], [RESPONSE, AGE]]  # in the wrong order, to be felt; dose may stand anywhere
    simulate(Plan(rounds=40, knowledge={"tiers": tiers}), tables, tmp_path / "run")
    edges, W = read_edges(tmp_path / "run"), read_weights(tmp_path / "run")
    for source in (RESPONSE, AGE):
        assert W[source, OUTCOME] == 0
        assert (source, OUTCOME) not in edges
    assert (OUTCOME, RESPONSE) in edges, "what ties the two together must then point forward"


def test_knowledge_about_a_variable_that_no_site_has_is_refused_before_a_folder_is_made(tables, tmp_path):
    plan = Plan(knowledge={"forbidden": [["smoking", OUTCOME]]})
    with pytest.raises(PlanError, match="'smoking', which is not a variable of this run"):
        simulate(plan, tables, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_order_of_a_sites_columns_does_not_matter_where_the_plan_names_the_variables(tables, tmp_path):
    plan = Plan(rounds=10, variables=VARIABLES)
    simulate(plan, tables, tmp_path / "one")
    orders = ((3, 1, 0, 2), (0, 1, 2, 3), (2, 3, 1, 0))
    shuffled = {site: permuted(table, order) for (site, table), order in zip(tables.items(), orders, strict=True)}
    simulate(plan, shuffled, tmp_path / "other")
    for name in GRAPH_FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes(), name


def test_without_names_in_the_plan_the_first_sites_order_is_that_of_the_run(tables, tmp_path):
    simulate(Plan(rounds=10), tables, tmp_path / "one")
    later = {**tables, "site-2": permuted(tables["site-2"], (3, 1, 0, 2))}
    simulate(Plan(rounds=10), later, tmp_path / "other")
    for name in GRAPH_FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes(), name
    first = {**tables, "site-1": permuted(tables["site-1"], (3, 1, 0, 2))}
    assert simulate(Plan(rounds=10), first, tmp_path / "turned")["variables"] == [OUTCOME, AGE, DOSE, RESPONSE]


@pytest.mark.parametrize("order", list(permutations(range(4)))[5::7])
def test_the_same_graph_is_learned_whatever_the_order_of_the_variables(order, tables, tmp_path):
    simulate(Plan(rounds=40), tables, tmp_path / "one")
    simulate(Plan(rounds=40), {site: permuted(table, order) for site, table in tables.items()}, tmp_path / "other")
    assert read_edges(tmp_path / "other") == pytest.approx(read_edges(tmp_path / "one"), rel=1e-6)
    assert read_weights(tmp_path / "other") == pytest.approx(read_weights(tmp_path / "one"), abs=1e-3)


def test_the_order_in_which_sites_are_given_does_not_matter(tables, tmp_path):
    results = []
    for name, order in (("one", (1, 2, 3)), ("other", (3, 1, 2))):
        given = {f"site-{k}": tables[f"site-{k}"] for k in order}
        results.append(simulate(Plan(rounds=10), given, tmp_path / name))
    for name in GRAPH_FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes(), name
    assert results[0]["sites"] == results[1]["sites"]
    assert results[0]["bytes"] == results[1]["bytes"]


def test_names_of_the_sites_do_not_matter_beyond_the_order_of_their_sum(tables, tmp_path):
    renamed = dict(zip(("a", "b", "c"), tables.values(), strict=True))
    simulate(Plan(rounds=10), tables, tmp_path / "one")
    simulate(Plan(rounds=10), renamed, tmp_path / "other")
    assert (tmp_path / "one" / "weights.csv").read_bytes() == (tmp_path / "other" / "weights.csv").read_bytes()


def test_a_search_for_a_class_tells_how_many_edges_have_no_direction(tmp_path):
    """In a chain nobody knows a direction; the rounds before the search know no class."""
    rng, seen = np.random.default_rng(5), []
    tables = {f"site-{k}": Dataset(("a", "b", "c"), rng.standard_normal((500, 3)).cumsum(axis=1)) for k in range(2)}
    plan = Plan(rounds=2, refit_rounds=0, moments_rounds=1, graph_class="cpdag", l1_weight=0.05, threshold=0.0)
    result = simulate(plan.with_settings(bootstrap=0), tables, tmp_path / "run", watch=seen.append)
    assert [status.undirected for status in seen[:2]] == [0, 0]
    assert (seen[-1].edges, seen[-1].undirected) == (2, 2)
    assert ["undirected" in entry for entry in result["rounds"]] == [False, False, True]
    assert result["rounds"][-1]["undirected"] == 2


def test_a_watcher_sees_every_round_and_at_the_end_the_bytes_of_the_result(tables, tmp_path):
    seen = []
    result = simulate(Plan(rounds=5), tables, tmp_path / "run", watch=seen.append)
    assert [(status.round, status.rounds) for status in seen] == [(t, 6) for t in range(1, 7)]
    assert [status.edges for status in seen] == [entry["edges"] for entry in result["rounds"]]
    last = {site.site: (site.bytes_up, site.bytes_down) for site in seen[-1].sites}
    counted = {site: entry["bytes"] for site, entry in result["sites"].items()}
    assert last == {site: (b["up"]["serialised"], b["down"]["serialised"]) for site, b in counted.items()}


def test_bytes_by_the_papers_formula_are_those_of_the_entries_of_each_message(tables, tmp_path, monkeypatch):
    entries = Counter()
    advance = round_loop.advance

    def counting(state, updates, asked, run):
        entries["down"] += len(updates) * np.count_nonzero(state.global_weights.to_dense())
        entries["up"] += sum(np.count_nonzero(update.content.weights.to_dense()) for update in updates.values())
        return advance(state, updates, asked, run)

    monkeypatch.setattr(round_loop, "advance", counting)
    result = simulate(Plan(rounds=8, refit_rounds=0), tables, tmp_path / "run")
    bytes_an_entry = 8 + math.ceil(math.log2(4 * 4) / 8)
    for direction in ("up", "down"):
        assert result["bytes"][direction]["formula"] == entries[direction] * bytes_an_entry > 0


def test_dense_messages_count_8_bytes_for_each_of_the_d_squared_entries_as_in_the_paper(tmp_path):
    federation = synthesise(20, 20, 8, 30, 100)
    tables = {f"site-{k}": Dataset(federation.variables, X) for k, X in enumerate(federation.tables)}
    plan = Plan(n_participants=8, rounds=4, refit_rounds=0, local_solver="closed-form", global_iterations=2)
    result = simulate(plan, tables, tmp_path / "run")
    for direction in ("up", "down"):
        counted, real = (result["bytes"][direction][kind] for kind in ("formula", "serialised"))
        assert counted * 100 / 4 * 2 == pytest.approx(5.12e6), "d=20, P=8, T=100: the paper's 5.12 MB"
        assert counted < real < counted + 8 * 4 * 40


def test_a_run_that_diverges_leaves_a_readable_folder_with_what_was_learned_before(tables, tmp_path, monkeypatch):
    plan, steps = Plan(rounds=5), iter([admm.global_step] * 2)

    def diverge_in_round_3(*args, **kwargs):
        for step in steps:
            return step(*args, **kwargs)
        raise DivergenceError("the global step diverged: W is not finite")

    monkeypatch.setattr(admm, "global_step", diverge_in_round_3)
    with pytest.raises(DivergenceError) as caught:
        simulate(plan, tables, tmp_path / "run")
    result = read_result(tmp_path / "run")
    assert result["state"] == "failed"
    assert result["reason"] == str(caught.value) != ""
    done = len(result["rounds"])
    assert done == 2
    assert "ended before its refit" in result["not_written"]["lgbn.json"]
    for name in {*GRAPH_FILES, "plan.toml", "checkpoint.npz"} - {"lgbn.json"}:
        assert (tmp_path / "run" / name).stat().st_size > 0, name
    assert np.isfinite(list(read_weights(tmp_path / "run").values())).all()
    assert Plan.load(tmp_path / "run" / "plan.toml") == plan
    lines = (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["started", *["round"] * done, "failed"]
    (tmp_path / "truth.csv").write_text(f"source,target\n{DOSE},{RESPONSE}\n", encoding="utf-8")
    report = evaluate(tmp_path / "run", tmp_path / "truth.csv", tau=None)
    assert "the run is failed" in report["warnings"][0]


def test_a_run_that_diverges_in_its_first_round_says_so_and_has_no_graph(tables, tmp_path):
    plan = Plan(local_solver="closed-form", consensus_penalty=1e308)
    with pytest.raises(DivergenceError) as caught:
        simulate(plan, tables, tmp_path / "run")
    result = read_result(tmp_path / "run")
    assert (result["state"], result["reason"]) == ("failed", str(caught.value))
    assert (result["rounds"], result["edges"]) == ([], [])
    (tmp_path / "truth.csv").write_text("source,target\n", encoding="utf-8")
    with pytest.raises(ResultError, match=f"ended before its first round: {caught.value}"):
        evaluate(tmp_path / "run", tmp_path / "truth.csv", tau=None)


def test_an_interrupted_run_keeps_the_rounds_before(tables, tmp_path):
    def interrupt_in_round_4(status):
        if status.round == 4:
            raise InterruptedRunError("the operator went home")

    plan = Plan(rounds=10, refit_rounds=0, acyclicity_schedule="augmented")
    with pytest.raises(InterruptedRunError):
        simulate(plan, tables, tmp_path / "run", watch=interrupt_in_round_4)
    result = read_result(tmp_path / "run")
    assert (result["state"], result["reason"]) == ("interrupted", "the operator went home")
    assert [entry["round"] for entry in result["rounds"]] == [1, 2, 3, 4]
    simulate(plan.with_settings(rounds=4), tables, tmp_path / "short")  # this schedule does not depend on the end
    assert read_weights(tmp_path / "run") == read_weights(tmp_path / "short")


def test_a_folder_that_holds_a_run_is_left_as_it_is(tables, tmp_path):
    simulate(Plan(rounds=2), tables, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(ResultError, match="holds a run already"):
        simulate(Plan(rounds=3), tables, tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


# Measurements from 1 upwards, taken as they are, as in the paper: the site is warned of it, rightly.
@pytest.mark.filterwarnings("ignore:column:fedbnsl_client.data.checks.DataWarning")
def test_the_papers_plan_runs_on_a_shuffled_split_of_the_sachs_data(sachs, tmp_path):
    sizes = split(sachs / "sachs.csv", 3, tmp_path / "data", seed=0)
    assert sorted(sizes.values()) == [2488, 2489, 2489]
    tables = {site: Dataset.read(path) for site, path in site_files(tmp_path / "data").items()}
    plan = Plan.load("paper-sachs", ["rounds=4"])
    result = simulate(plan, tables, tmp_path / "run")
    assert result["state"] == "finished"
    assert result["variables"] == ["raf", "mek", "plc", "pip2", "pip3", "erk", "akt", "pka", "pkc", "p38", "jnk"]
    assert {site: entry["n_samples"] for site, entry in result["sites"].items()} == sizes
    assert len(result["edges"]) > 0
    for name, n_edges, cyclic in (
        ("edges-17-bnlearn", 17, False),
        ("edges-18-cdt", 18, True),
        ("edges-20-cmuphil", 20, False),
    ):
        report = evaluate(tmp_path / "run", sachs / f"{name}.csv", tau=None)
        assert report["empty_graph"]["shd"] == report["scores"]["n_reference_edges"] == n_edges
        assert bool(report["warnings"]) == cyclic
        assert report["scores"]["n_edges"] == len(result["edges"])


@pytest.mark.parametrize(
    "plan", [Plan.load("standard"), Plan.load("private-moments", epsilon=50.0)], ids=lambda p: p.name
)
def test_copies_and_row_numbers_are_told_with_the_result_of_a_run_without_privacy_alone(plan, tables, tmp_path):
    rng = np.random.default_rng(8)
    copied, numbered = np.repeat(tables["site-1"].X[:150], 4, axis=0), tables["site-3"].X.copy()
    copied[:, 1] = copied[:, 1].round(3)
    numbered[:, 1] = rng.permutation(len(numbered))
    private = plan.privacy is not None
    sites = {"site-1": copied, "site-2": tables["site-2"].X, "site-3": numbered}
    with pytest.warns(DataWarning):
        read = {site: Dataset.of_values(VARIABLES, X, origin=site) for site, X in sites.items()}
    result = simulate(plan.with_settings(n_participants=3), read, tmp_path / "run", noise_seed=1 if private else None)
    told = [text for text in result["warnings"] if "equal one" in text or "occur once each" in text]
    if private:
        assert told == []
        assert "copied" not in (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8")
        return
    assert told[0].startswith("many records have an equal one (at site-1), and copies count as independent records")
    assert told[1].startswith("whole numbers of 'âge' occur once each (at site-3), as row numbers and identifiers do")
