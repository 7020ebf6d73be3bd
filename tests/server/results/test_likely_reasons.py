"""Likely reasons for what a test contradicts: first what the run itself shows, then what it cannot see."""

from dataclasses import replace
from typing import Any

import numpy as np
from tests.server.results.test_confidence import CONFIDENCE

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.results.likely_reasons import likely_reasons
from fedbnsl_server.results.sentences import sentence

COLUMNS = Columns.of(["a", "b", "c"])
STANDARD = Plan.load("standard")
UNEXPLAINED = replace(
    CONFIDENCE, unexplained=np.array([[0, 2]]), unexplained_correlation=np.array([0.1]), n_unexplained=1
)


def codes(confidence: Confidence, *contradicted: str, plan: Plan = STANDARD, lines_tested: bool = True) -> list[str]:
    told = likely_reasons(plan, COLUMNS, confidence, contradicted, lines_tested=lines_tested)
    return [one.code.removeprefix("reason_") for one in told]


def test_nothing_is_a_reason_where_neither_residuals_nor_sites_are_contradicted() -> None:
    assert codes(CONFIDENCE, "functions", "curved", "knowledge_does_not_fit") == []


def test_what_was_tested_and_not_found_is_no_reason() -> None:
    assert codes(UNEXPLAINED, "unexplained") == ["rows", "hidden", "edge"]
    assert codes(UNEXPLAINED, "unexplained", lines_tested=False) == ["rows", "curves", "hidden", "edge"]


def test_the_one_site_that_differs_comes_first_and_sites_that_differ_in_no_order_after_rows() -> None:
    odd = replace(CONFIDENCE, odd_site="site-3")
    assert codes(odd, "sites_differ")[0] == "sites"
    assert codes(CONFIDENCE, "sites_differ")[:2] == ["rows", "sites"]


def test_where_most_coefficients_differ_a_little_rows_that_depend_on_each_other_come_first() -> None:
    def told(q: list[float]) -> Any:
        sites = replace(CONFIDENCE, q=np.array(q), degrees=np.full(len(q), 4), odd_site="site-3")
        return likely_reasons(STANDARD, COLUMNS, sites, ["sites_differ"], lines_tested=True)[0]

    widely = told([15.0] * 6)
    assert (widely.code, widely.numbers["widely"]) == ("reason_rows", True)
    assert told([60.0, *[4.0] * 5]).code == "reason_sites"


def test_rows_come_last_where_the_coefficients_of_sites_scatter_by_chance_alone() -> None:
    def told(q: float, *contradicted: str) -> list[str]:
        sites = replace(UNEXPLAINED, q=np.full(6, q), degrees=np.full(6, 4))
        return codes(sites, "unexplained", *contradicted)

    assert told(4.0) == ["hidden", "edge", "rows"]
    assert told(7.0)[0] == "rows", "each of them is within chance, and all of them are not"
    assert told(4.0, "sites_differ_apart")[-1] == "rows", "sites differ beside the edges"


def test_rows_come_last_where_single_coefficients_differ_clearly_and_the_others_by_chance_alone() -> None:
    def told(others: float) -> Any:
        sites = replace(CONFIDENCE, q=np.array([200.0, 90.0, *[others] * 8]), degrees=np.full(10, 4))
        return likely_reasons(STANDARD, COLUMNS, sites, ["sites_differ"], lines_tested=True)

    assert [one.code for one in told(4.0)] == ["reason_sites", "reason_hidden", "reason_rows"]
    assert "(but most coefficients of sites scatter" in sentence(told(4.0)[-1])
    assert told(7.0)[0].code == "reason_rows", "rows that depend on each other make all of them differ a little"


def test_a_plan_that_says_whose_rows_they_are_leaves_rows_out() -> None:
    grouped = STANDARD.with_settings(dictionary={"who": {"kind": "group"}, "a": {}, "b": {}, "c": {}})
    assert "rows" not in codes(UNEXPLAINED, "unexplained", plan=grouped)


def test_curves_that_the_data_show_come_before_what_no_test_sees() -> None:
    assert codes(UNEXPLAINED, "unexplained", "curved")[0] == "curves"


def test_pairs_that_a_hidden_cause_joins_in_nearly_all_draws_are_named_before_what_no_test_sees() -> None:
    headed = np.zeros((3, 3), dtype=np.int64)
    headed[0, 1] = headed[1, 0] = 19
    hidden = replace(UNEXPLAINED, draws=20, pag_headed=headed)
    first = likely_reasons(STANDARD, COLUMNS, hidden, ["unexplained"], lines_tested=True)[0]
    assert (first.code, first.numbers["pairs"]) == ("reason_hidden", ["a and b"])
    assert codes(replace(hidden, pag_headed=headed - (headed > 0) * 2), "unexplained")[0] == "rows"


def test_a_pair_whose_edge_the_plan_forbids_is_said_first() -> None:
    both = STANDARD.with_settings(knowledge=Knowledge(forbidden=(("a", "c"), ("c", "a"))).model_dump())
    first = likely_reasons(both, COLUMNS, UNEXPLAINED, ["unexplained"], lines_tested=True)[0]
    assert (first.code, first.numbers["allowed"]) == ("reason_edge", False)
    half = STANDARD.with_settings(knowledge=Knowledge(forbidden=(("a", "c"),)).model_dump())
    assert codes(UNEXPLAINED, "unexplained", plan=half)[-1] == "edge"
    noisy = replace(UNEXPLAINED, noise_std=0.01)
    first = likely_reasons(half, COLUMNS, noisy, ["unexplained"], lines_tested=True)[0]
    assert (first.code, first.numbers["hidden"]) == ("reason_edge", True)
