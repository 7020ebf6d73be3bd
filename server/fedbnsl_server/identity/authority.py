"""The certificates that a federation's authority signs: its own, the coordinator's, a site's."""

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from fedbnsl.errors import IdentityError, SetupError
from fedbnsl.identity.certificates import Name, PrivateKey, common_name, day

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_CLOCKS_DIFFER = timedelta(hours=1)
_DNS_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def self_signed(federation: str, key: PrivateKey, *, days: int) -> x509.Certificate:
    """The certificate of a new authority."""
    subject = common_name(f"fedbnsl {federation}")
    return (
        _template(subject, subject, key.public_key(), datetime.now(UTC) + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


class Authority:
    """An authority that can sign. Raises IdentityError if it has expired."""

    def __init__(self, certificate: x509.Certificate, key: PrivateKey) -> None:
        if certificate.not_valid_after_utc <= datetime.now(UTC):
            raise IdentityError(
                f"the federation's authority expired on {day(certificate.not_valid_after_utc)}",
                remedy="Make a new federation in another folder (coordinator init), and enrol its sites there.",
            )
        self._certificate = certificate
        self._key = key

    def coordinator(
        self, name: Name, key: ec.EllipticCurvePublicKey, *, hosts: Sequence[str], days: int
    ) -> x509.Certificate:
        """A coordinator's certificate, for these hosts and this machine's own names."""
        names = [alternative_name(host) for host in dict.fromkeys((*hosts, *_LOCAL_NAMES))]
        # Also a client: `coordinator status`, `watch` and `healthcheck` call with it.
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._sign(f"{name.federation} coordinator", name, key, names, uses, days)

    def site(
        self,
        name: Name,
        key: ec.EllipticCurvePublicKey,
        *,
        days: int,
        follows: x509.UnrecognizedExtension | None = None,
    ) -> x509.Certificate:
        """A site's certificate, for calling only; `follows` are the statements of `succession`."""
        return self._sign(name.site, name, key, [], [ExtendedKeyUsageOID.CLIENT_AUTH], days, follows)

    def _sign(
        self,
        subject: str,
        name: Name,
        key: ec.EllipticCurvePublicKey,
        hosts: Sequence[x509.GeneralName],
        uses: Sequence[ObjectIdentifier],
        days: int,
        follows: x509.UnrecognizedExtension | None = None,
    ) -> x509.Certificate:
        mine = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        until = min(datetime.now(UTC) + timedelta(days=days), self._certificate.not_valid_after_utc)
        names = x509.SubjectAlternativeName([*hosts, x509.UniformResourceIdentifier(name.uri)])
        builder = (
            _template(common_name(subject), self._certificate.subject, key, until)
            # Strict verifiers, such as Python's from 3.13 on, ask for it.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(mine), critical=False)
            .add_extension(names, critical=False)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
        )
        if follows is not None:
            builder = builder.add_extension(follows, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def alternative_name(host: str) -> x509.GeneralName:
    """A host as a certificate names it, in ASCII. Raises SetupError if it is neither a name nor an address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        name = host.encode("idna").decode()
    except ValueError:
        name = ""
    if not _DNS_NAME.fullmatch(name):
        raise SetupError(f"host {host!r}: expected a name or an IP address, without a port")
    return x509.DNSName(name)


def _template(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _CLOCKS_DIFFER)
        .not_valid_after(until)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
