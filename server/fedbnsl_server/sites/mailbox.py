"""Exchange: how one round's tasks reach the sites and their updates come back.

`round_loop.run` knows only the protocol `Exchange`. `Mailbox` implements it for gRPC, the experiments in-process.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from fedbnsl.console.wording import first_few
from fedbnsl.errors import (
    InterruptedRunError,
    MembershipLostError,
    QuorumLostError,
    RemoteProtocolError,
    StaleRoundError,
)
from fedbnsl.events.emitter import Emit, silent
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.channel import AWAY_S
from fedbnsl.protocol.messages import NOT_JOINED, Finished, LocalUpdate, RoundTask, SiteState

# How often it is looked during a round who is away.
_LOOK_S = 1.0


class RecalledError(Exception):
    """The open round was taken back: it is asked again, or an earlier one is."""


UpdateCheck = Callable[[LocalUpdate], None]


class Traffic:
    """Serialised bytes of the messages of a run, by site, round and direction."""

    def __init__(self) -> None:
        # Of updates and of tasks: up[site][round]. Control has all else, both ways: joins, polls, receipts, the end.
        self.up: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.down: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.control: dict[str, int] = defaultdict(int)

    def of_round(self, t: int) -> int:
        """Bytes of all tasks and updates of a round."""
        return sum(rounds.get(t, 0) for way in (self.up, self.down) for rounds in list(way.values()))


class Exchange(Protocol):
    """One round's way to the sites and back."""

    @property
    def traffic(self) -> Traffic:
        """What has been sent so far."""
        ...

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        """Hand out one task a site, all for the same round, and return the updates that came in time.

        Snapshots, B_p and beta_p before this round, are for a site that lost its own; `check` raises
        RemoteProtocolError for an update that does not fit its task and is not accepted. Raises QuorumLostError if too
        few sites answered before the run's deadline; InterruptedRunError if the run was asked to stop; RecalledError if
        the round was taken back.
        """
        ...


@dataclass(frozen=True)
class CompleteRounds:
    """What is complete of a run that is continued."""

    n: int = 0
    snapshots: Mapping[str, SiteState] = field(default_factory=dict[str, SiteState])  # B_p and beta_p after them
    answered: Mapping[str, int] = field(default_factory=dict[str, int])  # the last round that each site contributed to


