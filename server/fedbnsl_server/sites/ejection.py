"""Whether a site can be taken out of a run, and after which round the run then goes on."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from fedbnsl.errors import SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.rules import FEWEST_FOR_ROBUST
from fedbnsl.protocol.messages import Loss, Yields
from fedbnsl.rounds.kinds import KINDS, n_rounds
from fedbnsl_server.results.sentences import note, sentence

_LEAST_SITES = 2


@dataclass(frozen=True)
class Ejected:
    """A site that was taken out of a run."""

    order: str  # id of the operator command
    site: str
    from_round: int | None  # as the operator asked; None: no complete round is repeated
    after_round: int  # the last round that holds what the site sent; 0: none does
    n_samples: int  # rows of its table; 0 if it had not joined
    time: str  # when, in UTC

    def set_back(self, after_round: int) -> "Ejected":
        """The same once the run has been set back: no later round holds anything any more."""
        return replace(self, after_round=min(self.after_round, after_round))

    @property
    def sentence(self) -> str:
        """What a reader of the result should know of it."""
        return left_in_the_result(self.site, self.after_round)


def left_in_the_result(site: str, after_round: int) -> str:
    """What an ejection has left in the result, whose last round that holds something of the site is `after_round`."""
    return sentence(note("ejected", site=site, round=after_round))


def in_short(after_round: int, from_round: int | None) -> str:
    """An ejection in a few words, for a table."""
    if not after_round:
        return "ejected: nothing of it is in the result"
    return f"ejected after round {after_round}" if from_round is None else f"ejected from round {after_round + 1} on"


def ejected_before(site: str, after_round: int) -> SetupError:
    """The refusal of a second command about a site: the first one is final."""
    remedy = f"For a result that holds nothing of {site}, begin a new run without it, in another folder."
    return SetupError(
        f"{left_in_the_result(site, after_round)}. That is final: the run cannot be set back for {site} any more",
        remedy=remedy if after_round else "There is nothing left to take out.",
    )


def _round_to_repeat(
    site: str, from_round: int | None, *, plan: Plan, n_lost: int, rounds: Sequence[Mapping[str, Any]]
) -> int:
    """Secure aggregation: ask the round again of the other sites, as often as the privacy cost includes."""
    remedy = (
        f"Bring {site} back; or end this run, with Ctrl-C at the coordinator, and begin a new one without {site}, in "
        "another folder: it has its own privacy cost."
    )
    if from_round not in (None, len(rounds) + 1):
        raise SetupError(
            "sums that hold what a site sent stay: only the present round can be asked again without it", remedy=remedy
        )
    if len(rounds) == n_rounds(plan):
        raise SetupError("every round is complete: no round is left to ask again", remedy=remedy)
    if n_lost >= plan.retries:
        raise SetupError(
            "masks cancel only in the sum over all sites of the run, and the plan allows for "
            f"{plan.retries} lost sites (privacy.secure_aggregation_retries)",
            remedy=remedy,
        )
    return len(rounds)


def losses(ejected: Iterable[Ejected]) -> tuple[Loss, ...]:
    """Sites that were taken out of a run with secure aggregation, each with the round that was given up."""
    return tuple(Loss(one.site, one.after_round + 1) for one in ejected)


def round_to_go_on_after(
    site: str,
    from_round: int | None,
    *,
    plan: Plan,
    members: Set[str],  # sites with a membership
    ejected: Collection[Ejected],  # sites that were taken out before
    rounds: Sequence[Mapping[str, Any]],  # what result.json says of each complete round
    kept: Sequence[int],  # rounds whose checkpoints are there, beside the last one's
) -> int:
    """The round after which a run goes on without the site.

    Raises SetupError if the site cannot be taken out; the text says what else can be done.
    """
    for one in ejected:
        if one.site == site:
            raise ejected_before(site, one.after_round)
    if site not in members and site not in plan.sites:
        known = ", ".join(sorted(members | set(plan.sites) - {one.site for one in ejected})) or "none so far"
        raise SetupError(f"no site {site!r} in this run; its sites: {known}")
    if plan.secure_aggregation:
        return _round_to_repeat(site, from_round, plan=plan, n_lost=len(ejected), rounds=rounds)
    fewest = _LEAST_SITES if plan.consensus == "mean" else FEWEST_FOR_ROBUST
    left, least = plan.n_participants - len(ejected) - 1, max(fewest, plan.quorum)
    if left < least:
        raise SetupError(
            f"without {site} the run would have {left} site{'' if left == 1 else 's'}, and it needs {least}",
            remedy="Begin a new run, in another folder, with other sites.",
        )
    done = len(rounds)
    if from_round is not None and not 1 <= from_round <= done + 1:
        raise SetupError(f"--from-round {from_round}: {done} rounds are complete; name one from 1 to {done + 1}")
    after = done
    if from_round is not None and from_round <= done:
        after = max((t for t in kept if t < from_round), default=0)
    if after < done and plan.privacy is not None:
        raise SetupError(
            f"a private run is not set back: sites never draw again what they have released, so that the rounds "
            f"{after + 1} to {done} would be answered as they were, under weights that {site} had a part in",
            remedy=f"Leave --from-round out, or begin a new run without {site}; it has its own privacy cost.",
        )
    for entry in rounds[:after]:
        if KINDS[entry["kind"]].YIELDS is not Yields.W and site in entry["contributed"]:
            t, kind = entry["round"], entry["kind"].replace("_", " ")
            remedy = f"Repeat it: --from-round {t}."
            if plan.privacy is not None:
                remedy = f"Begin a new run without {site}: a private run is not set back."
            raise SetupError(f"round {t} ({kind}) went into the result whole, with what {site} sent", remedy=remedy)
    if after == n_rounds(plan):
        raise SetupError(
            f"every round is complete: no round is left to go on with without {site}",
            remedy="Repeat some, by --from-round, or begin a new run without it.",
        )
    return after
