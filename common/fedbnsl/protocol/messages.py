"""The messages between coordinator and participants, independent of any wire format."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedbnsl import __version__
from fedbnsl.console.shown import steers_terminal
from fedbnsl.protocol.sparse import Mask, Matrix, SparseMatrix

PROTOCOL_VERSION = 6

KEY_BYTES = 32
"""Of an X25519 public key."""

DIGEST_BYTES = 8
"""Of the digest of a task, as an answer names its task; masks depend on the whole digest."""

UNHANDLED = "the coordinator could not handle this call"  # its only answer to an unexpected error

# Tells a site that it has no membership (any more): it may join again.
NOT_MEMBERSHIPED = "has not joined this run"

# Tells a site that it was ejected: it may not join again.
TAKEN_OUT = "was taken out of this run by the coordinator's operator"

_SITE_NAME = re.compile(r"\w[\w.-]{0,63}")

SITE_NAME_RULE = "1 to 64 letters, digits, '.', '-' or '_', the first neither '.' nor '-' (it names files)"


def is_site_name(name: str) -> bool:
    """Whether a site may have this name; see SITE_NAME_RULE."""
    return _SITE_NAME.fullmatch(name) is not None


LONGEST_NAME = 500


def is_variable_name(name: str) -> bool:
    """Whether a terminal and every graph file can carry a variable's name.

    It is not blank or longer than LONGEST_NAME, holds no control, line-separating or bidirectional characters, and is
    not '(Intercept)'.
    """
    return (
        bool(name.strip()) and len(name) <= LONGEST_NAME and name != "(Intercept)" and not any(map(_unwritable, name))
    )


def composed(name: str) -> str:
    """A name in Unicode's composed form (NFC): "é" as one character and as "e" with an accent is the same name."""
    return unicodedata.normalize("NFC", name)


def _unwritable(character: str) -> bool:
    return steers_terminal(character) or character in "\ufffe\uffff"


def run_tag(run: int) -> int:
    """The low half of a run's 64-bit number: what the small messages carry to tell runs apart."""
    return run & 0xFFFF_FFFF


class LeaveReason(Enum):
    """Why a site leaves a run. The coordinator is told nothing else."""

    OPERATOR = 1
    LOCAL_ERROR = 2
    POLICY = 3


class FindingCode(Enum):
    """What may be odd about the values of a table."""

    MEANS_FAR_FROM_ZERO = 1
    LOOKS_CATEGORICAL = 2


@dataclass(frozen=True)
class TableFinding:
    """What is odd about some variables of a site's table: a code, never text from the site.

    Attributes
    ----------
    variables
        Column numbers from 0, ascending.
    """

    code: FindingCode
    variables: tuple[int, ...]

    def reordered(self, order: Sequence[int]) -> "TableFinding":
        """The same finding for a table with reordered columns: new column k is the old column `order[k]`."""
        odd = set(self.variables)
        return replace(self, variables=tuple(k for k, before in enumerate(order) if before in odd))


@dataclass(frozen=True)
class LedgerHead:
    """What a site has paid from one dataset in the runs of one federation.

    It lets the coordinator notice an older copy of the site's ledger. Other datasets and federations do not affect it.

    Attributes
    ----------
    ledger_id
        16 bytes, drawn at random when the ledger was made.
    dataset
        16 bytes that identify the dataset in this federation and reveal nothing about its name.
    n_entries
        Payments so far; it never goes down.
    digest
        32 bytes, the link of the last payment in the ledger's hash chain; random before the first one.
    spent_units
        Sum of the payments in units of 1e-12 zCDP; it never goes down.
    """

    ledger_id: bytes
    dataset: bytes
    n_entries: int
    digest: bytes
    spent_units: int


