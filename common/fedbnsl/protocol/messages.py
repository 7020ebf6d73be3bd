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
from fedbnsl.graphs.directed_by import DirectedBy
from fedbnsl.protocol.sparse import Mask, Matrix, SparseMatrix

PROTOCOL_VERSION = 13

KEY_BYTES = 32
"""Of an X25519 public key."""

DIGEST_BYTES = 8
"""Of the digest of a task, as an answer names its task; masks depend on the whole digest."""

UNHANDLED = "the coordinator could not handle this call"  # its only answer to an unexpected error

# Tells a site that it has no membership (any more): it may join again.
NOT_JOINED = "has not joined this run"

# Tells a site that it was ejected: it may not join again.
TAKEN_OUT = "was taken out of this run by the coordinator's operator"

_SITE_NAME = re.compile(r"\w[\w.-]{0,63}")

SITE_NAME_RULE = "1 to 64 letters, digits, '.', '-' or '_', the first neither '.' nor '-' (it names files)"


def is_site_name(name: str) -> bool:
    """Whether a site may have this name; see SITE_NAME_RULE."""
    return _SITE_NAME.fullmatch(name) is not None


LONGEST_NAME = 500


VARIABLE_NAME_RULE = (
    "a name must not be blank or '(Intercept)', hold control or bidirectional characters, or have more than "
    f"{LONGEST_NAME} characters"
)


def is_variable_name(name: str) -> bool:
    """Whether a terminal and every graph file can carry a variable's name; see VARIABLE_NAME_RULE."""
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
    """Why a site leaves a run: a class that tells nothing of its table. The coordinator is told nothing else."""

    UNSPECIFIED = 0
    OPERATOR = 1
    LOCAL_ERROR = 2
    POLICY = 3  # or its table, or its ledger: one class, so that none tells of the table
    NOT_APPROVED = 4
    BUDGET = 5
    PEERS = 6
    SHORTAGE = 7
    SCHEMA = 8
    CERTIFICATE = 9  # by the coordinator alone


class FindingCode(Enum):
    """What may be odd about the values of a table."""

    MEANS_FAR_FROM_ZERO = 1
    LOOKS_CATEGORICAL = 2
    LOOKS_LIKE_A_CODE = 3  # such as 999 for a missing value
    ROWS_OF_GROUPS = 4  # that belong together count as independent; only by a data dictionary that has a group
    COPIED_RECORDS = 5  # many have an equal one, in all variables
    NUMBERS_ROWS = 6  # whole numbers that occur once each


@dataclass(frozen=True)
class TableFinding:
    """What is odd about some variables of a site's table: a code, never text from the site."""

    code: FindingCode
    variables: tuple[int, ...]  # column numbers from 0, ascending
    count: int = 0  # of ROWS_OF_GROUPS: how many groups there are

    def reordered(self, order: Sequence[int]) -> "TableFinding":
        """The same finding for a table with reordered columns: new column k is the old column `order[k]`."""
        odd = set(self.variables)
        return replace(self, variables=tuple(k for k, before in enumerate(order) if before in odd))


@dataclass(frozen=True)
class LedgerHead:
    """What a site has paid from one dataset in the runs of one federation.

    It lets the coordinator notice an older copy of the site's ledger. Other datasets and federations do not affect it.
    """

    ledger_id: bytes  # 16 bytes, drawn at random when the ledger was made
    dataset: bytes  # 16 bytes that identify the dataset in this federation and reveal nothing about its name
    n_entries: int  # payments so far; it never goes down
    digest: bytes  # 32 bytes, the link of the last payment in the ledger's hash chain; random before the first one
    spent_units: int  # sum of the payments in units of 1e-12 zCDP; it never goes down


@dataclass(frozen=True)
class JoinRequest:
    """A site's application: its name, the columns of its table in order, and its row count (public)."""

    site: str
    variables: tuple[str, ...]
    n_samples: int
    protocol_version: int = PROTOCOL_VERSION
    ledger: LedgerHead | None = None
    # What the site computes with; see `fedbnsl.protocol.versions`.
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    run: int = 0  # tag of the run that it wants to join, see `run_tag`; 0: the only one that it can


@dataclass(frozen=True, eq=False)
class Units:
    """Released numbers that make columns comparable: a record x becomes (x - centres) / scales."""

    centres: Matrix  # (d,) one mean over all records; empty: every site uses its own, or none, as the plan says
    scales: Matrix  # (d,) above 0, in units of the variables
    # (2, d) in spreads of a site: values as far above its median, or as far below, count as missing; infinite: none of
    # the column does; empty: none at all
    limits: Matrix = field(default_factory=lambda: np.empty(0))

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


