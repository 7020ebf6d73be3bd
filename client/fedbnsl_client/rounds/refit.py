"""A refit round at a site: least squares of each variable on its parents in the learned graph, without a penalty."""

from typing import cast

from fedbnsl.protocol.messages import RoundTask
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.refit import Answer, Task
from fedbnsl_client.rounds.kinds import LocalRounds


class Rounds(LocalRounds):
    """Refits, for plans without privacy."""

    def answer(self, task: RoundTask) -> Answer:
        """Weights and residual variances."""
        problem = self.problem
        support = cast(Task, task.content).graph.support() & problem.mask.allowed
        B = problem.loss.least_squares(support)
        weights = SparseMatrix.on_support(B, support)
        if problem.plan.value_type == "float32":
            weights = weights.as_float32()
        return Answer(weights, problem.loss.residual_variance(B))
