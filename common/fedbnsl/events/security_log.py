"""The security log of a coordinator or a site: who called, who was refused and why, what was approved and released.

One JSON object a line, in files that only their owner may read: `security-log.jsonl`, then `.1` to `.4`, the older the
higher. Each entry holds the SHA-256 of the line before it, also from file to file, so that a line which is changed,
removed or moved is found (`verify`). A missing end is found by the head (number and hash of the last line), which this
user notes in the state folder after each synced write, or by one that a person noted. There is no key in the chain:
whoever may write the files and the note can compute a new one; only a head noted beyond their reach shows that.

Nothing of a private table may enter: no value, no count that is private, no text of an error that may quote a table.
"""

import fcntl
import hashlib
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from fedbnsl.errors import ResultError, UnknownEndError
from fedbnsl.files import durable
from fedbnsl.files.state_folder import state_folder

NAME = "security-log.jsonl"

MAX_BYTES = 8 * 2**20
N_FILES = 5
_FIRST_LINK = "0" * 64
_LONGEST_TEXT = 300
_TAIL_BYTES = 2**16  # more than any line: texts are cut
# A lock is held for milliseconds. What others cause must not wait for a process that hangs; what this side did may.
_LOCK_S, _OWN_LOCK_S = 0.5, 10.0
_RETRY_S = 10.0
_MOST_WAITING = 1000
_END_MISSING = "end missing"

# Counts of what is repeated are written after the first span, then after twice as long, and so on up to the longest.
_FIRST_SPAN_S = 60.0
_LONGEST_SPAN_S = 600.0
_MOST_KINDS = 256

_log = logging.getLogger(__name__)

Entry = dict[str, Any]


Record = Callable[..., None]
"""Takes an event and its fields: `SecurityLog.enter`, `SecurityLog.count`, or `unrecorded`."""


def unrecorded(event: str, /, **fields: object) -> None:
    """For a process that keeps no security log."""


def once_each(record: Record) -> Record:
    """Pass each entry on once: the other side cannot fill the log by asking for the same again and again."""
    seen: set[tuple[object, ...]] = set()

    def first(event: str, /, **fields: object) -> None:
        entry = (event, *fields.items())
        if entry not in seen:
            seen.add(entry)
            record(event, **fields)

    return first


@dataclass(frozen=True)
class Head:
    """The last entry: what to note elsewhere, as `number:hash`."""

    number: int
    digest: str

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"


@dataclass
class _Repeated:
    fields: Mapping[str, object]
    until: float
    span_s: float = _FIRST_SPAN_S
    times: int = 0