class Mailbox:
    """Tasks wait here to be pulled, updates are pushed here.

    All state is touched on one event loop only; `exchange` is called from the thread of the round engine. `round` is
    the open round, between rounds the last one; `complete_rounds` are those before it, `snapshots` is after them.
    """

    def __init__(
        self,
        plan: Plan,
        loop: asyncio.AbstractEventLoop,
        # Called with a text when a round waits longer than `site_grace_s`, and when a site is away or back.
        notice: Callable[[str], None] = lambda text: None,
        *,
        past: CompleteRounds = CompleteRounds(),
        traffic: Traffic | None = None,  # until the last complete round
        # Whether nothing has been heard of a site for long: a round that has its quorum does not wait for it.
        is_away: Callable[[str], bool] = lambda site: False,
        # Told of rounds that are asked, and of sites that are away or back; see `fedbnsl.events.emitter`.
        emit: Emit = silent,
    ) -> None:
        self.traffic = traffic or Traffic()
        self._past = past
        self.snapshots = past.snapshots
        self.complete_rounds = self.round = past.n
        self._met: set[str] = set()  # who has joined here or has a task from here
        self._plan = plan
        self._loop = loop
        self._tasks: Mapping[str, RoundTask] = {}
        self._check: UpdateCheck | None = None
        self._posted = asyncio.Event()  # replaced whenever there is something new to pull
        self._updates: dict[str, LocalUpdate] = {}
        self._last_accepted: dict[str, LocalUpdate] = {}
        self._open = False
        self._left: set[str] = set()
        self._is_away = is_away
        self._away: set[str] = set()  # who was away when it was looked last
        self._awaited: set[str] = set()  # who has the task, has not answered it, has not left and is not away
        self._enough = asyncio.Event()
        self._quorum_is_enough = False
        self._finished: Finished | None = None
        self._untold: set[str] = set()  # who has not left, and has not heard that the run is over
        self._all_told = asyncio.Event()
        self._stopped = self._recalled = False
        self._notice = notice
        self._emit = emit

    # ---- the engine's side -------------------------------------------------------------------------------------

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        """See `Exchange.exchange`."""
        return asyncio.run_coroutine_threadsafe(self._exchange(tasks, snapshots, check), self._loop).result()

    async def _exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        if self._recalled:
            raise RecalledError
        self._tasks, self.snapshots, self._check, self._updates = tasks, snapshots, check, {}
        self.round = next(iter(tasks.values())).round
        self.complete_rounds = self.round - 1
        self._awaited = set(tasks) - self._left
        self._open = True
        stage = next(iter(tasks.values())).content.kind
        self._emit("round asked", round=self.round, stage=stage, sites=sorted(tasks))
        self._announce()
        looking = asyncio.ensure_future(self._look_who_is_away())
        try:
            return await self._collect()
        finally:
            self._open = False
            looking.cancel()

    async def _collect(self) -> Mapping[str, LocalUpdate]:
        round_s = min(self._plan.round_deadline_s, self._plan.run_deadline_s)
        grace_s = min(self._plan.site_grace_s, round_s)
        if not await self._wait(grace_s, quorum_is_enough=False):
            self._notice(f"round {self.round} waits for {', '.join(self._missing)}")
            await self._wait(round_s - grace_s, quorum_is_enough=False)
        if len(self._updates) < self._needed and not (self._stopped or self._recalled):
            await self._wait(self._plan.run_deadline_s - round_s, quorum_is_enough=True)
        if self._stopped:
            raise InterruptedRunError(f"stopped in round {self.round}")
        if self._recalled:
            raise RecalledError
        if len(self._updates) < self._needed:
            lost = QuorumLostError(
                f"round {self.round}: {len(self._updates)} of the needed {self._needed} sites answered within "
                f"run_deadline_s = {self._plan.run_deadline_s:g} s; missing: {', '.join(self._missing)}"
            )
            lost.missing = self._missing
            raise lost
        self._last_accepted.update(self._updates)
        return dict(self._updates)

    async def _wait(self, seconds: float, *, quorum_is_enough: bool) -> bool:
        """Wait for every site that may still answer, or for a quorum; False if the time is over first."""
        self._quorum_is_enough = quorum_is_enough
        self._enough.clear()
        self._check_enough()
        try:
            await asyncio.wait_for(self._enough.wait(), seconds)
        except TimeoutError:
            return False
        return True

    @property
    def _needed(self) -> int:
        """The plan's quorum; without one, all sites that the round is for."""
        return self._plan.quorum or len(self._tasks)

    async def _look_who_is_away(self) -> None:
        while True:
            for site in sorted(self._awaited):
                if self._is_away(site):
                    self._awaited.discard(site)
                    if site not in self._away:
                        self._away.add(site)
                        self._notice(f"{site} is away: it has not been heard of for {AWAY_S:g} s")
                        self._emit("site away", site=site)
            self._check_enough()
            await asyncio.sleep(_LOOK_S)

    @property
    def _missing(self) -> tuple[str, ...]:
        return tuple(sorted(set(self._tasks) - set(self._updates)))

    def _check_enough(self) -> None:
        quorum = len(self._updates) >= self._needed
        if self._stopped or self._recalled or (quorum and (self._quorum_is_enough or not self._awaited)):
            self._enough.set()

    def _announce(self) -> None:
        self._posted.set()
        self._posted = asyncio.Event()

    def stop(self) -> None:
        """Make the current and every later exchange end with InterruptedRunError."""
        self._stopped = True
        self._enough.set()

    def recall(self) -> None:
        """Let the present and every later exchange end with RecalledError, until `go_on_after`."""
        self._recalled = True
        self._enough.set()

    def go_on_after(self, past: CompleteRounds) -> None:
        """Forget every later round, as a coordinator does that takes a run up; sites that have seen them join again."""
        self._recalled = self._open = False
        self._tasks, self._updates, self._last_accepted, self._past = {}, {}, {}, past
        self._met.clear()
        self.complete_rounds = self.round = past.n
        self.snapshots = past.snapshots
        for counted in (*self.traffic.up.values(), *self.traffic.down.values()):
            for t in [t for t in counted if t > past.n]:
                del counted[t]
        self._announce()  # whoever is out hears it now

    async def finish(self, finished: Finished, sites: set[str], grace_s: float) -> None:
        """Tell every site that has not left that the run is over; wait at most `grace_s` for them to hear it."""
        self._finished = finished
        self._untold = sites - self._left
        self._all_told.clear()
        self._announce()
        if self._untold:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_told.wait(), grace_s)

    def told(self, site: str) -> None:
        """A site has been sent the end of the run, or will not hear it."""
        self._untold.discard(site)
        if not self._untold:
            self._all_told.set()

    # ---- the sites' side ---------------------------------------------------------------------------------------

    @property
    def answered(self) -> Set[str]:
        """Sites whose update for the current round is here, as a live view."""
        return self._updates.keys()

    @property
    def left(self) -> Set[str]:
        """Sites that have left, as a live view."""
        return self._left

    @property
    def lacking(self) -> str:
        """Whom the open round cannot end without; empty while those who are there can make a quorum."""
        if not self._open or len(self._updates) + len(self._awaited) >= self._needed:
            return ""
        gone = sorted(set(self._tasks) - set(self._updates) - self._awaited)
        return f"waiting for {first_few(gone)} (quorum {self._needed} of {len(self._tasks)})"

    def last_answered(self, site: str) -> int:
        """The last round for which an update of this site was accepted; 0 if none was."""
        update = self._updates.get(site) or self._last_accepted.get(site)
        return self._past.answered.get(site, 0) if update is None else update.round

    def welcome(self, site: str) -> None:
        """A site has called: the open round waits for it, also after it had left or was away."""
        if site in self._left | self._away:
            self._left.discard(site)
            self._away.discard(site)
            self._notice(f"{site} is back")
            self._emit("site back", site=site)
        if self._open and site in self._tasks and site not in self._updates:
            self._awaited.add(site)

    def take_over(self, site: str) -> None:
        """A site joins: it starts from `snapshots` after `complete_rounds`, whatever it has seen before."""
        self._met.add(site)
        self.welcome(site)

    def leave(self, site: str) -> None:
        """A site will not answer any more; nobody waits for it beyond the quorum."""
        self._left.add(site)
        self._awaited.discard(site)
        if self._open:
            self._check_enough()
        if self._finished is not None:
            self.told(site)

    async def pull(self, site: str, last_round: int, wait_s: float) -> RoundTask | Finished | None:
        """The next task of a site, the end of the run, or None if nothing new came in `wait_s` seconds.

        Whoever sends the end calls `told`. Raises MembershipLostError if the site has seen rounds that the run does not
        have.
        """
        answer = self._pending(site, last_round)
        if answer is None:
            try:
                await asyncio.wait_for(self._posted.wait(), wait_s)
            except TimeoutError:
                return None
            answer = self._pending(site, last_round)
        return answer

    def _pending(self, site: str, last_round: int) -> RoundTask | Finished | None:
        if self._finished is not None:
            return self._finished
        self._refuse_another_past(site, last_round)
        # A site that has seen the round but has no update here answered a coordinator that stopped before counting it.
        if self._open and site in self._tasks and (self.round > last_round or site not in self._updates):
            self._met.add(site)
            return self._tasks[site]
        return None

    def _refuse_another_past(self, site: str, last_round: int) -> None:
        """Make a site join again if its dual depends on rounds that were lost when the run's folder was restored.

        A quorum may have repeated these rounds without it, so their numbers alone do not show that it is out of date.
        """
        if site in self._met:
            return
        common = min(last_round, self._past.n)
        # Whose answer to round `common` counted had its task, maybe from a coordinator that died before it noted that.
        took_part = not common or self.traffic.down[site][common] or self._past.answered.get(site) == common
        if last_round > self._past.n + 1 or not took_part:
            raise MembershipLostError(
                f"site {site!r} has seen a round {last_round} that this run does not have: it {NOT_JOINED}"
            )

    def dismiss(self) -> None:
        """End waiting pulls without an answer, so that the sites call the next coordinator."""
        self._announce()

    def stored(self, site: str, t: int) -> LocalUpdate | None:
        """The update of a site for round t that was accepted before; None if one is awaited.

        Raises StaleRoundError if neither; MembershipLostError if the site has seen rounds that the run does not have.
        """
        self._refuse_another_past(site, t)
        stored = self._updates.get(site) or self._last_accepted.get(site)
        if stored is not None and stored.round == t:
            return stored
        if not self._open or t != self.round:
            when = f"in round {self.round}" if t != self.round else "after that round had closed"
            raise StaleRoundError(f"update for round {t} arrived {when}; pull the current task")
        return None

    def push(self, update: LocalUpdate) -> bool:
        """Accept an update; True if it repeats one that was accepted before.

        Raises as `stored`, and RemoteProtocolError if another update of this site for the same round is here already,
        it does not fit the task, or the site has none.
        """
        stored = self.stored(update.site, update.round)
        if stored is not None:
            if stored == update:
                return True
            raise RemoteProtocolError(f"a second, different update of {update.site!r} for round {update.round}")
        if update.site not in self._tasks or self._check is None:
            raise RemoteProtocolError(f"site {update.site!r} has no task")
        self._check(update)
        self._updates[update.site] = update
        self._awaited.discard(update.site)
        self._check_enough()
        return False
