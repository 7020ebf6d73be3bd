"""A participant's side of a run: RoundTask in, LocalUpdate out. The same over a network and in one process."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from fedbnsl.errors import LocalProtocolError, RemoteProtocolError, StaleRoundError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import Covariances, LocalUpdate, Loss, Membership, RoundTask, SiteState, Units
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.kinds import LARGEST, may_be, most_rounds, stage
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.plan_fit import oddities
from fedbnsl_client.privacy import randomness
from fedbnsl_client.privacy.noise import Randbelow
from fedbnsl_client.rounds.kinds import Journal, LocalProblem, LocalRounds, local_rounds, usable_covariances
from fedbnsl_client.secure_aggregation.attestation import Attestation


class Unaccounted:
    """The journal of a simulation: nothing is paid for and nothing is guaranteed.

    It keeps the setup, the first release, which may be a key, and the last one.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], bytes] = {}

    @property
    def head(self) -> None:
        """There is no ledger."""

    def release(self, t: int, draw: Callable[[], bytes], *, attempt: int = 0) -> bytes:
        """What `draw` gives, once for round 0."""
        if t or (t, attempt) not in self._kept:
            self._kept = {one: kept for one, kept in self._kept.items() if one[0] <= 1} | {(t, attempt): draw()}
        return self._kept[t, attempt]

    def stored(self, t: int, *, attempt: int = 0) -> bytes | None:
        """What is kept of round t."""
        return self._kept.get((t, attempt))


