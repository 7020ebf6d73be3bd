"""A round of Algorithm 1 at a site: take over W, update beta_p, minimise the local objective (Eq. Bp), send B_p."""

from functools import cached_property
from typing import cast

import numpy as np

from fedbnsl.errors import DivergenceError
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds.admm import Answer, Task
from fedbnsl_client.rounds.kinds import LocalProblem, LocalRounds, check_size
from fedbnsl_client.solvers.dp_pgcd import DpPgcd
from fedbnsl_client.solvers.local_solver import LocalSolver, local_solver, private_solver, require_usable


class Rounds(LocalRounds):
    """B_p as last contributed, beta_p, and W as last seen."""

    def __init__(self, problem: LocalProblem, snapshot: SiteState) -> None:
        super().__init__(problem, snapshot)
        self._B, self._beta = snapshot.local_weights, snapshot.consensus_dual
        W = snapshot.global_weights
        self._W = SparseMatrix.zeros(self._B.n_variables) if W is None else W

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Take over W; update B and beta if W includes this site's last answer.

        Otherwise B and beta stay as in the coordinator's snapshot, so a restart from it gives the same bits.
        """
        plan, sent = self.problem.plan, cast(Task, task.content).weights
        check_size(task, sent.value)
        self._W = self._told(self._W, sent)
        if task.contributed and last is not None and last.round == task.round - 1 and isinstance(last.content, Answer):
            self._B = self._told(self._B, last.content.weights)
            self._beta = self._beta.plus(plan.consensus_penalty, self._B, self._W)  # Eq. beta, the round before
        if plan.privacy is not None:
            problem = self.problem
            require_usable(plan, plan.privacy, problem.records, problem.setup, *self._dense)

    def answer(self, task: RoundTask) -> Answer:
        """B_p, or its changes; with the steps that led to it, if the plan wants them.

        Raises DivergenceError if a weight is not finite.
        """
        plan = self.problem.plan
        solver, steps = self._solver, None
        if isinstance(solver, DpPgcd):
            dense, steps = solver.released(*self._dense)
            sent = SparseMatrix.from_dense(dense)
        else:
            sent = solver(self._B, self._W, self._beta)
        if not np.isfinite(sent.value).all():
            raise DivergenceError(f"the local weights of round {task.round} are not finite")
        if plan.send_step:
            sent = sent.rounded_to(plan.send_step).without_zeros()
        if plan.value_type == "float32":
            sent = sent.as_float32()
        if plan.sends_changes:
            sent = self._B.change_to(sent, plan.send_tolerance)
        if steps is None or not plan.sends_steps:
            return Answer(sent)
        return Answer(sent, *steps).as_sent(plan.value_type)

    @property
    def _dense(self) -> tuple[Matrix, Matrix, Matrix]:
        """(d, d) B, W and beta, as private steps take them."""
        return self._B.to_dense(), self._W.to_dense(), self._beta.to_dense()

    def _told(self, before: SparseMatrix, message: SparseMatrix) -> SparseMatrix:
        """A matrix after a message, which holds all of it or the entries that changed."""
        return before.changed_by(message) if self.problem.plan.sends_changes else message.without_zeros()

    @cached_property
    def _solver(self) -> LocalSolver | DpPgcd:
        problem, plan, allowed = self.problem, self.problem.plan, self.problem.mask.allowed
        if plan.privacy is None:
            return local_solver(plan, problem.loss, allowed)
        rows = problem.private_rows
        return private_solver(plan, plan.privacy, problem.price, rows, allowed, problem.setup, problem.randbelow)
