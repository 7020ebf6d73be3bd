"""The identity of a site: a key that never leaves its folder, a certificate request, and the bundle that answers it.

The first federation of a site has its place in the site's folder, each other one in federations/<name> there; all share
the folder's policy and its ledger. A place holds peers.toml, too (`fedbnsl_client.secure_aggregation.peers`), and

identity/key-<name>.pem   a key made here; the name is the start of the SHA-256 of its public half
identity/request.pem      the last request, for the coordinator's operator
identity/bundle.toml      certificate and CA; its public key tells which key file belongs to it
"""

import shlex
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from fedbnsl.errors import IdentityError, SetupError
from fedbnsl.events.security_log import NAME, SecurityLog
from fedbnsl.files import durable
from fedbnsl.identity import succession
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
from fedbnsl.identity.passphrase import NOBODY_KNOWS, PassphraseError, Passphrases

FOLDER = "identity"
_OTHERS = "federations"
_BUNDLE = "bundle.toml"
_REQUEST = "request.pem"
_SOON = timedelta(days=30)


class Identity:
    """A site's identity in a federation, from its folder."""

    def __init__(self, folder: Path, bundle: Bundle, passphrases: Passphrases) -> None:
        self._folder = folder
        self._passphrases = passphrases
        self._bundle = bundle
        self.name = Name(bundle.federation, bundle.site)
        self.coordinator = bundle.coordinator

    @classmethod
    def open(cls, place: Path, passphrases: Passphrases = NOBODY_KNOWS) -> "Identity":
        """The identity in a federation's place (`place_of`); `passphrases` are asked when a protected key is used.

        Raises SetupError if the site is not enrolled yet; IdentityError if a file cannot be read.
        """
        folder, site_folder = place / FOLDER, _site_folder(place)
        path = folder / _BUNDLE
        if not path.exists():
            from fedbnsl_client.site.folder import POLICY  # here: it loads the ledger

            site = "" if (site_folder / POLICY).exists() else " --site SITE"
            raise SetupError(
                f"{site_folder} is not enrolled in a federation yet: {path} is missing",
                remedy=f"In this order: {_command('request', site_folder)} --federation NAME{site}; send the file that "
                "it writes to the coordinator's operator; "
                f"{_command('enrol', site_folder)} BUNDLE, with the file that comes back. On loopback, "
                "--insecure does without.",
            )
        bundle = Bundle.from_toml(read_file(path).decode("utf-8", "replace"), origin=str(path))
        return cls(folder, bundle, passphrases)

    @property
    def place(self) -> Path:
        """Where it is kept; see `place_of`."""
        return self._folder.parent

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

        Raises IdentityError if the certificate cannot be used now, or its key is not here.
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
        """The certificate's key. Raises IdentityError if it cannot be read, or is not the certificate's."""
        try:
            key = read_key(read_file(self.key_path), origin=str(self.key_path), passphrases=self._passphrases)
            if key.public_key() != _public(self.certificate):
                raise IdentityError(f"{self.key_path} is not the key of the certificate")
        except PassphraseError:  # its own remedy is the right one
            raise
        except IdentityError as error:
            raise IdentityError(
                str(error),
                remedy="Restore the key. If it is lost: "
                f"{_command('request', _site_folder(self.place))} --federation {self.name.federation} "
                "--renew --new-key; nothing says then that the new key follows the lost one, and the other sites "
                "confirm it anew.",
            ) from None
        return key

    def move(self, address: str) -> None:
        """Call the coordinator at another host:port from now on; its authority stays the same."""
        bundle = replace(self._bundle, coordinator=address)
        durable.write_text(self._folder / _BUNDLE, bundle.to_toml())
        log = SecurityLog(_site_folder(self.place) / NAME)
        log.enter("coordinator moved", former=self.coordinator, coordinator=address)
        self._bundle, self.coordinator = bundle, address

    def passphrase(self) -> bytes:
        """What opens the file of the key, if it is protected."""
        return self._passphrases.of(str(self.key_path))


