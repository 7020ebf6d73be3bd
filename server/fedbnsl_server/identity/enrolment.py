"""The federation's folder: who belongs to it, who did, and the coordinator's certificate.

federation.toml   name, address and host names of the coordinator
ca.pem            the authority's certificate
ca.key            its key, for `approve` and `renew` only; it may lie elsewhere (--ca-key)
server.pem        the coordinator's certificate and its key, in one file: replaced as a whole
security-log.jsonl    what was approved, revoked and renewed; and who called (`coordinator serve`)
enrolment.json    the table of enrolment: see `fedbnsl_server.identity.enrolment_table`
operators.toml    who may use the page of the coordinator: see `fedbnsl.web.operators`
"""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path

import tomli_w
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from fedbnsl.errors import IdentityError
from fedbnsl.events.security_log import NAME, SecurityLog
from fedbnsl.files import durable
from fedbnsl.files.toml_text import parse_toml
from fedbnsl.identity import succession
from fedbnsl.identity.bundle import Bundle
from fedbnsl.identity.certificates import (
    Credentials,
    Name,
    PrivateKey,
    check_name,
    day,
    fingerprint,
    is_protected,
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
from fedbnsl.identity.passphrase import NOBODY_KNOWS, Passphrases
from fedbnsl.identity.roster_sheet import RosterSheet
from fedbnsl.protocol.channel import DEFAULT_PORT, split_address
from fedbnsl.web.exposure import RenewedContext
from fedbnsl_server.identity.authority import Authority, alternative_name, self_signed
from fedbnsl_server.identity.enrolment_table import EnrolmentEndedError, EnrolmentTable, Issued


class Federation:
    """The folder of one federation, at the coordinator."""

    def __init__(
        self,
        folder: Path,
        name: str,
        address: str,
        hosts: Sequence[str],
        *,
        ca_key: Path | None = None,
        passphrases: Passphrases = NOBODY_KNOWS,
    ) -> None:
        self.folder, self.name, self.address, self.hosts = folder, name, address, tuple(hosts)
        self._settings, self._own = folder / "federation.toml", folder / "server.pem"
        self._ca_key = ca_key or folder / "ca.key"
        self._passphrases = passphrases
        self._opened: tuple[bytes, PrivateKey] | None = None
        self._table = EnrolmentTable(folder)
        self._log = SecurityLog(folder / NAME)

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        name: str,
        # Names or addresses under which sites call, the first one the main one; this machine's own are added.
        hosts: Sequence[str],
        port: int = DEFAULT_PORT,
        # days, ca_days: how long the coordinator's certificate and the authority's are valid
        days: int,
        ca_days: int,
        ca_key: Path | None = None,  # where the authority's key goes; None: into the folder
        passphrases: Passphrases = NOBODY_KNOWS,  # what protects the two keys, see `Passphrases.for_new`
    ) -> "Federation":
        """Make the authority and the coordinator's first certificate.

        Raises IdentityError if there is a federation in the folder already, or a value cannot be used.
        """
        check_name("federation", name)
        federation = cls(folder, name, _address_of(hosts, port), hosts, ca_key=ca_key, passphrases=passphrases)
        if federation._settings.exists():
            raise IdentityError(f"{folder} holds a federation already; its authority is never overwritten")
        if federation._ca_key.exists():
            raise IdentityError(
                f"{federation._ca_key} is there already, but {folder} holds no federation.toml: an interrupted `init`, "
                "or a lost file",
                remedy="If no site was ever enrolled here, remove the folder and start again; otherwise restore "
                "federation.toml from a backup.",
            )
        key = new_key()
        authority = passphrases.for_new(str(federation._ca_key))
        own = passphrases.for_new(str(federation._own))
        durable.make_folder(folder)
        write_private(federation._ca_key, key_pem(key, authority))
        certificate = self_signed(name, key, days=ca_days)
        durable.write_text(folder / "ca.pem", pem(certificate).decode())
        federation._renew(days=days, passphrase=own)
        federation._write_settings()  # last: a folder without it is not taken for a federation's
        return federation

    @classmethod
    def open(cls, folder: Path, *, ca_key: Path | None = None, passphrases: Passphrases = NOBODY_KNOWS) -> "Federation":
        """The federation of a folder. Raises IdentityError if it holds none.

        Only `approve` and `renew` read the authority's key; `ca_key` is its place where it is not in the folder.
        """
        path = folder / "federation.toml"
        try:
            settings = parse_toml(read_file(path).decode())
            name, address, hosts = str(settings["name"]), str(settings["address"]), [str(h) for h in settings["hosts"]]
        except (ValueError, KeyError, TypeError) as error:
            raise IdentityError(f"{path} cannot be used: {error}") from None
        return cls(folder, name, address, hosts, ca_key=ca_key, passphrases=passphrases)

    @property
    def port(self) -> int:
        """The port that sites were told."""
        return split_address(self.address)[1]

    @cached_property
    def ca(self) -> x509.Certificate:
        """The authority's certificate."""
        return read_certificate(read_file(self.folder / "ca.pem"), origin=str(self.folder / "ca.pem"))

    @property
    def fingerprint(self) -> str:
        """What sites compare before they trust the authority."""
        return fingerprint(self.ca)

    def credentials(self) -> Credentials:
        """What the coordinator shows and trusts; read each time, so that a renewed certificate is used.

        Raises IdentityError if a file is missing, or the certificate is not of this federation or not valid now.
        """
        path = self._own
        both = read_file(path)
        certificate = read_certificate(both, origin=str(path))
        wrong = why_unusable(certificate, self.ca)
        if wrong:
            raise IdentityError(
                f"the coordinator's certificate {path}: {wrong} (fedbnsl coordinator renew {self.folder})"
            )
        if self._opened is None or self._opened[0] != both:  # opening a protected key takes time, at every connection
            self._opened = both, read_key(both, origin=str(path), passphrases=self._passphrases)
        return Credentials(pem(certificate), key_pem(self._opened[1]), pem(self.ca))

    def server_tls(self) -> RenewedContext:
        """TLS under the coordinator's certificate, for callers who need none; see `credentials` for the errors."""
        return RenewedContext(self.credentials, self._server_context)

    def _server_context(self) -> ssl.SSLContext:
        self.credentials()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._own, password=lambda: self._passphrases.of(str(self._own)))
        return context

    def move(self, hosts: Sequence[str], port: int | None = None, *, days: int) -> x509.Certificate:
        """Note other host names, the main one first, under which sites call, and make a certificate for them.

        `port` None: as before. Raises SetupError if one is neither a name nor an address; see `renew` for the rest.
        """
        self.hosts, self.address = tuple(hosts), _address_of(hosts, port or self.port)
        certificate = self.renew(days=days)
        self._write_settings()
        self._log.enter("coordinator moved", address=self.address)
        return certificate

    def _write_settings(self) -> None:
        settings = {"name": self.name, "address": self.address, "hosts": list(self.hosts)}
        durable.write_text(self._settings, "# Made by `fedbnsl coordinator init`.\n" + tomli_w.dumps(settings))

    def renew(self, *, days: int) -> x509.Certificate:
        """Give the coordinator a new key and certificate; a running server uses it by itself.

        The new key has the passphrase of the old one. Raises IdentityError if the authority's key is not here.
        """
        old = read_file(self._own) if self._own.exists() else b""
        if not is_protected(old):
            return self._renew(days=days, passphrase=None)
        read_key(old, origin=str(self._own), passphrases=self._passphrases)  # refuses a mistyped one
        return self._renew(days=days, passphrase=self._passphrases.of(str(self._own)))

    def _renew(self, *, days: int, passphrase: bytes | None) -> x509.Certificate:
        key = new_key()
        certificate = self._authority().coordinator(Name(self.name), key.public_key(), hosts=self.hosts, days=days)
        fresh = self.folder / "server.pem.part"
        fresh.unlink(missing_ok=True)
        write_private(fresh, key_pem(key, passphrase) + pem(certificate))
        fresh.replace(self._own)
        self._log.enter("coordinator certified", certificate=fingerprint(certificate))
        return certificate

    def approve(self, request_pem: bytes, *, days: int, renew: bool = False) -> Bundle:
        """Sign a site's request and enrol its certificate.

        Only the name, the public key and the keys that it follows are taken from the request. Raises IdentityError if
        the request is unreadable, wrongly signed or for another federation, or the site is enrolled already. `renew`:
        whether the site may hold a valid certificate already; that one stays valid, so that no connection breaks.
        """
        key, name = self.read_request(request_pem)
        follows = succession.carried(x509.load_pem_x509_csr(request_pem))
        authority = self._authority()  # before the lock: somebody may be asked for a passphrase
        with self._table.changing() as table:
            valid = [issued for issued in table.get(name.site, []) if issued.state == "valid"]
            if valid and not renew:
                until = day(datetime.fromisoformat(valid[-1].expires_at))
                raise IdentityError(
                    f"site {name.site!r} is enrolled already, until {until}; pass --renew to give it a new one, or "
                    "revoke it first"
                )
            certificate = authority.site(name, key, days=days, follows=follows)
            issued = Issued.now(certificate)
            table.setdefault(name.site, []).append(issued)
        self._log.enter(
            "renewed" if renew else "approved",
            site=name.site,
            certificate=issued.fingerprint,
            expires_at=issued.expires_at,
        )
        return Bundle(self.name, name.site, self.address, pem(certificate).decode(), pem(self.ca).decode())

    def read_request(self, request_pem: bytes) -> tuple[ec.EllipticCurvePublicKey, Name]:
        """The key of a certificate request and the name that it asks for; see `approve` for the errors."""
        try:
            request = x509.load_pem_x509_csr(request_pem)
            key, proven = request.public_key(), request.is_signature_valid
        except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm):
            raise IdentityError("no certificate request in PEM form; `fedbnsl participant request` makes one") from None
        if not proven or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise IdentityError("the request is not signed by a P-256 key; `fedbnsl participant request` makes one")
        name = name_in(request)
        if name.federation != self.name or not name.site:
            raise IdentityError(f"the request asks for {name.uri}; this federation is {self.name!r}")
        return key, name

    def revoke(self, site: str, *, keep_newest: bool = False) -> int:
        """Revoke a site's certificates from its next call on; return how many were revoked.

        Raises IdentityError if the site has no valid certificate to revoke.
        """
        with self._table.changing() as table:
            issued = table.get(site, [])
            valid = [one for one in issued if one.state == "valid"]
            old = valid[:-1] if keep_newest else valid
            if not old:
                known = [name for name, issued in sorted(table.items()) if any(one.state == "valid" for one in issued)]
                raise IdentityError(
                    f"site {site!r} has no certificate to revoke (sites that have: {', '.join(known) or 'none'})"
                )
            table[site] = [one.revoked_now() if one in old else one for one in issued]
        for one in old:
            self._log.enter("revoked", site=site, certificate=one.fingerprint)
        return len(old)

    def forget(self, site: str, *, runs: Sequence[str]) -> None:
        """Take a site out of the table: its certificates, of which none is valid then; note the runs it was in."""
        with self._table.changing() as table:
            table.pop(site, None)
        self._log.enter("site forgotten", site=site, runs=", ".join(runs))

    def enrolled(self) -> dict[str, list[Issued]]:
        """Every certificate that was issued, by site; see `EnrolmentTable.read`."""
        return self._table.read()

    def sheet(self) -> RosterSheet:
        """The keys of all sites with a valid certificate, the newest of each.

        Raises IdentityError if an earlier version issued one, which did not note the key.
        """
        valid = {site: [one for one in issued if one.state == "valid"] for site, issued in self.enrolled().items()}
        keys = {site: issued[-1].key for site, issued in sorted(valid.items()) if issued}
        unknown = [site for site, key in keys.items() if not key]
        if unknown:
            raise IdentityError(
                f"the keys of {', '.join(unknown)} are not known: an earlier version issued their certificates",
                remedy="Renew them: fedbnsl participant request FOLDER --renew at the site.",
            )
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        return RosterSheet(federation=self.name, authority=self.fingerprint, day=day, sites=keys)

    def state_of(self, site: str) -> str:
        """One of "valid", "expired", "revoked" and "not enrolled"; see `enrolled` for the errors."""
        states = [one.state for one in self.enrolled().get(site, [])]
        return "valid" if "valid" in states else states[-1] if states else "not enrolled"

    def identify(self, certificate_pem: bytes) -> Name:
        """The owner of a certificate that TLS has verified, if it is still enrolled.

        Raises IdentityError if it is not of this federation or not enrolled; EnrolmentEndedError if it is revoked, or
        has expired since the connection was made; ResultError if the table cannot be read.
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
        if not self._ca_key.exists():
            raise IdentityError(
                f"the authority's key is not at {self._ca_key}",
                remedy="Do this where the key is kept, or name its place with --ca-key.",
            )
        key = read_key(read_file(self._ca_key), origin=str(self._ca_key), passphrases=self._passphrases)
        if key.public_key() != self.ca.public_key():
            raise IdentityError(f"{self._ca_key} is the key of another authority")
        return Authority(self.ca, key)


def _address_of(hosts: Sequence[str], port: int) -> str:
    """The main host, the first one, with the port. Raises SetupError if one is neither a name nor an address."""
    main, *_ = [str(alternative_name(host).value) for host in hosts]  # ASCII, also where the host is not
    return f"[{main}]:{port}" if ":" in main else f"{main}:{port}"


def shown_by(certificate_pem: bytes) -> dict[str, str]:
    """What the security log says of a certificate: its site, unless it is the coordinator's, and its fingerprint."""
    try:
        name, shown = _name_and_fingerprint(certificate_pem)
    except IdentityError:  # signed by the authority, with a name that this program does not give
        return {"certificate": fingerprint(read_certificate(certificate_pem, origin="the caller's certificate"))}
    return {"site": name.site or "(coordinator)", "certificate": shown}


@lru_cache(maxsize=4096)
def _name_and_fingerprint(certificate_pem: bytes) -> tuple[Name, str]:
    certificate = read_certificate(certificate_pem, origin="the caller's certificate")
    return name_in(certificate), fingerprint(certificate)
