"""The folder of a run: one coordinator at a time works in it, and a later one can continue the run from it.

plan.toml        the settings, as agreed; written last of these when a run is made, after run.json and run.lock
run.json         the run's number (schema `fedbnsl.run/2`); a run without it cannot be continued
run.lock         locked by the coordinator that works on the run, for as long as its process lives
events.jsonl     what happened when, one JSON object a line: who has a membership, the rounds
checkpoint.npz   the state after the last complete round; only its owner may read it
checkpoints/     those of some earlier rounds: see `fedbnsl_server.store.kept_checkpoints`
eject-*.json     an operator command to take a site out, and the answer: see `fedbnsl_server.store.operator_commands`

The rest are results: see `fedbnsl_server.results.results`. What cannot be read or written raises ResultError.
"""

import fcntl
import json
import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TextIO

from fedbnsl.errors import ResultError
from fedbnsl.events.logs import EventLog
from fedbnsl.files import durable
from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_server.store import run_id
from fedbnsl_server.store.history import Past, read_past
from fedbnsl_server.store.kept_checkpoints import FOLDER as KEPT
from fedbnsl_server.store.kept_checkpoints import KeptCheckpoints
from fedbnsl_server.store.run_id import RunIdentity

LOCK = "run.lock"
SITE_FORGOTTEN = "site_forgotten"
"""The code of the warning in the result of a run that a site was taken out of after its end."""
OTHER_NAME = re.compile(r"forgotten-(\d+)")
"""What such a site is called there."""
CHECKPOINT = "checkpoint.npz"
EVENTS = "events.jsonl"

_PLAN = "plan.toml"
_RUN_ID = "run.json"
_DIGEST_SHOWN = 12


def holds_a_round(path: Path) -> bool:
    """Whether a run's folder holds what at least one complete round has learned."""
    return (path / CHECKPOINT).exists()


