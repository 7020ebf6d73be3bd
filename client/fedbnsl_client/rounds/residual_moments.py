"""A private moments round at a site: noisy second moments of the residuals that the task names.

The number of columns of a task says whether squares are among them. The norm that records are clipped to and the noise
follow from that number, and each release has the same cost with squares as without: see docs/explanation/privacy.md.
"""

import math
from typing import cast

import numpy as np

from fedbnsl.errors import LocalProtocolError, RemoteProtocolError
from fedbnsl.graphs.family_moments import symmetric
from fedbnsl.privacy.calibration import LATTICE, WHOLE_SHARE, Price, constant_residual, price_of
from fedbnsl.privacy.site_shares import site_shares
from fedbnsl.protocol.matrix_codec import as_sent
from fedbnsl.protocol.messages import LocalUpdate, MaskedSum, RoundTask, SiteState
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.residual_moments import Answer, Task, squared
from fedbnsl_client.data.preparation import Prepared
from fedbnsl_client.privacy.noisy_means import NoisyMeans, square_of_means
from fedbnsl_client.privacy.private_moments import (
    Shared,
    Squared,
    Whole,
    release_residual_moments,
    residual_sums,
)
from fedbnsl_client.rounds.kinds import LocalProblem, LocalRounds, check_size


class Rounds(LocalRounds):
    """One release a round, paid for before it is drawn; where columns are prepared, each tells more of their means."""

    def __init__(self, problem: LocalProblem, snapshot: SiteState) -> None:
        super().__init__(problem, snapshot)
        self._means: NoisyMeans | None = None
        self._squared = squared(problem.plan, problem.mask.columns)
        self.keeps_task = problem.plan.preparation is not None  # what was released tells the means to take off next

    def learn(self, task: RoundTask, answer: LocalUpdate, own_means: Matrix) -> None:
        """Correct the means by what this site released, or under secure aggregation by what it paid for besides."""
        problem, asked = self.problem, cast(Task, task.content)
        if problem.prepared is None or problem.plan.privacy is None:
            return
        d = len(asked.scales)
        price, columns = self._price(d), np.arange(problem.X.shape[1], dtype=np.int64)
        base: Index = np.append(columns, self._squared)[:d]
        variance = float(price.means_variance)
        if not own_means.size:
            moments, variance = cast(Answer, answer.content).moments, price.moments_variance / 2.0
            own_means = symmetric(moments, np.triu(np.ones((d + 1, d + 1), dtype=bool)))[-1]
        # A value that is missing is expected at the mean taken off: it tells nothing of an error of this mean.
        A = problem.noisy_columns.share[base][:, None] * (np.eye(d) - asked.weights.to_dense()) / asked.scales
        before = self._means or self._means_of_statistics(problem.prepared, d)
        self._means = before.after(own_means, A, math.sqrt(variance) * self._unit(d), constant_residual(d))

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Refuse weights, scales or spreads that give no usable residuals, before budget is spent on them."""
        content, d = cast(Task, task.content), self.problem.X.shape[1]
        check_size(task, content.weights.value)
        if len(content.scales) == d + len(self._squared):
            d = len(content.scales)
        if self._means is not None and len(self._means.means) != d:
            raise RemoteProtocolError(f"round {task.round}: other columns than before; nothing was released")
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
        privacy, d = problem.plan.privacy, len(content.scales)
        if privacy is None:
            raise LocalProtocolError("residual moments belong to private runs")
        price, by = self._price(d), self._prepared(d)
        asked = (
            problem.records,
            content.weights.to_dense(),
            content.scales,
            privacy.residual_norm_bound(d),
            price.moments_variance,
            problem.randbelow,
            None if by is None else Whole(*by, content.spreads, self._squares(d)),
        )
        if problem.member is None:
            released = release_residual_moments(*asked)
            return Answer(as_sent(released[np.triu_indices(len(released))], problem.plan.value_type), content.digest)
        share = self._share(price)
        sums, own_means = residual_sums(*asked, Shared(price.means_variance, share))
        numbers = [int(number) for number in sums[:d, :d][np.triu_indices(d)]]
        if by is not None:
            # Whole numbers that follow from the site's own means alone: the rest of the sum is as it was released.
            square = square_of_means(own_means, math.sqrt(price.means_variance))
            taken_off = (square * (share / WHOLE_SHARE))[np.triu_indices(d)]
            numbers = [number - round(square) for number, square in zip(numbers, taken_off.tolist(), strict=True)]
            numbers.append(int(sums[-1, -1]))
            self.own_means = own_means * self._unit(d)
        return problem.masked(task, numbers)

    def _price(self, n_columns: int) -> Price:
        """What the plan costs, with the noise of moments of so many columns."""
        n, d = self.problem.X.shape
        return price_of(self.problem.plan, n_samples=n, n_variables=d, n_squares=n_columns - d)

    def _share(self, price: Price) -> int:
        """How much of this site counts in secure aggregation."""
        problem = self.problem
        sites = problem.summed_with()
        if problem.plan.privacy is None or problem.member is None:
            raise LocalProtocolError("only runs with secure aggregation have shares")
        norm_bound = problem.plan.privacy.residual_norm_bound(price.n_variables)
        shares = site_shares(price, [membership.n_samples for membership in sites], norm_bound)
        return shares[[membership.site for membership in sites].index(problem.member.site)]

    def _unit(self, n_columns: int) -> float:
        """Of the sums on the fixed-point grid, as means over the records."""
        problem = self.problem
        if problem.plan.privacy is None:
            raise LocalProtocolError("residual moments belong to private runs")
        return problem.plan.privacy.residual_norm_bound(n_columns) ** 2 / (LATTICE * len(problem.X))

    def _prepared(self, n_columns: int) -> Prepared | None:
        """What prepares the columns of this round: the best means that are known."""
        prepared = self.problem.prepared
        if prepared is None:
            return None
        more = np.zeros(n_columns - len(prepared.scale))
        centre, scale = np.append(prepared.centre, more), np.append(prepared.scale, more + 1.0)
        return Prepared(centre if self._means is None else centre + self._means.means * scale, scale)

    def _squares(self, n_columns: int) -> Squared | None:
        """The squares among so many columns, about the centres that the statistics gave."""
        prepared, of = self.problem.prepared, self._squared
        if prepared is None or n_columns == len(prepared.scale):
            return None
        return Squared(of, prepared.centre[of], prepared.scale[of])

    def _means_of_statistics(self, prepared: Prepared, n_columns: int) -> NoisyMeans:
        """What the paid statistics tell: their means are the centres, with noise in shares of half a range.

        Of squares they tell no mean: about 0, in units of their spread.
        """
        low, high = self.problem.bounds
        noise_std = math.sqrt(self.problem.price.setup_variance) / (LATTICE * self.problem.noisy_columns.n_values)
        std = (high - low) / 2.0 / prepared.scale * noise_std
        std = np.append(std, np.ones(n_columns - len(std)))
        return NoisyMeans(np.zeros(n_columns), np.diag(std**2))
