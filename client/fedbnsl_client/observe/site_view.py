"""What the site's page shows: the plan, what left the site in which round and at which price, and what is left."""

import time
from collections.abc import Mapping
from typing import Any

from fedbnsl.console.shown import shown
from fedbnsl.events.emitter import Event
from fedbnsl.rounds.kinds import KINDS
from fedbnsl.web.publisher import SnapshotPublisher

_MOST_RELEASES = 2000
_MOST_LINES = 500

# Settings of a plan that name other sites.
_OF_OTHERS = ("sites",)


class SiteView:
    """What the page of one site shows; its name is known before the run only as far as its folder has it."""

    def __init__(self, site: str, coordinator: str) -> None:
        self.publisher = SnapshotPublisher({"releases": _MOST_RELEASES, "log": _MOST_LINES})
        self.is_over = False
        self._site, self._coordinator = site, coordinator
        self._plan: Mapping[str, Any] | None = None
        self._budget: Mapping[str, Any] | None = None
        self._state, self._since = "calls the coordinator", time.time()
        self._round, self._stage = 0, ""
        self._leaving = self._away = False
        self._n_releases, self._n_bytes, self._zcdp = 0, 0, 0.0
        self.publisher.show("site", self._about)
        self.publisher.show("now", self._now)

    def heard(self, event: Event) -> None:
        """Take in an event of the site's run; listens to `fedbnsl.events.emitter.Events`."""
        fields, kind = event.fields, event.kind
        if kind == "run joined":
            self._plan, self._zcdp = fields, fields["paid_zcdp"]
            self._set(event, "waits for a task")
            self.publisher.show("site", self._about)
        elif kind == "round asked":
            self._round, self._stage = fields["round"], fields["stage"]
            self._set(event, "computes")
        elif kind == "released":
            self._released(event)
            self._set(event, "waits for a task")
        elif kind in ("coordinator away", "coordinator back"):
            self._away = kind == "coordinator away"
        elif kind == "budget":
            self._budget = fields
        elif kind == "budget low":
            self.note(
                f"budget low: epsilon {fields['spent_epsilon']:.4g} of {fields['max_epsilon']:g} is spent for "
                f"{fields['dataset']}"
            )
        elif kind == "not taken part":
            self.note(f"this site does not take part: {fields['why']}")
        elif kind == "run over":
            self.is_over = True
            self._set(event, "left" if fields["outcome"] == "LeftError" else "over")
            self.note(f"the run is over here: {fields['outcome']}")
        self.publisher.show("now", self._now)

    def note(self, text: str) -> None:
        """A line for the log: what the site's process tells its operator."""
        self.publisher.add("log", [round(time.time(), 1), shown(text)])

    def asked_to_leave(self) -> None:
        """The button was pressed."""
        self._leaving = True
        self.note("asked to leave after the present round")
        self.publisher.show("now", self._now)

    def _set(self, event: Event, state: str) -> None:
        self._state, self._since = state, event.time_unix_s

    def _released(self, event: Event) -> None:
        fields = event.fields
        zcdp = fields["zcdp"]
        self._n_releases += 1
        self._n_bytes += fields["n_bytes"]
        self._zcdp += zcdp or 0.0
        self.publisher.add(
            "releases",
            {
                "time": round(event.time_unix_s, 1),
                "round": fields["round"],
                "stage": fields["stage"],
                "what": KINDS[fields["stage"]].RELEASES,
                "bytes": fields["n_bytes"],
                "zcdp": zcdp,
                "again": bool(fields["again"]),
            },
        )

    def _about(self) -> dict[str, Any]:
        plan = self._plan
        known: dict[str, Any] = {"site": self._site, "coordinator": self._coordinator, "joined": plan is not None}
        if plan is None:
            return known
        return {
            **known,
            "plan": shown(plan["plan_name"]),
            "digest": plan["plan"],
            "rounds": plan["rounds"],
            "dataset": plan["dataset"],
            "rows": plan["n_samples"],
            "price": plan["price"],
            "settings": [[name, value] for name, value in plan["settings"].items() if name not in _OF_OTHERS],
        }

    def _now(self) -> dict[str, Any]:
        return {
            "time": round(time.time(), 1),
            "state": self._state,
            "since": self._since,
            "round": self._round,
            "stage": self._stage,
            "leaving": self._leaving,
            "away": self._away and not self.is_over,
            "over": self.is_over,
            "n_releases": self._n_releases,
            "n_bytes": self._n_bytes,
            "zcdp": self._zcdp,
            "budget": self._budget,
        }
