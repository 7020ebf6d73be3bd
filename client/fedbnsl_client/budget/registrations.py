"""Which of a ledger's datasets hold the same records, and so share one budget, by its register entries."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedbnsl.errors import LedgerError
from fedbnsl_client.data.checks import listed
from fedbnsl_client.data.fingerprint import of_the_same_rows

Entry = Mapping[str, Any]


def latest(entries: Sequence[Entry]) -> dict[str, Entry]:
    """The last entry of each dataset, in the order in which they first came."""
    return {entry["dataset"]: entry for entry in entries}


def account_of(dataset: str, entries: Sequence[Entry]) -> frozenset[str]:
    """The datasets that share one budget with a dataset, itself among them."""
    links = [{entry["dataset"], *entry.get("same_budget", ())} for entry in entries]
    account = frozenset({dataset})
    for _ in links:  # one link leads to the next, at most so many times
        account = account.union(*(link for link in links if link & account))
    return account


def known_as(new: Entry, entries: Sequence[Entry]) -> dict[str, str]:
    """Datasets of other budgets that hold, or ever held, records of a new entry; with the words for why."""
    found: dict[str, str] = {}
    own, last = account_of(new["dataset"], entries), latest(entries)
    again = last.get(new["dataset"], {}).get("fingerprint") == new["fingerprint"]
    for entry in entries:
        other, columns = entry["dataset"], entry.get("column_fingerprints")
        if other in own:
            continue
        if set(new["file"]) & set(entry.get("file", ())):
            found[other] = f"its file is, or was, that of {other!r}"
        elif columns is None:  # entered by a fedbnsl that noted the table as a whole only
            if entry["fingerprint"] == new["fingerprint"]:
                found[other] = f"it is, or was, the table of {other!r}"
            elif entry is last[other] and not again:
                found[other] = f"an older fedbnsl registered {other!r} without its columns; register that one again"
        elif of_the_same_rows(new["column_fingerprints"], columns):
            mine = zip(new["variables"], new["column_fingerprints"], strict=True)
            shared = [name for name, column in mine if column in columns]
            found[other] = f"the values of {listed(shared)} are, or were, those of columns of {other!r}"
    return found


def known_already(dataset: str, other: str, why: str) -> LedgerError:
    """The refusal of a second id for known records."""
    return LedgerError(
        f"the table of dataset {dataset!r} is registered as {other!r}, where its spending is counted: {why}",
        remedy=f"If both hold the same records, use {other!r}, or let them share one budget: fedbnsl participant "
        f"register FOLDER {dataset} --supersedes. If they hold other records, give each table a file of its own, and "
        "leave out columns that are alike by design, such as row numbers (`columns` in policy.toml).",
    )