class RunFolder:
    """One run's folder; make it with `create`, `resume` or `open`."""

    def __init__(
        self,
        path: Path,
        plan: Plan,
        identity: RunIdentity | None = None,
        *,
        past: Past | None = None,
        lock: TextIO | None = None,
    ) -> None:
        self.path = path
        self.plan = plan
        self.is_continued = past is not None
        self.past = past or Past()  # what was complete before
        self._identity = identity
        self._lock = lock

    @classmethod
    def create(cls, path: Path, plan: Plan, identity: RunIdentity | None = None) -> Self:
        """Make the folder and write the plan; with an identity, lock it for a run that can be continued.

        Raises ResultError if the folder holds a run already, another coordinator works in it, or it cannot be written.
        """
        lock: TextIO | None = None
        try:
            path.mkdir(parents=True, exist_ok=True)
            refuse_existing_run(path)
            if identity is not None:
                lock = _locked(path)
                refuse_existing_run(path)  # again: another coordinator may have made one just before
                run_id.write(path / _RUN_ID, identity)
            if _ended_before_its_first_round(path):
                for name in (EVENTS, "result.json"):
                    (path / name).unlink(missing_ok=True)
            durable.write_text(path / _PLAN, plan.to_toml())
            folder = cls(path, plan, identity, lock=lock)
            folder.events  # noqa: B018  # fail here if the file cannot be opened
            return folder
        except BaseException as error:
            if lock is not None:
                lock.close()
            if isinstance(error, OSError):
                raise ResultError(f"run folder {path} cannot be written: {error.strerror}") from None
            raise

    @classmethod
    def resume(cls, path: Path, plan: Plan) -> Self:
        """Lock the folder and read how far its run has come; nothing is written.

        Raises ResultError if it holds the run of another plan, another coordinator works on it, or it cannot be read.
        """
        stored = Plan.load(path / _PLAN).digest().hex()
        if stored != plan.digest().hex():
            raise ResultError(
                f"folder {path} holds the run of another plan ({stored[:_DIGEST_SHOWN]}…) than this one "
                f"({plan.digest().hex()[:_DIGEST_SHOWN]}…); continue it with its own plan, by naming the folder in "
                "place of the plan, or choose another folder with --out (in Python, out=)"
            )
        if not (path / CHECKPOINT).exists() and SITE_FORGOTTEN in (result_of(path) or {}).get("warning_codes", ()):
            raise ResultError(
                f"the run in folder {path} is over: a site was forgotten that its checkpoints were of",
                remedy="Its result stays as it is; begin a new run in another folder (--out).",
            )
        try:
            lock = _locked(path)
        except OSError as error:
            raise ResultError(f"run folder {path} cannot be locked: {error.strerror}") from error
        try:
            identity = run_id.read(path / _RUN_ID)
            kept = KeptCheckpoints(path / KEPT, n_rounds(plan))
            past = read_past(path / CHECKPOINT, path / EVENTS, plan, kept)
            return cls(path, plan, identity, past=past, lock=lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(cls, path: Path, plan: Plan, identity: RunIdentity) -> Self:
        """Continue the run in the folder, or begin one with this identity; see `resume` and `create`."""
        return cls.resume(path, plan) if can_be_continued(path) else cls.create(path, plan, identity)

    @property
    def identity(self) -> RunIdentity:
        """The run's number. Raises ResultError if the run cannot be continued, for example a simulation."""
        if self._identity is None:
            raise ResultError(f"the run in folder {self.path} cannot be continued")
        return self._identity

    @cached_property
    def events(self) -> EventLog:
        """The log that events are appended to."""
        return EventLog(self.path / EVENTS)

    @property
    def checkpoint(self) -> Path:
        """Where the state of the run is kept."""
        return self.path / CHECKPOINT

    def forget_checkpoint(self) -> None:
        """Let the run begin again from nothing."""
        try:
            self.checkpoint.unlink(missing_ok=True)
        except OSError as error:
            raise ResultError(f"{self.checkpoint} cannot be deleted: {error.strerror}") from error

    def keep_checkpoint(self, t: int) -> None:
        """Keep the checkpoint of round t, if the run can be continued and the round is one of those that are kept."""
        if self._identity is not None:
            self.kept.keep(self.checkpoint, t)

    @property
    def kept(self) -> KeptCheckpoints:
        """Its earlier checkpoints."""
        return KeptCheckpoints(self.path / KEPT, n_rounds(self.plan))

    def take_up(self) -> None:
        """Note that the run goes on."""
        try:
            self.events.write("resumed", after_round=self.past.round)
        except OSError as error:
            raise ResultError(f"run folder {self.path} cannot be written: {error.strerror}") from error
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.past = replace(self.past, resumed_at=(*self.past.resumed_at, now))

    def finished_result(self) -> dict[str, Any] | None:
        """What result.json holds, if it says that the run is finished."""
        result = result_of(self.path)
        return result if result is not None and result["state"] == "finished" else None

    def close(self) -> None:
        """Let others work in the folder."""
        if "events" in self.__dict__:
            self.events.close()
        if self._lock is not None:
            self._lock.close()


def default_folder(name: str) -> Path:
    """runs/<name>-<UTC time>, the name without unusual characters."""
    readable = re.sub(r"[^\w.-]+", "-", name).strip(".-")[:50] or "run"
    return Path("runs") / f"{readable}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def can_be_continued(path: Path) -> bool:
    """Whether a folder holds the run of a coordinator, finished or not."""
    try:
        return all((path / name).exists() for name in (_PLAN, _RUN_ID))
    except OSError as error:
        raise ResultError(f"run folder {path} cannot be used: {error.strerror}") from error


def load_plan(path: Path) -> Plan:
    """The plan of a run that can be continued. Raises ResultError if the folder holds no such run."""
    if not can_be_continued(path):
        raise ResultError(f"folder {path} holds no run that can be continued: it needs {_PLAN} and {_RUN_ID}")
    return Plan.load(path / _PLAN)


def refuse_existing_run(path: Path) -> None:
    """Raise ResultError if the folder holds results: they are never overwritten.

    A run that ended before its first round, and cannot be continued, left none.
    """
    try:
        if _ended_before_its_first_round(path):
            return
        if any((path / name).exists() for name in (_PLAN, "result.json", "edges.csv")):
            raise ResultError(f"folder {path} holds a run already; results are never overwritten")
    except OSError as error:
        raise ResultError(f"run folder {path} cannot be used: {error.strerror}") from error


def _ended_before_its_first_round(path: Path) -> bool:
    if (path / _RUN_ID).exists() or holds_a_round(path) or (path / "edges.csv").exists():
        return False
    with suppress(ResultError):
        result = result_of(path)
        return result is not None and result.get("rounds") == []
    return False


def result_of(path: Path) -> dict[str, Any] | None:
    """What result.json of a run's folder holds, with its `state` at least; None if there is no such file."""
    file = path / "result.json"
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(result["state"], str):
            raise ValueError("its state is not a text")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultError(f"{file} cannot be read: {error}") from error
    return result


def is_worked_on(path: Path) -> bool:
    """Whether a coordinator works on the run of a folder."""
    try:
        with (path / LOCK).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        raise ResultError(f"{path / LOCK} cannot be looked at: {error.strerror}") from error
    return False


def _locked(path: Path) -> TextIO:
    """The lock file of a folder, locked until it is closed or the process ends in any way."""
    file = (path / LOCK).open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ResultError(f"another coordinator works on run folder {path}; end it first (SIGTERM pauses it)") from None
    except OSError:
        file.close()
        raise
    return file
