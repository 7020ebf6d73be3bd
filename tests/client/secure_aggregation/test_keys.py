"""Keys: a site takes no key that its owner did not sign for this run, and relies on no site that nobody confirmed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from fedbnsl.errors import PeerRefusedError, SetupError
from fedbnsl.identity.certificates import key_fingerprint
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.codec import task_digest
from fedbnsl.protocol.messages import DIGEST_BYTES, Membership
from fedbnsl.rounds.keys import Answer, Task
from fedbnsl_client.secure_aggregation import keys, peers
from fedbnsl_client.secure_aggregation.keys import Enrolled, public_key_of
from fedbnsl_client.secure_aggregation.member import Member
from fedbnsl_server.rounds import keys as server_keys
from fedbnsl_server.rounds.kinds import Run
from federation_folder import enrol, make_federation

SITES = ("east", "north", "west")
RUN, PLAN_DIGEST = 5, b"digest of the plan"


@dataclass
class Site:
    """An enrolled site with a key of a run."""

    member: Member
    fingerprint: str
    certificate: bytes
    key: bytes

    @property
    def membership(self) -> Membership:
        return Membership(self.member.site, 100, self.certificate)

    def signed(self, memberships: tuple[Membership, ...], *, member: Member | None = None) -> Membership:
        public = keys.public_key(self.key)
        return replace(
            self.membership, public_key=public, signature=(member or self.member).signature(memberships, public)
        )


class Members:
    """Three sites of one federation that have confirmed each other."""

    def __init__(self, folder: Path) -> None:
        federation = make_federation(folder / "federation")
        identities = {site: enrol(federation, folder / site, site) for site in SITES}
        self.fingerprints = {
            site: key_fingerprint(public_key_of(identity.certificate)) for site, identity in identities.items()
        }
        self.sites = dict[str, Site]()
        for site, identity in identities.items():
            attestation = Enrolled(identity.credentials(), self.fingerprints)
            member = Member(site, 100, RUN, PLAN_DIGEST, len(SITES), 2, attestation)
            self.sites[site] = Site(member, self.fingerprints[site], attestation.certificate(), keys.new_private_key())

    @property
    def without_keys(self) -> tuple[Membership, ...]:
        return tuple(site.membership for site in self.sites.values())

    @property
    def memberships(self) -> tuple[Membership, ...]:
        return tuple(site.signed(self.without_keys) for site in self.sites.values())

    def check(self, memberships: tuple[Membership, ...], *, site: str = "north") -> None:
        one = self.sites[site]
        one.member.check(memberships, one.key, certificate=one.certificate)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Members:
    return Members(tmp_path_factory.mktemp("members"))


def changed(memberships: tuple[Membership, ...], site: str, **fields: object) -> tuple[Membership, ...]:
    return tuple(replace(membership, **fields) if membership.site == site else membership for membership in memberships)  # type: ignore[arg-type]


def test_keys_that_their_sites_signed_are_taken(members: Members) -> None:
    for site in SITES:
        members.check(members.memberships, site=site)


def _of_another_run(members: Members) -> tuple[Membership, ...]:
    east = members.sites["east"]
    return tuple(
        east.signed(members.without_keys, member=replace(east.member, run=RUN + 1))
        if membership.site == "east"
        else membership
        for membership in members.memberships
    )


def _of_another_plan(members: Members) -> tuple[Membership, ...]:
    east = members.sites["east"]
    member = replace(east.member, plan_digest=b"other")
    return tuple(
        east.signed(members.without_keys, member=member) if s.site == "east" else s for s in members.memberships
    )


def _of_other_sites(members: Members) -> tuple[Membership, ...]:
    """Signed where the others had other rows."""
    east = members.sites["east"]
    others = changed(members.without_keys, "west", n_samples=99)
    return tuple(east.signed(others) if membership.site == "east" else membership for membership in members.memberships)


def _of_another_federation(members: Members) -> tuple[Membership, ...]:
    """Signed with the same key, for a federation whose authority has another fingerprint."""

    class Elsewhere(Enrolled):
        authority = "SHA256:another"

    east = members.sites["east"]
    attestation = Elsewhere.__new__(Elsewhere)
    vars(attestation).update(vars(east.member.attestation))
    member = replace(east.member, attestation=attestation)
    return tuple(
        east.signed(members.without_keys, member=member) if s.site == "east" else s for s in members.memberships
    )


ATTACKS: dict[str, tuple[Callable[[Members], tuple[Membership, ...]], str]] = {
    "a key of the coordinator's": (
        lambda m: changed(m.memberships, "east", public_key=keys.public_key(keys.new_private_key())),
        "'east' was not signed",
    ),
    "a swapped signature": (
        lambda m: changed(
            m.memberships, "east", signature=next(s for s in m.memberships if s.site == "west").signature
        ),
        "'east' was not signed",
    ),
    "no signature": (lambda m: changed(m.memberships, "east", signature=b""), "'east' was not signed"),
    "a key of another run": (_of_another_run, "'east' was not signed"),
    "a key for another plan": (_of_another_plan, "'east' was not signed"),
    "a key for another federation": (_of_another_federation, "'east' was not signed"),
    "a key for other sites": (_of_other_sites, "'east' was not signed"),
    "another site's certificate": (
        lambda m: changed(m.memberships, "east", certificate=m.sites["west"].certificate),
        "it is that of 'west'|another key than the confirmed",
    ),
    "no certificate": (lambda m: changed(m.memberships, "east", certificate=b""), "'east' cannot be used"),
    "a site left out": (lambda m: m.memberships[:2], "named 2 sites; the plan has 3"),
    "this site twice": (lambda m: (m.memberships[1], m.memberships[1], m.memberships[2]), "named 3 sites"),
    "other rows for this site": (lambda m: changed(m.memberships, "north", n_samples=7), "another number of rows"),
    "another key for this site": (
        lambda m: changed(m.memberships, "north", public_key=keys.public_key(keys.new_private_key())),
        "another key for this site",
    ),
    "no key of a site": (lambda m: changed(m.memberships, "east", public_key=b""), "'east' was not signed"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_malicious_coordinator_passes_on_is_refused(members: Members, attack: str) -> None:
    forged, why = ATTACKS[attack]
    with pytest.raises(PeerRefusedError, match=why):
        members.check(forged(members))


def test_a_site_of_another_federation_is_refused(members: Members, tmp_path: Path) -> None:
    stranger = Members(tmp_path).sites["east"]
    memberships = changed(members.memberships, "east", certificate=stranger.certificate)
    with pytest.raises(PeerRefusedError, match=r"did not sign it|another key"):
        members.check(memberships)


def test_a_site_that_nobody_confirmed_counts_as_one_of_the_coordinators(members: Members) -> None:
    north = members.sites["north"]
    attestation = north.member.attestation
    assert isinstance(attestation, Enrolled)
    for known, honest, enough in ((("east",), 2, True), ((), 2, False), (("east",), 3, False)):
        attestation._confirmed = {site: members.fingerprints[site] for site in known}
        member = replace(north.member, n_honest=honest)
        try:
            if enough:
                assert member.signature(members.without_keys, keys.public_key(north.key))
            else:
                with pytest.raises(PeerRefusedError, match="could have invented"):
                    member.signature(members.without_keys, keys.public_key(north.key))
        finally:
            attestation._confirmed = members.fingerprints


def test_a_site_with_another_key_than_the_confirmed_one_is_refused_though_others_suffice(members: Members) -> None:
    north = members.sites["north"]
    attestation = north.member.attestation
    assert isinstance(attestation, Enrolled)
    attestation._confirmed = {**members.fingerprints, "west": members.fingerprints["east"]}
    try:
        member = replace(north.member, n_honest=2)
        with pytest.raises(PeerRefusedError, match="'west' has another key"):
            member.signature(members.without_keys, keys.public_key(north.key))
    finally:
        attestation._confirmed = members.fingerprints


def test_a_key_that_its_site_signed_but_that_shares_no_secret_is_refused_before_any_sum(members: Members) -> None:
    east = members.sites["east"]
    weak = replace(
        east.membership, public_key=bytes(32), signature=east.member.signature(members.without_keys, bytes(32))
    )
    with pytest.raises(PeerRefusedError, match="'east' shares no secret"):
        members.check(tuple(weak if membership.site == "east" else membership for membership in members.memberships))
    run = Run(Plan(n_participants=2), EdgeMask(Knowledge(), ("x", "y")), {})
    assert "shares no secret" in server_keys.fault(Answer(bytes(32), b"", bytes(8)), Task(()), run)
    asked = Task(())
    digest = task_digest(asked, None)[:DIGEST_BYTES]
    assert server_keys.fault(Answer(keys.public_key(east.key), b"", digest), asked, run) == ""
    assert "other sites" in server_keys.fault(Answer(keys.public_key(east.key), b"", bytes(8)), asked, run)


def test_the_same_key_under_two_names_is_one_site(members: Members) -> None:
    north = members.sites["north"]
    attestation = north.member.attestation
    assert isinstance(attestation, Enrolled)
    own = Membership("west", 100, members.sites["north"].certificate)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attestation, "_confirmed", {"west": north.fingerprint, "east": members.fingerprints["east"]})
        patch.setattr("fedbnsl_client.secure_aggregation.keys._other_name", lambda certificate, site: "")
        attestation.require_confirmed([own, members.sites["east"].membership], least=1)
        with pytest.raises(PeerRefusedError, match="1 of them are confirmed"):
            attestation.require_confirmed([own, members.sites["east"].membership], least=2)


def test_a_signature_written_in_another_way_changes_no_mask(members: Members) -> None:
    r, s = decode_dss_signature(members.memberships[0].signature)
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    again = (replace(members.memberships[0], signature=encode_dss_signature(r, order - s)), *members.memberships[1:])
    assert keys.memberships_digest(again, with_keys=True) == keys.memberships_digest(
        members.memberships, with_keys=True
    )


# ---- what the operator confirms ----------------------------------------------------------------------------------

FINGERPRINT, OTHER = (":".join([byte] * 32) for byte in ("AB", "CD"))


def test_confirmed_sites_are_kept_and_forgotten(tmp_path: Path) -> None:
    assert peers.confirmed(tmp_path) == {}
    peers.confirm(tmp_path, "east", FINGERPRINT.lower().replace(":", ""))
    peers.confirm(tmp_path, "west", OTHER)
    assert peers.confirmed(tmp_path) == {"east": FINGERPRINT, "west": OTHER}
    peers.forget(tmp_path, "east")
    assert peers.confirmed(tmp_path) == {"west": OTHER}
    with pytest.raises(SetupError, match="not among the confirmed"):
        peers.forget(tmp_path, "east")


def test_one_fingerprint_is_not_confirmed_for_two_sites(tmp_path: Path) -> None:
    peers.confirm(tmp_path, "east", FINGERPRINT)
    peers.confirm(tmp_path, "east", FINGERPRINT)
    with pytest.raises(SetupError, match="that is the fingerprint of site 'east'"):
        peers.confirm(tmp_path, "west", FINGERPRINT)
    assert peers.confirmed(tmp_path) == {"east": FINGERPRINT}


@pytest.mark.parametrize(("site", "fingerprint"), [("east", "AB:CD"), ("east", "X" * 64), ("../east", FINGERPRINT)])
def test_what_cannot_be_a_fingerprint_is_refused(tmp_path: Path, site: str, fingerprint: str) -> None:
    with pytest.raises(SetupError):
        peers.confirm(tmp_path, site, fingerprint)
    assert peers.confirmed(tmp_path) == {}


@pytest.mark.parametrize("text", ["confirmed = 3", "[confirmed]\neast = 3", "no toml", "\xff"])
def test_a_file_that_cannot_be_read_confirms_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "peers.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(SetupError, match=r"peers\.toml"):
        peers.confirmed(tmp_path)
