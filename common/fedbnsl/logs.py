"""Structured events, one JSON object a line. A field may hold only what the coordinator was sent or made itself."""

from contextlib import suppress
from pathlib import Path
from typing import TextIO, cast

import structlog

from fedbnsl.errors import ResultError


class EventLog:
    """An append-only file of events, each with its time in UTC."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)
        self._logger = cast(
            structlog.typing.FilteringBoundLogger,
            structlog.wrap_logger(
                structlog.WriteLogger(self._file),
                processors=[
                    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
                    structlog.processors.JSONRenderer(ensure_ascii=False),
                ],
                wrapper_class=structlog.make_filtering_bound_logger(0),
            ),
        )

    def write(self, event: str, **fields: object) -> None:
        """Append one event.

        Raises
        ------
        ResultError
            If it cannot be written.
        """
        try:
            self._logger.info(event, **fields)
        except OSError as error:
            raise ResultError(f"{self._file.name} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file; nothing can be written after it."""
        with suppress(OSError):  # what a full disk did not take was said when it was written
            self._file.close()
