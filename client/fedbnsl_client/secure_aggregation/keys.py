"""Keys for the masks of one run, and the signatures that bind them to sites.

The coordinator passes keys on and could put its own in their place. So a site signs its key with the key of its
certificate, over everything that the masks rely on, and takes no other site's key without such a signature.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509 import Certificate, load_der_x509_certificate

from fedbnsl.errors import IdentityError, PeerRefusedError
from fedbnsl.identity.certificates import (
    Credentials,
    PrivateKey,
    PublicKey,
    fingerprint,
    key_fingerprint,
    name_in,
    not_of_authority,
    read_certificate,
    read_key,
    same_fingerprint,
    why_unusable,
)
from fedbnsl.identity.succession import former_keys
from fedbnsl.protocol.messages import Membership
from fedbnsl_client.secure_aggregation.attestation import Attestation

_DOMAIN = "fedbnsl secure aggregation, key of a site/1"
_CURVE = ec.ECDSA(hashes.SHA256())


def new_private_key() -> bytes:
    """32 random bytes: an X25519 key for one run."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private_key: bytes) -> bytes:
    """32 bytes that the others may know."""
    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def digest(*parts: object) -> bytes:
    """SHA-256 of plain values, so that no two different lists have one text; bytes as hexadecimal digits."""
    text = json.dumps(parts, separators=(",", ":"), ensure_ascii=True, default=lambda value: f"0x{value.hex()}")
    return hashlib.sha256(text.encode()).digest()


def memberships_digest(memberships: Iterable[Membership], *, with_keys: bool) -> bytes:
    """32 bytes that stand for these memberships in the order of their names."""
    # Without the signatures: one can be written in two ways.
    return digest(
        [
            (one.site, one.n_samples, one.certificate, one.public_key if with_keys else b"")
            for one in sorted(memberships, key=lambda one: one.site)
        ]
    )


def statement(
    *, authority: str, run: int, plan_digest: bytes, memberships: Iterable[Membership], site: str, key: bytes
) -> bytes:
    """What a site signs: its key for this run, of this plan, with these sites, under this federation's authority."""
    return digest(_DOMAIN, authority, run, plan_digest, memberships_digest(memberships, with_keys=False), site, key)