@dataclass(frozen=True)
class JoinRequest:
    """A site's application: its name, the columns of its table in order, and its row count (public).

    Attributes
    ----------
    versions
        What the site computes with; see `fedbnsl.protocol.versions`.
    run
        Tag of the run that it wants to join, see `run_tag`; 0: the only one that it can.
    """

    site: str
    variables: tuple[str, ...]
    n_samples: int
    protocol_version: int = PROTOCOL_VERSION
    ledger: LedgerHead | None = None
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    run: int = 0


@dataclass(frozen=True, eq=False)
class Units:
    """Released numbers that make columns comparable: a record x becomes (x - centres) / scales.

    Attributes
    ----------
    centres
        (d,) one mean over all records; empty: every site uses its own, or none, as the plan says.
    scales
        (d,) above 0, in units of the variables.
    """

    centres: Matrix
    scales: Matrix

    def weights_of_tables(self, W: Matrix) -> Matrix:
        """(d, d) weights between prepared columns in the tables' own units."""
        return np.asarray(W * self.scales / self.scales[:, None])

    def weights_of_columns(self, W: Matrix) -> Matrix:
        """(d, d) weights in the tables' own units between prepared columns."""
        return np.asarray(W / self.scales * self.scales[:, None])

    def __eq__(self, other: object) -> bool:
        """Equal bit for bit."""
        return type(self) is type(other) and all(map(_same_bits, vars(self).values(), vars(other).values()))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Membership:
    """A site in secure aggregation, as the coordinator passes it on: the others check it.

    Attributes
    ----------
    n_samples
        Rows of its table (public).
    certificate
        X.509, DER; empty in plaintext, where nobody attests anybody.
    public_key
        32 bytes, X25519, of this run alone; empty until the site has made it.
    signature
        Of the certificate's key over what `fedbnsl_client.secure_aggregation.keys.statement` says; empty in plaintext.
    """

    site: str
    n_samples: int
    certificate: bytes = b""
    public_key: bytes = b""
    signature: bytes = b""


@dataclass(frozen=True)
class SiteState:
    """What both sides know of one participant between rounds.

    Attributes
    ----------
    local_weights
        B_p as last contributed, (d, d).
    consensus_dual
        beta_p, (d, d).
    global_weights
        W as last sent, (d, d), if tasks send only its changes (`Plan.sends_changes`); otherwise None.
    units
        Of the run's columns; None: raw columns, or not yet known.
    memberships
        Of all sites with their keys, for secure aggregation; empty: not yet known, or none.

    With closed-form B_p and beta_p have a diagonal.
    """

    local_weights: SparseMatrix
    consensus_dual: SparseMatrix
    global_weights: SparseMatrix | None = None
    units: Units | None = None
    memberships: tuple[Membership, ...] = ()


@dataclass(frozen=True)
class JoinReply:
    """The run that a site has joined, and what the coordinator holds of it after `round` complete rounds."""

    run: int
    plan_toml: str
    plan_digest: bytes
    variables: tuple[str, ...]
    snapshot: SiteState
    round: int


class Yields(Enum):
    """What comes of the answers to a round; of all but those of `W`, it holds what each site sent whole."""

    SETUP = "what later rounds need"
    W = "one more iterate of W"
    WEIGHTS = "weights along the learned edges"
    GRAPH = "a searched graph"


