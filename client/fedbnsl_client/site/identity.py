"""Who this site is: a key that never leaves its folder, a request for a certificate, and what came back for it.

identity/key-<name>.pem   a key made here; the name is the start of the SHA-256 of its public half
identity/request.pem      the last request, for the coordinator's operator
identity/bundle.toml      certificate and CA; says by its public key which key it goes with
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from fedbnsl import durable
from fedbnsl.errors import IdentityError, SetupError
from fedbnsl.identity.bundle import Bundle
from fedbnsl.identity.certificates import (
    Credentials,
    Name,
    PrivateKey,
    PublicKey,
    check_name,
    common_name,
    day,
    fingerprint,
    key_fingerprint,
    key_pem,
    name_in,
    new_key,
    pem,
    read_file,
    read_key,
    same_fingerprint,
    why_unusable,
    write_private,
)

FOLDER = "identity"
_BUNDLE = "bundle.toml"
_REQUEST = "request.pem"
_SOON = timedelta(days=30)


class Identity:
    """A site's place in a federation, as its folder holds it.

    Attributes
    ----------
    name
        Federation and site.
    coordinator
        host:port of the coordinator, from the bundle.
    """

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        self._folder = folder
        self._bundle = bundle
        self.name = Name(bundle.federation, bundle.site)
        self.coordinator = bundle.coordinator

    @classmethod
    def open(cls, site_folder: Path) -> "Identity":
        """The identity of a site's folder.

        Raises
        ------
        IdentityError
            If the site is not enrolled yet, or a file cannot be read.
        """
        folder = site_folder / FOLDER
        path = folder / _BUNDLE
        if not path.exists():
            raise IdentityError(
                f"{site_folder} is not enrolled in a federation: {path} is missing",
                remedy=f"Ask for a certificate: fedbnsl participant request {site_folder} --federation NAME; then "
                "enrol with the bundle that comes back. On loopback, --insecure does without.",
            )
        return cls(folder, Bundle.from_toml(read_file(path).decode("utf-8", "replace"), origin=str(path)))

    @property
    def certificate(self) -> x509.Certificate:
        """The site's certificate."""
        return self._bundle.site_certificate

    @property
    def ca(self) -> x509.Certificate:
        """The federation's authority, whose fingerprint was compared on enrolment."""
        return self._bundle.ca_certificate

    def why_unusable(self, *, now: datetime | None = None) -> str:
        """What is wrong with the certificate by itself; empty if nothing is."""
        return why_unusable(self.certificate, self.ca, now=now)

    def expires_soon(self) -> str:
        """A warning from 30 days before the certificate expires; otherwise empty."""
        until = self.certificate.not_valid_after_utc
        if until - datetime.now(UTC) > _SOON:
            return ""
        return f"the certificate of {self.name.site} expires on {day(until)}: fedbnsl participant request --renew"

    def credentials(self) -> Credentials:
        """The site's key and certificate, and the CA that it trusts, for TLS.

        Raises
        ------
        IdentityError
            If the certificate cannot be used now, or its key is not here.
        """
        wrong = self.why_unusable()
        if wrong:
            raise IdentityError(f"the certificate of {self.name.site}: {wrong}")
        return Credentials(pem(self.certificate), key_pem(self.key()), pem(self.ca))

    @property
    def key_path(self) -> Path:
        """Where the certificate's key is."""
        return _key_path(self._folder, _public(self.certificate))

    def key(self) -> PrivateKey:
        """The certificate's key.

        Raises
        ------
        IdentityError
            If it cannot be read, or is another one.
        """
        try:
            key = read_key(read_file(self.key_path), origin=str(self.key_path))
            if key.public_key() != _public(self.certificate):
                raise IdentityError(f"{self.key_path} is not the key of the certificate")
        except IdentityError as error:
            raise IdentityError(
                str(error),
                remedy="Restore the key, or get a new certificate: fedbnsl participant request "
                f"{self._folder.parent} --federation {self.name.federation} --renew",
            ) from None
        return key


@dataclass(frozen=True)
class Link:
    """How a site reaches its coordinator.

    Attributes
    ----------
    address
        host:port.
    credentials
        For TLS; None: plaintext, on loopback only.
    site
        The name in the site's certificate; empty in plaintext, where nobody proves a name.
    authority
        Fingerprint of the federation's authority; empty in plaintext.
    """

    address: str
    credentials: Credentials | None = None
    site: str = ""
    authority: str = ""


