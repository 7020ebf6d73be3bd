"""Secure aggregation at the coordinator: masked numbers of all sites add up to a total, the answer of one site.

Masks cancel modulo 2^64 if every site answered the same task. If one did not, the total is noise over the whole range,
which no reading of it could mistake for a sum.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.codec import task_digest
from fedbnsl.protocol.messages import DIGEST_BYTES, Content, LocalUpdate, Loss, MaskedSum, Units
from fedbnsl.rounds.keys import Answer as KeysAnswer
from fedbnsl_server.rounds.kinds import Run, SummedKind, kind_of

TOGETHER = "all sites together"
"""Stands for a site where only a total is known; no site can have this name."""

# Standard deviations of the noise that no sum of a run goes beyond.
_WIDTHS = 100


@dataclass(frozen=True)
class SecureSites:
    """What secure aggregation needs to know of the sites."""

    # Of the sites that have one, DER: the other sites are told of them.
    certificates: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    lost: Sequence[Loss] = ()  # sites that were lost; they are no longer among the participants


NO_SECURE_SITES = SecureSites()


def is_summed(asked: Content, run: Run) -> bool:
    """Whether the answers to a task are parts of secure aggregation."""
    return run.plan.secure_aggregation and asked.of_records


def is_given_up(answer: Content, asked: Content, units: Units | None, run: Run) -> bool:
    """Whether an answer is from before a site was lost: the task had the same content then, but for the sites named."""
    if not isinstance(answer, MaskedSum | KeysAnswer) or answer.task_digest == _digest(asked, units, run.lost):
        return False
    earlier = [_digest(asked, units, run.lost[:k]) for k in range(len(run.lost))]
    return bool(earlier) if isinstance(answer, KeysAnswer) else answer.task_digest in earlier


def fault(part: Content, asked: Content, units: Units | None, run: Run) -> str:
    """Why an answer is not part of the sum, as the end of a sentence; empty if it is."""
    if not isinstance(part, MaskedSum):
        return "is not part of secure aggregation, which the plan asks for"
    expected = _kind(asked).n_summands(asked, run)
    if part.numbers.size != expected:
        return f"has {part.numbers.size} masked numbers; {expected} were asked for"
    same = part.task_digest == _digest(asked, units, run.lost)
    return "" if same else "answers another task, so that its masks do not cancel"


def _kind(asked: Content) -> SummedKind:
    return cast(SummedKind, kind_of(asked.kind))


def _digest(asked: Content, units: Units | None, lost: Sequence[Loss]) -> bytes:
    return task_digest(asked, units, lost)[:DIGEST_BYTES]


def total(parts: Mapping[str, LocalUpdate], asked: Content, run: Run) -> Content:
    """The answer of all sites as one.

    Raises RemoteProtocolError if the total is not a valid answer: masks did not cancel, or a site sent wrong numbers.
    """
    kind = _kind(asked)
    words = np.zeros(kind.n_summands(asked, run), dtype=np.uint64)
    for part in parts.values():
        words += cast(MaskedSum, part.content).numbers  # modulo 2^64
    sums = words.view(np.int64).tolist()
    answer: Content = kind.of_sums(sums, asked, run)
    fault = kind.fault(answer, asked, run.as_one(TOGETHER))
    if max(map(abs, sums)) > _largest(run):
        fault = "is larger than the rows of all sites allow"
    if fault:
        raise RemoteProtocolError(
            f"the secure aggregation of a round of {asked.kind} {fault}: at least one site sent numbers that are not "
            "its own, or answered another task; nobody can tell which"
        )
    return answer


def _largest(run: Run) -> int:
    """More than any sum of records, each of at most LATTICE, and of the noise."""
    together = run.as_one(TOGETHER)
    (price,) = together.prices([TOGETHER]).values()
    noise = math.isqrt(max(price.setup_variance, price.moments_variance))
    return 2 * sum(run.n_samples.values()) * LATTICE + _WIDTHS * noise
