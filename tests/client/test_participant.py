"""What a participant remembers between tasks."""

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError, StaleRoundError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import FindingCode, LocalUpdate, RoundTask, SiteState, TableFinding
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.rounds import curvature as curvature_rounds
from fedbnsl.rounds import regressions as regressions_rounds
from fedbnsl.rounds.scales import Answer
from fedbnsl_client.data.checks import Oddity
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.rounds.admm import Rounds
from fedbnsl_workbench.tables.synthetic import synthesise

FEDERATION = synthesise(5, 6, 1, 200, 3)
W = SparseMatrix.from_dense(np.triu(np.full((5, 5), 0.25), k=1))


def participant(snapshot: SiteState | None = None) -> Participant:
    return Participant("site-1", Dataset(FEDERATION.variables, FEDERATION.tables[0]), Plan(), snapshot)


def task(round_: int, *, contributed: bool) -> RoundTask:
    return RoundTask(round_, admm_rounds.Task(W), contributed)


def test_a_repeated_task_gets_the_same_answer_and_an_older_one_none():
    site = participant()
    first = site.handle(task(4, contributed=False))
    assert site.handle(task(4, contributed=False)) is first
    with pytest.raises(StaleRoundError, match="round 3"):
        site.handle(task(3, contributed=False))


@pytest.mark.parametrize(("next_round", "contributed"), [(2, False), (3, True), (3, False)])
def test_an_answer_that_did_not_enter_the_last_round_leaves_no_trace(next_round, contributed):
    site = participant()
    site.handle(task(1, contributed=False))
    answer = site.handle(task(next_round, contributed=contributed))
    fresh = participant().handle(task(next_round, contributed=False))
    assert answer == fresh, "it answers like a site that holds what the coordinator holds: nothing"


def test_an_answer_that_entered_the_last_round_moves_weights_and_dual():
    site = participant()
    first = site.handle(task(1, contributed=False)).content.weights
    answer = site.handle(task(2, contributed=True))
    dual = SparseMatrix.from_dense(Plan().consensus_penalty * (first.to_dense() - W.to_dense()))
    restored = participant(SiteState(first, dual)).handle(task(2, contributed=False))
    assert answer == restored
    assert answer != participant().handle(task(2, contributed=False))


def test_an_answer_of_another_kind_of_round_moves_neither():
    site, before = participant(), LocalUpdate("site-1", 1, Answer(np.ones(5)))
    rounds = Rounds(site._problem, site._snapshot)
    rounds.begin(task(2, contributed=True), before)
    for held, expected in zip((rounds._B, rounds._beta, rounds._W), (0.0, 0.0, W.to_dense()), strict=True):
        assert np.array_equal(held.to_dense(), np.broadcast_to(expected, W.to_dense().shape))


ODD = (TableFinding(FindingCode.MEANS_FAR_FROM_ZERO, (1, 4)), TableFinding(FindingCode.LOOKS_CATEGORICAL, (2,)))


def odd_table() -> Dataset:
    return Dataset(FEDERATION.variables, FEDERATION.tables[0], tuple(Oddity(found, "in words") for found in ODD))


def test_what_is_odd_about_a_table_goes_along_until_an_answer_has_counted():
    site = Participant("site-1", odd_table(), Plan())
    told = [site.handle(task(t, contributed=t in (2, 4))).findings for t in range(1, 5)]
    assert told == [ODD, (), ODD, ()]
    begun_anew = Participant("site-1", odd_table(), Plan()).handle(task(3, contributed=False))
    assert begun_anew.findings == ODD, "the very answer that was sent before, or it would be refused"


def test_what_is_odd_follows_its_columns():
    names = FEDERATION.variables
    assert odd_table().reordered(names[::-1]).odd[0].finding.variables == (0, 3)
    assert [one.finding for one in odd_table().reordered([names[0], names[4]]).odd] == [
        TableFinding(FindingCode.MEANS_FAR_FROM_ZERO, (1,))
    ]


def test_no_more_rounds_of_a_kind_are_answered_than_the_plan_has():
    """With EM before, a round of each kind may have many numbers."""
    levels = {"a": {}, "b": {}, "sick": {"kind": "binary", "levels": ["no", "yes"]}}
    plan = Plan.load("standard", ["regressions_rounds=3"]).with_settings(dictionary=levels)
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(size=(50, 2)), rng.integers(0, 2, 50)])
    site = Participant("site-1", Dataset(("a", "b", "sick"), X), plan)
    family = regressions_rounds.Task((regressions_rounds.Family((2,), (0,)),), np.zeros(1))
    curves = curvature_rounds.Task(SparseMatrix.zeros(3), np.empty(0, dtype=np.int64))
    for first, most, content in ((30, 1, curves), (40, 3, family)):
        for t in range(first, first + most):
            told = site.handle(RoundTask(t, content, contributed=False))
            assert site.handle(RoundTask(t, content, contributed=False)) is told, "a repeated round is no further one"
        with pytest.raises(RemoteProtocolError, match=f"the plan has at most {most} rounds of this kind"):
            site.handle(RoundTask(first + most, content, contributed=False))