class Participant:
    """One site's state between rounds: its local problem, what each kind of round keeps of it, and the last answer.

    The columns of the private table are in the order of the run. `snapshot` is B_p, beta_p and W after the last
    complete round; None: zero. `journal` pays for the releases of a private plan, and keeps the run's number in them;
    `randbelow` is the source of their noise. `attestation` signs this site's key for secure aggregation and checks
    those of the others.
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
        attestation: Attestation | None = None,
        least_cell: int = 0,
    ) -> None:
        zero = SparseMatrix.zeros(len(dataset.variables))
        self.site = site
        self._plan = plan
        self._run = run
        self._warnings = tuple(one.finding for one in oddities(dataset, plan) if one.finding is not None)
        mask = plan.edge_mask(dataset.variables)
        self._snapshot = snapshot or SiteState(zero, zero)
        member = None
        if plan.secure_aggregation:
            from fedbnsl_client.secure_aggregation.member import Member  # here: it loads cryptography

            member = Member(
                site,
                dataset.n_samples,
                run,
                plan.digest(),
                plan.n_participants,
                plan.n_honest,
                attestation or Attestation(),
                plan.retries,
            )
        self._problem = LocalProblem(
            plan,
            dataset.X,
            mask,
            journal or Unaccounted(),
            randbelow,
            member=member,
            group_sizes=dataset.group_sizes,
            rows=dataset.rows,
            least_cell=least_cell,
        )
        self._take_units(self._snapshot.units)
        self._take_memberships(self._snapshot.memberships)
        self._take_covariances(self._snapshot.completed_by)
        self._rounds: dict[str, LocalRounds] = {}
        self._answered: dict[str, set[int]] = {}  # the rounds of each kind, since this site has started
        self._learnt = 0
        self._answer: LocalUpdate | None = None

    @property
    def units(self) -> Units | None:
        """In which the run's columns are measured; None: in those of the tables."""
        return self._problem.units

    def handle(self, task: RoundTask) -> LocalUpdate:
        """Answer a task; a repeated task gets the same answer.

        Raises StaleRoundError if the task is for a round before the last answered one; LocalProtocolError or
        RemoteProtocolError if the plan has no such round, or one of another kind, or the task cannot be answered. Then
        nothing was computed, paid for or drawn; DivergenceError if a weight is not finite.
        """
        self._take_losses(task.lost)
        if self._answer is not None:
            if task.round == self._answer.round:
                return self._answer
            if task.round < self._answer.round:
                raise StaleRoundError(
                    f"task for round {task.round} came after the answer to round {self._answer.round}"
                )
        kind = task.content.kind
        self._take_units(task.units)
        self._take_memberships(task.memberships)
        self._take_covariances(task.completed_by)
        if not may_be(self._plan, task.round, kind):
            raise LocalProtocolError(f"round {task.round} ({kind}) is not in the plan")
        # `may_be` allows every kind in many rounds where iterations come before: their number holds by a count.
        answered = self._answered.setdefault(kind, set())
        if len(answered - {task.round}) >= (most := most_rounds(self._plan, kind)):
            raise RemoteProtocolError(
                f"the coordinator asks for round {task.round} ({kind}); the plan has at most {most} rounds of this "
                "kind, and this site has answered them"
            )
        if task.content.of_records:
            self._problem.summed_with()  # before anything is paid: each refusal later on would cost a payment
        if kind not in self._rounds:
            self._rounds[kind] = local_rounds(kind)(self._problem, self._snapshot)
        rounds = self._rounds[kind]
        rounds.problem = self._problem
        if rounds.keeps_task:
            self._learn_from_past(rounds, task)
        rounds.begin(task, self._answer)
        self._answer = self._exact(rounds, task) if self._plan.privacy is None else self._private(rounds, task)
        answered.add(task.round)
        return self._answer

    def _take_units(self, units: Units | None) -> None:
        """Work in these units from now on; they come once.

        Raises RemoteProtocolError if the plan has none, there are others already, or they cannot be used.
        """
        if units is None:
            return
        scales = units.scales
        usable = (np.abs(units.centres) <= LARGEST).all() and ((scales >= 1 / LARGEST) & (scales <= LARGEST)).all()
        usable &= self._plan.leaves_out_outlying or not units.limits.size
        if self._plan.preparation is None or self._problem.units not in (None, units) or not usable:
            raise RemoteProtocolError("the coordinator sent units that this run cannot have: nothing was computed")
        self._problem = self._problem.in_units(units)

    def _take_covariances(self, told: Covariances | None) -> None:
        """Complete rows with gaps by these from now on; they come once.

        Raises RemoteProtocolError if the plan completes no rows, there are others already, or they cannot be used.
        """
        if told is None:
            return
        usable = usable_covariances(told, self._plan)
        if not self._plan.completes or self._problem.completed_by not in (None, told) or not usable:
            raise RemoteProtocolError("the coordinator sent covariances that this run cannot have")
        self._problem = replace(self._problem, completed_by=told)

    def _take_memberships(self, memberships: tuple[Membership, ...]) -> None:
        """Rely on the keys of all sites from now on; they come once.

        Raises RemoteProtocolError if the run has no secure aggregation, there are others already, or this site has made
        no key; PeerRefusedError if a key is not that of its site, or not enough sites are confirmed.
        """
        if not memberships:
            return
        key = self._problem.private_key_of(memberships)
        if self._problem.member is None or self._problem.memberships not in ((), memberships):
            raise RemoteProtocolError("the coordinator sent keys of sites that this run cannot have")
        self._problem.member.check(memberships, key, certificate=self._problem.certificate_of_key(memberships))
        self._problem = replace(self._problem, memberships=memberships)

    def _take_losses(self, lost: tuple[Loss, ...]) -> None:
        """Go on without the sites that secure aggregation has lost; a round that was given up is then answered again.

        Raises RemoteProtocolError if the run has no secure aggregation, or had lost others.
        """
        known = self._problem.lost
        if lost == known:
            return
        if self._problem.member is None or lost[: len(known)] != known:
            raise RemoteProtocolError("the coordinator goes on without other sites than those that it had lost")
        if self._problem.memberships:
            self._problem.member.present(self._problem.memberships, lost)
        self._problem, self._answer = replace(self._problem, lost=lost), None

    def _exact(self, rounds: LocalRounds, task: RoundTask) -> LocalUpdate:
        """An answer without privacy, with the data-quality warnings until an answer of this site has counted."""
        warnings = () if task.contributed else self._warnings
        return LocalUpdate(self.site, task.round, rounds.answer(task), findings=warnings)

    def _private(self, rounds: LocalRounds, task: RoundTask) -> LocalUpdate:
        """An answer that is paid for before it is drawn, and drawn only once."""
        plan, problem = self._plan, self._problem

        def draw() -> bytes:
            update = LocalUpdate(self.site, task.round, rounds.answer(task), problem.journal.head)
            wire = codec.update_to_bytes
            if rounds.keeps_task:
                own_means = rounds.own_means.tolist()
                wire = partial(codec.release_to_bytes, task, private_key=rounds.private_key, own_means=own_means)
            return wire(update, run=self._run, value_type=plan.value_type, dense=plan.dense_messages)

        if task.content.of_records:
            _ = problem.setup  # before the round pays for itself: a crash in the setup then wastes one payment, not two
        kept = problem.journal.release(task.round, draw, attempt=problem.attempt(task.round))
        if rounds.keeps_task:
            return self._kept(kept)[1]
        return codec.update_from_bytes(kept, n_variables=problem.X.shape[1], dense=plan.dense_messages)

    def _learn_from_past(self, rounds: LocalRounds, task: RoundTask) -> None:
        """Show `rounds` this site's releases before the task, from the journal: after a restart, all of them."""
        for t in range(self._learnt + 1, task.round):
            if stage(self._plan, t).kind == task.content.kind:
                kept = self._problem.journal.stored(t, attempt=self._problem.attempt(t))
                if kept is not None:  # a round may have gone on without this site
                    rounds.learn(*self._kept(kept), codec.own_means_in(kept))
        self._learnt = task.round - 1

    def _kept(self, kept: bytes) -> tuple[RoundTask, LocalUpdate]:
        return codec.release_from_bytes(kept, n_variables=self._problem.X.shape[1], dense=self._plan.dense_messages)
