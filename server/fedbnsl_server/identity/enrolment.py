"""The federation's folder: who belongs to it, who did, and the coordinator's certificate.

federation.toml   name, address and host names of the coordinator
ca.pem, ca.key    the authority; the key is needed for `approve` and `renew` only
server.pem        the coordinator's certificate and its key, in one file: replaced as a whole
enrolment.json    every certificate that was issued to a site, and when it was revoked
"""

import fcntl
import json
import tomllib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import tomli_w
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from fedbnsl import durable
from fedbnsl.channel import DEFAULT_PORT, split_address
from fedbnsl.errors import IdentityError, ResultError
from fedbnsl.identity.bundle import Bundle
from fedbnsl.identity.certificates import (
    Credentials,
    Name,
    check_name,
    day,
    fingerprint,
    key_pem,
    name_in,
    new_key,
    pem,
    read_certificate,
    read_file,
    read_key,
    why_unusable,
    write_private,
)
from fedbnsl_server.identity.authority import Authority, alternative_name, self_signed


@dataclass(frozen=True)
class Issued:
    """One certificate of a site; times in ISO 8601, UTC.

    Attributes
    ----------
    fingerprint
        SHA-256 of the certificate.
    revoked_at
        Empty while it is good.
    """

    fingerprint: str
    issued_at: str
    expires_at: str
    revoked_at: str = ""

    @property
    def state(self) -> str:
        """One of "valid", "expired", "revoked"."""
        if self.revoked_at:
            return "revoked"
        return "valid" if datetime.now(UTC) <= datetime.fromisoformat(self.expires_at) else "expired"


class EnrolmentEndedError(IdentityError):
    """A site's certificate that was good, and was revoked or has expired.

    Attributes
    ----------
    site
        Whose it was.
    """

    def __init__(self, site: str, state: str) -> None:
        super().__init__(f"the certificate of site {site!r} is {state}")
        self.site = site


