"""A participant's side of Algorithm 1: RoundTask in, LocalUpdate out. The same code in every kind of run."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np

from fedbnsl import codec
from fedbnsl.errors import DivergenceError, LocalProtocolError, StaleRoundError
from fedbnsl.graphs.family_moments import chosen_moments
from fedbnsl.messages import LedgerHead, LocalUpdate, RoundTask, SiteState, TaskKind
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import Price, price_of
from fedbnsl.sparse import Matrix, SparseMatrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.noise import Randbelow
from fedbnsl_client.privacy.private_moments import release_residual_moments
from fedbnsl_client.solvers.local_solver import LocalSolver, local_solver, needs_setup, private_solver, release_setup


class Journal(Protocol):
    """Where a private run pays for what it releases, and where what was released is kept."""

    @property
    def head(self) -> LedgerHead | None:
        """What the coordinator may know of the ledger; None without one."""
        ...

    def release(self, t: int, draw: Callable[[], bytes]) -> bytes:
        """What round t (0: the setup) released before; or else what `draw` gives, paid for before and kept after."""
        ...


class Unaccounted:
    """The journal of a simulation: nothing is paid for, nothing is kept, nothing is guaranteed."""

    @property
    def head(self) -> None:
        """There is no ledger."""

    def release(self, t: int, draw: Callable[[], bytes]) -> bytes:
        """What `draw` gives."""
        return draw()


class Participant:
    """One site's state between rounds: B_p as last contributed, beta_p, W as last seen, and the last answer.

    Parameters
    ----------
    site
        Name of the site.
    dataset
        The private table, its columns in the order of the run.
    plan
        Settings of the run.
    snapshot
        B_p, beta_p and W after the last complete round; None to start from zero.
    journal
        Pays for the releases of a private plan.
    run
        Number of the run: part of the answers that the journal keeps.
    randbelow
        Source of the noise of a private plan.
    """

    def __init__(
        self,
        site: str,
        dataset: Dataset,
        plan: Plan,
        snapshot: SiteState | None = None,
        *,
        journal: Journal | None = None,
        run: int = 0,
        randbelow: Randbelow = randomness.system,
    ) -> None:
        d = len(dataset.variables)
        self.site = site
        self._plan = plan
        self._X = dataset.X
        self._findings = tuple(one.finding for one in dataset.odd)
        self._journal = journal or Unaccounted()
        self._run = run
        self._randbelow = randbelow
        self._mask = EdgeMask(plan.knowledge, dataset.variables)
        zero = SparseMatrix.zeros(d)
        start = snapshot or SiteState(zero, zero)
        self._B: Matrix = start.local_weights.to_dense()
        self._beta: Matrix = start.consensus_dual.to_dense()
        self._W: Matrix = (start.global_weights or zero).to_dense()
        self._answer: LocalUpdate | None = None
        self._solvers: dict[int, LocalSolver] = {}

    def handle(self, task: RoundTask) -> LocalUpdate:
        """Answer a task; a repeated task gets the same answer.

        Raises
        ------
        StaleRoundError
            If the task is for a round before the last answered one.
        LocalProtocolError
            If the plan has no such round, or one of another kind.
        DivergenceError
            If the weights leave the finite numbers.
        """
        if self._answer is not None:
            if task.round == self._answer.round:
                return self._answer
            if task.round < self._answer.round:
                raise StaleRoundError(f"task for round {task.round} came after the answer to {self._answer.round}")
        self._check(task)
        self._follow(task)
        self._answer = self._exact_round(task) if self._plan.privacy is None else self._private_round(task)
        return self._answer

    def _exact_round(self, task: RoundTask) -> LocalUpdate:
        """A round without privacy: what is odd about the table goes along until an answer of this site has counted."""
        answer = {
            TaskKind.ADMM: self._admm_round,
            TaskKind.REFIT: self._refit_round,
            TaskKind.MOMENTS: self._moments_round,
        }[task.kind](task)
        return answer if task.contributed else replace(answer, findings=self._findings)

    def _check(self, task: RoundTask) -> None:
        """Refuse what the plan does not say, before anything is computed, paid for or drawn."""
        plan, t, kind = self._plan, task.round, task.kind
        if not 1 <= t <= plan.n_rounds or kind is not plan.stage(t).kind:  # 0 is the setup
            raise LocalProtocolError(f"round {t} ({kind.name.lower()}) is not among those of the plan")
        if plan.privacy is not None and kind is TaskKind.MOMENTS and task.scales.size != self._X.shape[1]:
            raise LocalProtocolError(f"round {t} asks for residuals without their scales")

    def _private_round(self, task: RoundTask) -> LocalUpdate:
        """A round whose answer is paid for before it is drawn, and drawn only once."""
        plan = self._plan
        answer = {
            TaskKind.ADMM: self._admm_round,
            TaskKind.SCALES: self._scales_round,
            TaskKind.MOMENTS: self._residual_moments_round,
        }[task.kind]

        def draw() -> bytes:
            update = replace(answer(task), ledger=self._journal.head)
            return codec.update_to_bytes(update, run=self._run, value_type=plan.value_type, dense=plan.dense_messages)

        _ = self._setup  # before the round pays for itself: a crash in the setup then wastes one payment, not two
        kept = self._journal.release(task.round, draw)
        return codec.update_from_bytes(kept, n_variables=self._X.shape[1], dense=plan.dense_messages)

    def _follow(self, task: RoundTask) -> None:
        """Take over W and, if this site's answer entered it, what that answer makes of B and beta.

        Otherwise B and beta stay what the coordinator holds: a restart from its snapshot gives the same bits.
        """
        if task.kind is not TaskKind.ADMM:
            return
        last = self._answer
        _, start, step = self._plan.stage(task.round)
        if start and step == 1:  # another start from zero
            self._B = self._beta = self._W = np.zeros_like(self._W)
            return
        self._W = self._told(self._W, task.global_weights)
        if task.contributed and last is not None and last.round == task.round - 1:
            self._B = self._told(self._B, last.local_weights)
            self._beta = self._beta + self._plan.consensus_penalty * (self._B - self._W)  # Eq. beta, the round before

    def _told(self, before: Matrix, message: SparseMatrix) -> Matrix:
        """A matrix after a message about it: the matrix itself, or those of its entries that changed."""
        if not self._plan.sends_changes:
            return message.to_dense()
        after = before.copy()
        after.flat[message.index] = message.value
        return after

    def _admm_round(self, task: RoundTask) -> LocalUpdate:
        B = self._solver_of(self._plan.stage(task.round).start)(self._B, self._W, self._beta)
        if not np.isfinite(B).all():
            raise DivergenceError(f"the local weights of round {task.round} are not finite")
        sent = SparseMatrix.from_dense(B)
        if self._plan.value_type == "float32":
            sent = sent.as_float32()
        if self._plan.sends_changes:
            sent = SparseMatrix.from_dense(self._B).change_to(sent, self._plan.send_tolerance)
        return LocalUpdate(self.site, task.round, sent)

    @cached_property
    def _loss(self) -> SecondMoments:
        return SecondMoments.of(self._X)

    def _solver_of(self, start: int) -> LocalSolver:
        """Made when the first round of a start needs it."""
        if start not in self._solvers:
            self._solvers[start] = self._make_solver(self._plan.of_start(start))
        return self._solvers[start]

    def _make_solver(self, plan: Plan) -> LocalSolver:
        allowed = self._mask.allowed
        if plan.privacy is None:
            return local_solver(plan, self._loss, allowed)
        return private_solver(plan, plan.privacy, self._price, self._X, allowed, self._setup, self._randbelow)

    @cached_property
    def _price(self) -> Price:
        n, d = self._X.shape
        return price_of(self._plan, n_samples=n, n_variables=d)

    @cached_property
    def _setup(self) -> Matrix | None:
        """What a private solver starts from, released once and paid for; None if it needs nothing."""
        plan, privacy = self._plan, self._plan.privacy
        if privacy is None or not needs_setup(plan):
            return None

        def draw() -> bytes:
            return release_setup(plan, privacy, self._price, self._X, self._randbelow).tobytes()

        values = np.frombuffer(self._journal.release(0, draw), dtype=np.float64)
        d = self._X.shape[1]
        return values.reshape(d, -1) if values.size > d else values

    def _moments_round(self, task: RoundTask) -> LocalUpdate:
        return self._sending(chosen_moments(self._loss.S, task.global_weights.support(), self._mask), task)

    def _scales_round(self, task: RoundTask) -> LocalUpdate:
        """What the setup released already, and paid for."""
        if self._setup is None:
            raise LocalProtocolError("scales come from estimated second moments, which this plan does not have")
        return self._sending(self._setup, task)

    def _residual_moments_round(self, task: RoundTask) -> LocalUpdate:
        privacy, d = self._plan.privacy, self._X.shape[1]
        if privacy is None:
            raise LocalProtocolError("residual moments belong to private runs")
        W, bound = task.global_weights.to_dense(), privacy.residual_norm_bound(d)
        variance = self._price.moments_variance
        released = release_residual_moments(self._X, W, task.scales, bound, variance, self._randbelow)
        return replace(self._sending(released[np.triu_indices(d)], task), asked=task.asked)

    def _sending(self, moments: Matrix, task: RoundTask) -> LocalUpdate:
        if self._plan.value_type == "float32":
            moments = moments.astype(np.float32).astype(np.float64)
        return LocalUpdate(self.site, task.round, SparseMatrix.zeros(self._X.shape[1]), moments=moments)

    def _refit_round(self, task: RoundTask) -> LocalUpdate:
        support = task.global_weights.support() & self._mask.allowed
        B = self._loss.least_squares(support)
        weights = SparseMatrix.on_support(B, support)
        if self._plan.value_type == "float32":
            weights = weights.as_float32()
        return LocalUpdate(self.site, task.round, weights, self._loss.residual_variance(B))
