"""What stands out in a run at present, and what the coordinator's operator can do about it."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from fedbnsl.console.wording import first_few
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RunStatus

_SLOW = 5.0  # times as long as rounds took so far
_SLOW_S = 10.0
_FEW_ROUNDS = 3


class Remedy(NamedTuple):
    """A sentence about what is, and one about what to do."""

    text: str
    to_do: str


def remedies(
    status: RunStatus, plan: Plan, folder: str, *, asked_s: float | None, round_s: float, rounds_seen: int
) -> list[Remedy]:
    """What stands out now; nothing, if all is as it should be.

    Parameters
    ----------
    folder
        The run folder, as it is named in commands.
    asked_s
        How long the present round has been waiting for answers; None: no round is.
    round_s
        Seconds that a round took so far, in the middle.
    rounds_seen
        How many rounds that is known from.
    """
    found: list[Remedy] = []
    if status.state == "paused":
        found.append(
            Remedy(f"The run is paused: {status.reason}.", "Make room on this machine. The run goes on by itself.")
        )
    elif status.reason:
        found.append(Remedy(f"Too few sites take part: {status.reason}.", _ask_or_eject(folder)))
    if status.state == "waiting for sites":
        missing = [site for site in plan.sites if site not in {one.site for one in status.sites}]
        free = plan.n_participants - len(status.sites)
        if free > 0:
            who = f"{free} of {plan.n_participants} sites have not joined" + (
                f": {first_few(missing)}" if missing else ""
            )
            found.append(
                Remedy(
                    f"{who}.",
                    "Each joins with fedbnsl participant join; fedbnsl participant check tells it what does not fit.",
                )
            )
    away = [one.site for one in status.sites if not one.online_s and not one.left]
    left = [one.site for one in status.sites if one.left]
    is_over = status.state in ("finished", "failed", "interrupted")
    if away and not is_over:
        found.append(
            Remedy(
                f"Not heard of for a while: {first_few(away)}.",
                "Ask there whether the process and the network are up. The command that joined joins again, and goes "
                "on where it stopped.",
            )
        )
    if not is_over and any(site not in status.reason for site in left):
        found.append(Remedy(f"Left the run: {first_few(left)}.", _ask_or_eject(folder)))
    found += _slow(status, away + left, asked_s, round_s if rounds_seen >= _FEW_ROUNDS else None)
    return found


def _slow(status: RunStatus, known: Sequence[str], asked_s: float | None, round_s: float | None) -> list[Remedy]:
    if asked_s is None or round_s is None or asked_s < max(_SLOW_S, _SLOW * round_s):
        return []
    slow = [one.site for one in status.sites if not one.answered and one.site not in known]
    if not slow or len(slow) == len(status.sites):
        return []
    return [
        Remedy(
            f"The round waits for {first_few(slow)}, much longer than rounds took so far.",
            "It is there, and computes: its machine may be busy. The round goes on without it at its deadline if the "
            "plan's quorum allows it.",
        )
    ]


def _ask_or_eject(folder: str) -> str:
    return (
        "Ask the site to join again with the same command, or go on without it: fedbnsl coordinator eject "
        f"{shlex.quote(folder)} SITE."
    )
