"""What coordinator and participants say to each other, free of any wire format."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from fedbnsl import __version__
from fedbnsl.sparse import SparseMatrix

PROTOCOL_VERSION = 3

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
        """The same finding for a table with reordered columns: new column k is the old column `order[k]`."""
        odd = set(self.variables)
        return replace(self, variables=tuple(k for k, before in enumerate(order) if before in odd))


@dataclass(frozen=True)
class LedgerHead:
    """What a site has paid from one dataset in the runs of one federation.

    It is enough to notice an older copy of the site's ledger; other datasets and federations change nothing of it.

    Attributes
    ----------
    ledger_id
        16 bytes, drawn at random when the ledger was made.
    dataset
        16 bytes that stand for the dataset in this federation; they tell nothing of its name.
    n_entries
        Payments so far; it never goes down.
    digest
        32 bytes, the link of the last payment in the ledger's hash chain; random before the first one.
    spent_units
        What they come to, in 1e-12 zCDP; it never goes down.
    """

    ledger_id: bytes
    dataset: bytes
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


class Content:
    """What a round asks, or what a site answers: a frozen dataclass of a kind of round, see `fedbnsl.rounds`.

    Two are equal if they are so bit for bit.
    """

    @property
    def kind(self) -> str:
        """Name of the kind of round: that of its module."""
        return type(self).__module__.rpartition(".")[2]

    def entries(self, *, dense: bool) -> tuple[int, bool]:
        """How many numbers it holds as it is sent, and whether each has an index.

        Parameters
        ----------
        dense
            `Plan.dense_messages`.
        """
        return 0, False

    def __eq__(self, other: object) -> bool:
        """Equal bit for bit."""
        return type(self) is type(other) and all(map(_same_bits, vars(self).values(), vars(other).values()))

    __hash__ = None  # type: ignore[assignment]


def _same_bits(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.tobytes() == other.tobytes()  # all are vectors of the same type
    return one == other


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
    """

    round: int
    content: Content
    contributed: bool


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
        What its dataset has spent in this federation, by the head it told last, in 1e-12 zCDP; None without a ledger.
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
        The site that the coordinator identified as the caller; empty: no site, or the coordinator itself.
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


@dataclass(frozen=True)
class LocalUpdate:
    """One site's answer to a RoundTask. Two that are equal are a repeat of one message.

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
