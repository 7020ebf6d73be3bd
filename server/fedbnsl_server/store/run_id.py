"""run.json: the number of a run, which does not change when its coordinator is started again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fedbnsl.errors import ResultError
from fedbnsl.files import durable

_SCHEMA = "fedbnsl.run/2"


@dataclass(frozen=True)
class RunIdentity:
    """What does not change between two lives of a coordinator."""

    run: int  # 64-bit number of the run
    created_at: datetime
    seeds: Mapping[str, int] = field(default_factory=dict[str, int])  # seeds of generated data, for the manifest
    study: str = ""  # what it belongs to, for the manifest; no part of the plan


def write(file: Path, identity: RunIdentity) -> None:
    """Write it; it is on the disk when this returns."""
    content = {
        "schema": _SCHEMA,
        "run": f"{identity.run:016x}",
        "created_at": identity.created_at.isoformat(timespec="seconds"),
        "seeds": dict(identity.seeds),
        "study": identity.study,
    }
    durable.write_text(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read(file: Path) -> RunIdentity:
    """What `write` wrote. Raises ResultError if it cannot be read."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if content["schema"] != _SCHEMA:
            raise ResultError(f"{file} has the format {content['schema']!r}; expected {_SCHEMA!r}")
        return RunIdentity(
            run=int(content["run"], 16),
            created_at=datetime.fromisoformat(content["created_at"]),
            seeds=content["seeds"],
            study=str(content.get("study", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultError(f"{file} cannot be read: {error}") from error
