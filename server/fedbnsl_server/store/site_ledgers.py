"""What the coordinator remembers of the sites' privacy ledgers: it notices one that was restored from a backup."""

import fcntl
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbnsl.errors import LedgerError, ResultError
from fedbnsl.files import durable
from fedbnsl.protocol.messages import LedgerHead

FILE = "site-ledgers.json"

# Of a site, in one federation: more would let it grow the coordinator's memory as it likes.
_MOST_DATASETS = 64


@dataclass
class _Site:
    """A site's ledger, and the furthest head seen of each dataset, by `LedgerHead.dataset`."""

    ledger_id: bytes
    heads: dict[bytes, LedgerHead] = field(default_factory=dict[bytes, LedgerHead])


class SiteLedgers:
    """The furthest heads seen of each site's ledger, over all runs of a folder; kept in the file `path`.

    Raises ResultError if the file is there and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # the rounds' thread saves, and at the end the event loop
        self._sites = dict[str, _Site]()
        self._present = dict[str, bytes]()  # by site: the dataset that it used last
        self._read_version: tuple[int, ...] | None = None
        self._learn_of_others()

    def _read(self) -> dict[str, _Site]:
        try:
            stored: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            return {site: _from_json(ledger) for site, ledger in stored.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ResultError(f"{self._path}, the memory of the sites' ledgers, cannot be read: {error}") from error

    def head(self, site: str) -> LedgerHead | None:
        """The furthest head seen of the dataset that a site used last."""
        return self._sites[site].heads.get(self._present[site]) if site in self._present else None

    def check(self, site: str, head: LedgerHead) -> None:
        """Refuse a ledger that is behind an earlier report of its own.

        Raises LedgerError if it is another ledger, has fewer payments, has spent less, or has the same length but
        another digest.
        """
        self._learn_of_others()
        known = self._sites.get(site)
        if known is None:
            return
        if head.ledger_id != known.ledger_id:
            raise LedgerError(
                f"site {site!r} had another privacy ledger before; what it spent must not be forgotten (if the site "
                f"started over with other data, stop the coordinator and remove its entry from {self._path.name})"
            )
        if head.dataset not in known.heads and len(known.heads) >= _MOST_DATASETS:
            raise LedgerError(
                f"site {site!r} has used {_MOST_DATASETS} datasets in this federation, and no more are remembered (if "
                f"that is right, stop the coordinator and remove its entry from {self._path.name})"
            )
        seen = known.heads.get(head.dataset, head)
        behind = head.n_entries < seen.n_entries or head.spent_units < seen.spent_units
        if behind or (head.n_entries == seen.n_entries and head.digest != seen.digest):
            raise LedgerError(
                f"the privacy ledger of site {site!r} is behind what it reported before ({head.n_entries} payments, "
                f"then {seen.n_entries}): a backup was restored; its budget cannot be trusted (if its newest ledger is "
                f"lost and the site has accepted that, stop the coordinator, and remove its entry in {self._path.name})"
            )

    def note(self, site: str, head: LedgerHead) -> None:
        """Remember a head, unless a further one was seen (a repeated answer brings an old one)."""
        if self._keep(site, head):
            self._present[site] = head.dataset

    def _keep(self, site: str, head: LedgerHead) -> bool:
        """Keep a head if it is newer than the known one; False if it belongs to another ledger."""
        known = self._sites.setdefault(site, _Site(head.ledger_id))
        if head.ledger_id != known.ledger_id:
            return False
        if head.dataset not in known.heads and len(known.heads) >= _MOST_DATASETS:
            return False
        if head.n_entries > known.heads.setdefault(head.dataset, head).n_entries:
            known.heads[head.dataset] = head
        return True

    def save(self) -> None:
        """Write what is remembered, together with what other coordinators have written there meanwhile."""
        if not self._sites:
            return
        with self._lock:
            try:
                with self._path.with_name(self._path.name + ".lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    self._learn_of_others()
                    self._write()
            except OSError as error:
                raise ResultError(f"{self._path} cannot be written: {error.strerror or error}") from error

    def _learn_of_others(self) -> None:
        """Take over what other coordinators have written into the file, if it has changed since it was read."""
        version = self._version()
        if version is not None and version == self._read_version:
            return
        for site, ledger in self._read().items():
            self._sites.setdefault(site, _Site(ledger.ledger_id))
            for head in ledger.heads.values():
                self._keep(site, head)
        self._read_version = version

    def _version(self) -> tuple[int, ...] | None:
        """Changes whenever the file is replaced; None if the file is missing or unreadable (`_read` reports why)."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _write(self) -> None:
        stored = {
            site: {
                "ledger_id": ledger.ledger_id.hex(),
                "datasets": {
                    dataset.hex(): {
                        "n_entries": head.n_entries,
                        "digest": head.digest.hex(),
                        "spent_units": head.spent_units,
                    }
                    for dataset, head in sorted(ledger.heads.items())
                },
            }
            for site, ledger in sorted(self._sites.items())
        }
        durable.write_text(self._path, json.dumps(stored, indent=1) + "\n")


def _from_json(stored: dict[str, Any]) -> _Site:
    ledger_id = bytes.fromhex(stored["ledger_id"])
    # Before protocol 3 there was one head for all datasets. It cannot be compared with later ones: keep only its id.
    datasets: dict[str, Any] = {} if "n_entries" in stored else stored["datasets"]
    heads = {
        bytes.fromhex(dataset): LedgerHead(
            ledger_id,
            bytes.fromhex(dataset),
            int(head["n_entries"]),
            bytes.fromhex(head["digest"]),
            int(head["spent_units"]),
        )
        for dataset, head in datasets.items()
    }
    return _Site(ledger_id, heads)
