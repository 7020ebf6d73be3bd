"""An iteration of EM at a site: the expected sums of its rows, given the covariances of all sites."""

from typing import cast

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.protocol.messages import RoundTask
from fedbnsl.protocol.sparse import upper
from fedbnsl.rounds.completion import LEAST_ROWS, Answer, Task
from fedbnsl_client.rounds.kinds import LocalRounds, usable_covariances


class Rounds(LocalRounds):
    """Answers that follow from the task and the table alone, so that a restarted site gives the same."""

    def answer(self, task: RoundTask) -> Answer:
        """Expected products; first what the rows that have both columns tell, and how many these are."""
        told, patterns = cast(Task, task.content).covariances, self.problem.patterns
        if told is None:
            n_pairs = upper(patterns.pair_counts).astype(np.int64)
            products = patterns.pair_products(own_means=self.problem.has_own_means)
            differences = patterns.mean_differences(LEAST_ROWS)
            return Answer(upper(products), n_pairs, np.empty(0), 0.0, differences, patterns.complete_rows)
        if not usable_covariances(told, self.problem.plan):
            raise RemoteProtocolError(f"the task of round {task.round} has numbers that are no covariances")
        found = patterns.completed(told, own_means=self.problem.has_own_means)
        counted_before = np.empty(0, dtype=np.int64)
        return Answer(upper(found.moments), counted_before, found.mean_residual, found.log_likelihood)
