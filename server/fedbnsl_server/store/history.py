"""What a run had reached when its coordinator ended: its checkpoint, and what events.jsonl says of its rounds."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import AdmmState, without
from fedbnsl_server.sites.mailbox import Traffic
from fedbnsl_server.sites.membership_log import EJECTED, Membership, replay
from fedbnsl_server.store import checkpoint
from fedbnsl_server.store.kept_checkpoints import KeptCheckpoints

TURNED_OUT = "turned out"

# What a round's line holds beyond what result.json says of the round.
_ONLY_IN_EVENTS = ("event", "time", "elapsed_s", "control_bytes")


@dataclass(frozen=True)
class Past:
    """What was complete when a run was continued."""

    state: AdmmState | None = None  # after the last complete round; None before the first
    rounds: tuple[dict[str, Any], ...] = ()  # what result.json says of each complete round
    elapsed_s: float = 0.0  # seconds of work until the last of them
    # Bytes of the small messages until then, by site.
    control_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    resumed_at: tuple[str, ...] = ()  # when the run was continued before
    # The memberships of the run, as events.jsonl tells them, and the sites that were ejected.
    membership: Membership = field(default_factory=Membership)
    # Sites whose enrolment ended while the run went on, with the last round that was complete then.
    turned_out: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def round(self) -> int:
        """Complete rounds."""
        return 0 if self.state is None else self.state.round

    def last_answered(self) -> dict[str, int]:
        """The last complete round that each site contributed to."""
        return {site: entry["round"] for entry in self.rounds for site in entry["contributed"]}

    def traffic(self) -> Traffic:
        """Bytes of the complete rounds; messages after the last of them were not recorded."""
        traffic = Traffic()
        for entry in self.rounds:
            for site, counted in entry["bytes"].items():
                traffic.up[site][entry["round"]] = counted["up"]["serialised"]
                traffic.down[site][entry["round"]] = counted["down"]["serialised"]
        traffic.control.update(self.control_bytes)
        return traffic


def read_past(state_file: Path, events: Path, plan: Plan, kept: KeptCheckpoints) -> Past:
    """How far a run has come: as far as its checkpoint says. Each of these rounds must have its line in events.jsonl.

    Raises ResultError if a file cannot be read, a round has no line, or there is no checkpoint of a run that has
    complete rounds.
    """
    try:
        known = state_file.exists()
    except OSError as error:
        raise ResultError(f"{error.filename} cannot be read: {error.strerror}") from error
    lines = list(_lines(events))
    state = checkpoint.load(state_file, plan_digest=plan.digest()) if known else None
    resumed_at = tuple(line["time"] for line in lines if line.get("event") == "resumed")
    turned_out = {line["site"]: line["after_round"] for line in lines if line.get("event") == TURNED_OUT}
    memberships = replay(lines)
    # The line is written before the checkpoint: a round that was repeated has several lines, and the last one counts.
    rounds: dict[int, dict[str, Any]] = {}
    for line in lines:
        if line.get("event") == "round":
            rounds[line["round"]] = line
        elif line.get("event") == EJECTED:
            rounds = {t: known for t, known in rounds.items() if t <= line["after_round"]}
    if state is None and max(rounds, default=0) > 1:  # of round 1 alone, a crash may have prevented the checkpoint
        raise _lost(state_file, max(rounds), kept)
    for ejected in memberships.ejected:
        if state is not None and ejected.site in state.sites and state.round > ejected.after_round:
            # A crash came between the line and the checkpoint of a run that was set back.
            before = ejected.after_round
            state = checkpoint.load(kept.file(before), plan_digest=plan.digest()) if before else None
    if (
        state is not None
        and plan.secure_aggregation
        and any(one.after_round > state.round for one in memberships.ejected)
    ):
        raise ResultError(
            f"{state_file} is older than the loss of a site: the others have answered the sums that it would ask for",
            remedy="Put the newest checkpoint back; a run with secure aggregation is not set back.",
        )
    if state is None:
        return Past(resumed_at=resumed_at, membership=memberships, turned_out=turned_out)
    state = without(state, [ejected.site for ejected in memberships.ejected])
    missing = [t for t in range(1, state.round + 1) if t not in rounds]
    if missing:
        raise ResultError(
            f"{events} has no line for round {missing[0]}, but the checkpoint is of round {state.round}; restore both"
        )
    last = rounds[state.round]
    return Past(
        state=state,
        rounds=tuple(
            {key: value for key, value in rounds[t].items() if key not in _ONLY_IN_EVENTS}
            for t in range(1, state.round + 1)
        ),
        elapsed_s=last["elapsed_s"],
        control_bytes=last["control_bytes"],
        resumed_at=resumed_at,
        membership=memberships,
        turned_out={site: min(t, state.round) for site, t in turned_out.items()},
    )


def membership_of(events: Path) -> Membership:
    """The memberships of a run as its events.jsonl tells them now. Raises ResultError if it cannot be read."""
    return replay(_lines(events))


def _lines(events: Path) -> Iterator[dict[str, Any]]:
    try:
        return _objects(events.read_bytes().split(b"\n")) if events.exists() else iter(())
    except OSError as error:
        raise ResultError(f"{error.filename} cannot be read: {error.strerror}") from error


def _lost(state_file: Path, t: int, kept: KeptCheckpoints) -> ResultError:
    earlier = [kept.file(k) for k in kept.rounds()[-1:]]
    copied = "".join(f", or copy {file} there, which the run can go on from" for file in earlier)
    return ResultError(
        f"{state_file}, the state after round {t}, is missing",
        remedy=f"Put it back from a backup{copied}; or begin a new run in another folder.",
    )


def _objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects of the complete lines; a line that a crash cut off is skipped."""
    for line in lines:
        try:
            content = json.loads(line, parse_constant=lambda name: None)  # of older versions: Infinity, NaN
        except ValueError:
            continue
        if isinstance(content, dict):
            yield content
