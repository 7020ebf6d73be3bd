"""Runs over tables in which effects are curved: the result says so, and is silent where lines are straight."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate, RoundTask
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds.curvature import MOST_PAIRS, NUMBERS_A_PAIR, Answer, Task, n_possible, pairs_of
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.rounds import curvature
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_workbench.simulate import simulate

NAMES = ("a", "b", "c", "d")
PLAN = Plan.load("standard").with_settings(bootstrap=0, n_participants=3)
ROUND = 14


def tables(curve: Any, n: int = 600, gaps: float = 0.0) -> dict[str, Dataset]:
    rng, found = np.random.default_rng(4), {}
    for site in ("x", "y", "z"):
        a, d = rng.normal(size=n), rng.normal(size=n)
        b = curve(a) + rng.normal(size=n)
        X = np.column_stack([a, b, b - d + rng.normal(size=n), d]) * [1.0, 10.0, 0.1, 1.0] + 5.0
        X[rng.random(X.shape) < gaps] = np.nan
        found[site] = Dataset(NAMES, X)
    return found


def run(data: dict[str, Dataset], out: Path, plan: Plan = PLAN) -> dict[str, Any]:
    return simulate(plan, data, out)["verdict"]


@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_a_curve_that_no_line_shows_contradicts_the_result(tmp_path: Path, gaps: float) -> None:
    result = simulate(PLAN, tables(np.square, gaps=gaps), tmp_path / "run")
    assert ("a", "b") not in {(one["source"], one["target"]) for one in result["edges"]}, "no line tells it"
    (said,) = (text for text in result["verdict"]["contradicted"] if "straight lines" in text)
    assert "how b depends on a (a curve explains" in said
    assert "no edge)" in said
    assert any("straight lines" in text for text in result["verdict"]["tested"])
    assert "effects that are not linear" not in result["verdict"]["not_testable"]


def test_straight_lines_are_tested_and_nothing_contradicts_them(tmp_path: Path) -> None:
    verdict = run(tables(lambda a: 2.0 * a), tmp_path / "run")
    assert verdict["contradicted"] == []
    assert not any("other pair" in text for text in verdict["not_tested"])
    assert any("straight lines" in text for text in verdict["tested"])


def test_without_the_round_effects_that_are_not_linear_are_not_testable(tmp_path: Path) -> None:
    verdict = run(tables(np.square), tmp_path / "run", PLAN.with_settings(look_for_curves=False))
    assert "effects that are not linear" in verdict["not_testable"]
    assert not any("straight lines" in text for text in (*verdict["tested"], *verdict["contradicted"]))


def test_a_robust_consensus_does_not_look_and_says_so(tmp_path: Path) -> None:
    verdict = run(tables(np.square), tmp_path / "run", PLAN.with_settings(consensus="median"))
    assert any("straight lines" in text and "robust rule" in text for text in verdict["not_tested"])
    assert "effects that are not linear" in verdict["not_testable"]


def test_pairs_are_those_of_numbers_that_are_not_below_the_child() -> None:
    plan = Plan().with_settings(
        dictionary={"a": {}, "g": {"kind": "nominal", "levels": ["p", "q", "r"]}, "c": {}, "d": {}}
    )
    columns = plan.columns(("a", "g=q", "g=r", "c", "d"))
    dag = np.zeros((5, 5), dtype=bool)
    dag[0, 1] = dag[0, 2] = dag[1, 3] = dag[2, 3] = True  # a -> g -> c, and d
    pairs = pairs_of(dag, columns, plan.numbers(columns)).tolist()
    assert sorted(map(tuple, pairs)) == [(0, 3), (0, 4), (3, 4), (4, 0), (4, 3)], "not c for its ancestor a"


def test_among_many_variables_only_near_pairs_are_asked_for() -> None:
    names = [f"v{k}" for k in range(80)]
    columns, dag = Plan().columns(names), np.eye(80, k=1, dtype=bool)
    assert MOST_PAIRS < 80 * 79 / 2
    every = np.ones(80, dtype=bool)
    assert {c - a for a, c in pairs_of(dag, columns, every).tolist()} == {1, 2}
    hub = np.zeros((80, 80), dtype=bool)
    hub[0, 1:] = True  # all are within two edges
    assert len(pairs_of(hub, columns, every)) == MOST_PAIRS < n_possible(hub, columns, every) == 79 * 79


@pytest.mark.parametrize("d", [3, 40, 60, 300])
def test_an_answer_fits_into_the_largest_update(d: int) -> None:
    for plan in (
        Plan.load("standard"),
        Plan.load("standard").with_settings(value_type="float64", regressions_rounds=0),
    ):
        k = min(d * (d - 1), MOST_PAIRS)
        update = LocalUpdate("a site", 14, Answer(np.full((k, NUMBERS_A_PAIR), 1 / 3)))
        wire = codec.encode_update(update, run=1, value_type=plan.value_type, dense=False)
        assert wire.ByteSize() <= codec.largest_update_bytes(d, plan.further_bytes)


def chain() -> Task:
    dag = np.eye(4, k=1)
    return Task(SparseMatrix.on_support(dag, dag != 0))


def answer(sums: Matrix) -> str:
    settings = Run(PLAN, PLAN.edge_mask(NAMES), dict.fromkeys("xyz", 600))
    return curvature.fault(Answer(sums), chain(), settings)


def test_impossible_sums_of_a_site_are_refused() -> None:
    good = np.zeros((6, NUMBERS_A_PAIR))
    good[:, 0], good[:, [4, 7, 9]] = 600.0, 3.0
    assert answer(good) == ""
    for column, value in ((0, -1.0), (0, 1e12), (1, 50.0), (4, -1.0), (5, 3.1), (6, 1e300)):
        bad = good.copy()
        bad[2, column] = value
        assert "no records have" in answer(bad), (column, value)
    assert "6 were asked for" in answer(good[:5])


def test_a_site_refuses_a_graph_with_a_cycle() -> None:
    dag = np.zeros((4, 4))
    dag[0, 1] = dag[1, 2] = dag[2, 0] = 1.0
    asked = Task(SparseMatrix.on_support(dag, dag != 0))
    site = Participant("x", tables(np.square)["x"], PLAN)
    with pytest.raises(RemoteProtocolError, match="graph with a cycle"):
        site.handle(RoundTask(ROUND, asked, contributed=True))
    site.handle(RoundTask(ROUND, chain(), contributed=True))
