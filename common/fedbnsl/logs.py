"""Structured events, one JSON object a line. A field may hold only what the coordinator was sent or made itself."""

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from fedbnsl.errors import ResultError


class EventLog:
    """An append-only file of events, each with its time in UTC.

    An existing file is appended to. A line that a crash cut short is ended there, and the next event gets a new line.
    """

    def __init__(self, path: Path) -> None:
        torn = _is_torn(path)
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)
        if torn:
            self._file.write("\n")

    def write(self, event: str, **fields: object) -> None:
        """Append one event.

        Raises
        ------
        ResultError
            If it cannot be written.
        """
        try:
            self._file.write(json.dumps({**fields, "event": event, "time": _now()}, ensure_ascii=False) + "\n")
        except OSError as error:
            raise ResultError(f"{self._file.name} cannot be written: {error.strerror}") from None

    def sync(self) -> None:
        """Return when all that was written is on the disk.

        Raises
        ------
        ResultError
            If the disk does not take it.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ResultError(f"{self._file.name} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file; nothing can be written after it."""
        with suppress(OSError):  # what a full disk did not take was said when it was written
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
