"""Ledger: one file with the privacy spending of a site's datasets and the answers that were paid for.

`registrations` says which tables there are and which of them share one budget, `approvals` which plans may run,
`payments` what was spent and answered. Each of their methods is one transaction, and every decision reads the file
inside the transaction that writes it. Nothing is cached, so the budget follows the file even if another program has
written to it.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from fedbnsl.errors import LedgerError
from fedbnsl_client.budget.approvals import Approvals
from fedbnsl_client.budget.high_water_mark import Mark
from fedbnsl_client.budget.ledger_chain import Entry
from fedbnsl_client.budget.ledger_file import LedgerFile, Origin
from fedbnsl_client.budget.payments import Payments
from fedbnsl_client.budget.registrations import Registrations
from fedbnsl_client.budget.spending import Cap


class Ledger:
    """An open ledger, for one thread; others may have it open, too.

    Every method, also of the parts, raises LedgerError, with the system's message, if the file cannot be read or
    written. The new entry is then missing from the file; after a failure in the very last step it may be there, but
    always complete.
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file = file
        self.registrations = Registrations(file)
        self.approvals = Approvals(file)
        self.payments = Payments(file, self.registrations)

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a ledger without entries, readable by its owner alone, and open it.

        Raises LedgerError if there is a file already, or the place cannot hold a ledger.
        """
        LedgerFile.create(path, Origin(secrets.token_bytes(16), secrets.token_bytes(32), secrets.token_bytes(32)))
        return cls.open(path)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        accept_backup: bool = False,
        accept_newest: bool = False,
        caps: Mapping[str, tuple[Cap, Cap | None]] | None = None,
    ) -> Self:
        """Open a ledger that exists, and verify it; see `LedgerFile.open`.

        `caps`: what each dataset may spend, and what against all others together, which a backup without a note outside
        its folder is charged; None: such a backup is refused.
        """

        def charge_all(file: LedgerFile) -> None:
            Payments(file, Registrations(file)).charge_all(caps or {})

        opened = LedgerFile.open(
            path,
            accept_backup=accept_backup,
            accept_newest=accept_newest,
            charge_all=None if caps is None else charge_all,
        )
        return cls(opened)

    def back_up(self, target: Path) -> None:
        """Copy the ledger to a new file; see `LedgerFile.back_up`."""
        self._file.back_up(target)

    def close(self) -> None:
        """Close the file, and let others answer its runs."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def mark(self) -> Mark:
        """The state of the whole ledger; stays at the site."""
        with self._file.transaction():
            return self._file.state()

    @property
    def ledger_id(self) -> bytes:
        """16 bytes, drawn at random when the ledger was made."""
        with self._file.transaction():
            return self._file.origin().ledger_id

    def seal(self) -> int:
        """Take every approval back and let nothing be entered from now on; return how many approvals there were.

        Raises LedgerError if a run goes on, or it is sealed already.
        """
        with self._file.transaction():
            if runs := self._file.runs_that_go_on():
                raise LedgerError(f"this site takes part in run {runs[0]}", remedy="End it first, or the site's agent.")
            known = self.approvals.current()
            for digest in known:
                self.approvals.withdraw(bytes.fromhex(digest))
            self._file.seal()
        return sum(map(len, known.values()))

    @property
    def sealed_since(self) -> str:
        """When the ledger was sealed, in ISO 8601, UTC; empty if it is not."""
        with self._file.transaction():
            return self._file.sealed_since()

    def require_open(self) -> None:
        """Raise LedgerError if the ledger is sealed."""
        with self._file.transaction():
            self._file.refuse_sealed()

    def entries(self) -> list[Entry]:
        """All entries, for display."""
        with self._file.transaction():
            return [Entry.read(number, text) for number, text, _ in self._file.rows()]

    def verify(self) -> None:
        """Recompute the chain, the hashes of payloads and the sums; the LedgerError names the first wrong entry."""
        self._file.verify()
