"""What happens in a run, while it happens: pages, hooks, traces and metrics listen to the same events.

    emit = Events()
    emit.listen(lambda event: print(event.kind, event.fields))
    emit("round over", run="cohort-1", round=3)

An event holds what its own side knows anyhow: the coordinator's own messages, or what a site releases. No value of a
private table, and no count that is private, may enter.

At the coordinator, each with the `run`'s name:

===============  ======================================================================================================
run started      plan (digest, hex), rounds, variables (names), sites (names), after_round (0: from the beginning)
site joined      site, n_samples
site away        site
site back        site
site left        site, why (class: operator, local error, policy, not approved, budget, peers, shortage, schema,
                 certificate, unknown)
round asked      round, stage (kind of round), sites (names)
site answered    site, round, n_bytes
round over       round, stage, acyclicity, edges, undirected, contributed (names), n_bytes (of its tasks and answers),
                 local_s, global_s
paused           reason
goes on
notice           text
run over         outcome, reason
===============  ======================================================================================================

At a site:

================  ======================================================================================================
run joined        plan (digest, hex), plan_name, rounds, dataset, n_samples, price (epsilon, delta, zcdp; None: not
                  counted), paid_zcdp (before, in this run), settings (those that differ from the defaults)
round asked       round, stage
released          round, stage, n_bytes, zcdp (None: not counted), again (whether it had been released before)
not taken part    why (class of the error, or a rule of the site)
coordinator away  it does not answer; the site tries again
coordinator back
budget            dataset, spent_epsilon, max_epsilon, left_epsilon (of one more run), delta, lost_zcdp (of what is
                  spent: charged for entries that a restored ledger has lost); on joining, and after each release
budget low        dataset, spent_epsilon, max_epsilon
run over          outcome, reason
================  ======================================================================================================
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

_log = logging.getLogger(__name__)

KINDS = (
    "run started",
    "site joined",
    "site away",
    "site back",
    "site left",
    "round asked",
    "site answered",
    "round over",
    "paused",
    "goes on",
    "notice",
    "run joined",
    "coordinator away",
    "coordinator back",
    "released",
    "not taken part",
    "budget",
    "budget low",
    "run over",
)
"""All kinds of events, of both sides."""


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: str  # see the module
    run: str  # name of the run; empty for what belongs to none
    fields: Mapping[str, Any]
    time_unix_s: float = field(default_factory=time.time)  # this machine's clock


Listener = Callable[[Event], None]
"""Takes an event, from any thread; it must return at once, for the run waits for it."""


class Emit(Protocol):
    """Tells that something happened: `Events`, or `silent`."""

    def __call__(self, kind: str, /, *, run: str = "", **fields: object) -> None:
        """Tell it."""
        ...


def silent(kind: str, /, *, run: str = "", **fields: object) -> None:
    """For a run that nobody listens to."""


class Events:
    """Passes each event on to all who listen. One that fails is logged and hears no more: a run never fails for it."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def listen(self, listener: Listener) -> None:
        """Pass on every later event."""
        self._listeners = (*self._listeners, listener)

    def __call__(self, kind: str, /, *, run: str = "", **fields: object) -> None:
        """Tell all who listen."""
        event = Event(kind, run, fields)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                _log.exception("a listener failed at %r and is told no more", kind)
                self._listeners = tuple(one for one in self._listeners if one is not listener)
