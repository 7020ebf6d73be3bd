"""What a run had reached when its coordinator ended: its checkpoint, and what events.jsonl says of its rounds."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.sites.mailbox import Traffic
from fedbnsl_server.sites.membership_log import Membership, replay
from fedbnsl_server.store import checkpoint

# What a round's line holds beyond what result.json says of the round.
_ONLY_IN_EVENTS = ("event", "time", "elapsed_s", "control_bytes")


@dataclass(frozen=True)
class Past:
    """What was complete when a run was taken up again.

    Attributes
    ----------
    state
        After the last complete round; None before the first.
    rounds
        What result.json says of each complete round.
    elapsed_s
        Seconds of work until the last of them.
    control_bytes
        Bytes of the small messages until then, by site.
    resumed_at
        When the run was taken up before.
    membership
        The seats of the run, as events.jsonl tells them.
    """

    state: AdmmState | None = None
    rounds: tuple[dict[str, Any], ...] = ()
    elapsed_s: float = 0.0
    control_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    resumed_at: tuple[str, ...] = ()
    membership: Membership = field(default_factory=Membership)

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


def read_past(state_file: Path, events: Path, plan: Plan) -> Past:
    """How far a run has come: as far as its checkpoint, of which every round has its line.

    Raises
    ------
    ResultError
        If a file cannot be read, or a round has no line.
    """
    try:
        known = state_file.exists()
        lines = list(_objects(events.read_bytes().split(b"\n"))) if events.exists() else []
    except OSError as error:
        raise ResultError(f"{error.filename} cannot be read: {error.strerror}") from None
    state = checkpoint.load(state_file, plan_digest=plan.digest()) if known else None
    resumed_at = tuple(line["time"] for line in lines if line.get("event") == "resumed")
    seats = replay(lines)
    if state is None:
        return Past(resumed_at=resumed_at, membership=seats)
    # The line is written before the checkpoint: a round that was repeated has several lines, and the last one counts.
    rounds: dict[int, dict[str, Any]] = {line["round"]: line for line in lines if line.get("event") == "round"}
    missing = [t for t in range(1, state.round + 1) if t not in rounds]
    if missing:
        raise ResultError(f"{events} lacks round {missing[0]}, which the checkpoint of round {state.round} rests on")
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
        membership=seats,
    )


def _objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """What the whole lines hold; one that a crash has torn is none."""
    for line in lines:
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            yield content
