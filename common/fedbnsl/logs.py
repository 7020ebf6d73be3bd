"""Structured events, one JSON object a line. No field may hold a value computed from one site's table alone."""

from pathlib import Path
from typing import TextIO, cast

import structlog


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
        """Append one event; every field must be public."""
        self._logger.info(event, **fields)

    def close(self) -> None:
        """Close the file; nothing can be written after it."""
        self._file.close()
