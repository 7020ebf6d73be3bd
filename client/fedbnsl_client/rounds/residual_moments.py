"""A private moments round at a site: noisy second moments of the residuals that the task names."""

import math
from typing import cast

import numpy as np

from fedbnsl.errors import LocalProtocolError, RemoteProtocolError
from fedbnsl.graphs.family_moments import symmetric
from fedbnsl.matrix_codec import as_sent
from fedbnsl.messages import LocalUpdate, MaskedSum, RoundTask, SiteState
from fedbnsl.privacy.calibration import LATTICE, constant_residual
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.residual_moments import Answer, Task
from fedbnsl_client.data.preparation import Prepared
from fedbnsl_client.privacy.noisy_means import NoisyMeans
from fedbnsl_client.privacy.private_moments import release_residual_moments
from fedbnsl_client.rounds.kinds import LocalProblem, LocalRounds, check_size


class Rounds(LocalRounds):
    """One release a round, paid for before it is drawn; where columns are prepared, each tells more of their means."""

    def __init__(self, problem: LocalProblem, snapshot: SiteState) -> None:
        super().__init__(problem, snapshot)
        self._means: NoisyMeans | None = None

    @property
    def uses_past(self) -> bool:
        """See `LocalRounds.uses_past`: what was released tells the means that the next release takes off.

        Not under secure sums: a site's own part has too little noise to be used without paying for it.
        """
        return self.problem.plan.preparation is not None and self.problem.member is None

    def learn(self, task: RoundTask, answer: LocalUpdate) -> None:
        """Correct the means by what this site has released."""
        problem, asked, moments = self.problem, cast(Task, task.content), cast(Answer, answer.content).moments
        if problem.prepared is None or problem.plan.privacy is None:
            return
        d = len(asked.scales)
        released = symmetric(moments, np.triu(np.ones((d + 1, d + 1), dtype=bool)))
        A = (np.eye(d) - asked.weights.to_dense()) / asked.scales
        unit = problem.plan.privacy.residual_norm_bound(d) ** 2 / (LATTICE * problem.price.n_samples)
        noise_std = math.sqrt(problem.price.moments_variance / 2.0) * unit
        before = self._means or self._means_of_statistics(problem.prepared)
        self._means = before.after(released, A, noise_std, constant_residual(d))

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Refuse weights or scales that give no usable residuals, before budget is spent on them."""
        content, d = cast(Task, task.content), self.problem.X.shape[1]
        check_size(task, content.weights.value)
        scales = content.scales
        if scales.shape != (d,) or not ((scales >= 1 / LARGEST) & (scales <= LARGEST)).all():
            raise RemoteProtocolError(
                f"round {task.round}: expected {d} scales from {1 / LARGEST:g} to {LARGEST:g}; nothing was released"
            )

    def answer(self, task: RoundTask) -> Answer | MaskedSum:
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
            self._prepared,
        )
        if problem.member is not None:
            unit = privacy.residual_norm_bound(d) ** 2 / (LATTICE * len(problem.X))
            sums = np.rint(released[np.triu_indices(len(released))] / unit)  # as they were before they became means
            return problem.masked(task, [int(number) for number in sums])
        return Answer(as_sent(released[np.triu_indices(len(released))], problem.plan.value_type), content.digest)

    @property
    def _prepared(self) -> Prepared | None:
        """What prepares the records of this round: the best means that are known."""
        prepared = self.problem.prepared
        if prepared is None or self._means is None:
            return prepared
        return Prepared(prepared.centre + self._means.means * prepared.scale, prepared.scale)

    def _means_of_statistics(self, prepared: Prepared) -> NoisyMeans:
        """What the paid statistics tell: their means are the centres, with noise in shares of half a range."""
        low, high = self.problem.bounds
        price = self.problem.price
        std = (high - low) / 2.0 / prepared.scale * math.sqrt(price.setup_variance) / (LATTICE * price.n_samples)
        return NoisyMeans(np.zeros(len(std)), np.diag(std**2))