@dataclass(frozen=True)
class Link:
    """How a site connects to its coordinator."""

    address: str  # host:port
    credentials: Credentials | None = None  # for TLS; None: plaintext, on loopback only
    site: str = ""  # the name in the site's certificate; empty in plaintext
    authority: str = ""  # fingerprint of the federation's authority; empty in plaintext


def _command(name: str, site_folder: Path) -> str:
    return shlex.join(["fedbnsl", "participant", name, str(site_folder)])


def _site_folder(place: Path) -> Path:
    above = place.parent.parent  # a site's folder itself may lie in one of that name; the first place is never empty
    return above if place.parent.name == _OTHERS and (above / FOLDER).exists() else place


def federations(site_folder: Path) -> dict[str, Path]:
    """The place of each federation that a site is enrolled in, by name, the first one first.

    Raises IdentityError if a bundle cannot be read.
    """
    places = [site_folder, *sorted((site_folder / _OTHERS).glob("*/"))]
    return {Identity.open(one).name.federation: one for one in places if (one / FOLDER / _BUNDLE).exists()}


def place_of(site_folder: Path, federation: str | None = None) -> Path:
    """Where a site keeps its identity and its confirmed peers in a federation; None: in the only one.

    Raises SetupError if it is not enrolled in that federation, or in several and none is named.
    """
    known = federations(site_folder)
    if federation is None and len(known) > 1:
        raise SetupError(
            f"{site_folder} is enrolled in several federations: {', '.join(known)}", remedy="Say which: --federation."
        )
    if federation is None or not known:
        return next(iter(known.values()), site_folder)
    if federation not in known:
        raise SetupError(
            f"{site_folder} is not enrolled in a federation {federation!r}, but in {', '.join(known) or 'none'}",
            remedy=f"Ask for it: {_command('request', site_folder)} --federation {federation}",
        )
    return known[federation]


def place_with(site_folder: Path, authority: str) -> Path:
    """The place of the federation whose authority has this fingerprint; empty, or of no federation: the folder."""
    for place in federations(site_folder).values():
        if same_fingerprint(authority_of(place), authority):
            return place
    return site_folder


def authority_of(place: Path) -> str:
    """Fingerprint of the authority that the site was enrolled by in a place; empty if by none."""
    return fingerprint(Identity.open(place).ca) if (place / FOLDER / _BUNDLE).exists() else ""


def federation_names(site_folder: Path) -> dict[str, str]:
    """Names of the federations that a site is enrolled in, by the fingerprints of their authorities."""
    return {authority_of(place): name for name, place in federations(site_folder).items()}


def is_of(site_folder: Path, approved_for: str, authority: str) -> bool:
    """Whether an approval for an authority, by its fingerprint (empty: the first one), holds for this one.

    In plaintext, which stays on this machine, there is none (empty).
    """
    return not authority or same_fingerprint(approved_for or authority_of(site_folder), authority)


def link(
    site_folder: Path | None,
    address: str | None,
    *,
    insecure: bool,
    federation: str | None = None,
    passphrases: Passphrases = NOBODY_KNOWS,
) -> Link:
    """How to connect to the coordinator at host:port; None: the one that enrolled the site in a federation.

    Raises SetupError if plaintext is asked for without an address, or TLS without the folder of a site that is
    enrolled; IdentityError if the site's certificate cannot be used now.
    """
    if insecure:
        if address is None:
            raise SetupError("with --insecure, name the coordinator: HOST:PORT")
        return Link(address)
    if site_folder is None:
        raise SetupError("without --insecure, a folder with the site's certificate is needed (--policy or --identity)")
    own = Identity.open(place_of(site_folder, federation), passphrases)
    return Link(address or own.coordinator, own.credentials(), own.name.site, fingerprint(own.ca))


