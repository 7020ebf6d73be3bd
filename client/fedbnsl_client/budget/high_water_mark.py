"""Detect a ledger that was replaced by an older copy: note the newest state of each ledger outside its folder.

The notes are in `fedbnsl/` of the user's state directory ($XDG_STATE_HOME, or ~/.local/state), one file for each
ledger. A note is written after the ledger's own commit, so after a crash it may be behind the ledger, never ahead.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedbnsl.errors import LedgerError, ResultError
from fedbnsl.files import durable
from fedbnsl.files.state_folder import state_folder
from fedbnsl_client.data.fingerprint import file_identity


@dataclass(frozen=True)
class Mark:
    """What is noted of a ledger."""

    # n_entries, link: its number of entries, and the link of the last one, in hexadecimal digits
    n_entries: int
    link: str
    # spent: units by dataset, reserved for it or charged as lost; those of datasets with the same budget not included
    spent: dict[str, int]
    unprotected: list[str]  # datasets that were used without privacy
    # registered: the entries of all tables; fingerprints are keyed, and the key is in the ledger alone
    registered: list[dict[str, Any]] = field(repr=False)
    # folder: where the ledger lay when this was noted; empty in a note of an older fedbnsl
    folder: str = field(default="", compare=False)  # a ledger may move
    # spent_against_all: as `spent`, against the coordinator and all other sites together; only datasets where that is
    # more
    spent_against_all: dict[str, int] = field(default_factory=dict[str, int])
    # sites_per_person: at how many sites a person may have a record, as the plans of its payments say; only datasets
    # where that is more than one
    sites_per_person: dict[str, int] = field(default_factory=dict[str, int])
    sealed: bool = False  # whether nothing may be entered any more

    def of_all(self, dataset: str) -> int:
        """What was spent of a dataset against all others together."""
        return self.spent_against_all.get(dataset, self.spent.get(dataset, 0))


def file_of(ledger_id: bytes) -> Path:
    """Where the mark of a ledger is kept.

    Raises LedgerError if the user has no home, and XDG_STATE_HOME is not set to an absolute path.
    """
    state = state_folder()
    if state is None:
        raise _unusable("the user's state directory", "there is no home directory")
    return state / f"{ledger_id.hex()}.json"


def prepared(ledger_id: bytes) -> Path:
    """`file_of`, after making its folder. Raises LedgerError if the folder cannot be made."""
    file = file_of(ledger_id)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(file.parent, error) from error
    return file


def read(ledger_id: bytes) -> Mark | None:
    """The mark of a ledger; None if this user has none. Raises LedgerError if there is one that cannot be read."""
    try:
        return _read(file_of(ledger_id))
    except FileNotFoundError:
        return None


def folders_with(file: Path) -> dict[str, str]:
    """Where this user has ledgers in which a table's file is registered, under this path or a link; with its id there.

    Raises LedgerError if a note cannot be read.
    """
    here = file_identity(file)
    marks = [_read(note) for note in sorted(file_of(b"").parent.glob("*.json"))]
    return {
        mark.folder or "a folder that was not noted": str(entry["dataset"])
        for mark in marks
        for entry in mark.registered
        for path in entry.get("file", ())[:1]  # not by its number alone: that of a deleted file is given out again
        if path == here[0] or set(here) & set(file_identity(Path(path)))
    }


def _read(file: Path) -> Mark:
    try:
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return Mark(**stored)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise _unusable(file, error) from error


def write(ledger_id: bytes, mark: Mark) -> None:
    """Replace the mark of a ledger; it is on the disk when this returns. Raises LedgerError if it cannot be written."""
    file = prepared(ledger_id)
    try:
        content = asdict(mark)
        for later in ("spent_against_all", "sites_per_person", "sealed"):  # an older fedbnsl does not know them
            if not content[later]:
                del content[later]
        durable.write_text(file, json.dumps(content) + "\n")
    except (OSError, ResultError) as error:
        raise _unusable(file, error) from error


def _unusable(what: Path | str, why: Exception | str) -> LedgerError:
    return LedgerError(
        f"{what}, where the state of the ledger is noted, cannot be used: {getattr(why, 'strerror', None) or why}",
        remedy="Set XDG_STATE_HOME to a folder that lasts, that this user can write to, and that is not backed up "
        "together with the ledger. Without the note, an older copy of the ledger would not be noticed.",
    )
