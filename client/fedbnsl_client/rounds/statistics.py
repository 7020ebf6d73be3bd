"""A statistics round at a site: what its columns are like, before anything is done to them."""

from fedbnsl.errors import LocalProtocolError
from fedbnsl.messages import RoundTask
from fedbnsl.rounds.statistics import Answer
from fedbnsl_client.data.preparation import column_statistics
from fedbnsl_client.rounds.kinds import LocalRounds


class Rounds(LocalRounds):
    """Exact statistics, for plans without privacy."""

    def answer(self, task: RoundTask) -> Answer:
        """Variances, and means where all sites share one.

        Raises
        ------
        LocalProtocolError
            If the plan prepares nothing.
        """
        preparation = self.problem.plan.preparation
        if preparation is None:
            raise LocalProtocolError("statistics belong to plans with [preparation]")
        return Answer(*column_statistics(self.problem.X, preparation))
