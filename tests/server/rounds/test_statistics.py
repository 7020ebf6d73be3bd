"""The units of a run: those of the pooled records, and no site's own means."""

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Units
from fedbnsl.rounds.statistics import Answer, Task
from fedbnsl_client.data.preparation import column_statistics
from fedbnsl_server.algorithm.admm import initial_state
from fedbnsl_server.rounds import statistics
from fedbnsl_server.rounds.kinds import Run

ROWS = {"a": 200, "b": 3000, "c": 12_000}


def tables() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {site: rng.normal(size=(n, 3)) * [1.0, 20.0, 0.1] + rng.normal(size=3) for site, n in ROWS.items()}


def units(**preparation: str) -> Units:
    plan = Plan().with_settings(preparation=preparation)
    run = Run(plan, EdgeMask(Knowledge(), ["x", "y", "z"]), ROWS)
    answers = {
        site: Answer(*column_statistics(table, plan.preparation)[:2], float(len(table)))
        for site, table in tables().items()
    }
    assert not any(statistics.fault(answer, Task(), run) for answer in answers.values())
    found = statistics.advance(initial_state(3, list(ROWS)), answers, Task(), run).units
    assert found is not None
    return found


def test_sites_with_intercepts_of_their_own_are_pooled_within():
    found = units()
    assert found.centres.size == 0
    within = np.concatenate([table - table.mean(axis=0) for table in tables().values()])
    np.testing.assert_allclose(found.scales, within.std(axis=0), rtol=1e-12)


def test_one_mean_for_all_is_that_of_the_pooled_records():
    found, pooled = units(intercept="common"), np.concatenate(list(tables().values()))
    np.testing.assert_allclose(found.centres, pooled.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.scales, pooled.std(axis=0), rtol=1e-12)
    assert units(intercept="common", scale="none").scales.tolist() == [1.0] * 3


def test_without_an_intercept_scales_are_root_mean_squares():
    pooled = np.concatenate(list(tables().values()))
    np.testing.assert_allclose(units(intercept="none").scales, np.sqrt(np.square(pooled).mean(axis=0)), rtol=1e-12)


def test_sites_with_one_vote_each_have_the_same_weight():
    within = np.mean([table.var(axis=0) for table in tables().values()], axis=0)
    np.testing.assert_allclose(units(weighting="sites").scales, np.sqrt(within), rtol=1e-12)


@pytest.mark.parametrize(
    ("means", "variances", "rows", "fault"),
    [
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], 9, "has means where the plan has none"),
        ([], [], 9, "has variances where the plan has none, or none where it has them"),
        ([], [1.0, -1.0, 1.0], 9, "has a variance below 0"),
        ([], [1.0, np.inf, 1.0], 9, "has a variance below 0, or beyond"),
        ([], [1.0, 1.0, 1.0], 0, "has an impossible number of complete rows"),
        ([], [1.0, 1.0, 1.0], 8.5, "has an impossible number of complete rows"),
        ([], [1.0, 1.0, 1.0], 1e9, "has an impossible number of complete rows"),
    ],
)
def test_an_answer_that_cannot_be_used_is_refused(means, variances, rows, fault):
    run = Run(Plan().with_settings(preparation={}), EdgeMask(Knowledge(), ["x", "y", "z"]), ROWS)
    assert fault in statistics.fault(Answer(np.array(means), np.array(variances), rows), Task(), run)


def test_sites_weigh_as_their_complete_rows_once_these_are_known():
    plan = Plan().with_settings(preparation={})
    run = Run(plan, EdgeMask(Knowledge(), ["x", "y", "z"]), {"a": 1000, "b": 1000})
    answers = {"a": Answer(np.empty(0), np.ones(3), 900.0), "b": Answer(np.empty(0), np.full(3, 4.0), 100.0)}
    after = statistics.advance(initial_state(3, ["a", "b"]), answers, Task(), run)
    assert after.complete_rows == {"a": 900, "b": 100}
    assert after.units is not None
    np.testing.assert_allclose(after.units.scales**2, 1.3, rtol=1e-12)


def test_a_column_may_be_constant_at_one_site_and_is_unused_if_it_is_constant_at_all():
    run = Run(Plan().with_settings(preparation={}), EdgeMask(Knowledge(), ["x", "y", "z"]), ROWS)
    varies, constant = Answer(np.empty(0), np.ones(3), 200.0), Answer(np.empty(0), np.array([1.0, 0.0, 1.0]), 200.0)
    assert not statistics.fault(constant, Task(), run)
    state = initial_state(3, ["a", "b"])
    at_one, at_all = (statistics.advance(state, {"a": a, "b": constant}, Task(), run) for a in (varies, constant))
    assert (at_one.unused.constant, at_all.unused.constant) == ((), (1,))
    assert at_all.units is not None
    assert at_all.units.scales.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("variances", "words"),
    [([1.0, 0.0, 0.0], "of 3 variables 'x' alone varies"), ([1.0, 1e-31, 1.0], "'y': a variance of 1e-30 or less")],
)
def test_columns_that_leave_nothing_to_compute_end_the_run_with_a_reason(variances, words):
    run = Run(Plan().with_settings(preparation={}), EdgeMask(Knowledge(), ["x", "y", "z"]), ROWS)
    answers = dict.fromkeys("ab", Answer(np.empty(0), np.array(variances), 200.0))
    with pytest.raises(RemoteProtocolError, match=words):
        statistics.advance(initial_state(3, ["a", "b"]), answers, Task(), run)