@dataclass(frozen=True, eq=False)
class Covariances:
    """What rows with gaps are completed by, in the units of the run's columns."""

    S: Matrix  # (d, d), positive definite but for columns without variance, whose entries are 0
    means: Matrix  # (d,) of the columns; empty: every site uses its own, or none, as the plan says

    def __eq__(self, other: object) -> bool:
        """Equal bit for bit."""
        return type(self) is type(other) and all(map(_same_bits, vars(self).values(), vars(other).values()))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Membership:
    """A site in secure aggregation, as the coordinator passes it on: the others check it."""

    site: str
    n_samples: int  # rows of its table (public)
    certificate: bytes = b""  # X.509, DER; empty in plaintext, where nobody attests anybody
    public_key: bytes = b""  # 32 bytes, X25519, of this run alone; empty until the site has made it
    # Of the certificate's key over what `fedbnsl_client.secure_aggregation.keys.statement` says; empty in plaintext.
    signature: bytes = b""


@dataclass(frozen=True)
class SiteState:
    """What both sides know of one participant between rounds; with closed-form, B_p and beta_p have a diagonal."""

    local_weights: SparseMatrix  # B_p as last contributed, (d, d)
    consensus_dual: SparseMatrix  # beta_p, (d, d)
    # W as last sent, (d, d), if tasks send only its changes (`Plan.sends_changes`); otherwise None.
    global_weights: SparseMatrix | None = None
    units: Units | None = None  # of the run's columns; None: raw columns, or not yet known
    # Of all sites with their keys, for secure aggregation; empty: not yet known, or none.
    memberships: tuple[Membership, ...] = ()
    completed_by: Covariances | None = None  # what completes rows with gaps; None: not yet known, or no row has one


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
    RATIOS = "odds ratios and rate ratios along the learned edges"
    SCORES = "scores of the learned network"


class Content:
    """What a round asks, or what a site answers: a frozen dataclass of a kind of round, see `fedbnsl.rounds`.

    Two contents are equal if every field is equal bit for bit.
    """

    # Whether a site looks at its records to answer this task: it then pays, or its answer is part of secure
    # aggregation.
    of_records: ClassVar[bool] = True
    # Fields of `RoundTask` and `SiteState` that tell the sites what came of this task: the next round's tasks alone
    # have them.
    passes_on: ClassVar[tuple[str, ...]] = ()

    @property
    def kind(self) -> str:
        """Name of the kind of round: that of its module."""
        return type(self).__module__.rpartition(".")[2]

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """How many numbers are sent, and whether each has an index; as the paper counts, those of a matrix alone."""
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
    """A site's part of secure aggregation, in a round of any kind that only needs sums over the sites."""

    of: str  # name of the kind of round
    numbers: NDArray[np.uint64]  # integers modulo 2^64, under masks that cancel in the sum over all sites
    task_digest: bytes  # `codec.task_digest` of the task that it answers

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
    """A site that secure aggregation goes on without: its round is asked again, and the others pay and draw again."""

    site: str
    round: int  # the round that was given up, from 1


@dataclass(frozen=True)
class RoundTask:
    """One round's work for one site."""

    round: int  # counted from 1
    content: Content  # what is asked
    contributed: bool  # whether the site's update of the previous round entered W, so that its dual advances
    units: Units | None = None  # of the run's columns, in the first round after the statistics only
    memberships: tuple[Membership, ...] = ()  # of secure aggregation, in the first round after the keys only
    lost: tuple[Loss, ...] = ()  # sites that secure aggregation has lost so far, in their order
    completed_by: Covariances | None = None  # what completes rows with gaps, in the first round after EM only


@dataclass(frozen=True)
class EdgeDraws:
    """How many bootstrap draws have what on the edges of a DAG between variables."""

    draws: int  # how many there are, at least 1
    # For each edge, row by row of the DAG: draws with an edge between the two, directed as in the DAG, and directed the
    # other way.
    counts: tuple[tuple[int, int, int], ...]

    def shares(self, dag: Mask, names: Sequence[str]) -> dict[tuple[str, str], tuple[float, float, float]]:
        """The counts as shares of the draws, by source and target."""
        pairs: list[list[int]] = np.argwhere(dag).tolist()
        return {
            (names[i], names[j]): (adjacent / self.draws, forward / self.draws, backward / self.draws)
            for (i, j), (adjacent, forward, backward) in zip(pairs, self.counts, strict=True)
        }


@dataclass(frozen=True)
class LinkMarks:
    """The links between variables that hold if common causes may be hidden, with the marks at their ends."""

    # By link, i, j and the marks of `graphs.pag` at i and at j; i before j, row by row.
    links: tuple[tuple[int, int, int, int], ...]
    draws: int = 0  # of the bootstrap; 0: marks were not counted
    counts: tuple[tuple[int, int], ...] = ()  # by link, draws that have the same mark at i, and at j


