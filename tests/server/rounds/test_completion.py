"""What a coordinator refuses of an iteration of EM, and where it ends a run with the way on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graphs.formats import edges_csv
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Covariances, Units
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds.completion import Answer, Task
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.refit import personalise
from fedbnsl_server.algorithm.admm import in_units, initial_state, without
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph
from fedbnsl_server.results.gaps import complete_cases, gaps_of
from fedbnsl_server.results.learned_network import read_network
from fedbnsl_server.rounds import completion
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.run.end_notice import end_of
from fedbnsl_workbench.scoring.evaluation import read_result
from fedbnsl_workbench.simulate import simulate

PLAN = Plan(
    rounds=3, refit_rounds=0, moments_rounds=1, graph_class="cpdag", threshold=0.0, preparation={"missing": "em"}
)
RUN = Run(PLAN, EdgeMask(Knowledge(), ["x", "y"]), {"a": 100})
FIRST, LATER = Task(None), Task(Covariances(np.eye(2), np.empty(0)))
COUNTS, ALIKE = np.array([90, 80, 85]), np.zeros((2, 2))
NONE, NO_MEANS = np.empty(0, dtype=np.int64), np.empty(0)


def answer(*moments: float, n_pairs: Matrix = NONE, means: Matrix = NO_MEANS) -> Answer:
    return Answer(np.array(moments), n_pairs, means, 0.0, ALIKE if n_pairs.size else ALIKE[:0, :0])


def test_answers_of_sums_of_rows_are_taken() -> None:
    assert not completion.fault(answer(1.0, 0.5, 1.0, n_pairs=COUNTS), FIRST, RUN)
    assert not completion.fault(answer(1.0, -0.9, 1.0), LATER, RUN)


FIRST_ANSWER = answer(1.0, 0.5, 1.0, n_pairs=COUNTS)


@pytest.mark.parametrize(
    ("told", "task", "fault"),
    [
        (replace(FIRST_ANSWER, complete_rows=81), FIRST, "impossible counts"),
        (replace(FIRST_ANSWER, differences=np.array([[0.0, 9.3], [0.0, 0.0]])), FIRST, "impossible differences"),
        (replace(FIRST_ANSWER, differences=ALIKE[:0, :0]), FIRST, "impossible differences"),
        (answer(1.0, 0.5, 1.0), FIRST, "counts"),
        (answer(1.0, 0.5, 1.0, n_pairs=COUNTS), LATER, "counts"),
        (answer(1.0, 0.5, 1.0, n_pairs=np.array([70, 80, 85])), FIRST, "impossible counts"),
        (answer(-1.0, 0.5, 1.0), LATER, "below 0"),
        (answer(1.0, 0.5, 1e300), LATER, "beyond"),
        (answer(1.0, 1.5, 1.0), LATER, "impossible products"),
        (answer(1.0, 0.5, 1.0, means=np.zeros(2)), LATER, "means"),
    ],
)
def test_answers_that_no_rows_give_are_refused(told: Answer, task: Task, fault: str) -> None:
    assert fault in completion.fault(told, task, RUN)


def tables(*lacking: tuple[int, ...], n: int = 200, d: int = 4) -> dict[str, Dataset]:
    """One site for each tuple of columns that it lacks: a chain x0 -> x1 -> x2 -> x3."""
    rng, names = np.random.default_rng(1), tuple(f"x{k}" for k in range(d))
    found = {}
    for k, columns in enumerate(lacking):
        X = rng.standard_normal((n, d))
        for j in range(1, d):
            X[:, j] += X[:, j - 1]
        X[:, list(columns)] = np.nan
        found[f"site-{k}"] = Dataset(names, X)
    return found


def play(sites: dict[str, Dataset], out: Path) -> None:
    simulate(PLAN.with_settings(n_participants=len(sites)), sites, out)


def test_sites_without_a_variable_in_common_are_told_so(tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match="no row has a value both of 'x0', 'x1' and of 'x2', 'x3'"):
        play(tables((2, 3), (0, 1)), tmp_path / "run")


def test_a_variable_without_any_value_is_named(tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match="'x2' have no value at any site"):
        play(tables((2,), (2, 3)), tmp_path / "run")


def test_a_pair_that_no_site_has_together_gets_no_edge_and_is_named(tmp_path: Path) -> None:
    play(tables((0,), (1,), (0,), (1,)), tmp_path / "run")
    result = read_result(tmp_path / "run")
    assert result["gaps"]["never_together"] == [["x0", "x1"]]
    assert {"x0", "x1"} not in [{edge["source"], edge["target"]} for edge in result["edges"]]
    assert any("x0 and x1: no row has a value of both" in text for text in result["warnings"])


def test_a_site_that_lacks_a_column_learns_with_the_others(tmp_path: Path) -> None:
    play(tables((0,), (3,), ()), tmp_path / "run")
    result = read_result(tmp_path / "run")
    pairs = {tuple(sorted((edge["source"], edge["target"]))) for edge in result["edges"]}
    assert pairs == {("x0", "x1"), ("x1", "x2"), ("x2", "x3")}
    assert result["gaps"]["values"]["site-0"]["x0"] == 0
    told = {f"{one['source']} {one['target']}": one["sites"] for one in result["edges"]}
    assert {site for one in told.values() for site in one["estimates"]} == {"site-0", "site-1", "site-2"}
    assert not any("site-0" in one["estimates"] for pair, one in told.items() if "x0" in pair)
    lacking = "whether each site agrees on every variable: site-0 has no value of 'x0', site-1 has no value of 'x3'"
    assert lacking in result["verdict"]["not_tested"]


def test_a_swapped_0_and_1_is_noticed_where_sites_lack_columns(tmp_path: Path) -> None:
    sites = tables((0,), (3,), (), (), n=400)
    for table in sites.values():
        table.X[:, 2] = table.X[:, 2] > 0.0
    sites["site-2"].X[:, 2] = 1.0 - sites["site-2"].X[:, 2]
    play(sites, tmp_path / "run")
    result = read_result(tmp_path / "run")
    assert result["influence"]["odd"]["site"] == "site-2"
    assert result["verdict"]["contradicted"]


def test_effects_know_which_pairs_few_rows_have(tmp_path: Path) -> None:
    play(tables((0,), (0,), (0,), (), d=10), tmp_path / "run")
    precision = read_network(tmp_path / "run").precision
    assert precision is not None
    widening, known = precision.widening, (45 / (9 * 4 + 36)) ** 2.5  # of 45 pairs, 9 in a quarter of the rows
    assert precision.n_samples == pytest.approx(800 * known)
    assert widening is not None
    assert widening[0, 1:] == pytest.approx(np.sqrt(known / 0.25))
    assert (widening[1:, 1:] == 1.0).all()


def test_a_site_s_own_weights_are_not_known_where_it_lacks_a_column() -> None:
    (table,) = tables((0,)).values()
    dag = np.diag(np.ones(3, dtype=bool), 1)
    own = personalise(table, dag, intercept=True)
    assert np.isnan(own.weights[0, 1])
    assert np.isnan(own.residual_variance[[0, 1]]).all()
    assert own.weights[2, 3] == pytest.approx(1.0, abs=0.2)
    assert "nan" not in edges_csv(own.joined(table.columns)).lower()


def test_a_site_s_own_weights_are_not_known_where_no_row_has_two_columns_of_a_regression() -> None:
    (table,) = tables(()).values()
    X = table.X.copy()
    X[::2, 0] = X[1::2, 1] = np.nan
    chain, fork = np.zeros((2, 4, 4), dtype=bool)
    chain[0, 2] = chain[2, 3] = fork[0, 2] = fork[1, 2] = True
    apart = replace(table, X=X)
    assert np.isfinite(personalise(apart, chain, intercept=True).weights).all()
    assert np.isnan(personalise(apart, fork, intercept=True).weights[:2, 2]).all()
    nothing = personalise(replace(table, X=np.full_like(X, np.nan)), chain, intercept=True)
    assert np.isnan(nothing.weights[chain]).all()


def test_rare_levels_may_vary_between_sites_as_much_as_in_a_round_of_moments() -> None:
    plan = PLAN.with_settings(dictionary={"x": {"kind": "binary", "levels": ["no", "yes"]}, "y": {}})
    run = Run(plan, EdgeMask(Knowledge(), ["x", "y"]), {"a": 100, "b": 100, "c": 100})
    scales = np.array([np.sqrt(0.01 * 0.99), 1.0])
    state = in_units(initial_state(2, list(run.n_samples)), Units(NO_MEANS, scales))
    answers = {site: answer(1.0, 0.2, 1.0) for site in run.n_samples}
    (found,) = completion.compared(state, answers, LATER, run)
    of_x, _, of_y = found.variances[0].tolist()
    assert of_y == pytest.approx(0.02)
    assert of_x > 10 * of_y


def test_sites_are_told_which_arrows_rest_on_a_pair_never_seen_together() -> None:
    """x -> z <- y: the class of the DAG alone has both arrows, and that is what a site would make of it."""
    names = ("x", "y", "z")
    dag, unknown = np.zeros((3, 3), dtype=bool), np.zeros((3, 3), dtype=bool)
    dag[[0, 1], 2] = True
    unknown[0, 1] = unknown[1, 0] = True
    known = ConsensusGraph(dag, dag * 1.0, (), EdgeMask(Knowledge(), names), "cpdag")
    assert not known.withdrawn.any()
    graph = replace(known, unknown=unknown)
    assert np.array_equal(graph.marks, dag | dag.T)
    assert set(graph.directed_by.values()) == {"nobody"}
    assert np.array_equal(graph.withdrawn, dag)
    assert not replace(graph, graph_class="dag-equal-variance").withdrawn.any()
    n_pairs = np.full((3, 3), 100.0)
    n_pairs[unknown] = 0.0
    weights = SparseMatrix.from_dense(dag * 1.0)
    end = replace(initial_state(3, ["a"]), refitted=weights, completion=Completion({"a": n_pairs}))
    assert end_of(end, PLAN, names).undecided == (0, 1)


def test_rows_of_a_site_that_is_taken_out_count_for_nothing() -> None:
    n_pairs = {"a": np.array([[50.0, 40.0], [40.0, 40.0]]), "b": np.full((2, 2), 30.0)}
    differences = {site: np.full((2, 2), k) for k, site in enumerate(n_pairs)}
    told = Completion(n_pairs, differences=differences, complete_rows={"a": 40, "b": 30}, iterations=1)
    state = replace(initial_state(2, ["a", "b"]), completion=told, complete_rows={"a": 50, "b": 30})
    plan, columns = Plan.load("standard"), Columns.of(["x", "y"])
    left = without(state, ["b"])
    found = gaps_of(left, plan, columns)
    assert found is not None
    assert (found["values"], found["complete_rows"]) == ({"a": {"x": 50, "y": 40}}, 40)
    (note,) = complete_cases(left, plan, columns)
    assert (note.numbers["complete"], note.numbers["rows"]) == (40, 50)
    assert left.completion is not None
    assert left.completion.known_share == Completion({"a": n_pairs["a"]}).known_share
    assert list(left.completion.differences) == ["a"]
    assert without(state, ["a", "b"]).completion == told, "no site is left that has told its rows"