class Federation:
    """The folder of one federation, at the coordinator."""

    def __init__(self, folder: Path, name: str, address: str, hosts: Sequence[str]) -> None:
        self.folder = folder
        self.name = name
        self.address = address
        self.hosts = tuple(hosts)
        self._seen: tuple[int, int, int] | None = None
        self._issued: dict[str, list[Issued]] = {}

    @classmethod
    def create(
        cls, folder: Path, *, name: str, hosts: Sequence[str], port: int = DEFAULT_PORT, days: int, ca_days: int
    ) -> "Federation":
        """Make the authority and the coordinator's first certificate.

        Parameters
        ----------
        hosts
            Names or addresses under which sites call, the first one the main one; this machine's own are added.
        days, ca_days
            How long the coordinator's certificate and the authority's are valid.

        Raises
        ------
        IdentityError
            If there is a federation in the folder already, or a value cannot be used.
        """
        check_name("federation", name)
        main = str(alternative_name(hosts[0]).value)  # as it is looked up: ASCII, also where the host is not
        for host in hosts[1:]:
            alternative_name(host)
        federation = cls(folder, name, f"[{main}]:{port}" if ":" in main else f"{main}:{port}", hosts)
        if federation._settings.exists():
            raise IdentityError(f"{folder} holds a federation already; its authority is never overwritten")
        if (folder / "ca.key").exists():
            raise IdentityError(
                f"{folder} holds an authority but no federation.toml: an `init` that did not end, or a lost file",
                remedy="If no site was ever enrolled here, remove the folder and start again; otherwise restore "
                "federation.toml from a backup.",
            )
        key = new_key()
        write_private(folder / "ca.key", key_pem(key))
        certificate = self_signed(name, key, days=ca_days)
        durable.write_text(folder / "ca.pem", pem(certificate).decode())
        federation.renew(days=days)
        settings = {"name": name, "address": federation.address, "hosts": list(hosts)}
        # Last: a folder without it is not taken for a federation's.
        durable.write_text(federation._settings, "# Made by `fedbnsl coordinator init`.\n" + tomli_w.dumps(settings))
        return federation

    @classmethod
    def open(cls, folder: Path) -> "Federation":
        """The federation of a folder.

        Raises
        ------
        IdentityError
            If it holds none.
        """
        path = folder / "federation.toml"
        try:
            settings = tomllib.loads(read_file(path).decode())
            return cls(folder, str(settings["name"]), str(settings["address"]), [str(h) for h in settings["hosts"]])
        except (ValueError, KeyError, TypeError) as error:
            raise IdentityError(f"{path} cannot be used: {error}") from None

    @property
    def port(self) -> int:
        """The port that sites were told."""
        return split_address(self.address)[1]

    @property
    def _settings(self) -> Path:
        return self.folder / "federation.toml"

    @property
    def _table(self) -> Path:
        return self.folder / "enrolment.json"

    @cached_property
    def ca(self) -> x509.Certificate:
        """The authority's certificate."""
        return read_certificate(read_file(self.folder / "ca.pem"), origin=str(self.folder / "ca.pem"))

    @property
    def fingerprint(self) -> str:
        """What sites compare before they trust the authority."""
        return fingerprint(self.ca)

    def credentials(self) -> Credentials:
        """What the coordinator shows and trusts; read anew each time, so that a renewed certificate is taken up.

        Raises
        ------
        IdentityError
            If a file is missing, or the certificate is not of this federation or not valid now.
        """
        path = self.folder / "server.pem"
        both = read_file(path)
        certificate = read_certificate(both, origin=str(path))
        wrong = why_unusable(certificate, self.ca)
        if wrong:
            raise IdentityError(
                f"the coordinator's certificate {path}: {wrong} (fedbnsl coordinator renew {self.folder})"
            )
        return Credentials(pem(certificate), key_pem(read_key(both, origin=str(path))), pem(self.ca))

    def renew(self, *, days: int) -> x509.Certificate:
        """Give the coordinator a new key and certificate; a server that runs takes it up by itself.

        Raises
        ------
        IdentityError
            If the authority's key is not here.
        """
        key = new_key()
        certificate = self._authority().coordinator(Name(self.name), key.public_key(), hosts=self.hosts, days=days)
        fresh = self.folder / "server.pem.part"
        fresh.unlink(missing_ok=True)
        write_private(fresh, key_pem(key) + pem(certificate))
        fresh.replace(self.folder / "server.pem")
        return certificate

    def approve(self, request_pem: bytes, *, days: int, renew: bool = False) -> Bundle:
        """Sign a site's request and enrol its certificate.

        Only the name and the public key are taken from the request.

        Parameters
        ----------
        renew
            Whether the site may hold a valid certificate already; that one stays valid, so that nothing breaks off.

        Raises
        ------
        IdentityError
            If the request is unreadable, wrongly signed or for another federation, or the site is enrolled already.
        """
        key, name = self.read_request(request_pem)
        now = datetime.now(UTC)
        with self._changing() as table:
            valid = [issued for issued in table.get(name.site, []) if issued.state == "valid"]
            if valid and not renew:
                until = day(datetime.fromisoformat(valid[-1].expires_at))
                raise IdentityError(
                    f"site {name.site!r} is enrolled already, until {until}; pass --renew to give it a new one, or "
                    "revoke it first"
                )
            certificate = self._authority().site(name, key, days=days)
            issued = Issued(fingerprint(certificate), now.isoformat(), certificate.not_valid_after_utc.isoformat())
            table.setdefault(name.site, []).append(issued)
        return Bundle(self.name, name.site, self.address, pem(certificate).decode(), pem(self.ca).decode())

    def read_request(self, request_pem: bytes) -> tuple[ec.EllipticCurvePublicKey, Name]:
        """The key of a certificate request and the name that it asks for; see `approve` for the errors."""
        try:
            request = x509.load_pem_x509_csr(request_pem)
            key, proven = request.public_key(), request.is_signature_valid
        except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm):
            raise IdentityError("this is no certificate request in PEM form (fedbnsl participant request)") from None
        if not proven or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise IdentityError("the request is not signed by a key such as `participant request` makes (P-256)")
        name = name_in(request)
        if name.federation != self.name or not name.site:
            raise IdentityError(f"the request asks for {name.uri}; this federation is {self.name!r}")
        return key, name

    def revoke(self, site: str, *, keep_newest: bool = False) -> int:
        """Revoke a site's certificates from its next call on; how many there were.

        Raises
        ------
        IdentityError
            If the site has no valid certificate to revoke.
        """
        with self._changing() as table:
            issued = table.get(site, [])
            valid = [one for one in issued if one.state == "valid"]
            old = valid[:-1] if keep_newest else valid
            if not old:
                known = [name for name, issued in sorted(table.items()) if any(one.state == "valid" for one in issued)]
                raise IdentityError(
                    f"site {site!r} has no certificate to revoke (sites that have: {', '.join(known) or 'none'})"
                )
            now = datetime.now(UTC).isoformat()
            table[site] = [replace(one, revoked_at=now) if one in old else one for one in issued]
        return len(old)

    def enrolled(self) -> dict[str, list[Issued]]:
        """Every certificate that was issued, by site; read anew when the table has changed.

        Raises
        ------
        ResultError
            If the table cannot be read.
        """
        try:
            stat = self._table.stat()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ResultError(f"{self._table} cannot be read: {error.strerror}") from None
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if version != self._seen:
            try:
                stored: dict[str, list[dict[str, Any]]] = json.loads(self._table.read_text(encoding="utf-8"))
                self._issued = {site: [Issued(**one) for one in issued] for site, issued in stored.items()}
            except (OSError, ValueError, TypeError, AttributeError) as error:
                raise ResultError(f"{self._table} cannot be read: {error}") from None
            self._seen = version
        return self._issued

    def identify(self, certificate_pem: bytes) -> Name:
        """Whom a certificate, already verified by TLS, belongs to by now.

        Raises
        ------
        IdentityError
            If it is not of this federation or not enrolled.
        EnrolmentEndedError
            If it is revoked, or has expired since the connection was made.
        ResultError
            If the table cannot be read.
        """
        name, shown = _name_and_fingerprint(certificate_pem)
        if name.federation != self.name:
            raise IdentityError(f"the certificate belongs to the federation {name.federation!r}")
        if not name.site:
            return name
        issued = next((one for one in self.enrolled().get(name.site, []) if one.fingerprint == shown), None)
        if issued is None:
            raise IdentityError(f"site {name.site!r} is not enrolled with this certificate")
        if issued.state != "valid":
            raise EnrolmentEndedError(name.site, issued.state)
        return name

    def _authority(self) -> Authority:
        path = self.folder / "ca.key"
        return Authority(self.ca, read_key(read_file(path), origin=str(path)))

    @contextmanager
    def _changing(self) -> Generator[dict[str, list[Issued]]]:
        """The table, to be changed by one command at a time; written whole at the end."""
        path = self.folder / "enrolment.lock"
        try:
            lock = path.open("w")
        except OSError as error:
            raise IdentityError(f"{path} cannot be written: {error.strerror}") from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            table = {site: list(issued) for site, issued in self.enrolled().items()}
            yield table
            stored = {site: [asdict(one) for one in issued] for site, issued in sorted(table.items())}
            durable.write_text(self._table, json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


@lru_cache(maxsize=4096)
def _name_and_fingerprint(certificate_pem: bytes) -> tuple[Name, str]:
    certificate = read_certificate(certificate_pem, origin="the caller's certificate")
    return name_in(certificate), fingerprint(certificate)
