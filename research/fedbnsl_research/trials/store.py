"""The file that keeps outcomes of trials: JSON Lines, the first one naming the version of the program."""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from fedbnsl import __version__
from fedbnsl.errors import ResultError

_FIELDS: dict[str, type | tuple[type, ...]] = {"trial": dict, "rows": list, "error": str, "seconds": (int, float)}


class TrialStore:
    """A file of outcomes, locked for as long as one command works on it.

    A line is on the disk when `append` returns. A line that an interruption cut short is ignored.

    Parameters
    ----------
    work
        What the outcomes are of, such as "reproduce table1"; a file with those of another work is refused.

    Attributes
    ----------
    lines
        What it held when it was opened, each with the keys trial, rows, error and seconds.

    Raises
    ------
    ResultError
        If it cannot be read or written, is no such file, is of another version or work, or another command works on it.
    """

    def __init__(self, path: Path, *, work: str) -> None:
        self._path = path
        self._work = work
        try:
            self._file: BinaryIO = path.open("a+b")
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            self._lock()
            self.lines = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a line; returns it as a later command will read it (a tuple is a list by then)."""
        text = json.dumps(line)
        self._write(text.encode() + b"\n")
        return cast(dict[str, Any], json.loads(text))

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultError(
                f"another command works on {self._path}",
                remedy="Wait until it ends, or choose another folder with --out.",
            ) from None
        except OSError as error:
            raise ResultError(f"{self._path} cannot be locked: {error.strerror}") from None

    def _read(self) -> list[dict[str, Any]]:
        try:
            self._file.seek(0)
            content = self._file.read()
        except OSError as error:
            raise ResultError(f"{self._path} cannot be read: {error.strerror}") from None
        whole = [line for line in map(_parsed, content.split(b"\n")) if line is not None]
        versions = {line["version"] for line in whole if "version" in line}
        for version in versions - {__version__}:
            raise ResultError(
                f"{self._path} is of fedbnsl {version}, this is {__version__}: their results do not mix",
                remedy="Choose another folder with --out, or remove that file.",
            )
        for other in {line.get("work", self._work) for line in whole if "version" in line} - {self._work}:
            raise ResultError(
                f"{self._path} holds the trials of `{other}`, not of `{self._work}`",
                remedy="Choose another folder with --out.",
            )
        lines = [line for line in whole if "version" not in line]
        if not all(isinstance(line.get(key), kind) for line in lines for key, kind in _FIELDS.items()) or (
            not versions and (lines or b"\n" in content)
        ):
            raise ResultError(f"{self._path} is no file of trials; choose another folder with --out")
        if not content.endswith(b"\n") and content:
            self._write(b"\n")  # ends the torn line, which would swallow the next one
        if not versions:
            self._write(json.dumps({"version": __version__, "work": self._work}).encode() + b"\n")
        return lines

    def _write(self, content: bytes) -> None:
        try:
            self._file.write(content)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> ResultError:
        return ResultError(f"{self._path} cannot be written: {error.strerror}")


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        content: object = json.loads(line)
    except ValueError:
        return None
    return cast(dict[str, Any], content) if isinstance(content, dict) else None
