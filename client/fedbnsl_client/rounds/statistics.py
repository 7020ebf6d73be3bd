"""A statistics round at a site: what its columns are like, before anything is done to them.

In a private run the answer follows from the one release that the setup paid for, as if it had published all of it.
"""

from dataclasses import replace

import numpy as np

from fedbnsl.errors import LocalProtocolError
from fedbnsl.protocol.messages import MaskedSum, RoundTask
from fedbnsl.rounds.statistics import Answer, summands
from fedbnsl_client.data.outlying import tails
from fedbnsl_client.data.preparation import column_statistics
from fedbnsl_client.rounds.kinds import LocalRounds


class Rounds(LocalRounds):
    """Exact statistics, or in a private run those of the setup."""

    def answer(self, task: RoundTask) -> Answer | MaskedSum:
        """Variances, how many values they are of, and means where all sites share one."""
        preparation = self.problem.plan.preparation
        if preparation is None:
            raise LocalProtocolError("statistics belong to plans with [preparation]")
        plan, X = self.problem.plan, self.problem.X
        if plan.privacy is None:
            means, variances, n_values = column_statistics(X, preparation)
            answer = Answer(means, variances, float(len(X)), n_values)
            if not plan.leaves_out_outlying:
                return answer
            spreads, far = tails(X, plan.numbers(self.problem.mask.columns))
            return replace(answer, spreads=spreads, far=far)
        noisy = self.problem.noisy_columns
        answer = Answer(noisy.means if plan.tells_means else np.empty(0), noisy.variances, 0.0, noisy.n_values)
        if self.problem.member is None:
            return answer
        return self.problem.masked(task, summands(answer, *self.problem.bounds))
