"""Orders of the operator to a run: a small file in its folder, for the coordinator's own user alone.

The coordinator of the run takes the order while it works, or at its next start, writes what became of it into another
file, and only then removes the order: one that a crash interrupts is taken again.
"""

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from fedbnsl.errors import ResultError
from fedbnsl.files import durable

ORDER = "eject-order.json"
ANSWER = "eject-answer.json"


@dataclass(frozen=True)
class EjectOrder:
    """Take a site out of a run.

    Attributes
    ----------
    id
        Unique, so that an order is carried out once.
    from_round
        The first round that is repeated without the site; None: none is.
    """

    id: str
    site: str
    from_round: int | None


@dataclass(frozen=True)
class Answer:
    """What became of the order with this id."""

    id: str
    done: bool
    text: str


def give(folder: Path, site: str, from_round: int | None) -> EjectOrder:
    """Write an order.

    Raises
    ------
    ResultError
        If another one waits, or it cannot be written.
    """
    if pending(folder) is not None:
        raise ResultError(
            f"another order waits in {folder / ORDER}",
            remedy="The coordinator takes it when it runs; remove the file to withdraw it.",
        )
    order = EjectOrder(secrets.token_hex(8), site, from_round)
    _write(folder / ORDER, asdict(order))
    return order


def pending(folder: Path) -> EjectOrder | None:
    """The order that waits.

    Raises
    ------
    ResultError
        If there is a file that is none.
    """
    stored = _read(folder / ORDER)
    if stored is None:
        return None
    kinds = {"id": str, "site": str, "from_round": int | None}
    if stored.keys() != kinds.keys() or not all(isinstance(stored[key], kind) for key, kind in kinds.items()):
        raise ResultError(f"{folder / ORDER} is no order of fedbnsl; remove it")
    return EjectOrder(**stored)


def settle(folder: Path, answer: Answer) -> None:
    """Write what became of the order that waits, then remove it.

    Raises
    ------
    ResultError
        If a file cannot be written or removed.
    """
    _write(folder / ANSWER, asdict(answer))
    try:
        (folder / ORDER).unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(f"{folder / ORDER} cannot be removed: {error.strerror}") from None


def answer_to(folder: Path, order: EjectOrder) -> Answer | None:
    """What became of an order; None: nothing yet, or the order is not removed yet, and the next one would be with it.

    Raises
    ------
    ResultError
        If the answer cannot be read.
    """
    if (folder / ORDER).exists():
        return None
    stored = _read(folder / ANSWER)
    try:
        answer = None if stored is None else Answer(**stored)
    except TypeError:
        raise ResultError(f"{folder / ANSWER} is no answer of fedbnsl") from None
    return answer if answer is not None and answer.id == order.id else None


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
        raise ResultError(f"{file} is no order of fedbnsl, and no answer to one; remove it")
    return cast(dict[str, Any], content)