class Content:
    """What a round asks, or what a site answers: a frozen dataclass of a kind of round, see `fedbnsl.rounds`.

    Two contents are equal if every field is equal bit for bit.

    Attributes
    ----------
    of_records
        Whether a site looks at its records to answer this task: it then pays, or its answer is part of secure
        aggregation.
    passes_on
        Fields of `RoundTask` and `SiteState` that tell the sites what came of this task: the next round's tasks alone
        have them.
    """

    of_records: ClassVar[bool] = True
    passes_on: ClassVar[tuple[str, ...]] = ()

    @property
    def kind(self) -> str:
        """Name of the kind of round: that of its module."""
        return type(self).__module__.rpartition(".")[2]

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """How many numbers it holds as it is sent, and whether each has an index; as the paper counts, a matrix alone.

        Parameters
        ----------
        dense
            `Plan.dense_messages`.
        """
        for value in vars(self).values():
            if isinstance(value, SparseMatrix):
                return value.nnz, True
        return sum(value.size for value in vars(self).values() if isinstance(value, np.ndarray)), False

    def __eq__(self, other: object) -> bool:
        """Equal bit for bit."""
        return type(self) is type(other) and all(map(_same_bits, vars(self).values(), vars(other).values()))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class MaskedSum(Content):
    """A site's part of secure aggregation, in a round of any kind that only needs sums over the sites.

    Attributes
    ----------
    of
        Name of the kind of round.
    numbers
        Integers modulo 2^64, under masks that cancel in the sum over all sites.
    task_digest
        `codec.task_digest` of the task that it answers.
    """

    of: str
    numbers: NDArray[np.uint64]
    task_digest: bytes

    @property
    def kind(self) -> str:
        """See `Content.kind`."""
        return self.of


