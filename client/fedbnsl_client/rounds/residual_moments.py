"""A private moments round at a site: noisy second moments of the residuals that the task names."""

import math
from typing import cast

import numpy as np

from fedbnsl.errors import LocalProtocolError, RemoteProtocolError
from fedbnsl.graphs.family_moments import symmetric
from fedbnsl.privacy.calibration import LATTICE, WHOLE_SHARE, constant_residual
from fedbnsl.privacy.site_shares import site_shares
from fedbnsl.protocol.matrix_codec import as_sent
from fedbnsl.protocol.messages import LocalUpdate, MaskedSum, RoundTask, SiteState
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.residual_moments import Answer, Task
from fedbnsl_client.data.preparation import Prepared
from fedbnsl_client.privacy.noisy_means import NoisyMeans, square_of_means
from fedbnsl_client.privacy.private_moments import Shared, Whole, release_residual_moments, residual_sums
from fedbnsl_client.rounds.kinds import LocalProblem, LocalRounds, check_size


class Rounds(LocalRounds):
    """One release a round, paid for before it is drawn; where columns are prepared, each tells more of their means."""

    def __init__(self, problem: LocalProblem, snapshot: SiteState) -> None:
        super().__init__(problem, snapshot)
        self._means: NoisyMeans | None = None
        self.keeps_task = problem.plan.preparation is not None  # what was released tells the means to take off next

    def learn(self, task: RoundTask, answer: LocalUpdate, own_means: Matrix) -> None:
        """Correct the means by what this site released, or under secure aggregation by what it paid for besides."""
        problem, asked = self.problem, cast(Task, task.content)
        if problem.prepared is None or problem.plan.privacy is None:
            return
        d, variance = len(asked.scales), float(problem.price.means_variance)
        if not own_means.size:
            moments, variance = cast(Answer, answer.content).moments, problem.price.moments_variance / 2.0
            own_means = symmetric(moments, np.triu(np.ones((d + 1, d + 1), dtype=bool)))[-1]
        # A value that is missing is expected at the mean taken off: it tells nothing of an error of this mean.
        A = problem.noisy_columns.share[:, None] * (np.eye(d) - asked.weights.to_dense()) / asked.scales
        before = self._means or self._means_of_statistics(problem.prepared)
        self._means = before.after(own_means, A, math.sqrt(variance) * self._unit, constant_residual(d))

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Refuse weights, scales or spreads that give no usable residuals, before budget is spent on them."""
        content, d = cast(Task, task.content), self.problem.X.shape[1]
        check_size(task, content.weights.value)
        told = {"scales": content.scales}
        if self.problem.plan.preparation is not None:
            told["spreads"] = content.spreads
        for what, numbers in told.items():
            if numbers.shape != (d,) or not ((numbers >= 1 / LARGEST) & (numbers <= LARGEST)).all():
                raise RemoteProtocolError(
                    f"round {task.round}: expected {d} {what} from {1 / LARGEST:g} to {LARGEST:g}; nothing was released"
                )

    def answer(self, task: RoundTask) -> Answer | MaskedSum:
        """The release."""
        problem, content = self.problem, cast(Task, task.content)
        privacy, price, by = problem.plan.privacy, problem.price, self._prepared
        if privacy is None:
            raise LocalProtocolError("residual moments belong to private runs")
        d = len(content.scales)
        asked = (
            problem.X,
            content.weights.to_dense(),
            content.scales,
            privacy.residual_norm_bound(d),
            price.moments_variance,
            problem.randbelow,
            None if by is None else Whole(*by, content.spreads),
        )
        if problem.member is None:
            released = release_residual_moments(*asked)
            return Answer(as_sent(released[np.triu_indices(len(released))], problem.plan.value_type), content.digest)
        share = self._share
        sums, own_means = residual_sums(*asked, Shared(price.means_variance, share))
        numbers = [int(number) for number in sums[:d, :d][np.triu_indices(d)]]
        if by is not None:
            # Whole numbers that follow from the site's own means alone: the rest of the sum is as it was released.
            square = square_of_means(own_means, math.sqrt(price.means_variance))
            taken_off = (square * (share / WHOLE_SHARE))[np.triu_indices(d)]
            numbers = [number - round(square) for number, square in zip(numbers, taken_off.tolist(), strict=True)]
            numbers.append(int(sums[-1, -1]))
            self.own_means = own_means * self._unit
        return problem.masked(task, numbers)

    @property
    def _share(self) -> int:
        """How much of this site counts in secure aggregation."""
        problem = self.problem
        sites = problem.summed_with()
        if problem.plan.privacy is None or problem.member is None:
            raise LocalProtocolError("only runs with secure aggregation have shares")
        norm_bound = problem.plan.privacy.residual_norm_bound(problem.X.shape[1])
        shares = site_shares(problem.price, [membership.n_samples for membership in sites], norm_bound)
        return shares[[membership.site for membership in sites].index(problem.member.site)]

    @property
    def _unit(self) -> float:
        """Of the sums on the fixed-point grid, as means over the records."""
        problem = self.problem
        if problem.plan.privacy is None:
            raise LocalProtocolError("residual moments belong to private runs")
        return problem.plan.privacy.residual_norm_bound(problem.X.shape[1]) ** 2 / (LATTICE * len(problem.X))

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
        noise_std = math.sqrt(self.problem.price.setup_variance) / (LATTICE * self.problem.noisy_columns.n_values)
        std = (high - low) / 2.0 / prepared.scale * noise_std
        return NoisyMeans(np.zeros(len(std)), np.diag(std**2))
