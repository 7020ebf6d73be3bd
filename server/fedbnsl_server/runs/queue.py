"""The runs in a folder, and what their operator wants of each: small files that commands write and the service reads.

    FOLDER/NAME/queue.json          the run's number and study, and what is wanted of it: run, pause or stop; since when
    FOLDER/NAME/queued-plan.toml    its plan, until the run begins and has its own

The rest of FOLDER/NAME is a run folder: see `fedbnsl_server.store.run_folder`. A run is over when its result says so.
"""

import json
import re
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.files import durable
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RUN_STATES, run_tag
from fedbnsl.protocol.offer_codec import QUEUED
from fedbnsl_server.store.history import membership_of
from fedbnsl_server.store.run_folder import (
    EVENTS,
    can_be_continued,
    default_folder,
    holds_a_round,
    is_worked_on,
    result_of,
)

WANTS = ("run", "pause", "stop")
OVER = ("finished", "failed")
WAITING = "waiting"
OPEN = ("running", WAITING)
"""How it is told that a coordinator works on a run: it waits for sites until all have joined."""
_DONE = {"pause": "paused", "stop": "stopped"}

_QUEUE = "queue.json"
_PLAN = "queued-plan.toml"
_SCHEMA = "fedbnsl.queue/1"
_NAME = re.compile(r"[\w][\w.-]{0,99}")


@dataclass(frozen=True)
class QueuedRun:
    """A run of the folder."""

    folder: Path
    run: int  # its number, 64 bits
    wanted: str  # one of WANTS
    since: datetime  # when that was said; runs are begun in this order
    study: str = ""  # what it belongs to; no part of the plan, which sites approve

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    def plan(self) -> Plan:
        """Its plan. Raises PlanError or ResultError if it cannot be read."""
        return Plan.load(self.folder / ("plan.toml" if can_be_continued(self.folder) else _PLAN))

    def state(self) -> str:
        """Where it stands: "queued", "running" while a coordinator works on it, or the state in its result."""
        if not can_be_continued(self.folder):
            return QUEUED
        if is_worked_on(self.folder):
            return "running"
        result = result_of(self.folder)
        if result is None or result["state"] not in RUN_STATES:  # killed before its first result
            return "interrupted"
        return str(result["state"])

    def shown(self) -> str:
        """Where it stands, for people: as `state`, but "waiting" for sites, or "paused" or "stopped" as wanted."""
        state = self.state()
        if state == "running":
            return state if self.awaited() is None else WAITING
        return state if state in OVER or self.wanted == "run" else _DONE[self.wanted]

    def awaited(self) -> tuple[str, ...] | None:
        """The sites of its plan that have not joined yet; None once all have, as its events tell.

        Of a plan that names no sites, nobody knows which: then it is empty.
        """
        if holds_a_round(self.folder):  # before the first round, events.jsonl is short
            return None
        plan, now = self.plan(), membership_of(self.folder / EVENTS)
        out = {one.site for one in now.ejected}
        if len(now.members) >= plan.n_participants - len(out):
            return None
        return tuple(site for site in plan.sites if site not in now.members and site not in out)

    def is_over(self) -> bool:
        """Whether it ended, or was stopped for good as far as its operator said."""
        state = self.state()
        return state in OVER or (self.wanted == "stop" and state != "running")


def add(folder: Path, plan: Plan, name: str = "", study: str = "") -> QueuedRun:
    """Queue a new run; without a name its folder gets the plan's name and the time.

    Raises SetupError if a name is not usable or taken, ResultError if the folder cannot be written.
    """
    name = name or default_folder(plan.name).name
    for what, given in (("run", name), ("study", study or name)):
        if not _NAME.fullmatch(given):
            raise SetupError(f"{given!r} cannot be the name of a {what}: use letters, digits, '.', '-', '_'")
    place = folder / name
    durable.make_folder(folder)
    try:
        place.mkdir()
    except FileExistsError:
        raise SetupError(f"{place} is there already", remedy="Choose another --name.") from None
    except OSError as error:
        raise ResultError(f"{place} cannot be made: {error.strerror}") from None
    durable.write_text(place / _PLAN, plan.to_toml())
    taken = {run_tag(one.run) for one in all_runs(folder, skip=lambda place, error: None)} | {0}
    while run_tag(number := secrets.randbits(64)) in taken:  # small messages tell runs apart by their tags
        continue
    run = QueuedRun(place, number, "run", datetime.now(UTC), study)
    _write(run)  # last: without it, the folder is not a run's
    return run


