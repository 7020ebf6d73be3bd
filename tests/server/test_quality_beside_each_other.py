"""What exact answers of several sites show beside each other: constant columns, other units, copies of a table."""

from typing import Any

import numpy as np
import pytest

from fedbnsl.graphs.family_moments import needed_moments
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Content, LocalUpdate
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import moments, statistics
from fedbnsl_server.results.data_quality import QualityWarning, data_quality, quality_warnings
from fedbnsl_server.results.sentences import in_words
from fedbnsl_server.rounds.kinds import Run

NAMES = ("x", "y", "z")
SITES = ("east", "north", "south")
DICTIONARY: dict[str, Any] = {"x": {}, "y": {"kind": "binary", "levels": ["no", "yes"]}, "z": {}}


def run_of(plan: Plan) -> Run:
    return Run(plan, EdgeMask(plan.knowledge, plan.columns(NAMES)), dict.fromkeys(SITES, 500))


def found(asked: Content, answers: list[Content], plan: Plan) -> tuple[QualityWarning, ...]:
    updates = {site: LocalUpdate(site, 1, answer) for site, answer in zip(SITES, answers, strict=False)}
    return quality_warnings(asked, updates, run_of(plan))


def of_variances(*variances: list[float]) -> tuple[QualityWarning, ...]:
    plan = Plan.load("standard").with_settings(dictionary=DICTIONARY)
    answers = [statistics.Answer(np.empty(0), np.array(one), 500.0) for one in variances]
    return found(statistics.Task(), [*answers], plan)


def test_sites_that_are_alike_raise_nothing() -> None:
    assert of_variances([1.0, 0.2, 3.0], [1.5, 0.25, 2.0], [0.7, 0.001, 4.0]) == ()


def test_a_column_that_is_constant_at_one_site_reaches_the_result() -> None:
    told = of_variances([1.0, 0.2, 3.0], [1.5, 0.0, 2.0], [0.7, 0.2, 4.0])
    assert told == (QualityWarning("constant_at_a_site", (1,), "north"),)
    entry = {"findings": [{"code": "constant_at_a_site", "variables": ["y"], "site": "north"}]}
    (sentence,) = in_words(data_quality([entry]))
    assert sentence.startswith("'y' with one value in all rows (at north), but not elsewhere")


def test_a_factor_of_ten_in_a_column_of_one_site_is_told_and_honest_differences_are_not() -> None:
    assert of_variances([1.0, 0.2, 3.0], [1.5, 0.2, 300.0], [0.7, 0.2, 4.0]) == (
        QualityWarning("other_spread", (2,), "north"),
    )
    assert of_variances([0.01, 0.2, 3.0], [1.5, 0.2, 2.0], [1.0, 0.2, 4.0]) == (
        QualityWarning("other_spread", (0,), "east"),
    )
    assert of_variances([1.0, 0.2, 3.0], [1.5, 0.2, 30.0], [0.7, 0.2, 300.0]) == (), "they all differ"
    assert of_variances([1.0, 0.2, 3.0], [1.5, 0.2, 300.0]) == (), "of two, nothing tells which one is odd"


@pytest.mark.parametrize(("ratio", "told"), [(2.4, True), (2.6, False)])
def test_a_spread_is_odd_only_where_those_of_the_other_sites_are_alike(ratio: float, *, told: bool) -> None:
    """One of two others has so many times the standard deviation of the other, and the third 100 times as much."""
    found = of_variances([1.0, 0.2, 1.0], [1.0, 0.2, ratio**2], [1.0, 0.2, 100.0**2])
    assert found == ((QualityWarning("other_spread", (2,), "south"),) if told else ())


def test_copies_of_a_table_are_told() -> None:
    told = of_variances([1.0, 0.2, 3.0], [1.5, 0.25, 2.0], [1.0, 0.2, 3.0])
    assert told == (QualityWarning("same_numbers", (), "east"), QualityWarning("same_numbers", (), "south"))
    plan = Plan.load("standard")  # whose columns may all be yes and no: three equal variances are no sign
    few = [statistics.Answer(np.empty(0), np.array([0.25, 0.2, 0.1]), 40.0)] * 3
    assert found(statistics.Task(), [*few], plan) == ()
    (sentence,) = in_words(
        data_quality([{"findings": [{"code": "same_numbers", "variables": [], "site": "east"}]}] * 2)
    )
    assert sentence.startswith("east sent exactly the same numbers as another site")


def test_two_tables_of_the_same_rare_events_are_no_copies() -> None:
    """Of ten sites with three such events each, in 100 rows, two have the same moments in three of ten runs."""
    plan, near = Plan.load("lean"), ~np.eye(3, dtype=bool)
    S = np.full((3, 3), 0.0004) + np.diag([0.0196] * 3)
    task = moments.Task(SparseMatrix.from_dense(near.astype(float)))
    answers = [moments.Answer(S[needed_moments(near, plan.columns(NAMES))])] * 3
    assert found(task, [*answers], plan) == ()
    assert of_variances(*[[2.0, 0.02, 0.02]] * 3) != (), "two columns are measured, by the dictionary"


def test_without_a_round_of_statistics_moments_tell_the_same() -> None:
    plan = Plan.load("lean")
    near = np.ones((3, 3)) - np.eye(3)
    S = np.diag([1.0, 2.0, 3.0]) + 0.1
    needed = needed_moments(near.astype(bool), plan.columns(NAMES))
    other, scaled = S * 1.1, S * np.outer([1, 10, 1], [1, 10, 1])
    task = moments.Task(SparseMatrix.from_dense(near))
    told = found(task, [moments.Answer(one[needed]) for one in (S, other, scaled)], plan)
    assert told == (QualityWarning("other_spread", (1,), "south"),)
    told = found(task, [moments.Answer(one[needed]) for one in (S, other, S)], plan)
    assert [finding.code for finding in told] == ["same_numbers", "same_numbers"]