class SecurityLog:
    """One log, which several processes may write to; an error of writing is said once and never raised.

    Entries that cannot be written wait in memory, up to a limit beyond which they are counted as lost. The newest file,
    `path`, is made when there is something to write. `clock` gives seconds, for the counting of repetitions.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.totals: Counter[tuple[str, str]] = Counter()  # how often each `event` and `why` was counted
        self._clock = clock
        self._waiting: list[Entry] = []
        self._repeated: dict[tuple[object, ...], _Repeated] = {}
        self._lost = 0
        self._failed_at: float | None = None

    def enter(self, event: str, /, **fields: object) -> None:
        """Write what this side did itself; on the disk when this returns."""
        self._waiting.append(_entry(event, fields))
        self._write(self._clock(), sync=True, patience_s=_OWN_LOCK_S)

    def count(self, event: str, /, *, times: int = 1, sync: bool = False, **fields: object) -> None:
        """Note what somebody else caused: written at the next `flush`; what is repeated is counted in one line.

        Equal are events with the same `why`, `call` and caller: the certificate, or without one address and site. Their
        line has the other fields of the last one. `sync`: whether the first of its kind is on the disk when this
        returns.
        """
        why = str(fields.get("why", ""))
        self.totals[event, why] += times
        caller = fields.get("certificate") or (fields.get("address"), fields.get("site"))
        kind: tuple[object, ...] = (event, why, fields.get("call"), caller)
        if kind not in self._repeated and len(self._repeated) >= _MOST_KINDS:
            kind, fields = (event,), {"why": "others, of too many kinds to list"}
        known = self._repeated.get(kind)
        if known is not None:
            known.times += times
            known.fields = fields  # its line says what was said last
            return
        self._repeated[kind] = _Repeated(fields, self._clock() + _FIRST_SPAN_S)
        self._waiting.append(_entry(event, fields if times == 1 else {**fields, "times": times}))
        if sync:
            self.flush(sync=True)

    def flush(self, *, sync: bool = False) -> None:
        """Write what waits, and the counts that are due."""
        now = self._clock()
        for kind, one in list(self._repeated.items()):
            if now < one.until:
                continue
            if one.times:
                self._write_count(kind, one)
                one.span_s = min(2 * one.span_s, _LONGEST_SPAN_S)
            else:
                one.span_s /= 2
            one.until = now + one.span_s
            if one.span_s < _FIRST_SPAN_S:
                del self._repeated[kind]
        self._write(now, sync=sync, patience_s=_LOCK_S)

    def close(self) -> None:
        """Write everything that is left."""
        for kind, one in self._repeated.items():
            if one.times:
                self._write_count(kind, one)
        self._repeated.clear()
        self._write(self._clock() + _RETRY_S, sync=True, patience_s=_OWN_LOCK_S)  # once more, whatever failed before
        if self._waiting or self._lost:
            _log.warning("%d entries are not in security log %s", len(self._waiting) + self._lost, self.path)

    def _write_count(self, kind: tuple[object, ...], one: _Repeated) -> None:
        self._waiting.append(_entry(str(kind[0]), {**one.fields, "times": one.times}))
        one.times = 0

    def _write(self, now: float, *, sync: bool, patience_s: float) -> None:
        if not self._waiting:
            return
        if self._failed_at is None or now - self._failed_at >= _RETRY_S:
            entries = self._waiting
            if self._lost:
                lost = _entry("entries lost", {"times": self._lost, "why": "the log could not be written"})
                entries = [*entries, lost]
            try:
                self._append(entries, sync=sync, patience_s=patience_s)
            except OSError as error:
                if self._failed_at is None:
                    _log.warning("security log %s cannot be written: %s; entries wait", self.path, error.strerror)
                self._failed_at = now
            else:
                self._waiting, self._lost, self._failed_at = [], 0, None
        self._lost += len(self._waiting[_MOST_WAITING:])
        del self._waiting[_MOST_WAITING:]

    def _append(self, entries: list[Entry], *, sync: bool, patience_s: float) -> None:
        with _locked(self.path, patience_s):
            cut = _remove_cut_line(self.path)
            if cut:
                entries = [_entry("cut line removed", {"bytes": cut}), *entries]
            number, link = _end_of(self.path)
            noted = _noted_head(self.path)
            if noted is not None and not _has(self.path, noted, Head(number, link)):
                entries = [_entry(_END_MISSING, {"expected": str(noted)}), *entries]
            written = b""
            for entry in entries:
                number += 1
                # In ASCII: no character of a caller's text acts on a terminal.
                line = json.dumps({"n": number, **entry, "previous": link}).encode()
                link = hashlib.sha256(line).hexdigest()
                written += line + b"\n"
            size, is_new = (self.path.stat().st_size, False) if self.path.exists() else (0, True)
            if size and size + len(written) > MAX_BYTES:
                _rotate(self.path)
                size, is_new = 0, True
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _write_whole(descriptor, written, size)
                if sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if is_new and sync:
                durable.sync_folder(self.path.parent)
            if sync:  # what is not on the disk may be lost without anybody's doing
                _note_head(self.path, Head(number, link))


def _entry(event: str, fields: Mapping[str, object]) -> Entry:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"time": now, "event": event, **{name: _cut(value) for name, value in fields.items() if value != ""}}


def _cut(value: object) -> object:
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return value[: _LONGEST_TEXT - 1] + "…"
    return value


def _numbered(path: Path, k: int) -> Path:
    return path.with_name(f"{path.name}.{k}") if k else path


@contextmanager
def _locked(path: Path, patience_s: float = _LOCK_S) -> Generator[None]:
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # another process writes, which takes no time; one that hangs must not hold us up
                if time.monotonic() > until:
                    raise
                time.sleep(0.005)
        yield
    finally:
        os.close(descriptor)


def _rotate(path: Path) -> None:
    for k in range(N_FILES - 1, 0, -1):
        newer = _numbered(path, k - 1)
        if newer.exists():
            newer.replace(_numbered(path, k))


def _write_whole(descriptor: int, content: bytes, size: int) -> None:
    """Append all of it or nothing to a file of a known size."""
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return file.read()


def _remove_cut_line(path: Path) -> int:
    """Remove the last line if a crash cut it short: it was never complete on the disk. Returns its bytes."""
    if not path.exists():
        return 0
    cut = len(_tail(path).rpartition(b"\n")[2])
    if cut:
        os.truncate(path, path.stat().st_size - cut)
    return cut


def _end_of(path: Path) -> tuple[int, str]:
    """Number and hash of the last line; those before the first one if there is none."""
    for newest in (path, _numbered(path, 1)):  # a crash may have ended a rotation in the middle
        if newest.exists() and newest.stat().st_size:
            line = _tail(newest).removesuffix(b"\n").rpartition(b"\n")[2]
            number = _content(line).get("n")
            return number if isinstance(number, int) else 0, hashlib.sha256(line).hexdigest()
    return 0, _FIRST_LINK


def _note_of(path: Path) -> Path | None:
    """Where this user notes the head of the log at `path`; None: nowhere."""
    state = state_folder()
    if state is None:
        return None
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    return state / f"security-log-{digest[:32]}.head"


def _noted_head(path: Path) -> Head | None:
    """The head that this user noted last; None if there is none that can be read."""
    note = _note_of(path)
    if note is None:
        return None
    try:
        number, digest = note.read_text(encoding="ascii").strip().split(":")
        return Head(int(number), digest)
    except (OSError, ValueError):
        return None


def _has(path: Path, noted: Head, end: Head) -> bool:
    """Whether a log with this end has the noted entry. Of later lines without sync, only the tail is read."""
    if end.number <= noted.number:
        return end == noted
    for newest in (path, _numbered(path, 1)):
        if newest.exists():
            for line in _tail(newest).removesuffix(b"\n").split(b"\n")[1:]:
                if _content(line).get("n") == noted.number:
                    return hashlib.sha256(line).hexdigest() == noted.digest
    return True  # it is farther back than the tail


def _note_head(path: Path, head: Head) -> None:
    """Note it where the state of ledgers is noted; without such a folder `verify` cannot tell if the end is there."""
    note = _note_of(path)
    if note is not None:
        with suppress(OSError, ResultError):
            note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            durable.write_text(note, f"{head}\n", mode=durable.OWNER_ONLY)


def _content(line: bytes) -> Entry:
    """The entry of a line; empty if it holds none."""
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return cast(Entry, content) if isinstance(content, dict) else {}


# ---- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One line of the log."""

    # file, number: where it is; lines count from 1
    file: Path
    number: int
    text: bytes  # its bytes, without the end of the line
    entry: Entry  # what it says; empty if it cannot be read


