"""The table of enrolment, enrolment.json: every certificate that was issued to a site, and when it was revoked."""

import fcntl
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from cryptography import x509

from fedbnsl.errors import IdentityError, ResultError
from fedbnsl.files import durable
from fedbnsl.identity.certificates import PublicKey, fingerprint, key_fingerprint


@dataclass(frozen=True)
class Issued:
    """One certificate of a site; times in ISO 8601, UTC."""

    fingerprint: str  # SHA-256 of the certificate
    issued_at: str
    expires_at: str
    revoked_at: str = ""  # empty if it was not
    key: str = ""  # fingerprint of its key; empty of certificates that earlier versions issued

    @classmethod
    def now(cls, certificate: x509.Certificate) -> Self:
        """A certificate that is issued at this moment."""
        expires_at = certificate.not_valid_after_utc.isoformat()
        key = certificate.public_key()
        shown = key_fingerprint(key) if isinstance(key, PublicKey) else ""
        return cls(fingerprint(certificate), datetime.now(UTC).isoformat(), expires_at, key=shown)

    def revoked_now(self) -> Self:
        """The same certificate, revoked at this moment."""
        return replace(self, revoked_at=datetime.now(UTC).isoformat())

    @property
    def state(self) -> str:
        """One of "valid", "expired", "revoked"."""
        if self.revoked_at:
            return "revoked"
        return "valid" if datetime.now(UTC) <= datetime.fromisoformat(self.expires_at) else "expired"


class EnrolmentEndedError(IdentityError):
    """A site's certificate was revoked or has expired."""

    def __init__(self, site: str, state: str) -> None:
        super().__init__(f"the certificate of site {site!r} is {state}")
        self.site = site


class EnrolmentTable:
    """The table in the folder of a federation; it may not be there yet."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "enrolment.json"
        self._seen: tuple[int, int, int] | None = None
        self._issued: dict[str, list[Issued]] = {}

    def read(self) -> dict[str, list[Issued]]:
        """Every certificate that was issued, by site; read again when the file has changed.

        Raises ResultError if the table cannot be read.
        """
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ResultError(f"{self._path} cannot be read: {error.strerror}") from None
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if version != self._seen:
            try:
                stored: dict[str, list[dict[str, Any]]] = json.loads(self._path.read_text(encoding="utf-8"))
                self._issued = {site: [Issued(**one) for one in issued] for site, issued in stored.items()}
            except (OSError, ValueError, TypeError, AttributeError) as error:
                raise ResultError(f"{self._path} cannot be read: {error}") from None
            self._seen = version
        return self._issued

    @contextmanager
    def changing(self) -> Generator[dict[str, list[Issued]]]:
        """The table, to be changed by one command at a time; written whole at the end."""
        path = self._path.with_name("enrolment.lock")
        try:
            lock = path.open("w")
        except OSError as error:
            raise IdentityError(f"{path} cannot be written: {error.strerror}") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            table = {site: list(issued) for site, issued in self.read().items()}
            yield table
            stored = {site: [asdict(one) for one in issued] for site, issued in sorted(table.items())}
            durable.write_text(self._path, json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
