"""A participant's side of Algorithm 1: RoundTask in, LocalUpdate out. The same code in every kind of run."""

import numpy as np

from fedbnsl.errors import DivergenceError, StaleRoundError
from fedbnsl.knowledge import EdgeMask
from fedbnsl.messages import LocalUpdate, RoundTask, SiteState, TaskKind
from fedbnsl.plan import Plan
from fedbnsl.sparse import Matrix, SparseMatrix
from fedbnsl_client.dataset import Dataset
from fedbnsl_client.solvers import pgcd
from fedbnsl_client.solvers.closed_form import ClosedForm
from fedbnsl_client.squared_loss import SecondMoments


class Participant:
    """One site's state between rounds: B_p as last contributed, beta_p, and the last answer.

    Parameters
    ----------
    site
        Name of the site.
    dataset
        The private table, its columns in the order of the run.
    plan
        Settings of the run.
    snapshot
        B_p and beta_p after the last complete round; None to start from zero.
    """

    def __init__(self, site: str, dataset: Dataset, plan: Plan, snapshot: SiteState | None = None) -> None:
        d = len(dataset.variables)
        self.site = site
        self._plan = plan
        self._loss = SecondMoments.of(dataset.X)
        self._mask = EdgeMask(plan.knowledge, dataset.variables)
        closed_form = plan.local_solver == "closed-form"
        self._closed_form = ClosedForm.of(self._loss, plan.consensus_penalty) if closed_form else None
        self._B: Matrix = snapshot.local_weights.to_dense() if snapshot else np.zeros((d, d))
        self._beta: Matrix = snapshot.consensus_dual.to_dense() if snapshot else np.zeros((d, d))
        self._answer: LocalUpdate | None = None

    def handle(self, task: RoundTask) -> LocalUpdate:
        """Answer a task; a repeated task gets the same answer.

        Raises
        ------
        StaleRoundError
            If the task is for a round before the last answered one.
        DivergenceError
            If the weights leave the finite numbers.
        """
        if self._answer is not None:
            if task.round == self._answer.round:
                return self._answer
            if task.round < self._answer.round:
                raise StaleRoundError(f"task for round {task.round} came after the answer to {self._answer.round}")
        if task.kind is TaskKind.ADMM:
            self._answer = self._admm_round(task)
        else:
            self._answer = self._refit_round(task)
        return self._answer

    def _admm_round(self, task: RoundTask) -> LocalUpdate:
        plan, W = self._plan, task.global_weights.to_dense()
        if task.contributed and self._answer is not None and self._answer.round == task.round - 1:
            self._B = self._answer.local_weights.to_dense()
            self._beta = self._beta + plan.consensus_penalty * (self._B - W)  # Eq. beta, of the round before
        # Otherwise B and beta stay what the coordinator holds: a restart from its snapshot gives the same bits.
        B = self._solve(W)
        if not np.isfinite(B).all():
            raise DivergenceError(f"the local weights of round {task.round} are not finite")
        sent = SparseMatrix.from_dense(B)
        return LocalUpdate(self.site, task.round, sent.as_float32() if plan.value_type == "float32" else sent)

    def _solve(self, W: Matrix) -> Matrix:
        """Eq. Bp, or with closed-form Eq. closed-form."""
        if self._closed_form is not None:
            return self._closed_form.solve(W, self._beta)
        plan = self._plan
        B, _ = pgcd.solve(
            self._loss,
            self._B,
            W,
            self._beta,
            lam=plan.l1_weight,
            rho_2=plan.consensus_penalty,
            gamma=plan.step_size,
            max_steps=plan.local_steps,
            tol=plan.local_tol,
            allowed=self._mask.allowed,
        )
        return B

    def _refit_round(self, task: RoundTask) -> LocalUpdate:
        support = task.global_weights.support() & self._mask.allowed
        B = self._loss.least_squares(support)
        weights = SparseMatrix.on_support(B, support)
        if self._plan.value_type == "float32":
            weights = weights.as_float32()
        return LocalUpdate(self.site, task.round, weights, self._loss.residual_variance(B))
