"""A command of the operator's that is called when something happens in a run: to send a mail, say.

It gets the event as one JSON object on standard input, its kind in FEDBNSL_EVENT and the run's name in FEDBNSL_RUN:

    {"site": "north", "event": "site away", "run": "cohort-1", "time": "2026-11-23T09:00:00Z"}

It is called in its own thread, for one event after the other, and can neither fail nor slow down a run.
"""

import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, cast

from fedbnsl.console.shown import shown
from fedbnsl.console.wording import first_few
from fedbnsl.errors import SetupError
from fedbnsl.events.emitter import KINDS, Event

_log = logging.getLogger(__name__)

FOR_PEOPLE = (
    "run started",
    "site away",
    "site back",
    "site left",
    "paused",
    "goes on",
    "not taken part",
    "budget low",
    "run over",
)
"""The events that somebody may want to hear of at once."""

TIMEOUT_S = 30.0
LAST_WAIT_S = 10.0
_MOST_WAITING = 100
_KILLED_WITHIN_S = 2.0

# All that the command inherits. What else this process was started with may be a secret, such as PGPASSWORD.
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR")


def kinds_of(text: str) -> tuple[str, ...]:
    """The kinds of events in the value of --hook-events. Raises SetupError if there is no such kind."""
    if text.strip() == "all":
        return KINDS
    named = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in named if name not in KINDS]
    if unknown:
        raise SetupError(
            f"--hook-events: there is no event {first_few(map(repr, unknown))}",
            remedy=f"Name some of these, separated by commas, or all: {', '.join(KINDS)}.",
        )
    return named


class Hook:
    """Listens to events and calls a command for each.

    Raises SetupError if there is no such command.
    """

    def __init__(
        self,
        command: str,  # a program and its arguments, in quotation marks where they hold spaces; no shell reads it
        kinds: Collection[str] = FOR_PEOPLE,  # the events that it is called for
        *,
        timeout_s: float = TIMEOUT_S,  # after so long it is killed, with all processes that it started
        last_wait_s: float = LAST_WAIT_S,  # how long `close` waits for what is still to be told
    ) -> None:
        self._command = _split(command)
        self._kinds = frozenset(kinds)
        self._timeout_s = timeout_s
        self._last_wait_s = last_wait_s
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._dropped = 0
        self._closing = False
        self._given_up = False
        self._process: subprocess.Popen[bytes] | None = None
        self._of_process = threading.Lock()  # not that of the queue: to start a process may take a while
        self._ended = (
            threading.Event()
        )  # `Thread.is_alive` is wrong after a signal has interrupted a join (Python 3.11)
        threading.Thread(target=self._work, name="hook", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        """Call the command for this event once those before it are told; with too many of them the oldest is lost."""
        if event.kind not in self._kinds:
            return
        with self._changed:
            if self._closing:
                return
            if len(self._waiting) == _MOST_WAITING:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(event)
            self._changed.notify()

    def close(self) -> None:
        """Wait a while for what is still to be told, then kill a command that still runs; nothing is told later."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        try:
            self._ended.wait(self._last_wait_s)
        finally:  # also if the waiting is interrupted
            if not self._ended.is_set():
                self._give_up()

    def _give_up(self) -> None:
        with self._of_process:
            self._given_up = True
            untold = len(self._waiting) + (self._process is not None)
            if self._process is not None:
                _kill(self._process)
        _log.warning("the hook was too slow at the end: it was not told, or did not finish with, %d events", untold)
        self._ended.wait(_KILLED_WITHIN_S)

    def _work(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._tell(event)
            except Exception:  # one event is lost, not all later ones
                _log.exception("the hook was not told of %r", event.kind)
        self._ended.set()

    def _next(self) -> Event | None:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if self._dropped:
                _log.warning("the hook is too slow: it was not told of %d events", self._dropped)
                self._dropped = 0
            return self._waiting.popleft() if self._waiting and not self._given_up else None

    def _tell(self, event: Event) -> None:
        line = _line(event)
        with self._of_process:
            if self._given_up:
                return
            try:
                self._process = process = subprocess.Popen(  # noqa: S603  # the operator's own command
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,  # that of this process may be a result in JSON
                    env=_environment(event, os.environ),
                    start_new_session=True,  # Ctrl-C is for this process; and all that it starts can be killed at once
                )
            except OSError as error:
                _log.warning("the hook could not be started at %r: %s", event.kind, error)
                return
        try:
            process.communicate(line, timeout=self._timeout_s)
            if process.returncode and not self._given_up:
                _log.warning("the hook failed at %r with exit code %d", event.kind, process.returncode)
        except subprocess.TimeoutExpired:
            with suppress(OSError), process:  # waits for its end, and drops what it has not read
                _kill(process)
            _log.warning("the hook took longer than %g s at %r and was killed", self._timeout_s, event.kind)
        finally:
            with self._of_process:
                self._process = None


def _split(command: str) -> list[str]:
    try:
        program, *arguments = shlex.split(command)
    except ValueError as error:
        what = "it is empty" if not command.strip() else str(error).lower()
        raise SetupError(f"--hook {command!r} is no command: {what}") from None
    found = shutil.which(program)
    if found is None:
        raise SetupError(
            f"--hook: there is no command {program!r} that may be executed",
            remedy="Name a program of PATH, or the path of one; a script needs `#!` in its first line, and chmod +x.",
        )
    return [str(Path(found).absolute()), *arguments]


def _line(event: Event) -> bytes:
    time = datetime.fromtimestamp(event.time_unix_s, UTC).isoformat().replace("+00:00", "Z")
    content = {**event.fields, "event": event.kind, "run": event.run, "time": time}
    # ASCII alone: what is in a name or a text cannot steer a terminal on which somebody prints it.
    return json.dumps(content, ensure_ascii=True, default=_as_list_or_text).encode() + b"\n"


def _as_list_or_text(value: object) -> object:
    return sorted(map(str, cast("Collection[object]", value))) if isinstance(value, set | frozenset) else str(value)


def _environment(event: Event, own: Mapping[str, str]) -> dict[str, str]:
    passed = {name: value for name, value in own.items() if name in _INHERITED or name.startswith("LC_")}
    return passed | {"FEDBNSL_EVENT": event.kind, "FEDBNSL_RUN": shown(event.run)}


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is not None:  # its number may be another's by now
        return
    with suppress(ProcessLookupError, PermissionError):  # it has just ended
        os.killpg(process.pid, signal.SIGKILL)