def _same_bits(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.tobytes() == other.tobytes()  # all are vectors of the same type
    return one == other


@dataclass(frozen=True)
class Loss:
    """A site that secure aggregation goes on without: its round is asked again, and the others pay and draw again.

    Attributes
    ----------
    round
        The round that was given up, from 1.
    """

    site: str
    round: int


@dataclass(frozen=True)
class RoundTask:
    """One round's work for one site.

    Attributes
    ----------
    round
        Counted from 1.
    content
        What is asked.
    contributed
        Whether the site's update of the previous round entered W, so that its dual advances.
    units
        Of the run's columns, in the first round after the statistics only.
    memberships
        Of secure aggregation, in the first round after the keys only.
    lost
        Sites that secure aggregation has lost so far, in their order.
    """

    round: int
    content: Content
    contributed: bool
    units: Units | None = None
    memberships: tuple[Membership, ...] = ()
    lost: tuple[Loss, ...] = ()


@dataclass(frozen=True)
class EdgeDraws:
    """How many bootstrap draws have what on the edges of a DAG between variables.

    Attributes
    ----------
    draws
        How many there are, at least 1.
    counts
        For each edge, row by row of the DAG: draws with an edge between the two, directed as in the DAG, and directed
        the other way.
    """

    draws: int
    counts: tuple[tuple[int, int, int], ...]

    def shares(self, dag: Mask, names: Sequence[str]) -> dict[tuple[str, str], tuple[float, float, float]]:
        """The counts as shares of the draws, by source and target."""
        pairs: list[list[int]] = np.argwhere(dag).tolist()
        return {
            (names[i], names[j]): (adjacent / self.draws, forward / self.draws, backward / self.draws)
            for (i, j), (adjacent, forward, backward) in zip(pairs, self.counts, strict=True)
        }


@dataclass(frozen=True)
class Finished:
    """The run is over: the learned graph, or the public reason why there is none.

    With a graph, `search_ended_early` says that the coordinator's operator ended a search for it before it was through,
    `draws` what the bootstrap has on its edges (None: no draws), and `undecided` which of its edges between variables,
    counted row by row from 0, have a direction in the class that too little speaks for to show it.
    """

    graph: SparseMatrix | None
    stopped_because: str = ""
    search_ended_early: bool = False
    draws: EdgeDraws | None = None
    undecided: tuple[int, ...] = ()


@dataclass(frozen=True)
class SiteProgress:
    """One site as the coordinator sees it.

    Attributes
    ----------
    answered
        Whether its update for the present round is here.
    left
        Whether it told the coordinator that it leaves.
    last_seen_s
        Seconds since it was last heard of.
    bytes_up, bytes_down
        Serialised updates and tasks so far.
    online_s
        Seconds since it came online; 0 while it is away.
    last_round
        The last round it has answered (0: none).
    spent_units
        Spending of its dataset in this federation, by its last ledger head, in 1e-12 zCDP; None without a ledger.
    """

    site: str
    answered: bool
    left: bool
    last_seen_s: float
    bytes_up: int
    bytes_down: int
    online_s: float = 0.0
    last_round: int = 0
    spent_units: int | None = None


RUN_STATES = ("waiting for sites", "running", "paused", "draining", "finished", "interrupted", "failed")
OPEN_STATES = ("waiting for sites", "running", "paused")
"""Of runs that a site can join."""


@dataclass(frozen=True)
class RunOffer:
    """A run as its coordinator offers it to a site that has a membership in it, or may have.

    Attributes
    ----------
    run
        Its number, 64 bits.
    name
        Of its folder at the coordinator.
    state
        One of RUN_STATES, or "queued".
    plan_digest, plan_name
        Of its plan: 32 bytes; as its author called it.
    sites
        Whose memberships these are; empty: of whoever joins first.
    round, rounds
        As in `RunStatus`.
    memberships, joined
        How many sites it has, and how many have joined.
    plan_toml
        The plan; empty if it was not asked for.
    """

    run: int
    name: str
    state: str
    plan_digest: bytes
    plan_name: str
    sites: tuple[str, ...]
    round: int
    rounds: int
    memberships: int
    joined: int
    plan_toml: str = ""

    @property
    def is_open(self) -> bool:
        """Whether a site can join it now."""
        return self.state in OPEN_STATES


WAITING_FOR_SITES, ROUNDS = "waiting for sites", "rounds"
LOADING = "loading compiled code (the first run compiles it)"
"""Phases in which the coordinator waits for others, and the work that comes first; all others are parts of a search."""


@dataclass(frozen=True)
class Phase:
    """What takes time at present.

    Attributes
    ----------
    what
        WAITING_FOR_SITES, ROUNDS, or what is worked on, in words.
    share
        Of it that is done, 0 to 1; None: not known.
    elapsed_s
        Seconds since it began.
    left_s
        Seconds that it still takes, about; None: nobody can tell yet.
    """

    what: str
    share: float | None
    elapsed_s: float
    left_s: float | None = None

    @property
    def is_work(self) -> bool:
        """Whether it is the coordinator's own work, and not a wait for others."""
        return self.what not in (WAITING_FOR_SITES, ROUNDS)

    @property
    def is_search(self) -> bool:
        """Whether it can be ended early, with the best that there is."""
        return self.is_work and self.what != LOADING


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands.

    Attributes
    ----------
    state
        One of RUN_STATES.
    round, rounds
        Number of the round in progress, and of all rounds.
    elapsed_s
        Seconds since the first round was handed out.
    run
        The run's tag, see `run_tag`.
    version
        Of the coordinator's fedbnsl.
    time_unix_s
        The coordinator's clock.
    site
        The site that the coordinator identified as the caller; empty: no site, or the coordinator itself.
    reason
        What a paused run waits for, or one whose round has lost its quorum; empty otherwise.
    undirected
        How many of the edges have no direction, once a search has found a class of graphs.
    name
        Of the run's folder at the coordinator.
    phase
        What takes time at present; None: nothing, or the coordinator does not say.
    """

    state: str
    round: int
    rounds: int
    acyclicity: float
    edges: int
    elapsed_s: float
    sites: tuple[SiteProgress, ...]
    run: int = 0
    protocol_version: int = PROTOCOL_VERSION
    version: str = __version__
    time_unix_s: float = 0.0
    site: str = ""
    reason: str = ""
    undirected: int = 0
    name: str = ""
    phase: Phase | None = None


@dataclass(frozen=True)
class LocalUpdate:
    """One site's answer to a RoundTask. Equal updates are repeats of one message.

    Attributes
    ----------
    content
        Of the same kind as the task's.
    ledger
        The site's ledger when the answer was drawn; None without privacy.
    findings
        What is odd about the site's table: only without privacy, and only until an answer of the site has counted.
    """

    site: str
    round: int
    content: Content
    ledger: LedgerHead | None = None
    findings: tuple[TableFinding, ...] = ()
