"""What a result says of the regression of one child."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import initial_state
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph
from fedbnsl_server.inference.regressions import Regression, begun
from fedbnsl_server.results.regressions import ratios_of, regressions_csv, with_differences
from fedbnsl_server.results.sentences import sentence

NAMES = ("x", "y")
DAG = np.array([[False, True], [False, False]])
SETTLED = replace(
    begun((1,), (0,), np.ones(1)),
    standing="settled",
    sites=("a", "b"),
    rows=100,
    information=np.array([[25.0]]),
    identified=np.array([True]),
)


def told(one: Regression, kind: str) -> dict[str, Any]:
    plan = Plan.load("standard").with_settings(
        n_participants=2,
        dictionary={"x": {}, "y": {"kind": kind} | ({} if kind == "count" else {"levels": ["0", "1"]})},
    )
    graph = ConsensusGraph(
        DAG, DAG.astype(float), (), EdgeMask(Knowledge(required=(NAMES,)), plan.columns(NAMES)), "cpdag"
    )
    state = replace(initial_state(2, ["a", "b"]), regressions=(one,))
    (found,) = ratios_of(graph, state, plan, NAMES, 100)
    return found


def test_ratios_of_all_rows_and_sites_need_no_words() -> None:
    found = told(SETTLED, "binary")
    assert found["codes"] == []
    assert found["estimates"][0]["standard_error"] == pytest.approx(0.2)
    assert found["overdispersion"] is None


@pytest.mark.parametrize(
    ("changed", "kind", "code", "words", "has_estimates"),
    [
        ({"standing": "inconsistent", "odd": "b"}, "binary", "ratios_inconsistent", "numbers of b", False),
        ({"standing": "unsettled", "rounds": 50}, "binary", "ratios_unsettled", "50 rounds", False),
        ({"rows": 0}, "binary", "ratios_no_rows", "does 'y' vary", False),
        ({"identified": np.array([False])}, "binary", "ratios_not_identified", "where 'y' does", True),
        ({"rows": 60}, "binary", "ratios_of_rows", "60 of 100", True),
        ({"sites": ("a",)}, "binary", "ratios_of_sites", "a alone", True),
        ({"sites": ("a", "b", "c")}, "binary", "ratios_of_sites", "b, c alone", True),
        ({"dispersion": 300.0, "free": 100.0}, "count", "ratios_overdispersed", "3 times", True),
    ],
)
def test_what_ratios_lack_is_said(
    changed: dict[str, Any], kind: str, code: str, words: str, *, has_estimates: bool
) -> None:
    found = told(replace(SETTLED, **changed), kind)
    assert found["codes"] == [code]
    assert words in sentence(found["notes"][0])
    assert bool(found["estimates"]) == has_estimates


def test_what_is_not_identified_has_no_number() -> None:
    (one,) = told(replace(SETTLED, identified=np.array([False])), "binary")["estimates"]
    assert [one[name] for name in ("estimate", "interval", "log_ratio", "standard_error")] == [None] * 4


def test_a_curve_and_an_open_direction_are_told_beside_a_mean_difference() -> None:
    plan = Plan.load("standard").with_settings(n_participants=2, dictionary={"x": {}, "y": {}})
    edge = {"source": "x", "target": "y", "weight": 2.0, "directed": False, "interval": [1.0, 3.0]}
    ends: list[dict[str, Any]] = [{"source": "y", "target": "x"}]
    for curves, curved in ((None, False), ({"variables": ["y"], "rows": 90, "effects": ends}, True)):
        (one,) = with_differences([], [edge], curves, plan.columns(NAMES), plan, 100)
        (estimate,) = one["estimates"]
        assert (one["codes"], one["rows"]) == (["regression_open"], 100)
        assert (estimate["estimate"], estimate["curved"]) == (2.0, curved)
        numbers = ",,,,100,1" if curved else "2.0,1.0,3.0,,100,0"
        assert regressions_csv([one]).splitlines()[1] == f"y,mean difference,x,y,{numbers}"