def lines(path: Path) -> Iterator[Line]:
    """Every line, the oldest first; also while others write.

    Raises ResultError if there is no log, or it cannot be read.
    """
    try:
        with ExitStack() as locked:
            with suppress(OSError):  # who may only read cannot lock, and meets at worst a rotation
                locked.enter_context(_locked(path))
            oldest_first = (_numbered(path, k) for k in reversed(range(N_FILES)))
            found = [(name, name.read_bytes()) for name in oldest_first if name.exists()]
    except OSError as error:
        raise ResultError(f"security log {path} cannot be read: {error.strerror}") from None
    if not found:
        raise ResultError(f"there is no security log {path}", remedy="Name the file, or the folder it is in.")
    for name, content in found:
        for number, text in enumerate(content.removesuffix(b"\n").split(b"\n") if content else [], 1):
            yield Line(name, number, text, _content(text))


def verify(path: Path, noted: str = "") -> tuple[int, Head]:
    """Check the chain across all files; the number of the oldest entry that is kept, and the head.

    Raises ResultError, naming the first line that is wrong, or the entry of the noted head if it is not there;
    UnknownEndError if the chain is whole, but no head was noted that shows whether its end is there. `noted`: a head
    that was noted before, `number:hash`; empty: the one in this user's state folder.
    """
    head, oldest = Head(0, _FIRST_LINK), 0
    expected = noted.strip().lower() or str(_noted_head(path) or "")
    found = False
    for line in lines(path):
        number, previous = line.entry.get("n"), line.entry.get("previous")
        if not oldest and line.file == _numbered(path, N_FILES - 1) and isinstance(number, int):
            head = Head(number - 1, str(previous))  # those before it were rotated away
        if number != head.number + 1 or previous != head.digest:
            raise _broken(line, number, head)
        if line.entry.get("event") == _END_MISSING:
            raise ResultError(
                f"{line.file}, line {line.number}: when entry {number} was written, entries up to "
                f"{str(line.entry.get('expected', '')).partition(':')[0]} were missing",
                remedy="The end of the log had been cut off, or the log was started again. Compare with a copy of it.",
            )
        head = Head(head.number + 1, hashlib.sha256(line.text).hexdigest())
        oldest = oldest or head.number
        found = found or str(head) == expected
    if not expected:
        raise UnknownEndError(
            f"{path}: the chain is whole, entries {oldest} to {head.number}, but nothing tells whether its end is there"
        )
    if not found:
        raise ResultError(
            f"{path}: the chain is whole, but has no entry {expected}: it was rewritten, or its end was cut off",
            remedy="If older files were rotated away, compare with a copy of them; else do not trust this log.",
        )
    return oldest, head


def _broken(line: Line, number: object, head: Head) -> ResultError:
    what = f"entry {number}" if isinstance(number, int) else "no entry"
    return ResultError(
        f"{line.file}, line {line.number}: the chain is broken: {what}, which does not follow entry {head.number}",
        remedy="A line here or just before it was changed, removed or moved. Compare with a copy of the log.",
    )
