"""Certificates and keys: the names in them, their fingerprints, and how they are read, checked and written.

Every site is `spiffe://fedbnsl/<federation>/<site>` and the coordinator is `spiffe://fedbnsl/<federation>`, as the only
URI among its certificate's alternative names; each federation has its own certificate authority (CA).
"""

import hashlib
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedbnsl.errors import IdentityError, SetupError
from fedbnsl.files import durable
from fedbnsl.identity.passphrase import NOBODY_KNOWS, PassphraseError, Passphrases
from fedbnsl.protocol.messages import SITE_NAME_RULE, is_site_name

_PREFIX = "spiffe://fedbnsl/"

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


@dataclass(frozen=True)
class Credentials:
    """What one side of a TLS connection presents and trusts, each as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes


@dataclass(frozen=True)
class Name:
    """A member of a federation; the coordinator's `site` is empty."""

    federation: str
    site: str = ""

    @property
    def uri(self) -> str:
        """The SPIFFE name."""
        parts = [self.federation, self.site] if self.site else [self.federation]
        return _PREFIX + "/".join(quote(part, safe="") for part in parts)


def check_name(what: str, name: str) -> None:
    """Refuse an invalid name of a federation or a site. Raises SetupError with the rule."""
    if not is_site_name(name):
        raise SetupError(f"{what} {name!r}: use {SITE_NAME_RULE}")


def name_in(document: x509.Certificate | x509.CertificateSigningRequest) -> Name:
    """The name that a certificate, or a request for one, states.

    Raises IdentityError if there is not exactly one name of the form above.
    """
    try:
        names = document.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        uris = []
    parts = [unquote(part) for part in uris[0].removeprefix(_PREFIX).split("/")] if len(uris) == 1 else []
    if not parts or not uris[0].startswith(_PREFIX) or len(parts) > 2 or not all(map(is_site_name, parts)):
        raise IdentityError(
            f"expected one name such as {_PREFIX}federation/site, got {', '.join(map(repr, uris)) or 'none'}"
        )
    return Name(*parts)


def common_name(text: str) -> x509.Name:
    """A subject for people to read; identity is in the alternative names. At most 64 characters, by the standard."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def new_key() -> PrivateKey:
    """A new P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate as `openssl x509 -fingerprint -sha256` prints it: AB:CD:..."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def key_fingerprint(key: PublicKey) -> str:
    """SHA-256 of a public key, in the form of `fingerprint`: what two people compare before a request is signed."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).digest().hex(":").upper()


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two fingerprints are equal, ignoring colons, blanks, case and a leading `SHA256 Fingerprint=`."""
    return _digits(one) == _digits(other)


def _digits(text: str) -> str:
    digits = text.lower().rpartition("=")[2].strip().removeprefix("sha256:")
    return "".join(digits.replace(":", "").split())


def read_certificate(pem: bytes, *, origin: str) -> x509.Certificate:
    """A certificate from PEM. Raises IdentityError if it is not a certificate."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion):
        raise IdentityError(f"{origin} is not a certificate in PEM form") from None


def read_key(pem: bytes, *, origin: str, passphrases: Passphrases = NOBODY_KNOWS) -> PrivateKey:
    """A private key from PEM; see `read_certificate`.

    Raises PassphraseError if it is protected by another passphrase, or by one that nobody knows here. `passphrases`:
    asked if the key is protected.
    """
    passphrase = passphrases.of(origin) if is_protected(pem) else None
    try:
        key = serialization.load_pem_private_key(pem, password=passphrase)
    except (ValueError, TypeError):
        if passphrase is not None:
            raise PassphraseError(f"the passphrase does not open {origin}, or the file is damaged") from None
        raise IdentityError(f"{origin} is not a private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"{origin} is not a key that this program made")
    return key


def is_protected(pem: bytes) -> bool:
    """Whether the private key in a PEM file needs a passphrase."""
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in pem


def key_pem(key: PrivateKey, passphrase: bytes | None = None) -> bytes:
    """A private key as PEM, encrypted if there is a passphrase."""
    encryption = (
        serialization.NoEncryption() if passphrase is None else serialization.BestAvailableEncryption(passphrase)
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def pem(document: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    """A certificate, or a request for one, as PEM."""
    return document.public_bytes(serialization.Encoding.PEM)


def why_unusable(certificate: x509.Certificate, ca: x509.Certificate, *, now: datetime | None = None) -> str:
    """What is wrong with a certificate: not of this CA, not valid yet, expired; empty if nothing is."""
    now = now or datetime.now(UTC)
    if foreign := not_of_authority(certificate, ca):
        return foreign
    if now < certificate.not_valid_before_utc:
        return f"it is not valid before {day(certificate.not_valid_before_utc)}: is this machine's clock right?"
    if now > certificate.not_valid_after_utc:
        return f"it expired on {day(certificate.not_valid_after_utc)}"
    return ""


def not_of_authority(certificate: x509.Certificate, ca: x509.Certificate) -> str:
    """That a certificate is not of this CA; empty if it is, be it valid now or not."""
    try:
        certificate.verify_directly_issued_by(ca)
    except Exception:  # for a foreign signature cryptography raises its own, type and value errors alike
        return f"the certificate authority with fingerprint {fingerprint(ca)} did not sign it"
    return ""


def day(moment: datetime) -> str:
    """A time for people, to the minute."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def read_file(path: Path) -> bytes:
    """A file of an identity. Raises IdentityError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(
            f"{path} cannot be read: {error.strerror}",
            remedy="Check that the file is in its place and that this user may read it.",
        ) from None


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read; an existing file is never overwritten.

    Raises IdentityError if it exists already, or cannot be written.
    """
    durable.make_folder(path.parent)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise IdentityError(f"{path} exists already; a key is never overwritten") from None
    except OSError as error:
        raise IdentityError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink()  # half a key would block the next attempt
        raise IdentityError(f"{path} cannot be written: {error.strerror}") from None
