"""Operator commands to a run: a small file in its folder, for the coordinator's own user alone.

The coordinator of the run takes the command while it works, or at its next start, writes what became of it into another
file, and only then removes the command: one that a crash interrupts is taken again.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.files import durable

COMMAND = "eject-order.json"
ANSWER = "eject-answer.json"

_EXACTLY = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True)
class EjectCommand:
    """Take a site out of a run."""

    __pydantic_config__: ClassVar[ConfigDict] = _EXACTLY

    id: str  # unique, so that a command is carried out once
    site: str
    from_round: int | None  # the first round that is repeated without the site; None: no round is


@dataclass(frozen=True)
class Answer:
    """What became of the command with this id."""

    __pydantic_config__: ClassVar[ConfigDict] = _EXACTLY

    id: str
    done: bool
    text: str


_T = TypeVar("_T", EjectCommand, Answer)


def give(folder: Path, site: str, from_round: int | None) -> EjectCommand:
    """Write a command. Raises ResultError if another one waits, or it cannot be written."""
    if pending(folder) is not None:
        raise ResultError(
            f"another command waits in {folder / COMMAND}",
            remedy="The coordinator takes it when it runs; remove the file to withdraw it.",
        )
    command = EjectCommand(secrets.token_hex(8), site, from_round)
    _write(folder / COMMAND, command)
    return command


def pending(folder: Path) -> EjectCommand | None:
    """The command that waits, if any. Raises ResultError if the file that is there holds something else."""
    return _read(folder / COMMAND, EjectCommand)


def settle(folder: Path, answer: Answer) -> None:
    """Write what became of the command that waits, then remove the command; ResultError if that fails."""
    _write(folder / ANSWER, answer)
    try:
        (folder / COMMAND).unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(f"{folder / COMMAND} cannot be removed: {error.strerror}") from error


def answer_to(folder: Path, command: EjectCommand) -> Answer | None:
    """What became of a command; None until it is answered and removed, so that the next one can be given."""
    if (folder / COMMAND).exists():
        return None
    answer = _read(folder / ANSWER, Answer)
    return answer if answer is not None and answer.id == command.id else None


def refuse_what_the_result_tells(run: Path, site: str, allowed: Sequence[str]) -> None:
    """Refuse at once what the next start would refuse, as far as the results of a stopped run tell it."""
    from fedbnsl_server.sites.ejection import ejected_before
    from fedbnsl_server.store.run_folder import result_of

    result = result_of(run)
    if result is None:  # it was killed: its next start knows
        return
    if result["state"] == "finished":
        raise SetupError(f"the run in {run} is finished", remedy=f"Run again, in another folder, without {site}.")
    for one in result["ejected"]:
        if one["site"] == site:
            raise ejected_before(site, one["after_round"])
    sites = sorted({*result["sites"], *allowed})
    if sites and site not in sites:
        raise SetupError(f"no site {site!r} in this run; its sites: {', '.join(sites)}", remedy="Nothing was changed.")


def _write(file: Path, content: EjectCommand | Answer) -> None:
    text = TypeAdapter(type(content)).dump_json(content).decode()
    durable.write_text(file, text + "\n", mode=durable.OWNER_ONLY)


def _read(file: Path, kind: type[_T]) -> _T | None:
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ResultError(f"{file} cannot be read: {error}") from error
    except ValidationError:
        raise ResultError(f"{file} is not a file of fedbnsl's operator commands; remove it") from None
