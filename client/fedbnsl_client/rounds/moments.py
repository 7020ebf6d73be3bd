"""A moments round at a site: the exact second moments of the pairs that the task needs."""

from typing import cast

from fedbnsl.graphs.family_moments import asked_moments
from fedbnsl.protocol.matrix_codec import as_sent
from fedbnsl.protocol.messages import RoundTask
from fedbnsl.rounds.moments import Answer, Task
from fedbnsl_client.rounds.kinds import LocalRounds


class Rounds(LocalRounds):
    """Exact second moments, for plans without privacy."""

    def answer(self, task: RoundTask) -> Answer:
        """Those that the families of the neighbours need."""
        problem, neighbours = self.problem, cast(Task, task.content).neighbours.support()
        asked, value_type = asked_moments(neighbours, problem.mask), problem.plan.value_type
        moments = as_sent(problem.loss.S[asked], value_type)
        if not problem.plan.sends_between_rows:
            return Answer(moments)
        between = problem.between_rows
        return Answer(moments, as_sent(between.products[asked], value_type), between.n_pairs)
