"""A round that looks at the shape of noise at a site: how residuals go together with one of the parents."""

from collections import Counter
from typing import cast

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.protocol.matrix_codec import as_sent
from fedbnsl.protocol.messages import LocalUpdate, RoundTask
from fedbnsl.rounds.noise import MOST_SETS, NUMBERS_A_PAIR, Answer, Task
from fedbnsl_client.data.outlying import some_values
from fedbnsl_client.losses.noise import noise_sums
from fedbnsl_client.rounds.kinds import LocalRounds, check_edges


class Rounds(LocalRounds):
    """Sums over the rows, of a large table over 100,000 to 200,000 of them, evenly spread."""

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Refuse levels, edges that the plan forbids, and more of one edge than its direction needs."""
        problem, pairs = self.problem, cast(Task, task.content).pairs
        numbers, edges = problem.plan.numbers(problem.mask.columns), np.zeros_like(problem.mask.allowed)
        n_sets = Counter((pair.source, pair.target) for pair in pairs)
        if max(n_sets.values(), default=0) > MOST_SETS:
            raise RemoteProtocolError(
                f"the task of round {task.round} asks for an edge's noise beside {max(n_sets.values())} sets of "
                f"columns; at most {MOST_SETS} are answered"
            )
        for pair in pairs:
            if not (numbers[pair.source] and numbers[pair.target]):
                raise RemoteProtocolError(f"the task of round {task.round} asks for the noise of columns with levels")
            edges[[pair.source, *pair.others], pair.target] = True
        check_edges(task, edges, problem.mask)

    def answer(self, task: RoundTask) -> Answer:
        """Those of all pairs that the task names; of no row where `least_cell` forbids it.

        Where rows have gaps, sums of two pairs that differ in one column tell of the few rows that lack it.
        """
        pairs, problem = cast(Task, task.content).pairs, self.problem
        X = some_values(problem.X) if pairs else np.empty((0, 0))
        sums = np.zeros((len(pairs), NUMBERS_A_PAIR))
        if not (problem.least_cell > 1 and np.isnan(X).any()):
            sums = noise_sums(X, pairs)
        return Answer(as_sent(sums.ravel(), problem.plan.value_type).reshape(sums.shape))