def whom(
    site_folder: Path,
    address: str | None,
    *,
    federation: str | None = None,
    passphrases: Passphrases = NOBODY_KNOWS,
) -> Link:
    """As `link` over TLS, without credentials: a certificate that is not valid now may be once the clock is set.

    Raises SetupError if the site is not enrolled; IdentityError if a file cannot be read.
    """
    own = Identity.open(place_of(site_folder, federation), passphrases)
    own.key()
    return Link(address or own.coordinator, None, own.name.site, fingerprint(own.ca))


def request(
    site_folder: Path,
    name: Name,
    *,
    renew: bool = False,
    with_new_key: bool = False,
    passphrases: Passphrases = NOBODY_KNOWS,
) -> bytes:
    """Make a key that stays here, and return the request for its certificate. Repeating this returns the same.

    With `renew`, ask for another certificate for the key of a site that is enrolled already: the other sites have
    confirmed this key. `with_new_key`, for a new one, which the old one signs (`succession`) so that they accept it;
    `Passphrases.for_new` says what protects it. Raises IdentityError if a name cannot be used, the site is enrolled,
    its key cannot be read, or a file cannot be written.
    """
    check_name("federation", name.federation)
    check_name("site", name.site)
    known = federations(site_folder)
    if name.federation in known and not renew:
        raise IdentityError(
            f"{site_folder} is enrolled already, in federation {name.federation!r}",
            remedy="To replace its certificate, pass --renew: the present one stays usable.",
        )
    place = known.get(name.federation) or _new_place(site_folder, name.federation)
    folder = place / FOLDER
    path = folder / _REQUEST
    if path.exists() and not _answered(folder):
        waiting = _asked(folder)
        if name_in(waiting) == name and _key_path(folder, _public(waiting)).exists():
            return pem(waiting)
    old = Identity.open(place, passphrases) if name.federation in known else None
    is_lost = old is not None and with_new_key and not old.key_path.exists()
    old_key = None if old is None or is_lost else old.key()
    if old_key is None or with_new_key:
        key = new_key()
        path_of_key = _key_path(folder, key.public_key())
        passphrase = passphrases.for_new(str(path_of_key))
        write_private(path_of_key, key_pem(key, passphrase))
    else:
        key = old_key
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(common_name(name.site))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name.uri)]), critical=False)
    )
    if old is not None and old.name == name:
        followed = succession.extension(old.certificate, old_key if with_new_key else None, key.public_key())
        builder = builder if followed is None else builder.add_extension(followed, critical=False)
    asked = builder.sign(key, hashes.SHA256())
    durable.write_text(path, pem(asked).decode())
    return pem(asked)


def _new_place(site_folder: Path, federation: str) -> Path:
    """The folder itself for the first federation that it is asked for, or is enrolled in."""
    own = site_folder / FOLDER
    if (own / _BUNDLE).exists() or ((own / _REQUEST).exists() and name_in(_asked(own)).federation != federation):
        return site_folder / _OTHERS / federation
    return site_folder


def unprotected_key(place: Path, public: PublicKey) -> PrivateKey | None:
    """A key of a federation's place, perhaps an earlier one; None: it is not there, or a passphrase protects it."""
    path = _key_path(place / FOLDER, public)
    if not path.exists():
        return None
    try:
        return read_key(read_file(path), origin=str(path))
    except PassphraseError:
        return None


def key_of(request_pem: bytes) -> str:
    """Fingerprint of the key that a request is for: for the coordinator's operator to compare."""
    return key_fingerprint(_public(x509.load_pem_x509_csr(request_pem)))


def key_of_certificate(certificate: x509.Certificate) -> str:
    """Fingerprint of a certificate's key, in the form of `key_of`."""
    return key_fingerprint(_public(certificate))


def what_peers_do(site_folder: Path, request_pem: bytes) -> str:
    """What the other sites have to do about the key of a request, for people."""
    asked = x509.load_pem_x509_csr(request_pem)
    place = federations(site_folder).get(name_in(asked).federation)
    if place is not None:
        if key_of(request_pem) == key_of_certificate(Identity.open(place).certificate):
            return "the key stays the same: the other sites have nothing to confirm"
        if succession.former_keys(asked):
            return (
                "the key is new, and the old one signed it: sites that have confirmed the old one accept it by "
                "themselves. If the old one may be in other hands, tell them by telephone, and they confirm the new one"
            )
    return "the key is new: tell its fingerprint to the other sites, too; they confirm it (participant peers)"


