"""What a participant remembers between tasks."""

import numpy as np
import pytest

from fedbnsl.errors import StaleRoundError
from fedbnsl.messages import RoundTask, SiteState
from fedbnsl.plan.plan import Plan
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.sparse import SparseMatrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_experiments.tables.synthetic import synthesise

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
