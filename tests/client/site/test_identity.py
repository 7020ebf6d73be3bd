"""A site's key, its request, and what it accepts back."""

import logging
import os
import stat
from base64 import b64encode
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedbnsl.errors import IdentityError, SetupError
from fedbnsl.files import durable
from fedbnsl.identity import certificates, succession
from fedbnsl.identity.bundle import Bundle
from fedbnsl.identity.certificates import Name, fingerprint, new_key, pem
from fedbnsl_client.site import identity
from fedbnsl_client.site.identity import Identity
from fedbnsl_server.identity.enrolment import Federation
from federation_folder import DAYS, clock_off, enrol, enrol_at, make_federation, request_pem

NORTH = Name("lab", "north")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return make_federation(tmp_path / "federation")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def keys(site: Path) -> list[Path]:
    return sorted((site / "identity").glob("key-*.pem"))


# ---- request -----------------------------------------------------------------------------------------------------


def test_the_key_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        identity.request(tmp_path, NORTH)
    finally:
        os.umask(before)
    (key,) = keys(tmp_path)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_the_key_is_in_no_other_file_nor_in_a_log(
    tmp_path: Path, federation: Federation, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    site = enrol(federation, tmp_path / "site")
    (key,) = keys(tmp_path / "site")
    secrets = [*key.read_text().splitlines()[1:-1], hex(site.key().private_numbers().private_value)[2:]]
    written = contents(tmp_path)
    assert written.pop(key).decode().count("PRIVATE KEY") == 2
    seen = [content.decode() for content in written.values()]
    seen += [caplog.text, *capfd.readouterr(), repr(site), repr(site.credentials()), repr(vars(site)), str(site.name)]
    for text in seen:
        assert not any(secret in text for secret in secrets)


def test_a_request_that_is_repeated_gives_the_same_bytes_and_no_second_key(tmp_path: Path) -> None:
    first = identity.request(tmp_path, NORTH)
    before = contents(tmp_path)
    assert identity.request(tmp_path, NORTH) == first
    assert identity.request(tmp_path, NORTH, renew=True) == first
    assert contents(tmp_path) == before
    assert x509.load_pem_x509_csr(first).is_signature_valid


def test_a_request_under_another_name_has_another_key_and_overwrites_none(tmp_path: Path) -> None:
    first = identity.request(tmp_path, NORTH)
    (kept,) = keys(tmp_path)
    content = kept.read_bytes()
    other = identity.request(tmp_path, Name(NORTH.federation, "south"))
    assert x509.load_pem_x509_csr(first).public_key() != x509.load_pem_x509_csr(other).public_key()
    assert len(keys(tmp_path)) == 2
    assert kept.read_bytes() == content
    third = identity.request(tmp_path, Name("other", "north"))
    assert len(keys(tmp_path)) == 2, "another federation has a place of its own"
    assert third == identity.request(tmp_path, Name("other", "north"))
    assert other == identity.request(tmp_path, Name(NORTH.federation, "south"))


def test_a_request_whose_key_was_lost_is_made_anew(tmp_path: Path) -> None:
    first = identity.request(tmp_path, NORTH)
    keys(tmp_path)[0].unlink()
    second = identity.request(tmp_path, NORTH)
    assert second != first
    (key,) = keys(tmp_path)
    found = certificates.read_key(key.read_bytes(), origin="key").public_key()
    assert found == x509.load_pem_x509_csr(second).public_key()


def test_a_request_that_was_killed_halfway_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_text", dies)
        with pytest.raises(KeyboardInterrupt):
            identity.request(tmp_path, NORTH)
    assert identity.request(tmp_path, NORTH) == identity.request(tmp_path, NORTH)


def test_a_damaged_request_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    identity.request(tmp_path, NORTH)
    (tmp_path / "identity" / "request.pem").write_text("hello")
    with pytest.raises(IdentityError, match=r"request\.pem is not a certificate request") as caught:
        identity.request(tmp_path, NORTH)
    assert caught.value.remedy == "Remove it and ask again."


@pytest.mark.parametrize("name", [Name("a/b", "north"), Name("lab", ""), Name("lab", "../north"), Name("", "north")])
def test_a_name_that_cannot_be_used_makes_no_key(name: Name, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="use 1 to 64 letters"):
        identity.request(tmp_path / "site", name)
    assert not (tmp_path / "site").exists()


def test_an_enrolled_site_asks_again_only_if_that_is_meant(tmp_path: Path, federation: Federation) -> None:
    enrol(federation, tmp_path / "site")
    before = contents(tmp_path / "site")
    with pytest.raises(IdentityError, match="is enrolled already") as caught:
        identity.request(tmp_path / "site", NORTH)
    assert "--renew" in caught.value.remedy
    assert contents(tmp_path / "site") == before


def test_a_renewal_keeps_the_key(tmp_path: Path, federation: Federation) -> None:
    site = tmp_path / "site"
    old = enrol(federation, site)
    asked = identity.request(site, NORTH, renew=True)
    bundle = federation.approve(asked, days=DAYS, renew=True)
    new = identity.enrol(site, bundle, expected_fingerprint=federation.fingerprint)
    assert new.credentials().key == old.credentials().key
    assert new.certificate != old.certificate
    assert len(keys(site)) == 1


def test_a_new_key_after_a_lost_one_is_said_to_follow_none(tmp_path: Path, federation: Federation) -> None:
    site = tmp_path / "site"
    enrol(federation, site).key_path.unlink()
    with pytest.raises(IdentityError, match="cannot be read"):
        identity.request(site, NORTH, renew=True)
    asked = identity.request(site, NORTH, renew=True, with_new_key=True)
    assert succession.former_keys(x509.load_pem_x509_csr(asked)) == ()
    assert "they confirm it" in identity.what_peers_do(site, asked)


def test_a_coordinator_signs_no_request_with_a_statement_that_the_old_key_did_not_sign(
    tmp_path: Path, federation: Federation
) -> None:
    old = enrol(federation, tmp_path / "site")
    thief, new = new_key(), new_key()
    followed = succession.extension(old.certificate, thief, new.public_key())
    assert followed is not None
    assert succession.former_keys(x509.load_pem_x509_csr(request_pem(new, NORTH.uri, extra=(followed,)))) != ()
    text = followed.value.replace(b64encode(public_der(thief)), b64encode(public_der(old.key())))
    forged = x509.UnrecognizedExtension(succession.OID, text)
    with pytest.raises(IdentityError, match="which did not sign that"):
        federation.approve(request_pem(new, NORTH.uri, extra=(forged,)), days=DAYS, renew=True)
    south = request_pem(new, Name("lab", "south").uri, extra=(followed,))
    with pytest.raises(IdentityError, match="which did not sign that"):
        federation.approve(south, days=DAYS)


def public_der(key: certificates.PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def test_a_renewal_may_change_the_key_and_the_old_one_is_used_until_the_bundle_comes(
    tmp_path: Path, federation: Federation
) -> None:
    site = tmp_path / "site"
    old = enrol(federation, site)
    old_key = old.credentials().key
    asked = identity.request(site, NORTH, renew=True, with_new_key=True)
    assert identity.request(site, NORTH, renew=True) == asked
    assert Identity.open(site).credentials() == old.credentials()
    bundle = federation.approve(asked, days=DAYS, renew=True)
    new = identity.enrol(site, bundle, expected_fingerprint=federation.fingerprint)
    assert new.credentials().key != old_key
    assert Identity.open(site).credentials() == new.credentials()
    assert old.credentials().key == old_key, "both stay usable"
    assert len(keys(site)) == 2
    third = identity.request(site, NORTH, renew=True)
    assert third != asked, "the last request was answered"


# ---- enrol -------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path: Path) -> bytes:
    return identity.request(tmp_path / "site", NORTH)


@pytest.fixture
def bundle(federation: Federation, asked: bytes) -> Bundle:
    return federation.approve(asked, days=DAYS)


def refused(site: Path, bundle: Bundle, expected: str, match: str) -> IdentityError:
    before = contents(site)
    with pytest.raises(IdentityError, match=match) as caught:
        identity.enrol(site, bundle, expected_fingerprint=expected)
    assert contents(site) == before, "nothing was imported"
    return caught.value


def test_a_site_is_enrolled_with_what_came_back(tmp_path: Path, federation: Federation, bundle: Bundle) -> None:
    found = identity.enrol(tmp_path / "site", bundle, expected_fingerprint=federation.fingerprint.lower())
    assert (found.name, found.coordinator) == (NORTH, "127.0.0.1:50051")
    opened = Identity.open(tmp_path / "site")
    assert opened.credentials() == found.credentials()
    assert opened.why_unusable() == opened.expires_soon() == ""


def test_a_bundle_of_another_authority_imports_nothing(tmp_path: Path, bundle: Bundle, federation: Federation) -> None:
    wrong = make_federation(tmp_path / "namesake").fingerprint
    for expected in (wrong, "", federation.fingerprint[:-3], fingerprint(bundle.site_certificate)):
        error = refused(tmp_path / "site", bundle, expected, f"; expected {expected.strip()}")
        assert federation.fingerprint in str(error)
        assert "by telephone" in error.remedy


def test_an_impostors_authority_under_a_good_certificate_is_refused(
    tmp_path: Path, federation: Federation, bundle: Bundle
) -> None:
    impostor = make_federation(tmp_path / "impostor")
    mixed = replace(bundle, ca=pem(impostor.ca).decode())
    refused(tmp_path / "site", mixed, federation.fingerprint, "; expected ")
    refused(tmp_path / "site", mixed, impostor.fingerprint, "did not sign it")


def test_a_bundle_for_another_key_is_refused(tmp_path: Path, federation: Federation, bundle: Bundle) -> None:
    other = identity.request(tmp_path / "other", Name("lab", "south"))
    theirs = federation.approve(other, days=DAYS)
    error = refused(tmp_path / "site", theirs, federation.fingerprint, "answers another request")
    assert "participant request" in error.remedy


@pytest.mark.parametrize("field", ["site", "federation"])
def test_a_bundle_that_says_another_name_than_its_certificate_is_refused(
    field: str, tmp_path: Path, federation: Federation, bundle: Bundle
) -> None:
    refused(
        tmp_path / "site",
        replace(bundle, **{field: "south"}),
        federation.fingerprint,
        "the certificate names spiffe://",
    )


def test_a_bundle_for_a_key_that_was_exchanged_is_refused(
    tmp_path: Path, federation: Federation, bundle: Bundle
) -> None:
    (key,) = keys(tmp_path / "site")
    key.write_bytes(certificates.key_pem(new_key()))
    refused(tmp_path / "site", bundle, federation.fingerprint, "is not the key of the certificate")


@pytest.mark.parametrize(("days", "words"), [(-400, "it expired on"), (+400, "is not valid before")])
def test_a_bundle_out_of_its_time_is_refused(
    days: int, words: str, tmp_path: Path, federation: Federation, asked: bytes
) -> None:
    from fedbnsl_server.identity import authority, enrolment_table

    with clock_off(enrolment_table, authority, by=timedelta(days=days)):
        bundle = federation.approve(asked, days=30)
    refused(tmp_path / "site", bundle, federation.fingerprint, words)


def test_a_failed_renewal_leaves_the_present_certificate_in_use(tmp_path: Path, federation: Federation) -> None:
    site = tmp_path / "site"
    present = enrol(federation, site).credentials()
    again = federation.approve(identity.request(site, NORTH, renew=True), days=DAYS, renew=True)
    refused(site, again, "AB:CD", "; expected ")
    assert Identity.open(site).credentials() == present


def test_a_namesake_under_another_authority_replaces_no_federation(tmp_path: Path, federation: Federation) -> None:
    site = tmp_path / "site"
    enrol(make_federation(tmp_path / "first", name="first"), site)
    present = enrol(federation, site)
    namesake, before = make_federation(tmp_path / "namesake"), contents(site)
    bundle = namesake.approve(identity.request(site, NORTH, renew=True), days=DAYS)
    before |= {present.place / "identity" / "request.pem": (present.place / "identity" / "request.pem").read_bytes()}
    with pytest.raises(IdentityError, match=f"under the authority {federation.fingerprint}; this bundle") as caught:
        identity.enrol(site, bundle, expected_fingerprint=namesake.fingerprint)
    assert contents(site) == before
    file = present.place / "identity" / "bundle.toml"
    assert "--federation NAME" in caught.value.remedy
    assert f"move {file} elsewhere" in caught.value.remedy
    file.rename(tmp_path / "former.toml")  # the way on, if it is the same one
    identity.enrol(site, bundle, expected_fingerprint=namesake.fingerprint)
    assert [identity.authority_of(place) for place in identity.federations(site).values()][1] == namesake.fingerprint


# ---- use ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by_days", "days", "words"), [(-20, 10, "it expired on"), (+20, 10, "is not valid before")])
def test_a_certificate_out_of_its_time_is_not_used(
    by_days: int, days: int, words: str, tmp_path: Path, federation: Federation
) -> None:
    site = enrol_at(federation, tmp_path / "site", days=days, by=timedelta(days=by_days))
    with pytest.raises(IdentityError, match=words):
        site.credentials()
    with pytest.raises(IdentityError, match=words):
        identity.link(tmp_path / "site", None, insecure=False)


def test_a_certificate_that_ends_within_30_days_is_warned_of(tmp_path: Path, federation: Federation) -> None:
    assert enrol(federation, tmp_path / "a", "a", days=31).expires_soon() == ""
    assert "participant request --renew" in enrol(federation, tmp_path / "b", "b", days=29).expires_soon()


def test_a_lost_key_is_an_error_with_the_way_to_a_new_certificate(tmp_path: Path, federation: Federation) -> None:
    site = enrol(federation, tmp_path / "site")
    site.key_path.unlink()
    with pytest.raises(IdentityError, match=r"key-.*\.pem cannot be read") as caught:
        site.credentials()
    assert f"participant request {tmp_path / 'site'} --federation lab --renew --new-key" in caught.value.remedy
    asked = identity.request(tmp_path / "site", NORTH, renew=True, with_new_key=True)
    bundle = federation.approve(asked, days=DAYS, renew=True)
    identity.enrol(tmp_path / "site", bundle, expected_fingerprint=federation.fingerprint).credentials()


def test_a_site_that_is_not_enrolled_learns_how(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is not enrolled in a federation") as caught:
        Identity.open(tmp_path)
    assert "participant request" in caught.value.remedy


def test_the_way_to_the_coordinator_is_the_bundles_unless_another_is_named(
    tmp_path: Path, federation: Federation
) -> None:
    own = enrol(federation, tmp_path / "site")
    found = identity.link(tmp_path / "site", None, insecure=False)
    assert (found.address, found.site, found.authority) == ("127.0.0.1:50051", "north", federation.fingerprint)
    assert found.credentials == own.credentials()
    assert identity.link(tmp_path / "site", "10.0.0.1:7", insecure=False).address == "10.0.0.1:7"
    plain = identity.link(tmp_path / "site", "127.0.0.1:7", insecure=True)
    assert (plain.credentials, plain.site, plain.authority) == (None, "", "")
    with pytest.raises(SetupError, match="with --insecure, name the coordinator"):
        identity.link(tmp_path / "site", None, insecure=True)
    with pytest.raises(SetupError, match="a folder with the site's certificate is needed"):
        identity.link(None, "127.0.0.1:7", insecure=False)
