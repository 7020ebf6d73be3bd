"""A private moments round at a site: noisy second moments of the residuals that the task names."""

from typing import cast

import numpy as np

from fedbnsl.errors import LocalProtocolError, RemoteProtocolError
from fedbnsl.matrix_codec import as_sent
from fedbnsl.messages import LocalUpdate, RoundTask
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.residual_moments import Answer, Task
from fedbnsl_client.privacy.private_moments import release_residual_moments
from fedbnsl_client.rounds.kinds import LocalRounds, check_size


class Rounds(LocalRounds):
    """One release a round, paid for before it is drawn."""

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Refuse weights or scales that give no usable residuals, before budget is spent on them."""
        content, d = cast(Task, task.content), self.problem.X.shape[1]
        check_size(task, content.weights.value)
        scales = content.scales
        if scales.shape != (d,) or not ((scales >= 1 / LARGEST) & (scales <= LARGEST)).all():
            raise RemoteProtocolError(
                f"round {task.round}: expected {d} scales from {1 / LARGEST:g} to {LARGEST:g}; nothing was released"
            )

    def answer(self, task: RoundTask) -> Answer:
        """The release.

        Raises
        ------
        LocalProtocolError
            If the plan is not private.
        """
        problem, content = self.problem, cast(Task, task.content)
        privacy, d = problem.plan.privacy, problem.X.shape[1]
        if privacy is None:
            raise LocalProtocolError("residual moments belong to private runs")
        released = release_residual_moments(
            problem.X,
            content.weights.to_dense(),
            content.scales,
            privacy.residual_norm_bound(d),
            problem.price.moments_variance,
            problem.randbelow,
            problem.prepared,
        )
        return Answer(as_sent(released[np.triu_indices(len(released))], problem.plan.value_type), content.digest)
