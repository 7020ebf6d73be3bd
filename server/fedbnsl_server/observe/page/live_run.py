"""One run as its page shows it, kept up to date by the run's events; only viewers make work for it."""

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedbnsl.console.wording import counted, counted_edges
from fedbnsl.events.emitter import Event
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.zcdp import zcdp_of
from fedbnsl.protocol.messages import RunStatus, SiteProgress
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl.web.publisher import SnapshotPublisher
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.observe.from_loop import from_loop
from fedbnsl_server.observe.page.present_graph import present_graph
from fedbnsl_server.observe.page.remedies import remedies
from fedbnsl_server.observe.terminal import seconds_left, state_of
from fedbnsl_server.store.run_id import RunIdentity

_MOST_ROUNDS = 2000
_MOST_LINES = 500
_MOST_VARIABLES_NAMED = 2000
_RECENT = 50  # rounds whose seconds count for what is usual


class LiveRun:
    """What the page of one run shows; `past` has the entries of the rounds that were complete before."""

    def __init__(
        self, plan: Plan, folder: Path, identity: RunIdentity, *, past: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.publisher = SnapshotPublisher({"rounds": _MOST_ROUNDS, "log": _MOST_LINES}, thinned=("rounds",))
        self.publisher.refresh = self._refresh
        self.plan, self.folder = plan, folder
        self.outcome = ""  # how the run ended; empty while it goes on
        self._reason = ""
        self._run, self.study = identity.run, identity.study
        self._variables: Sequence[str] = plan.column_names
        self._rows: dict[str, int] = {}
        self._asked: tuple[float, tuple[str, ...]] = (0.0, ())
        self._stage = ""
        self._since = time.time()
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._status: RunStatus | None = None
        self._look: Callable[[], RunStatus] | None = None
        self._ask: Callable[[], RunStatus | None] | None = None
        self._bytes = 0
        for entry in past:
            sent = [way["serialised"] for ways in entry["bytes"].values() for way in ways.values()]
            self._round(entry["round"], entry["kind"], entry, len(entry["contributed"]), sum(sent), None)
        self.publisher.show("run", self._about)
        self.publisher.show("now", self._now)

    @property
    def name(self) -> str:
        """Of the run, and in the address of its page."""
        return self.folder.name

    @property
    def state(self) -> str:
        """Where it stands, in a word or two."""
        return self.outcome or ("waiting for sites" if self._status is None else self._status.state)

    @property
    def progress(self) -> tuple[int, int]:
        """The round in progress, and how many there are."""
        status = self._status
        return (0, n_rounds(self.plan)) if status is None else (status.round, status.rounds)

    @property
    def needs(self) -> str:
        """What stands out now, and what to do about it; empty: nothing."""
        return " ".join(f"{text} {to_do}" for text, to_do in self._now()["warnings"])

    def follow(self, status: Callable[[], RunStatus], loop: asyncio.AbstractEventLoop) -> None:
        """Ask for the run's status on its event loop; only while somebody looks."""
        self._look, self._ask = status, from_loop(loop, status)

    def heard(self, event: Event) -> None:
        """Take in an event of this run."""
        fields, kind = event.fields, event.kind
        if kind == "run started":
            self._variables = fields["variables"]
            self.publisher.show("run", self._about)
            self._line(event, f"the run started with {counted(len(fields['sites']), 'site')}")
        elif kind == "site joined":
            self._rows[fields["site"]] = fields["n_samples"]
        elif kind in ("site away", "site back"):
            where = "has not been heard of for a while" if kind == "site away" else "is back"
            self._line(event, f"{fields['site']} {where}")
        elif kind == "round asked":
            self._asked, self._stage = (event.time_unix_s, tuple(fields["sites"])), fields["stage"]
        elif kind == "round over":
            self._asked = 0.0, ()
            took_s = fields["local_s"] + fields["global_s"]
            self._seconds.append(took_s)
            self._round(fields["round"], fields["stage"], fields, len(fields["contributed"]), fields["n_bytes"], event)
        elif kind in ("paused", "goes on"):
            self._since = event.time_unix_s
        elif kind == "notice":
            self._line(event, fields["text"])
        elif kind == "run over":
            self.outcome, self._reason, self._asked = fields["outcome"], fields["reason"], (0.0, ())
            if self._look is not None:  # here, on the run's own loop: there is none to ask in a moment
                self._status, self._ask = self._look(), None
            self._line(event, f"the run is over: {fields['outcome']}" + (f" ({self._reason})" if self._reason else ""))
        self.publisher.show("now", self._now)

    def show_graph(self, state: AdmmState) -> None:
        """Show the graph of a state from now on; it is drawn when somebody looks."""
        variables = self._variables
        self.publisher.show("graph", lambda: present_graph(state, self.plan, self.plan.edge_mask(variables)))

    def say_report(self, ready: bool, command: str) -> None:
        """The run is over and its folder is written: where its report is, or the command that makes it."""
        self.publisher.show("over", lambda: {"outcome": self.outcome, "report": ready, "command": command})

    def _line(self, event: Event, text: str) -> None:
        self.publisher.add("log", [round(event.time_unix_s, 1), text])

    def _round(
        self, number: int, kind: str, of: Mapping[str, Any], contributed: int, n_bytes: int, event: Event | None
    ) -> None:
        self._bytes += n_bytes
        row = {
            "round": number,
            "stage": kind,
            "h": of["acyclicity"],
            "edges": of["edges"],
            "undirected": of.get("undirected", 0),
            "sites": contributed,
            "bytes": self._bytes,
            "s": round(of["local_s"] + of["global_s"], 4),
        }
        self.publisher.add("rounds", row)
        if event is not None:
            edges = counted_edges(of["edges"], of.get("undirected", 0))
            self._line(event, f"round {number} ({kind}) is over: {counted(contributed, 'site')}, {edges}")

    async def _refresh(self) -> None:
        seen = None if self._ask is None else await asyncio.to_thread(self._ask)
        if seen is not None and self._ask is not None:  # the run may have ended meanwhile, which tells more
            self._status = seen
            self.publisher.show("now", self._now)

    def _about(self) -> dict[str, Any]:
        plan = self.plan
        names = plan.columns(self._variables).variables if self._variables else ()
        return {
            "name": self.name,
            "study": self.study,
            "folder": str(self.folder),
            "run": f"{self._run:016x}",
            "plan": plan.name,
            "digest": plan.digest().hex(),
            "rounds": n_rounds(plan),
            "memberships": plan.n_participants,
            "private": plan.privacy is not None,
            "graph_class": plan.graph_class,
            "threshold": plan.threshold,
            "variables": list(names[:_MOST_VARIABLES_NAMED]),
            "n_variables": len(names),
        }

    def _now(self) -> dict[str, Any]:
        status, now = self._status, time.time()
        asked_at, asked = self._asked
        shown: dict[str, Any] = {"time": round(now, 1), "state": self.state, "reason": self._reason, "warnings": []}
        if status is None:
            return {**shown, "since": self._since, "sites": [], "round": 0, "bytes": self._bytes}
        waited_for = [one.site for one in status.sites if one.site in asked and not one.answered]
        round_s = statistics.median(self._seconds) if self._seconds else 0.0
        found = remedies(
            status,
            self.plan,
            str(self.folder),
            asked_s=now - asked_at if asked_at else None,
            round_s=round_s,
            rounds_seen=len(self._seconds),
        )
        return {
            **shown,
            "reason": self._reason or status.reason,
            "round": status.round,
            "rounds": status.rounds,
            "stage": self._stage,
            "elapsed_s": round(status.elapsed_s, 1),
            "left_s": seconds_left(status),
            "phase": None if self.outcome or status.phase is None else asdict(status.phase),
            "round_s": round(round_s, 4),
            "h": status.acyclicity,
            "edges": status.edges,
            "undirected": status.undirected,
            "since": asked_at or self._since,
            "waited_for": waited_for if asked_at else [],
            "bytes": sum(one.bytes_up + one.bytes_down for one in status.sites),
            "warnings": [list(one) for one in ([] if self.outcome else found)],
            "sites": [
                {
                    "site": one.site,
                    "state": _state_of(one, status, asked),
                    "rows": self._rows.get(one.site),
                    "seen": round(now - one.last_seen_s, 1),
                    "last_round": one.last_round,
                    "up": one.bytes_up,
                    "down": one.bytes_down,
                    "zcdp": None if one.spent_units is None else zcdp_of(one.spent_units),
                }
                for one in status.sites
            ],
        }


def _state_of(site: SiteProgress, status: RunStatus, asked: Sequence[str]) -> str:
    state = state_of(site, status)
    if state != "working":
        return state
    return "works" if site.site in asked else "waits"