def link(site_folder: Path | None, address: str | None, *, insecure: bool) -> Link:
    """The way to the coordinator at host:port; None: the one that enrolled the site.

    Raises
    ------
    SetupError
        If plaintext is asked for without an address, or TLS without a folder.
    IdentityError
        If the site is not enrolled, or its certificate cannot be used now.
    """
    if insecure:
        if address is None:
            raise SetupError("with --insecure, name the coordinator: HOST:PORT")
        return Link(address)
    if site_folder is None:
        raise SetupError("without --insecure, a folder with the site's certificate is needed (--policy or --identity)")
    own = Identity.open(site_folder)
    return Link(address or own.coordinator, own.credentials(), own.name.site, fingerprint(own.ca))


def request(site_folder: Path, name: Name, *, renew: bool = False) -> bytes:
    """Make a key that stays here, and return the request for its certificate; asked again, the same one.

    Parameters
    ----------
    renew
        Whether to make a new key although the site is enrolled already.

    Raises
    ------
    IdentityError
        If a name cannot be used, the site is enrolled, or a file cannot be written.
    """
    check_name("federation", name.federation)
    check_name("site", name.site)
    folder = site_folder / FOLDER
    path = folder / _REQUEST
    if (folder / _BUNDLE).exists() and not renew:
        raise IdentityError(
            f"{site_folder} is enrolled already, in federation {Identity.open(site_folder).name.federation!r}",
            remedy="To replace its certificate and key, pass --renew: both stay usable.",
        )
    if path.exists() and not _answered(folder):
        waiting = _asked(folder)
        if name_in(waiting) == name and _key_path(folder, _public(waiting)).exists():
            return pem(waiting)
    key = new_key()
    write_private(_key_path(folder, key.public_key()), key_pem(key))
    asked = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(common_name(name.site))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name.uri)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    durable.write_text(path, pem(asked).decode())
    return pem(asked)


def key_of(request_pem: bytes) -> str:
    """Fingerprint of the key that a request is for: for the coordinator's operator to compare."""
    return key_fingerprint(_public(x509.load_pem_x509_csr(request_pem)))


def _asked(folder: Path) -> x509.CertificateSigningRequest:
    path = folder / _REQUEST
    try:
        return x509.load_pem_x509_csr(read_file(path))
    except ValueError:
        raise IdentityError(f"{path} is no certificate request", remedy="Remove it and ask again.") from None


def _answered(folder: Path) -> bool:
    """Whether the bundle that is there belongs to the request that is there."""
    if not (folder / _BUNDLE).exists():
        return False
    return _public(_asked(folder)) == _public(Identity.open(folder.parent).certificate)


def enrol(site_folder: Path, bundle: Bundle, *, expected_fingerprint: str) -> Identity:
    """Take over what the coordinator's operator has signed.

    Parameters
    ----------
    expected_fingerprint
        The authority's, as this site's operator was told by another way than the bundle.

    Raises
    ------
    IdentityError
        If the fingerprint is another one, the certificate is not for a key of this folder, or cannot be used.
    """
    if not same_fingerprint(fingerprint(bundle.ca_certificate), expected_fingerprint):
        raise IdentityError(
            f"the bundle's authority has the fingerprint {fingerprint(bundle.ca_certificate)}; expected was "
            f"{expected_fingerprint.strip()}",
            remedy="Nothing was imported. Ask the coordinator's operator, by telephone for instance, for the "
            "fingerprint that `coordinator init` printed: this bundle may not be theirs.",
        )
    found = Identity(site_folder / FOLDER, bundle)
    if name_in(found.certificate) != found.name:
        raise IdentityError(f"the certificate names {name_in(found.certificate).uri}, the bundle {found.name.uri}")
    if not found.key_path.exists():
        raise IdentityError(
            f"the bundle answers another request than that of {site_folder}: {found.key_path} is missing",
            remedy="Nothing was imported. Enrol with the folder that `participant request` was called with.",
        )
    found.credentials()
    durable.write_text(site_folder / FOLDER / _BUNDLE, bundle.to_toml())
    return found


def _public(document: x509.Certificate | x509.CertificateSigningRequest) -> PublicKey:
    """The key in it; `enrol` and `approve` take one kind only."""
    key = document.public_key()
    if not isinstance(key, PublicKey):
        raise IdentityError("the key in it is not one that this program made")
    return key


def _key_path(folder: Path, key: PublicKey) -> Path:
    return folder / f"key-{key_fingerprint(key).replace(':', '').lower()[:12]}.pem"
