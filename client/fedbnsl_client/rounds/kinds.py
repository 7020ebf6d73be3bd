"""The interface that the site's module for a kind of round implements, and the local problem it works on."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

import numpy as np

from fedbnsl.errors import LocalProtocolError, RemoteProtocolError
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import LATTICE, Price, price_of
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import (
    Content,
    Covariances,
    LedgerHead,
    LocalUpdate,
    Loss,
    MaskedSum,
    Membership,
    RoundTask,
    SiteState,
    Units,
)
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl.rounds.keys import Task as KeysTask
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl_client.data.mapped_array import sum_over_rows
from fedbnsl_client.data.outlying import without_outlying
from fedbnsl_client.data.person_rows import PersonRows, Table
from fedbnsl_client.data.preparation import NoisyColumns, Prepared, means_and_counts, prepared, prepared_rows
from fedbnsl_client.losses.between_rows import BetweenRows, between_rows, conditional_means
from fedbnsl_client.losses.completed import Completed, Patterns
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.privacy.noise import Randbelow
from fedbnsl_client.privacy.private_moments import release_statistics
from fedbnsl_client.solvers.local_solver import needs_setup, release_setup

if TYPE_CHECKING:
    from fedbnsl_client.secure_aggregation.member import Member  # it loads cryptography, which few runs need

_KEYS_ROUND = 1
_SETUP_SENT_IN = 2  # in runs with secure aggregation, whose rounds of sums begin with it
# Sums of this many records on the fixed-point grid are whole numbers that float64 holds, noise included.
_MOST_SUMMED_ROWS = 2**29
# Of the eigenvalues of correlations that rows are completed by.
_ROUNDING = 1e-6


class Journal(Protocol):
    """Pays for the releases of a private run, and keeps what was released."""

    @property
    def head(self) -> LedgerHead | None:
        """What the coordinator may know of the ledger; None without one."""
        ...

    def release(self, t: int, draw: Callable[[], bytes], *, attempt: int = 0) -> bytes:
        """The stored answer of round t (0: the setup). If none: pay, call `draw`, store and return its bytes.

        `attempt` says how often the round was given up before, since a site was lost: each attempt has an answer of its
        own.
        """
        ...

    def stored(self, t: int, *, attempt: int = 0) -> bytes | None:
        """The stored answer of round t, or None; pays for nothing."""
        ...


@dataclass(frozen=True, eq=False)
class LocalProblem:
    """The table of one site, the plan, and what follows from both."""

    plan: Plan
    # X: (n, d) private table; NaN where a value is missing, which only runs that prepare columns may have
    X: Matrix
    mask: EdgeMask
    journal: Journal  # pays for the releases of a private plan
    randbelow: Randbelow  # source of the noise of a private plan
    units: Units | None = None  # of the run's columns; None: raw columns, or not yet known
    # member, memberships: in a run with secure aggregation, this site in them, and all sites with their keys once they
    # are known
    member: "Member | None" = None
    memberships: tuple[Membership, ...] = ()
    lost: tuple[Loss, ...] = ()  # sites that the sums go on without
    completed_by: Covariances | None = None  # what completes rows with gaps; None: not yet known, or no row has one
    # The rows by their gaps, in the run's units, once they were grouped: that takes longer than all rounds of EM.
    grouped: list[Patterns] = field(default_factory=list[Patterns])
    # (G,) rows of each group, in the order of the table, where rows of a group stay rows; otherwise empty
    group_sizes: Index = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    rows: PersonRows | None = None  # of what each record is the mean, where a person is one record
    least_cell: int = 0  # counts of fewer records are not told; see the rule of the site's policy

    def in_units(self, units: Units) -> Self:
        """The problem in these units, without values beyond their limits."""
        if self.units is not None:
            return self
        X = without_outlying(self.X, units.limits) if units.limits.size else self.X
        return replace(self, X=X, units=units)

    def attempt(self, t: int) -> int:
        """How often round t was given up before; the setup is given up with the round that sends it."""
        return [loss.round for loss in self.lost].count(t or _SETUP_SENT_IN)

    def private_key_of(self, memberships: Sequence[Membership]) -> bytes:
        """The private half of this site's key among these; see `_key_release`."""
        return codec.private_key_in(self._key_release(memberships))

    def certificate_of_key(self, memberships: Sequence[Membership]) -> bytes:
        """The certificate, DER, with which this site signed its key among these; see `_key_release`.

        A site may have another one by now: its operator has renewed it while the run went on.
        """
        kept, dense = self._key_release(memberships), self.plan.dense_messages
        task, _ = codec.release_from_bytes(kept, n_variables=self.X.shape[1], dense=dense)
        named = cast(KeysTask, task.content).memberships
        return next(one.certificate for one in named if self.member is not None and one.site == self.member.site)

    def _key_release(self, memberships: Sequence[Membership]) -> bytes:
        """What this site has kept of making its key among these, whichever attempt at the round of keys it is from.

        Raises RemoteProtocolError if this site has made no such key.
        """
        if self.member is not None:
            from fedbnsl_client.secure_aggregation.keys import public_key  # here: it loads cryptography

            named = {membership.public_key for membership in memberships if membership.site == self.member.site}
            for attempt in range(self.member.retries + 1):
                kept = self.journal.stored(_KEYS_ROUND, attempt=attempt)
                if kept is not None and public_key(codec.private_key_in(kept)) in named:
                    return kept
        raise RemoteProtocolError(
            "the coordinator sent keys of sites that this run cannot have, or another key for this site than the one "
            "that it made"
        )

    def summed_with(self) -> tuple[Membership, ...]:
        """The sites of the next secure aggregation, this one among them; empty in a run without.

        Raises RemoteProtocolError if the keys of the other sites are not known; PeerRefusedError if more of them are
        lost than the plan allows; LocalProtocolError if the table has more rows than a sum holds exactly.
        """
        if self.member is None:
            return ()
        if not self.memberships:
            raise RemoteProtocolError("the coordinator asks for secure aggregation before all sites have keys")
        if len(self.X) > _MOST_SUMMED_ROWS:
            raise LocalProtocolError(
                f"a table of {len(self.X)} rows; secure aggregation takes at most {_MOST_SUMMED_ROWS} of a site"
            )
        return self.member.present(self.memberships, self.lost)

    def masked(self, task: RoundTask, numbers: Sequence[int]) -> MaskedSum:
        """What the site sends to the secure aggregation that a task asks for; see `summed_with` for the errors."""
        memberships = self.summed_with()
        if self.member is None:
            raise LocalProtocolError("only runs with secure aggregation mask their answers")
        return self.member.masked(
            numbers,
            kind=task.content.kind,
            t=task.round,
            task_digest=codec.task_digest(task.content, self.units, self.lost),
            memberships=memberships,
            key=self.private_key_of(self.memberships),
        )

    @cached_property
    def loss(self) -> SecondMoments:
        """The exact second moments of the prepared columns: for plans without privacy only."""
        preparation = self.plan.preparation
        if preparation is None:
            return SecondMoments.of(self.X)
        if self.completed is not None:
            return SecondMoments(self.completed.moments)
        found = SecondMoments.of(self.X, *prepared(self.X, preparation, self.units))
        if np.isnan(found.S).any():
            raise RemoteProtocolError(
                "the coordinator asks for sums of rows with gaps, and has not told what completes them"
            )
        return found

    @cached_property
    def completed(self) -> Completed | None:
        """The completed sums of the rows; None: no row has a gap."""
        by = self.completed_by
        return None if by is None else self.patterns.completed(by, own_means=self.has_own_means)

    @property
    def means(self) -> Matrix:
        """(d,) exact means of the columns, in their units: for plans without privacy that prepare columns only.

        With a `least_cell` those of the values that are there, for what is expected of gaps rests on combinations of
        few rows; and empty, as withheld, where a column has fewer values, which their mean and variance would tell.
        """
        if self.plan.preparation is None:
            raise LocalProtocolError("only plans with [preparation] tell means")
        (means, counts), told = means_and_counts(self.X), self.completed
        if self.least_cell > 1:
            return np.empty(0) if ((counts > 0.0) & (counts < self.least_cell)).any() else means
        if told is None:
            return means
        by = prepared(self.X, self.plan.preparation, self.units)
        expected = told.means + (told.mean_residual if told.mean_residual.size else 0.0)
        return np.asarray(by.centre + by.scale * expected)

    @cached_property
    def between_rows(self) -> BetweenRows:
        """The mean products between two rows of a group: for plans without privacy only."""
        by = None if self.plan.preparation is None else prepared(self.X, self.plan.preparation, self.units)
        completed, told = self.completed, self.completed_by

        def records(block: Matrix) -> Matrix:
            x = block if by is None else (block - by.centre) / by.scale
            return x if completed is None or told is None else conditional_means(x - completed.means, told.S)

        return between_rows(self.X, self.group_sizes, records)

    @property
    def patterns(self) -> Patterns:
        """The prepared rows by their gaps: for plans without privacy only."""
        preparation = self.plan.preparation
        if preparation is None:
            raise LocalProtocolError("only plans with [preparation] complete rows with gaps")
        if not self.grouped:
            by = prepared(self.X, preparation, self.units)
            found = sum_over_rows(self.X, lambda block: np.array([Patterns.of((block - by.centre) / by.scale)]))
            self.grouped.append(cast(Patterns, found[0]))
        return self.grouped[0]

    @property
    def has_own_means(self) -> bool:
        """Whether this site takes off means of its own."""
        return self.plan.preparation is not None and self.plan.preparation.intercept == "site"

    @cached_property
    def noisy_columns(self) -> NoisyColumns:
        """What was released of the columns, in a private run that prepares them.

        Raises LocalProtocolError: in any other run, or where an earlier version has released other sums.
        """
        setup, columns = self.setup, self.mask.columns
        if setup is None or self.plan.preparation is None:
            raise LocalProtocolError("only private runs that prepare columns release statistics")
        if setup.size != len(columns.variables) + 2 * len(columns.names):
            raise LocalProtocolError(
                "an earlier version of fedbnsl has released other statistics in this run: end the run with that "
                "version, or begin another one"
            )
        return NoisyColumns.of(
            setup.reshape(-1),
            *self.bounds,
            columns.variable_of,
            n_samples=len(self.X),
            noise_std=math.sqrt(self.price.setup_variance) / LATTICE,
        )

    @cached_property
    def prepared(self) -> Prepared | None:
        """What prepares the records of a private run; None: they are taken as they are."""
        preparation = self.plan.preparation
        return None if preparation is None else prepared(self.X, preparation, self.units, self.noisy_columns)

    @cached_property
    def private_rows(self) -> Table:
        """(n, d) what private steps look at: the records, prepared where the plan says so."""
        by, records = self.prepared, self.records
        if by is None:
            return records
        if isinstance(records, PersonRows):
            return replace(records, X=prepared_rows(records.X, by))
        return prepared_rows(records, by)

    @property
    def records(self) -> Table:
        """What private releases of sums look at: one record a person, or the rows that it is the mean of."""
        return self.rows if self.plan.counts_rows_of_persons and self.rows is not None else self.X

    @property
    def bounds(self) -> tuple[Matrix, Matrix]:
        """(d,) public lower and upper bounds of the columns."""
        return self.plan.bounds(self.mask.columns.names)

    @cached_property
    def price(self) -> Price:
        """What a private plan costs here, and its noise."""
        n, d = self.X.shape
        return price_of(self.plan, n_samples=n, n_variables=d)

    @cached_property
    def setup(self) -> Matrix | None:
        """The release that a private solver starts from, paid for and made once; None if it needs none."""
        plan, privacy = self.plan, self.plan.privacy
        if privacy is None or not needs_setup(plan):
            return None

        def draw() -> bytes:
            if plan.preparation is not None:
                variance, variable_of = self.price.setup_variance, self.mask.columns.variable_of
                return release_statistics(self.records, *self.bounds, variable_of, variance, self.randbelow).tobytes()
            return release_setup(plan, privacy, self.price, self.records, self.randbelow).tobytes()

        values = np.frombuffer(self.journal.release(0, draw, attempt=self.attempt(0)), dtype=np.float64)
        d = self.X.shape[1]
        return values.reshape(d, d) if plan.local_solver == "noisy-covariance" else values


