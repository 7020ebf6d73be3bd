"""What stands out in a run at present, and what the coordinator's operator can do about it."""

import shlex
from typing import NamedTuple

from fedbnsl.console.wording import first_few
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import ENDED_STATES, RunStatus
from fedbnsl_server.sites.why_left import WHY_LEFT

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

    `asked_s` is how long the present round has waited for answers (None: no round is open), `round_s` the median
    seconds of the `rounds_seen` rounds so far; commands name the run by its `folder`.
    """
    sites = status.sites
    away = [one.site for one in sites if not one.online_s and not one.left]
    left = {one.site: one.why_left for one in sites if one.left}
    is_over = status.state in ENDED_STATES
    ask_or_eject = (
        "Ask the site to join again with the same command, or go on without it: fedbnsl coordinator eject "
        f"{shlex.quote(folder)} SITE."
    )
    found: list[Remedy] = []
    if status.state == "paused":
        to_do = "Make room on this machine. The run goes on by itself."
        found.append(Remedy(f"The run is paused: {status.reason}.", to_do))
    elif status.reason:
        found.append(Remedy(f"Too few sites take part: {status.reason}.", ask_or_eject))
    free = plan.n_participants - len(sites)
    if status.state == "waiting for sites" and free > 0:
        missing = [site for site in plan.sites if site not in {one.site for one in sites}]
        named = f": {first_few(missing)}" if missing else ""
        to_do = "Each joins with fedbnsl participant join; fedbnsl participant check tells it what does not fit."
        found.append(Remedy(f"{free} of {plan.n_participants} sites have not joined{named}.", to_do))
    if away and not is_over:
        to_do = (
            "Ask there whether the process and the network are up. The command that joined joins again, and goes on "
            "where it stopped."
        )
        found.append(Remedy(f"Not heard of for a while: {first_few(away)}.", to_do))
    for why in () if is_over else dict.fromkeys(left.values()):
        of_it = [site for site, own in left.items() if own is why]
        _, text, to_do = WHY_LEFT[why]
        if text:
            found.append(Remedy(f"Left the run: {first_few(of_it)}. Why: {text}.", to_do))
        elif any(site not in status.reason for site in of_it):
            found.append(Remedy(f"Left the run: {first_few(of_it)}.", ask_or_eject))
    if asked_s is not None and rounds_seen >= _FEW_ROUNDS and asked_s >= max(_SLOW_S, _SLOW * round_s):
        slow = [one.site for one in sites if not one.answered and one.site not in (*away, *left)]
        if slow and len(slow) < len(sites):  # if all are slow, it is the round
            to_do = (
                "It is there, and computes: its machine may be busy. The round goes on without it at its deadline if "
                "the plan's quorum allows it."
            )
            found.append(Remedy(f"The round waits for {first_few(slow)}, much longer than rounds took so far.", to_do))
    return found
