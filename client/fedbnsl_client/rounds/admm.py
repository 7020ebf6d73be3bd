"""A round of Algorithm 1 at a site: take over W, update beta_p, minimise the local objective (Eq. Bp), send B_p."""

from typing import cast

import numpy as np

from fedbnsl.errors import DivergenceError
from fedbnsl.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.admm import Answer, Task, start_of
from fedbnsl.rounds.kinds import stage
from fedbnsl.sparse import Matrix, SparseMatrix
from fedbnsl_client.rounds.kinds import LocalProblem, LocalRounds, check_size
from fedbnsl_client.solvers.dp_pgcd import DpPgcd
from fedbnsl_client.solvers.local_solver import LocalSolver, local_solver, private_solver, require_usable


class Rounds(LocalRounds):
    """B_p as last contributed, beta_p, and W as last seen; one solver for each start of the algorithm."""

    def __init__(self, problem: LocalProblem, snapshot: SiteState) -> None:
        super().__init__(problem, snapshot)
        self._B: Matrix = snapshot.local_weights.to_dense()
        self._beta: Matrix = snapshot.consensus_dual.to_dense()
        W = snapshot.global_weights
        self._W: Matrix = np.zeros_like(self._B) if W is None else W.to_dense()
        self._solvers: dict[int, LocalSolver] = {}

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Take over W; update B and beta if W includes this site's last answer.

        Otherwise B and beta stay as in the coordinator's snapshot, so a restart from it gives the same bits.
        """
        plan, sent = self.problem.plan, cast(Task, task.content).weights
        check_size(task, sent.value)
        start, step = self._start_of(task)
        if start and step == 1:  # another start from zero
            self._B = self._beta = self._W = np.zeros_like(self._W)
            return
        self._W = self._told(self._W, sent)
        if task.contributed and last is not None and last.round == task.round - 1 and isinstance(last.content, Answer):
            self._B = self._told(self._B, last.content.weights)
            self._beta = self._beta + plan.consensus_penalty * (self._B - self._W)  # Eq. beta, the round before
        if plan.privacy is not None:
            problem = self.problem
            require_usable(plan, plan.privacy, problem.X, problem.setup, self._B, self._W, self._beta)

    def answer(self, task: RoundTask) -> Answer:
        """B_p, or its changes; with the steps that led to it, if the plan wants them.

        Raises
        ------
        DivergenceError
            If a weight is not finite.
        """
        plan = self.problem.plan
        solver, steps = self._solver_of(self._start_of(task)[0]), None
        if plan.sends_steps and isinstance(solver, DpPgcd):
            B, steps = solver.released(self._B, self._W, self._beta)
        else:
            B = solver(self._B, self._W, self._beta)
        if not np.isfinite(B).all():
            raise DivergenceError(f"the local weights of round {task.round} are not finite")
        sent = SparseMatrix.from_dense(B)
        if plan.value_type == "float32":
            sent = sent.as_float32()
        if plan.sends_changes:
            sent = SparseMatrix.from_dense(self._B).change_to(sent, plan.send_tolerance)
        return Answer(sent) if steps is None else Answer(sent, *steps).as_sent(plan.value_type)

    def _start_of(self, task: RoundTask) -> tuple[int, int]:
        plan = self.problem.plan
        return start_of(plan, stage(plan, task.round).step)

    def _told(self, before: Matrix, message: SparseMatrix) -> Matrix:
        """A matrix after a message, which holds all of it or the entries that changed."""
        if not self.problem.plan.sends_changes:
            return message.to_dense()
        after = before.copy()
        after.flat[message.index] = message.value
        return after

    def _solver_of(self, start: int) -> LocalSolver:
        """The solver of a start, made in its first round."""
        if start not in self._solvers:
            self._solvers[start] = self._make_solver(self.problem.plan.of_start(start))
        return self._solvers[start]

    def _make_solver(self, plan: Plan) -> LocalSolver:
        problem, allowed = self.problem, self.problem.mask.allowed
        if plan.privacy is None:
            return local_solver(plan, problem.loss, allowed)
        rows = problem.private_rows
        return private_solver(plan, plan.privacy, problem.price, rows, allowed, problem.setup, problem.randbelow)
