"""Operator commands to a run: a small file in its folder, for the coordinator's own user alone.

The coordinator of the run takes the command while it works, or at its next start, writes what became of it into another
file, and only then removes the command: one that a crash interrupts is taken again.
"""

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from fedbnsl.errors import ResultError
from fedbnsl.files import durable

COMMAND = "eject-order.json"
ANSWER = "eject-answer.json"


@dataclass(frozen=True)
class EjectCommand:
    """Take a site out of a run."""

    id: str  # unique, so that a command is carried out once
    site: str
    from_round: int | None  # the first round that is repeated without the site; None: no round is


@dataclass(frozen=True)
class Answer:
    """What became of the command with this id."""

    id: str
    done: bool
    text: str


def give(folder: Path, site: str, from_round: int | None) -> EjectCommand:
    """Write a command. Raises ResultError if another one waits, or it cannot be written."""
    if pending(folder) is not None:
        raise ResultError(
            f"another command waits in {folder / COMMAND}",
            remedy="The coordinator takes it when it runs; remove the file to withdraw it.",
        )
    command = EjectCommand(secrets.token_hex(8), site, from_round)
    _write(folder / COMMAND, asdict(command))
    return command


def pending(folder: Path) -> EjectCommand | None:
    """The command that waits, if any. Raises ResultError if the file that is there holds something else."""
    stored = _read(folder / COMMAND)
    if stored is None:
        return None
    kinds = {"id": str, "site": str, "from_round": int | None}
    if stored.keys() != kinds.keys() or not all(isinstance(stored[key], kind) for key, kind in kinds.items()):
        raise ResultError(f"{folder / COMMAND} is no operator command of fedbnsl; remove it")
    return EjectCommand(**stored)


def settle(folder: Path, answer: Answer) -> None:
    """Write what became of the command that waits, then remove the command.

    Raises ResultError if a file cannot be written or removed.
    """
    _write(folder / ANSWER, asdict(answer))
    try:
        (folder / COMMAND).unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(f"{folder / COMMAND} cannot be removed: {error.strerror}") from None


def answer_to(folder: Path, command: EjectCommand) -> Answer | None:
    """What became of a command; None until it is answered and removed, so that the next one can be given.

    Raises ResultError if the answer cannot be read.
    """
    if (folder / COMMAND).exists():
        return None
    stored = _read(folder / ANSWER)
    try:
        answer = None if stored is None else Answer(**stored)
    except TypeError:
        raise ResultError(f"{folder / ANSWER} is no answer of fedbnsl") from None
    return answer if answer is not None and answer.id == command.id else None


def _write(file: Path, content: dict[str, Any]) -> None:
    text = (json.dumps(content, ensure_ascii=False) + "\n").encode()
    durable.write_file(file, lambda into: into.write(text), mode=durable.OWNER_ONLY)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ResultError(f"{file} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ResultError(f"{file} is no operator command of fedbnsl, and no answer to one; remove it")
    return cast(dict[str, Any], content)
