"""What coordinator and participants say to each other, free of any wire format."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from fedbnsl import __version__
from fedbnsl.sparse import Matrix, SparseMatrix

PROTOCOL_VERSION = 2

UNHANDLED = "the coordinator could not handle this call"  # all that it tells of an error that it did not expect

# What a site is told that has no seat (any more): it may join again.
NOT_SEATED = "has not joined this run"

_SITE_NAME = re.compile(r"\w[\w.-]{0,63}")

SITE_NAME_RULE = "1 to 64 letters, digits, '.', '-' or '_', the first neither '.' nor '-' (it names files)"


def is_site_name(name: str) -> bool:
    """Whether a site may be called so; see SITE_NAME_RULE."""
    return _SITE_NAME.fullmatch(name) is not None


def is_variable_name(name: str) -> bool:
    """Whether every graph file can carry a variable's name: not blank, no control characters, not '(Intercept)'."""
    return bool(name.strip()) and name != "(Intercept)" and not any(map(_unwritable, name))


def _unwritable(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in "\ufffe\uffff"


def run_tag(run: int) -> int:
    """The low half of a run's 64-bit number: what the small messages carry to tell runs apart."""
    return run & 0xFFFF_FFFF


class TaskKind(Enum):
    """What a round asks of a participant."""

    ADMM = 1
    REFIT = 2
    MOMENTS = 3
    SCALES = 4


class LeaveReason(Enum):
    """Why a site leaves a run: all that the coordinator is told."""

    OPERATOR = 1
    LOCAL_ERROR = 2
    POLICY = 3


class FindingCode(Enum):
    """What may be odd about the values of a table."""

    MEANS_FAR_FROM_ZERO = 1
    LOOKS_CATEGORICAL = 2


@dataclass(frozen=True)
class TableFinding:
    """What is odd about some variables of a site's table: a code, never a text of the site's.

    Attributes
    ----------
    variables
        Their places among the table's columns, ascending.
    """

    code: FindingCode
    variables: tuple[int, ...]

    def reordered(self, order: Sequence[int]) -> "TableFinding":
        """The same of a table whose columns are these of the present one."""
        odd = set(self.variables)
        return replace(self, variables=tuple(k for k, before in enumerate(order) if before in odd))


@dataclass(frozen=True)
class LedgerHead:
    """Where a site's privacy ledger stands: enough to notice an older copy of it, and nothing about its datasets.

    Attributes
    ----------
    ledger_id
        16 bytes, drawn at random when the ledger was made.
    n_entries
        Entries so far; it never goes down.
    digest
        32 bytes, the last link of the hash chain; that of a ledger without entries is random.
    spent_units
        Everything ever reserved, over all datasets, in 1e-12 zCDP; it never goes down.
    """

    ledger_id: bytes
    n_entries: int
    digest: bytes
    spent_units: int


@dataclass(frozen=True)
class JoinRequest:
    """A site's application: its name, the columns of its table in order, and its row count (public)."""

    site: str
    variables: tuple[str, ...]
    n_samples: int
    protocol_version: int = PROTOCOL_VERSION
    ledger: LedgerHead | None = None


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
        W as last sent, (d, d), where tasks tell its changes only (`Plan.sends_changes`); otherwise None.

    With closed-form B_p and beta_p have a diagonal.
    """

    local_weights: SparseMatrix
    consensus_dual: SparseMatrix
    global_weights: SparseMatrix | None = None


@dataclass(frozen=True)
class JoinReply:
    """The run that a site has joined, and what the coordinator holds of it after `round` complete rounds."""

    run: int
    plan_toml: str
    plan_digest: bytes
    variables: tuple[str, ...]
    snapshot: SiteState
    round: int


def _no_values() -> Matrix:
    return np.empty(0)


@dataclass(frozen=True, eq=False)
class RoundTask:
    """One round's work for one site.

    Attributes
    ----------
    round
        Counted from 1.
    global_weights
        W, (d, d), or its changes (`Plan.sends_changes`), for an ADMM round; for a refit round the graph to refit, for a
        moments round that of neighbours or, with privacy, the one whose residuals are asked for, with present weights.
    contributed
        Whether the site's update of the previous round entered W, so that its dual advances.
    scales
        (d,) units of the residuals in a private moments round; otherwise empty.
    """

    round: int
    kind: TaskKind
    global_weights: SparseMatrix
    contributed: bool
    scales: Matrix = field(default_factory=_no_values)

    @property
    def asked(self) -> bytes:
        """8 bytes that stand for the weights and scales."""
        W = self.global_weights
        return hashlib.sha256(W.index.tobytes() + W.value.tobytes() + self.scales.tobytes()).digest()[:8]

    def __eq__(self, other: object) -> bool:
        """Equal bit for bit."""
        if not isinstance(other, RoundTask):
            return NotImplemented
        return (
            (self.round, self.kind, self.contributed) == (other.round, other.kind, other.contributed)
            and self.global_weights == other.global_weights
            and self.scales.tobytes() == other.scales.tobytes()
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Finished:
    """The run is over: the learned graph, or the public reason why there is none."""

    graph: SparseMatrix | None
    stopped_because: str = ""


@dataclass(frozen=True)
class SiteProgress:
    """One site as the coordinator sees it.

    Attributes
    ----------
    answered
        Whether its update for the present round is here.
    left
        Whether it said good-bye.
    last_seen_s
        Seconds since it was last heard of.
    bytes_up, bytes_down
        Serialised updates and tasks so far.
    online_s
        Seconds since it came online; 0 while it is away.
    last_round
        The last round it has answered (0: none).
    spent_units
        What its ledger has spent by the head it told last, in 1e-12 zCDP; None without a ledger.
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


RUN_STATES = ("waiting for sites", "running", "draining", "finished", "interrupted", "failed")


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands.

    Attributes
    ----------
    state
        One of RUN_STATES.
    round, rounds
        The one in progress, and how many there will be.
    elapsed_s
        Seconds since the first round was handed out.
    run
        The run's tag, see `run_tag`.
    version
        Of the coordinator's fedbnsl.
    time_unix_s
        The coordinator's clock.
    site
        Whom the coordinator takes the asker for; empty: nobody, or the coordinator itself.
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


@dataclass(frozen=True, eq=False)
class LocalUpdate:
    """One site's answer to a RoundTask.

    Attributes
    ----------
    local_weights
        B_p, (d, d), or its changes (`Plan.sends_changes`), for an ADMM round; for a refit round the least-squares
        weights on the graph.
    residual_variance
        (d,) in a refit round, in squared units of the variables; otherwise empty.
    moments
        In a moments round the second moments that `family_moments` says, row by row; with privacy those of all pairs of
        scaled residuals. In a scales round the (d,) mean squares that the site released at first. Otherwise empty.
    ledger
        The site's ledger when the answer was drawn; None without privacy.
    asked
        In a private moments round `RoundTask.asked` of the task that was answered first: a kept answer to another one
        would be misread. Otherwise empty.
    findings
        What is odd about the site's table: only without privacy, and only until an answer of the site has counted.
    """

    site: str
    round: int
    local_weights: SparseMatrix
    residual_variance: Matrix = field(default_factory=_no_values)
    moments: Matrix = field(default_factory=_no_values)
    ledger: LedgerHead | None = None
    asked: bytes = b""
    findings: tuple[TableFinding, ...] = ()

    def same_as(self, other: "LocalUpdate") -> bool:
        """Equal bit for bit: a repeat of a message, not another one."""
        return (
            (self.site, self.round) == (other.site, other.round)
            and self.local_weights == other.local_weights
            and self.residual_variance.tobytes() == other.residual_variance.tobytes()
            and self.moments.tobytes() == other.moments.tobytes()
            and (self.ledger, self.asked, self.findings) == (other.ledger, other.asked, other.findings)
        )
