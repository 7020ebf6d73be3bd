"""The whole participant, judged by what can be told from its messages."""

import logging

import numpy as np
import pytest

from audit import two_worlds
from fedbnsl.errors import FedbnslError
from fedbnsl.protocol.messages import RoundTask
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.admm import Task
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant


@pytest.mark.parametrize("selection_share", [0.05, 0.5, 0.95])
@pytest.mark.long
def test_two_tables_are_not_told_apart_better_than_epsilon_allows(selection_share: float) -> None:
    sent = two_worlds.statistics(600, selection_share=selection_share)
    # The reference must know the mechanism, or its test would be a weak one.
    assert two_worlds.check_bound(*sent) > 0.0
    two_worlds.check_law(*sent)


@pytest.mark.audit
@pytest.mark.parametrize("selection_share", [0.05, 0.5, 0.95])
def test_nor_by_a_great_many_runs(selection_share: float) -> None:
    sent = two_worlds.statistics(10_000, selection_share=selection_share)
    found = two_worlds.check_bound(*sent)
    logging.getLogger(__name__).info("epsilon is at least %.3f where 1 is claimed", found)
    assert found > 0.4
    two_worlds.check_law(*sent)


@pytest.mark.parametrize("pull", [1e12, 1e200, 1e307])
def test_a_consensus_too_large_for_the_arithmetic_is_refused_whatever_the_table_holds(pull: float) -> None:
    for X in two_worlds.worlds():
        site = Participant("site", Dataset(("a", "b"), X), two_worlds.plan())
        with np.errstate(over="ignore"), pytest.raises(FedbnslError, match="beyond"):
            site.handle(RoundTask(1, Task(SparseMatrix.from_dense(two_worlds.W * pull)), False))
