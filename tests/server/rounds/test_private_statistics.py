"""What the coordinator makes of noisy statistics: how many values there are, and what each site counts for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.rounds.statistics import Answer, Task
from fedbnsl_server.algorithm.admm import AdmmState, initial_state
from fedbnsl_server.algorithm.influence import LIMIT, influences
from fedbnsl_server.rounds import statistics
from fedbnsl_server.rounds.kinds import Run

ROWS = {"a": 1000, "b": 1000, "c": 2000}
DICTIONARY: dict[str, Any] = {
    "x": {"range": [-5.0, 5.0]},
    "y": {"range": [-5.0, 5.0]},
    "kind": {"kind": "nominal", "levels": ["one", "two", "three"]},
}
PLAN = Plan.load("private", ["tell_means=false"], epsilon=60.0).with_settings(dictionary=DICTIONARY, n_participants=3)
COLUMNS = PLAN.columns([column.name for column in PLAN.require_ranges(4)])
RUN = Run(PLAN, EdgeMask(PLAN.knowledge, COLUMNS), ROWS)
VARIANCES = np.array([1.0, 2.0, 0.2, 0.2])
ALL = np.ones(4)


def answers(shares: Matrix = ALL, **others: Answer) -> dict[str, Answer]:
    told = {site: Answer(np.empty(0), VARIANCES, 0.0, rows * shares) for site, rows in ROWS.items()}
    return {**told, **others}


def after(told: dict[str, Answer]) -> AdmmState:
    assert not any(statistics.fault(answer, Task(), RUN) for answer in told.values())
    return statistics.advance(initial_state(4, list(ROWS)), told, Task(), RUN)


def test_shares_of_values_are_those_of_all_records() -> None:
    np.testing.assert_array_equal(after(answers()).value_shares, 1.0)
    shares = np.array([0.5, 1.0, 0.8, 0.8])
    np.testing.assert_allclose(after(answers(shares)).value_shares, shares)


def test_no_site_counts_for_more_values_than_it_has_rows() -> None:
    liar = Answer(np.empty(0), 9.0 * VARIANCES, 0.0, np.full(4, 1e12))
    state = after(answers(np.full(4, 0.5), c=liar))
    assert (state.value_shares < 0.8).all(), "half of those of a and b, and no more than all of c"
    assert state.units is not None
    pooled = (500 * VARIANCES * 2 + 2000 * 9.0 * VARIANCES) / 3000
    np.testing.assert_allclose(state.units.scales[:2] ** 2, pooled[:2], rtol=0.05)


@pytest.mark.parametrize("n_values", [np.zeros(4), np.ones(3), np.empty(0)])
def test_numbers_of_values_that_no_site_sends_are_refused(n_values: Matrix) -> None:
    answer = replace(answers()["a"], n_values=n_values)
    assert statistics.fault(answer, Task(), RUN) == "has impossible numbers of values"


@pytest.mark.parametrize(("share", "hidden"), [(1.0, ()), (0.5, (3,))])
def test_a_level_is_rare_by_the_records_that_have_a_value(share: float, hidden: tuple[int, ...]) -> None:
    told = answers(np.array([1.0, 1.0, share, share]))
    variances = np.array([1.0, 2.0, 0.2, 15 / 4000])
    state = after({site: replace(answer, variances=variances) for site, answer in told.items()})
    assert state.unused.hidden == hidden


def test_a_site_with_few_values_of_a_column_is_not_odd_for_the_noise_of_its_variance() -> None:
    few = Answer(np.empty(0), VARIANCES * [12.0, 1.0, 1.0, 1.0], 0.0, np.array([1.0, 1000, 1000, 1000]))
    told = answers(b=few)
    odd = [one.ratio > LIMIT for one in influences(statistics.compared(after(told), told, Task(), RUN))]
    assert not any(odd)


def test_noisy_means_lie_within_ranges_and_weigh_as_the_plan_says() -> None:
    def told(plan: Plan, last: float = 1.0) -> Matrix:
        run = replace(RUN, plan=plan)
        means = zip(answers().items(), (0.0, 0.5, last), strict=True)
        sites = {site: replace(one, means=np.full(4, mean)) for (site, one), mean in means}
        assert not any(statistics.fault(one, Task(), run) for one in sites.values())
        return statistics.advance(initial_state(4, list(ROWS)), sites, Task(), run).means

    asked = PLAN.with_settings(tell_means=True)
    rows = np.array(list(ROWS.values()), dtype=np.float64)
    np.testing.assert_allclose(told(asked), np.full(4, rows @ np.array([0.0, 0.5, 1.0]) / rows.sum()))
    by_site = asked.with_settings(preparation={**PLAN.model_dump()["preparation"], "weighting": "sites"})
    np.testing.assert_allclose(told(by_site), np.full(4, 0.5))
    in_the_clear = Plan.load("private", ["privacy.secure_aggregation=false", "consensus=median"], epsilon=60.0)
    robust = in_the_clear.with_settings(
        dictionary=DICTIONARY, n_participants=3, preparation=by_site.model_dump()["preparation"]
    )
    np.testing.assert_allclose(told(robust, 0.9), np.full(4, 0.5))
    beyond = replace(answers()["a"], means=np.array([0.0, 5.1, 0.0, 0.0]))
    assert "outside the range" in statistics.fault(beyond, Task(), replace(RUN, plan=asked))
