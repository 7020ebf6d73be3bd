"""Which of a ledger's datasets hold the same records, and so share one budget, by its register entries."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbnsl.console.wording import first_few
from fedbnsl.errors import LedgerError
from fedbnsl_client.data.fingerprint import of_the_same_rows

RegisterEntry = Mapping[str, Any]


def latest(entries: Sequence[RegisterEntry]) -> dict[str, RegisterEntry]:
    """The last entry of each dataset, in the order in which they first came."""
    return {entry["dataset"]: entry for entry in entries}


def account_of(dataset: str, entries: Sequence[RegisterEntry]) -> frozenset[str]:
    """The datasets that share one budget with a dataset, itself among them."""
    links = [{entry["dataset"], *entry.get("same_budget", ())} for entry in entries]
    account = frozenset({dataset})
    for _ in links:  # a link may lead to another: one pass for each is enough
        account = account.union(*(link for link in links if link & account))
    return account


def known_as(new: RegisterEntry, entries: Sequence[RegisterEntry]) -> dict[str, str]:
    """Datasets of other budgets that hold, or ever held, records of a new entry; each with the reason."""
    found: dict[str, str] = {}
    own, last = account_of(new["dataset"], entries), latest(entries)
    again = last.get(new["dataset"], {}).get("fingerprint") == new["fingerprint"]
    for entry in entries:
        other, columns = entry["dataset"], entry.get("column_fingerprints")
        if other in own:
            continue
        if set(new["file"]) & set(entry.get("file", ())):
            found[other] = f"its file is, or was, that of {other!r}"
        elif columns is None:  # registered by an older fedbnsl, without columns
            if entry["fingerprint"] == new["fingerprint"]:
                found[other] = f"it is, or was, the table of {other!r}"
            elif entry is last[other] and not again:
                found[other] = f"an older fedbnsl registered {other!r} without its columns; register that one again"
        elif of_the_same_rows(new["column_fingerprints"], columns):
            mine = zip(new["variables"], new["column_fingerprints"], strict=True)
            shared = [name for name, column in mine if column in columns]
            found[other] = f"the values of {first_few(shared)} are, or were, those of columns of {other!r}"
    return found


def command(folder: Path, dataset: str) -> str:
    """The command line that registers a dataset's table in a site's folder."""
    return shlex.join(["fedbnsl", "participant", "register", str(folder), dataset])


def known_already(folder: Path, dataset: str, other: str, why: str) -> LedgerError:
    """The error for a second id of known records."""
    return LedgerError(
        f"the table of dataset {dataset!r} is registered as {other!r}, where its spending is counted: {why}",
        remedy=f"If both hold the same records, use {other!r}, or let them share one budget: "
        f"{command(folder, dataset)} --supersedes. If they hold other records, give each table a file of its own, and "
        "leave out columns that are alike by design, such as row numbers (`columns` in policy.toml).",
    )