@dataclass(frozen=True)
class Finished:
    """The run is over: the learned graph, or the public reason why there is none."""

    graph: SparseMatrix | None
    stopped_because: str = ""
    search_ended_early: bool = False  # whether the operator ended a search for the graph before it was through
    draws: EdgeDraws | None = None  # what the bootstrap has on its edges; None: no draws
    # Edges between variables, row by row from 0: the class directs them, and too little speaks for it to show that.
    undecided: tuple[int, ...] = ()
    directed_by: tuple[DirectedBy, ...] = ()  # of the edges between variables, row by row; empty: not told
    marks: LinkMarks | None = None  # None: they are not told
    network: str = ""  # the learned network as JSON, where sites score it; empty: they do not, or there is none


@dataclass(frozen=True)
class SiteProgress:
    """One site as the coordinator sees it."""

    site: str
    answered: bool  # whether its update for the present round is here
    left: bool  # whether it told the coordinator that it leaves
    last_seen_s: float  # seconds since it was last heard of
    # bytes_up, bytes_down: serialised updates and tasks so far
    bytes_up: int
    bytes_down: int
    online_s: float = 0.0  # seconds since it came online; 0 while it is away
    last_round: int = 0  # the last round it has answered (0: none)
    # Spending of its dataset in this federation, by its last ledger head, in 1e-12 zCDP; None without a ledger.
    spent_units: int | None = None
    why_left: LeaveReason = LeaveReason.UNSPECIFIED


OPEN_STATES = ("waiting for sites", "running", "paused")
"""Of runs that a site can join."""
ENDED_STATES = ("finished", "interrupted", "failed")
RUN_STATES = (*OPEN_STATES, "draining", *ENDED_STATES)


@dataclass(frozen=True)
class RunOffer:
    """A run as its coordinator offers it to a site that has a membership in it, or may have."""

    run: int  # its number, 64 bits
    name: str  # of its folder at the coordinator
    state: str  # one of RUN_STATES, or "queued"
    # plan_digest, plan_name: of its plan, 32 bytes and as its author called it
    plan_digest: bytes
    plan_name: str
    sites: tuple[str, ...]  # whose memberships these are; empty: of whoever joins first
    # round, rounds: as in `RunStatus`
    round: int
    rounds: int
    # memberships, joined: how many sites it has, and how many have joined
    memberships: int
    joined: int
    plan_toml: str = ""  # the plan; empty if it was not asked for

    @property
    def is_open(self) -> bool:
        """Whether a site can join it now."""
        return self.state in OPEN_STATES


WAITING_FOR_SITES, ROUNDS = "waiting for sites", "rounds"
LOADING = "loading compiled code (the first run compiles it)"
COMPLETING = "EM for rows with gaps"
"""Phases in which the coordinator waits for others, and the work that comes first; all others are parts of a search."""


@dataclass(frozen=True)
class Phase:
    """What takes time at present."""

    what: str  # WAITING_FOR_SITES, ROUNDS, or what is worked on, in words
    share: float | None  # of it that is done, 0 to 1; None: not known
    elapsed_s: float  # seconds since it began
    left_s: float | None = None  # seconds that it still takes, about; None: nobody can tell yet
    detail: str = ""  # where it stands, in words

    @property
    def is_work(self) -> bool:
        """Whether it is told of beside the rounds, and not a wait for others."""
        return self.what not in (WAITING_FOR_SITES, ROUNDS)

    @property
    def is_search(self) -> bool:
        """Whether it can be ended early, with the best that there is."""
        return self.is_work and self.what not in (LOADING, COMPLETING)


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands."""

    state: str  # one of RUN_STATES
    # round, rounds: number of the round in progress, and of all rounds
    round: int
    rounds: int
    acyclicity: float
    edges: int
    elapsed_s: float  # seconds since the first round was handed out
    sites: tuple[SiteProgress, ...]
    run: int = 0  # the run's tag, see `run_tag`
    protocol_version: int = PROTOCOL_VERSION
    version: str = __version__  # of the coordinator's fedbnsl
    time_unix_s: float = 0.0  # the coordinator's clock
    site: str = ""  # the site that the coordinator identified as the caller; empty: no site, or the coordinator itself
    reason: str = ""  # what a paused run waits for, or one whose round has lost its quorum; empty otherwise
    undirected: int = 0  # how many of the edges have no direction, once a search has found a class of graphs
    name: str = ""  # of the run's folder at the coordinator
    phase: Phase | None = None  # what takes time at present; None: nothing, or the coordinator does not say


@dataclass(frozen=True)
class LocalUpdate:
    """One site's answer to a RoundTask. Equal updates are repeats of one message."""

    site: str
    round: int
    content: Content  # of the same kind as the task's
    ledger: LedgerHead | None = None  # the site's ledger when the answer was drawn; None without privacy
    # What is odd about the site's table: only without privacy, and only until an answer of the site has counted.
    findings: tuple[TableFinding, ...] = ()