class LocalRounds(ABC):
    """How one site answers the rounds of a kind, from B_p, beta_p and W after the last complete round."""

    def __init__(self, problem: LocalProblem, snapshot: SiteState) -> None:
        self.problem = problem

    keeps_task = False
    """Whether the journal keeps each answer with its task, and `learn` is shown them before the next one."""

    private_key = b""
    """What the journal keeps with the answer, if it is a key."""

    own_means: Matrix = np.empty(0)
    """What the journal keeps with the answer, if it told the site of its own means."""

    def learn(self, task: RoundTask, answer: LocalUpdate, own_means: Matrix) -> None:
        """Take over an earlier release of this kind, and the own means kept with it: each once, in their order."""
        return

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Take over the content of a task, or refuse it, before anything is paid for; `last` is the last answer.

        Raises RemoteProtocolError or DivergenceError if the task cannot be answered.
        """
        return

    @abstractmethod
    def answer(self, task: RoundTask) -> Content:
        """What the site sends. Raises LocalProtocolError if the plan has no such rounds."""


def local_rounds(kind: str) -> type[LocalRounds]:
    """`LocalRounds` of a kind, from its module."""
    module: Any = import_module(f"fedbnsl_client.rounds.{kind}")
    return cast(type[LocalRounds], module.Rounds)


def check_size(task: RoundTask, numbers: Matrix) -> None:
    """Refuse numbers that no calculation could use.

    Raises RemoteProtocolError if one is not finite, or larger than LARGEST.
    """
    if not (np.abs(numbers) <= LARGEST).all():  # NaN is not
        raise RemoteProtocolError(
            f"the task of round {task.round} has a number beyond {LARGEST:g}, or NaN: nothing was released"
        )


def check_edges(task: RoundTask, edges: Mask, mask: EdgeMask) -> None:
    """Refuse sums along edges that no graph of the run has.

    Raises RemoteProtocolError if the plan does not allow one of the (d, d) edges between columns.
    """
    if (edges & ~mask.allowed).any():
        i, j = (int(k) for k in np.argwhere(edges & ~mask.allowed)[0])
        source, target = mask.columns.names[i], mask.columns.names[j]
        raise RemoteProtocolError(
            f"the task of round {task.round} asks along the edge {source!r} -> {target!r}, which the plan does not "
            "allow: nothing was released"
        )


def usable_covariances(told: Covariances, plan: Plan) -> bool:
    """Whether rows can be completed by these: positive definite but for rounding, with means where all share them."""
    numbers = np.concatenate([told.S.ravel(), told.means])
    shares_means = plan.preparation is not None and plan.preparation.intercept == "common"
    if not (np.abs(numbers) <= LARGEST).all() or bool(told.means.size) != shares_means:
        return False
    varies = told.S.diagonal() > 0.0
    size = np.sqrt(told.S.diagonal()[varies])
    R = told.S[np.ix_(varies, varies)] / size / size[:, None]
    try:
        np.linalg.cholesky(R + _ROUNDING * np.eye(len(R)))
    except np.linalg.LinAlgError:
        return False
    return True