def _asked(folder: Path) -> x509.CertificateSigningRequest:
    path = folder / _REQUEST
    try:
        return x509.load_pem_x509_csr(read_file(path))
    except ValueError:
        raise IdentityError(f"{path} is not a certificate request", remedy="Remove it and ask again.") from None


def _answered(folder: Path) -> bool:
    """Whether the folder's bundle answers the folder's request."""
    if not (folder / _BUNDLE).exists():
        return False
    return _public(_asked(folder)) == _public(Identity.open(folder.parent).certificate)


def enrol(
    site_folder: Path, bundle: Bundle, *, expected_fingerprint: str, passphrases: Passphrases = NOBODY_KNOWS
) -> Identity:
    """Import the bundle that the coordinator's operator made.

    Raises IdentityError if the authority's fingerprint differs from that which this site's operator got in another way
    than the bundle, the site is enrolled there by another authority, the certificate is not for a key of this folder,
    or cannot be used.
    """
    if not same_fingerprint(fingerprint(bundle.ca_certificate), expected_fingerprint):
        raise IdentityError(
            f"the bundle's authority has the fingerprint {fingerprint(bundle.ca_certificate)}; expected "
            f"{expected_fingerprint.strip()}",
            remedy="Nothing was imported. Ask the coordinator's operator, by telephone for instance, for the "
            "fingerprint that `coordinator init` printed: this bundle may not be theirs.",
        )
    place = site_folder / _OTHERS / bundle.federation
    if not (place / FOLDER).exists():
        place = site_folder
    _refuse_other_authority(place, bundle)
    found = Identity(place / FOLDER, bundle, passphrases)
    if name_in(found.certificate) != found.name:
        raise IdentityError(f"the certificate names {name_in(found.certificate).uri}, the bundle {found.name.uri}")
    if not found.key_path.exists():
        raise IdentityError(
            f"the bundle answers another request than that of {site_folder}: {found.key_path} is missing",
            remedy="Nothing was imported. Enrol with the folder that `participant request` was called with.",
        )
    found.credentials()
    durable.write_text(place / FOLDER / _BUNDLE, bundle.to_toml())
    SecurityLog(site_folder / NAME).enter(
        "enrolled",
        site=found.name.site,
        federation=found.name.federation,
        coordinator=found.coordinator,
        authority=fingerprint(found.ca),
        certificate=fingerprint(found.certificate),
    )
    return found


def _refuse_other_authority(place: Path, bundle: Bundle) -> None:
    """Two federations may have one name, and approvals are by authority: none takes the place of another unasked."""
    known, new = authority_of(place), fingerprint(bundle.ca_certificate)
    if known and not same_fingerprint(known, new):
        present = place / FOLDER / _BUNDLE
        raise IdentityError(
            f"{present} is of federation {Identity.open(place).name.federation!r} under the authority {known}; this "
            f"bundle is of {bundle.federation!r} under {new}",
            remedy="Nothing was imported. If it is another federation, its operator gives it another name, under which "
            f"you ask: {_command('request', _site_folder(place))} --federation NAME. If it is the same one under a new "
            f"authority, move {present} elsewhere and enrol again: what was approved for the former authority does not "
            "hold for the new one.",
        )


def _public(document: x509.Certificate | x509.CertificateSigningRequest) -> PublicKey:
    """Its public key, which must be of the kind that this program makes."""
    key = document.public_key()
    if not isinstance(key, PublicKey):
        raise IdentityError("its public key is not of the kind that fedbnsl makes")
    return key


def _key_path(folder: Path, key: PublicKey) -> Path:
    return folder / f"key-{key_fingerprint(key).replace(':', '').lower()[:12]}.pem"
