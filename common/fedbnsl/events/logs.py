"""Structured events, one JSON object a line. A field may hold only what the coordinator was sent or made itself."""

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from fedbnsl.errors import ResultError
from fedbnsl.files.json_numbers import finite


class EventLog:
    """An append-only file of events, each with its time in UTC.

    An existing file is appended to. A line that a crash cut short is ended there, and the next event gets a new line.
    A line that a full disk cut short is taken back before the next one.
    """

    def __init__(self, path: Path) -> None:
        torn = _is_torn(path)
        self._file = path.open("ab", buffering=0)
        self._last_line = 0  # where it begins
        self._taken_back_to: int | None = None
        if torn:
            self._append(b"\n")

    def write(self, event: str, **fields: object) -> None:
        """Append one event. Raises ResultError if it cannot be written."""
        content = finite({**fields, "event": event, "time": _now()})
        line = json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            self._append(line.encode())
        except OSError as error:
            raise self._not_taken(error) from error

    def sync(self) -> None:
        """Wait until all events are on the disk.

        Raises ResultError if they cannot be written; the last line is then taken back.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._not_taken(error) from error

    def _append(self, line: bytes) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if self._taken_back_to is not None and size > self._taken_back_to:
            self._file.truncate(self._taken_back_to)
            size = self._taken_back_to
        self._taken_back_to, self._last_line = None, size
        while line:
            line = line[self._file.write(line) :]

    def _not_taken(self, error: OSError) -> ResultError:
        self._taken_back_to = self._last_line
        return ResultError(f"{os.fsdecode(self._file.name)} cannot be written: {error.strerror}")

    def close(self) -> None:
        """Close the file; nothing can be written after it."""
        with suppress(OSError):  # a write that failed on a full disk was reported then
            self._file.close()


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _is_torn(path: Path) -> bool:
    """Whether the last line of a file lacks its end."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