class Enrolled(Attestation):
    """A site with a certificate of its federation.

    `confirmed` are the fingerprints of the keys of other sites' certificates, by site, as the operator has confirmed
    them; None: none need be. `former` are those of keys that these have followed, by site, and whether lately: a run
    that goes on may rest on them. `followed` is told the site, its confirmed key and the one that follows it.
    `earlier_key` finds a key that this site had before.
    """

    def __init__(
        self,
        credentials: Credentials,
        confirmed: Mapping[str, str] | None = None,
        *,
        former: Mapping[str, Mapping[str, bool]] = MappingProxyType({}),
        followed: Callable[[str, str, str], None] = lambda site, old, new: None,
        earlier_key: Callable[[PublicKey], PrivateKey | None] = lambda public: None,
    ) -> None:
        self._former, self._followed, self._earlier_key = former, followed, earlier_key
        self._certificate = read_certificate(credentials.certificate, origin="the site's certificate")
        self._ca = read_certificate(credentials.ca, origin="the federation's certificate")
        self._key = read_key(credentials.key, origin="the site's key")
        self._confirmed = confirmed

    @property
    def authority(self) -> str:
        """See `Attestation.authority`."""
        return fingerprint(self._ca)

    def certificate(self) -> bytes:
        """See `Attestation.certificate`."""
        return self._certificate.public_bytes(serialization.Encoding.DER)

    def is_own(self, certificate: bytes) -> bool:
        """See `Attestation.is_own`."""
        try:
            found = load_der_x509_certificate(certificate)
            wrong = not_of_authority(found, self._ca) or name_in(found) != name_in(self._certificate)
            return not wrong and self._key_of(found) is not None
        except (ValueError, IdentityError, PeerRefusedError):
            return False

    def sign(self, statement: bytes, certificate: bytes) -> bytes:
        """See `Attestation.sign`. Raises PeerRefusedError if the certificate's key is not here."""
        key = self._key_of(load_der_x509_certificate(certificate))
        if key is None:
            raise PeerRefusedError("the coordinator named a certificate whose key is not in this site's folder")
        return key.sign(statement, _CURVE)

    def _key_of(self, certificate: Certificate) -> PrivateKey | None:
        public = public_key_of(certificate)
        return self._key if public == self._key.public_key() else self._earlier_key(public)

    def verify(self, membership: Membership, statement: bytes) -> None:
        """See `Attestation.verify`."""
        certificate = self._read(membership, goes_on=True)
        try:
            public_key_of(certificate).verify(membership.signature, statement, _CURVE)
        except InvalidSignature:
            raise PeerRefusedError(
                f"the key of site {membership.site!r} was not signed by it for this run, plan and these sites"
            ) from None

    def require_confirmed(self, memberships: Iterable[Membership], *, least: int, goes_on: bool = False) -> None:
        """See `Attestation.require_confirmed`."""
        if self._confirmed is None:
            return
        certificates = {one.site: self._read(one, goes_on=goes_on) for one in memberships}
        found = {site: key_fingerprint(public_key_of(one)) for site, one in certificates.items()}
        followed: dict[str, str] = {}
        for site, seen in found.items():
            confirmed = self._confirmed.get(site, seen)
            former = self._former.get(site, {})
            if same_fingerprint(confirmed, seen) or (seen in former and (goes_on or former[seen])):
                continue
            if _follows(certificates[site], confirmed):
                followed[site] = seen
            else:
                raise PeerRefusedError(
                    f"site {site!r} has another key than the confirmed one: {seen}",
                    remedy="Ask its people, not the coordinator's, whether they have a new key. If so: fedbnsl "
                    f"participant peers FOLDER --confirm {site} {seen}",
                )
        own = key_fingerprint(public_key_of(self._certificate))
        real = {seen: site for site, seen in found.items() if site in self._confirmed and seen != own}.values()
        if len(real) < least:
            others = sorted(found.keys() - set(real))
            raise PeerRefusedError(
                f"the plan relies on {least} other sites, and {len(real)} of them are confirmed here; the coordinator "
                f"could have invented the rest: {', '.join(others)}",
                remedy="Compare fingerprints with the people of these sites by telephone, then: fedbnsl participant "
                "peers FOLDER --confirm SITE FINGERPRINT",
            )
        for site, seen in followed.items():
            self._followed(site, self._confirmed[site], seen)
        self._confirmed = {**self._confirmed, **followed}

    def _read(self, membership: Membership, *, goes_on: bool) -> Certificate:
        try:
            certificate = load_der_x509_certificate(membership.certificate)
            # One that expires while a run goes on has signed what the run rests on.
            usable = not_of_authority if goes_on else why_unusable
            wrong = usable(certificate, self._ca) or _other_name(certificate, membership.site)
        except (ValueError, IdentityError) as error:
            certificate, wrong = None, str(error)
        if certificate is None or wrong:
            raise PeerRefusedError(f"the certificate of site {membership.site!r} cannot be used: {wrong}")
        return certificate


def _follows(certificate: Certificate, confirmed: str) -> bool:
    """Whether the key of a certificate follows a confirmed one; see `succession`."""
    try:
        return any(same_fingerprint(confirmed, one) for one in former_keys(certificate))
    except IdentityError:
        return False


def _other_name(certificate: Certificate, site: str) -> str:
    name = name_in(certificate)
    return "" if name.site == site else f"it is that of {name.site or 'the coordinator'!r}"


def public_key_of(certificate: Certificate) -> PublicKey:
    """The key that a site signs with. Raises PeerRefusedError if it is of another kind than those of this program."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise PeerRefusedError("a certificate with a key of a kind that this program does not make")
    return key