def want(run: QueuedRun, wanted: str) -> QueuedRun:
    """Say what is wanted of a run from now on. Raises ResultError if it cannot be written."""
    changed = replace(run, wanted=wanted, since=datetime.now(UTC))
    _write(changed)
    return changed


def read(place: Path) -> QueuedRun:
    """The run in a folder. Raises ResultError if there is none, or its queue.json cannot be read."""
    file = place / _QUEUE
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if content["schema"] != _SCHEMA or content["wanted"] not in WANTS:
            raise ValueError(f"not of the format {_SCHEMA}")
        since, run = datetime.fromisoformat(content["since"]), int(content["run"], 16)
        if since.tzinfo is None or not 0 < run < 2**64:
            raise ValueError("a time without a zone, or no number of 64 bits")
        return QueuedRun(place, run, content["wanted"], since, str(content.get("study", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ResultError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def all_runs(folder: Path, *, skip: Callable[[Path, ResultError], None]) -> list[QueuedRun]:
    """All runs of a folder that can be read, the oldest wish first; `skip` is told of those that cannot."""
    found: list[QueuedRun] = []
    for place in _places(folder):
        try:
            found.append(read(place))
        except ResultError as error:
            skip(place, error)
    return sorted(found, key=lambda one: (one.since, one.name))


def named(folder: Path, name: str) -> QueuedRun:
    """The run of that name, or of the folder that `name` is the path of. Raises SetupError if there is none."""
    known = {place.name: place for place in _places(folder)}
    elsewhere = len(Path(name).parts) > 1 and Path(name).resolve().parent != folder.resolve()
    if elsewhere or Path(name).name not in known:
        raise SetupError(f"{folder} has no run {name!r}; its runs: {', '.join(sorted(known)) or 'none'}")
    return read(known[Path(name).name])


def remove(run: QueuedRun) -> None:
    """Delete a run's folder with all its results. Raises ResultError if a coordinator works on it."""
    if can_be_continued(run.folder) and is_worked_on(run.folder):
        raise ResultError(
            f"a coordinator works on {run.folder}",
            remedy="End it first: fedbnsl coordinator runs stop "
            f"{shlex.quote(str(run.folder.parent))} {run.name}; a run that is over is let go a moment later.",
        )
    try:
        (run.folder / _QUEUE).unlink()  # first: half a folder is no run
        shutil.rmtree(run.folder)
    except OSError as error:
        raise ResultError(f"{run.folder} cannot be deleted: {error.strerror}") from None


def stamp(folder: Path) -> dict[str, tuple[int, ...]]:
    """Changes whenever a run of the folder does, and is cheap to read."""
    return {
        place.name: tuple(part for name in (_QUEUE, "result.json", "plan.toml") for part in _stamp(place / name))
        for place in _places(folder)
    }


def result_stamp(place: Path) -> tuple[int, int]:
    """Changes whenever the result of a run does."""
    return _stamp(place / "result.json")


def _stamp(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def _places(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(file.parent for file in folder.glob(f"*/{_QUEUE}"))
    except OSError as error:
        raise ResultError(f"{folder} cannot be read: {error.strerror}") from None


def _write(run: QueuedRun) -> None:
    content = {
        "schema": _SCHEMA,
        "run": f"{run.run:016x}",
        "wanted": run.wanted,
        "since": run.since.isoformat(),
        "study": run.study,
    }
    durable.write_text(run.folder / _QUEUE, json.dumps(content, indent=1) + "\n")
