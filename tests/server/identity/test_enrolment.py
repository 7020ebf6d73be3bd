"""The authority of a federation: what it signs, what it refuses, and whom it knows afterwards."""

import json
import os
import ssl
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedbnsl.errors import IdentityError, ResultError, SetupError
from fedbnsl.files import durable
from fedbnsl.identity.certificates import Name, common_name, fingerprint, new_key, pem, read_certificate
from fedbnsl.identity.passphrase import PassphraseError, Passphrases
from fedbnsl_server.identity import authority, enrolment_table
from fedbnsl_server.identity.enrolment import Federation
from federation_folder import DAYS, clock_off, enrol, make_federation, request_pem


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return make_federation(tmp_path / "federation")


def asks(site: str = "north", federation: str = "lab") -> bytes:
    return request_pem(new_key(), Name(federation, site).uri)


def server_certificate(federation: Federation) -> x509.Certificate:
    return read_certificate(federation.credentials().certificate, origin="server.pem")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- init --------------------------------------------------------------------------------------------------------


def test_a_federation_that_is_made_can_be_opened(tmp_path: Path) -> None:
    made = make_federation(tmp_path, hosts=("coordinator.example.org", "10.0.0.1"), port=7)
    opened = Federation.open(tmp_path)
    assert (opened.name, opened.address, opened.hosts) == ("lab", "coordinator.example.org:7", made.hosts)
    assert opened.fingerprint == made.fingerprint
    assert opened.credentials() == made.credentials()
    assert opened.enrolled() == {}


def test_the_files_that_hold_keys_are_their_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        federation = make_federation(tmp_path)
        federation.renew(days=5)
    finally:
        os.umask(before)
    with_keys = {path.name for path in tmp_path.iterdir() if b"PRIVATE KEY" in path.read_bytes()}
    assert with_keys == {"ca.key", "server.pem"}
    for name in with_keys:
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name


def test_a_federation_is_never_overwritten(federation: Federation) -> None:
    before = contents(federation.folder)
    with pytest.raises(IdentityError, match="holds a federation already"):
        make_federation(federation.folder, name="other")
    assert contents(federation.folder) == before


@pytest.mark.parametrize("died_at", ["ca.pem", "federation.toml"])
def test_an_init_that_did_not_end_says_so_and_its_key_is_kept(
    died_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = durable.write_text

    def dies(path: Path, text: str, *, mode: int = 0o666) -> None:
        if path.name == died_at:
            raise KeyboardInterrupt
        write(path, text, mode=mode)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_text", dies)
        with pytest.raises(KeyboardInterrupt):
            make_federation(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(IdentityError):
        Federation.open(tmp_path)
    with pytest.raises(IdentityError, match="an interrupted `init`") as caught:
        make_federation(tmp_path)
    assert "remove the folder and start again" in caught.value.remedy
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.1.2.3", "10.1.2.3:50051"),
        ("2001:db8::1", "[2001:db8::1]:50051"),
        ("coordinator.example.org", "coordinator.example.org:50051"),
        ("bücher.example", "xn--bcher-kva.example:50051"),
        ("my_host", "my_host:50051"),
    ],
)
def test_the_coordinator_is_called_by_the_name_in_its_certificate(host: str, address: str, tmp_path: Path) -> None:
    federation = make_federation(tmp_path, hosts=(host, "second.example"))
    assert federation.address == address
    names = server_certificate(federation).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    named = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    main = address.removesuffix(":50051").strip("[]")
    assert named == {main, "second.example", "localhost", "127.0.0.1", "::1"}
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://fedbnsl/lab"]


@pytest.mark.parametrize(
    "host",
    [
        "",
        "host:50051",
        "[::1]",
        "http://host",
        "a b",
        "a..b",
        ".a",
        "a.",
        "*.example.org",
        "a\nb",
        "ä" * 64,
        "a/24",
        "a;b",
    ],
)
def test_what_is_no_host_is_refused_before_anything_is_written(host: str, tmp_path: Path) -> None:
    for hosts in ((host,), ("good.example", host)):
        with pytest.raises(SetupError, match="expected a name or an IP address, without a port"):
            make_federation(tmp_path / "federation", hosts=hosts)
    assert not (tmp_path / "federation").exists()


def test_an_impossible_name_of_a_federation_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="federation 'a/b'"):
        make_federation(tmp_path / "federation", name="a/b")
    assert not (tmp_path / "federation").exists()


def test_a_folder_that_holds_no_federation_is_refused(tmp_path: Path, federation: Federation) -> None:
    with pytest.raises(IdentityError, match="federation.toml cannot be read"):  # noqa: RUF043
        Federation.open(tmp_path)
    for text in ("name = 3", "[", 'name = "lab"', "\xff"):
        (federation.folder / "federation.toml").write_bytes(text.encode("latin-1"))
        with pytest.raises(IdentityError, match="cannot be used"):
            Federation.open(federation.folder)


def test_the_authority_can_sign_sites_but_no_further_authority(federation: Federation) -> None:
    extensions = federation.ca.extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value) == (True, x509.BasicConstraints(ca=True, path_length=0))
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.digital_signature) == (True, False)


def test_a_strict_verifier_accepts_both_ends(federation: Federation, tmp_path: Path) -> None:
    """As Python's own TLS is by default from 3.13 on, and both purposes kept apart."""
    site = enrol(federation, tmp_path / "site")
    server_file = federation.folder / "server.pem"
    site_file = tmp_path / "chain.pem"
    site_file.write_bytes(site.credentials().key + site.credentials().certificate)
    assert _handshake(federation, server_file, site_file) == b"hello"
    for wrong in ((site_file, site_file), (site_file, server_file)):
        with pytest.raises(ssl.SSLCertVerificationError, match=r"(unsupported|unsuitable) certificate purpose"):
            _handshake(federation, *wrong)


def _handshake(federation: Federation, server_file: Path, client_file: Path) -> bytes:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for side, chain in ((server, server_file), (client, client_file)):
        side.load_verify_locations(cadata=pem(federation.ca).decode())
        side.load_cert_chain(chain)
        side.verify_mode = ssl.CERT_REQUIRED
        side.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(3):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    here.write(b"hello")
    return there.read(5)


# ---- approve -----------------------------------------------------------------------------------------------------


def test_only_name_and_key_are_taken_from_a_request(federation: Federation) -> None:
    key = new_key()
    greedy = request_pem(
        key,
        Name("lab", "north").uri,
        names=(x509.DNSName("localhost"), x509.RFC822Name("root@example.org")),
        extra=(
            x509.BasicConstraints(ca=True, path_length=None),
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]),
            authority._usage(signs_certificates=True),
        ),
    )
    certificate = federation.approve(greedy, days=DAYS).site_certificate
    assert certificate.public_key() == key.public_key()
    assert certificate.subject.rfc4514_string() == "CN=north"
    extensions = certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier("spiffe://fedbnsl/lab/north")]
    uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert (usage.value.digital_signature, usage.value.key_cert_sign, usage.value.crl_sign) == (True, False, False)
    assert {type(extension.value) for extension in extensions} == {
        *(x509.SubjectAlternativeName, x509.ExtendedKeyUsage, x509.KeyUsage, x509.AuthorityKeyIdentifier)
    }


def _forged() -> bytes:
    """A good request in which one bit of the signature is another."""
    der = bytearray(x509.load_pem_x509_csr(asks()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)


def _another_key() -> bytes:
    """A request for somebody else's public key, signed by the own one: it proves nothing."""
    mine, theirs = asks(), new_key().public_key()
    request = x509.load_pem_x509_csr(mine)
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    der = request.public_bytes(Encoding.DER).replace(
        request.public_key().public_bytes(*form), theirs.public_bytes(*form)
    )
    return x509.load_der_x509_csr(der).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("request_made", "words"),
    [
        (lambda: b"", "no certificate request"),
        (lambda: b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "no certificate"),
        (_forged, "not signed by a P-256 key"),
        (_another_key, "not signed by a P-256 key"),
        (lambda: request_pem(rsa.generate_private_key(65_537, 1024), "spiffe://fedbnsl/lab/north"), "not signed"),
        (lambda: request_pem(rsa.generate_private_key(65_537, 2048), "spiffe://fedbnsl/lab/north"), "P-256"),
        (lambda: request_pem(ec.generate_private_key(ec.SECP384R1()), "spiffe://fedbnsl/lab/north"), "P-256"),
        (lambda: asks(federation="other"), "this federation is 'lab'"),
        (lambda: request_pem(new_key(), "spiffe://fedbnsl/lab"), "this federation is 'lab'"),
        (lambda: request_pem(new_key()), "expected one name"),
        (lambda: request_pem(new_key(), names=(x509.DNSName("north"),)), "expected one name"),
        (lambda: request_pem(new_key(), "spiffe://fedbnsl/lab/north", "spiffe://fedbnsl/lab/south"), "expected one"),
        (lambda: request_pem(new_key(), "spiffe://fedbnsl/lab/a%2Fb"), "expected one name"),
    ],
)  # fmt: skip
def test_a_request_that_proves_nothing_or_asks_for_another_place_is_refused(request_made, words, federation) -> None:
    before = contents(federation.folder)
    with pytest.raises(IdentityError, match=words):
        federation.approve(request_made(), days=DAYS)
    after = contents(federation.folder)
    after.pop("enrolment.lock", None)
    assert after == before


def test_a_request_signed_in_another_way_than_by_digest_is_refused(federation: Federation) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("spiffe://fedbnsl/lab/north")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).add_extension(name, critical=False)
    with pytest.raises(IdentityError, match="P-256"):
        federation.approve(pem(builder.sign(key, None)), days=DAYS)


def test_a_certificate_is_valid_for_the_days_that_were_asked_for(federation: Federation) -> None:
    until = federation.approve(asks(), days=7).site_certificate.not_valid_after_utc
    assert timedelta(0) <= datetime.now(UTC) + timedelta(days=7) - until < timedelta(minutes=1)
    (issued,) = federation.enrolled()["north"]
    assert datetime.fromisoformat(issued.expires_at) == until


def test_no_certificate_is_valid_for_longer_than_its_authority(tmp_path: Path) -> None:
    federation = make_federation(tmp_path, days=365, ca_days=30)
    end = federation.ca.not_valid_after_utc
    assert server_certificate(federation).not_valid_after_utc == end
    assert federation.approve(asks(), days=365).site_certificate.not_valid_after_utc == end


def test_an_authority_that_has_expired_signs_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    with clock_off(enrolment_table, authority, by=timedelta(days=-60)):
        federation = make_federation(tmp_path, days=10, ca_days=30)
    for sign in (lambda: federation.approve(asks(), days=10), lambda: federation.renew(days=10)):
        with pytest.raises(IdentityError, match=r"authority expired on") as caught:
            sign()
        assert "coordinator init" in caught.value.remedy


def test_a_site_that_is_enrolled_gets_another_certificate_only_if_that_is_meant(federation: Federation) -> None:
    first = federation.approve(asks(), days=DAYS)
    with pytest.raises(IdentityError, match=r"'north' is enrolled already, until .*--renew"):
        federation.approve(asks(), days=DAYS)
    second = federation.approve(asks(), days=DAYS, renew=True)
    for bundle in (first, second):
        assert federation.identify(bundle.certificate.encode()) == Name("lab", "north"), "nothing breaks off"
    assert [issued.state for issued in federation.enrolled()["north"]] == ["valid", "valid"]


def test_a_site_whose_certificates_are_over_is_enrolled_again_without_more_ado(federation: Federation) -> None:
    with clock_off(enrolment_table, authority, by=timedelta(days=-20)):
        federation.approve(asks(), days=10)
    federation.approve(asks(), days=10)
    federation.revoke("north")
    federation.approve(asks(), days=10)
    assert [issued.state for issued in federation.enrolled()["north"]] == ["expired", "revoked", "valid"]


def test_without_the_authoritys_key_nothing_is_signed_and_all_else_works(federation: Federation) -> None:
    bundle = federation.approve(asks(), days=DAYS)
    (federation.folder / "ca.key").unlink()
    before = (federation.folder / "server.pem").read_bytes()
    for sign in (lambda: federation.approve(asks("south"), days=10), lambda: federation.renew(days=10)):
        with pytest.raises(IdentityError, match=r"the authority's key is not at .*ca\.key"):
            sign()
    assert (federation.folder / "server.pem").read_bytes() == before
    assert federation.credentials().certificate
    assert federation.identify(bundle.certificate.encode()).site == "north"
    assert federation.revoke("north") == 1


def test_the_authoritys_key_may_be_kept_elsewhere_and_is_asked_for_where_it_signs_alone(tmp_path: Path) -> None:
    folder, key = tmp_path / "served", tmp_path / "safe" / "lab.key"
    made = Federation.create(folder, name="lab", hosts=["127.0.0.1"], days=DAYS, ca_days=DAYS, ca_key=key)
    assert key.stat().st_mode & 0o777 == 0o600
    assert not (folder / "ca.key").exists()
    served, signing = Federation.open(folder), Federation.open(folder, ca_key=key)
    bundle = signing.approve(asks(), days=DAYS)
    assert served.credentials() == made.credentials()
    assert served.identify(bundle.certificate.encode()).site == "north"
    signing.renew(days=DAYS)
    with pytest.raises(IdentityError, match="is not at") as refused:
        served.approve(asks("south"), days=DAYS)
    assert "--ca-key" in refused.value.remedy
    make_federation(tmp_path / "other")
    with pytest.raises(IdentityError, match="key of another authority"):
        Federation.open(folder, ca_key=tmp_path / "other" / "ca.key").approve(asks("south"), days=DAYS)
    with pytest.raises(IdentityError, match="is there already"):
        Federation.create(tmp_path / "third", name="x", hosts=["127.0.0.1"], days=1, ca_days=1, ca_key=key)


def test_protected_keys_are_encrypted_on_disk_and_open_with_the_passphrase_alone(tmp_path: Path) -> None:
    folder, right, wrong = tmp_path / "lab", tmp_path / "right", tmp_path / "wrong"
    right.write_text("correct horse battery\n", encoding="utf-8")
    wrong.write_text("correct horse batterie\n", encoding="utf-8")
    made = Federation.create(
        folder, name="lab", hosts=["127.0.0.1"], days=DAYS, ca_days=DAYS, passphrases=Passphrases(right)
    )
    opened = Federation.open(folder, passphrases=Passphrases(right))
    assert opened.credentials() == made.credentials()
    opened.approve(asks(), days=DAYS)
    before = contents(folder)
    for passphrases, said in ((Passphrases(wrong), "does not open"), (Passphrases(), "nobody here to ask")):
        locked = Federation.open(folder, passphrases=passphrases)
        for use in (
            locked.credentials,
            lambda locked=locked: locked.renew(days=10),
            lambda locked=locked: locked.approve(asks("south"), days=10),
        ):
            with pytest.raises(PassphraseError, match=said):
                use()
    assert contents(folder) == before
    first = opened.credentials()
    opened.renew(days=10)
    assert opened.credentials() != first, "the new key is taken up"
    assert Federation.open(folder, passphrases=Passphrases(right)).credentials() == opened.credentials()
    for name in ("ca.key", "server.pem"):
        assert b"BEGIN ENCRYPTED PRIVATE KEY" in (folder / name).read_bytes()
        assert b"BEGIN PRIVATE KEY" not in (folder / name).read_bytes()


def test_an_authority_without_its_key_in_a_folder_that_cannot_be_written_says_so(federation: Federation) -> None:
    (federation.folder / "enrolment.lock").mkdir()
    with pytest.raises(IdentityError, match=r"enrolment\.lock cannot be written"):
        federation.revoke("north")


# ---- revoke ------------------------------------------------------------------------------------------------------


def test_a_revoked_site_is_refused_and_no_other_is_touched(federation: Federation) -> None:
    bundles = {site: federation.approve(asks(site), days=DAYS) for site in ("north", "south")}
    again = federation.approve(asks("north"), days=DAYS, renew=True)
    south = federation.enrolled()["south"]
    assert federation.revoke("north") == 2
    for bundle in (bundles["north"], again):
        with pytest.raises(IdentityError, match="the certificate of site 'north' is revoked"):
            federation.identify(bundle.certificate.encode())
    assert federation.identify(bundles["south"].certificate.encode()) == Name("lab", "south")
    assert federation.enrolled()["south"] == south


def test_a_renewal_ends_with_the_newest_certificate_alone(federation: Federation) -> None:
    bundles = [federation.approve(asks(), days=DAYS, renew=True) for _ in range(3)]
    assert federation.revoke("north", keep_newest=True) == 2
    assert [issued.state for issued in federation.enrolled()["north"]] == ["revoked", "revoked", "valid"]
    assert federation.identify(bundles[-1].certificate.encode()).site == "north"
    with pytest.raises(IdentityError, match="no certificate to revoke"):
        federation.revoke("north", keep_newest=True)


def test_keep_newest_never_takes_a_sites_last_good_certificate(federation: Federation) -> None:
    good = federation.approve(asks(), days=30)
    with clock_off(enrolment_table, authority, by=timedelta(days=-20)):
        federation.approve(asks(), days=10, renew=True)  # issued last, over by now
    with pytest.raises(IdentityError, match="no certificate to revoke"):
        federation.revoke("north", keep_newest=True)
    assert federation.identify(good.certificate.encode()).site == "north"


def test_a_site_that_has_nothing_to_revoke_is_an_error_that_names_those_that_have(federation: Federation) -> None:
    with pytest.raises(IdentityError, match="sites that have: none"):
        federation.revoke("north")
    federation.approve(asks("south"), days=DAYS)
    with pytest.raises(IdentityError, match=r"'nroth' has no certificate to revoke .*south"):
        federation.revoke("nroth")
    federation.revoke("south")
    revoked_at = federation.enrolled()["south"][0].revoked_at
    with pytest.raises(IdentityError, match="no certificate to revoke"):
        federation.revoke("south")
    assert federation.enrolled()["south"][0].revoked_at == revoked_at


# ---- who is calling ----------------------------------------------------------------------------------------------


def test_whoever_is_not_enrolled_by_this_very_certificate_is_refused(federation: Federation, tmp_path: Path) -> None:
    certificate = federation.approve(asks(), days=DAYS).certificate.encode()
    assert federation.identify(certificate) == Name("lab", "north")
    (federation.folder / "enrolment.json").unlink()
    with pytest.raises(IdentityError, match="'north' is not enrolled with this certificate"):
        federation.identify(certificate)
    other = make_federation(tmp_path / "other", name="other")
    with pytest.raises(IdentityError, match="belongs to the federation 'other'"):
        federation.identify(other.approve(asks(federation="other"), days=DAYS).certificate.encode())
    with pytest.raises(IdentityError, match="belongs to the federation 'other'"):
        federation.identify(other.credentials().certificate)
    namesake = make_federation(tmp_path / "namesake")
    with pytest.raises(IdentityError, match="not enrolled with this certificate"):
        federation.identify(namesake.approve(asks(), days=DAYS).certificate.encode())
    with pytest.raises(IdentityError, match="expected one name"):
        federation.identify(pem(federation.ca))
    with pytest.raises(IdentityError, match="is not a certificate"):
        federation.identify(b"")


def test_the_coordinators_own_certificate_names_no_site(federation: Federation) -> None:
    assert federation.identify(federation.credentials().certificate) == Name("lab", "")


def test_a_certificate_that_expires_while_a_connection_lives_is_refused(federation: Federation) -> None:
    certificate = federation.approve(asks(), days=10).certificate.encode()
    federation.identify(certificate)
    with clock_off(enrolment_table, authority, by=timedelta(days=11)), pytest.raises(IdentityError, match="is expired"):
        federation.identify(certificate)


def test_a_change_of_the_same_size_within_the_same_second_counts_at_the_next_call(federation: Federation) -> None:
    certificate = federation.approve(asks(), days=DAYS).certificate.encode()
    table = federation.folder / "enrolment.json"
    running = Federation.open(federation.folder)
    running.identify(certificate)
    seen, text = table.stat(), table.read_text(encoding="utf-8")
    digit = fingerprint(read_certificate(certificate, origin=""))[:3]
    durable.write_text(table, text.replace(digit, "ZZ:"))
    os.utime(table, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert (table.stat().st_size, table.stat().st_mtime_ns) == (seen.st_size, seen.st_mtime_ns)
    with pytest.raises(IdentityError, match="not enrolled with this certificate"):
        running.identify(certificate)
    durable.write_text(table, text)
    assert running.identify(certificate).site == "north"


def test_another_process_sees_a_revocation_at_its_next_call(federation: Federation) -> None:
    certificate = federation.approve(asks(), days=DAYS).certificate.encode()
    running = Federation.open(federation.folder)
    running.identify(certificate)
    federation.revoke("north")
    with pytest.raises(IdentityError, match="revoked"):
        running.identify(certificate)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"north": 3}', '{"north": [{"fingerprint": "AB"}]}', '"x"', "\xff"])
def test_a_damaged_table_lets_nobody_in_and_is_not_written_over(text: str, federation: Federation) -> None:
    certificate = federation.approve(asks(), days=DAYS).certificate.encode()
    table = federation.folder / "enrolment.json"
    whole = table.read_bytes()
    table.write_bytes(text.encode("latin-1"))
    for use in (
        lambda: federation.identify(certificate),
        lambda: federation.approve(asks("south"), days=DAYS),
        lambda: federation.revoke("north"),
        lambda: Federation.open(federation.folder).enrolled(),
    ):
        with pytest.raises(ResultError, match=r"enrolment\.json cannot be read"):
            use()
    assert table.read_bytes() == text.encode("latin-1")
    table.write_bytes(whole)
    assert federation.identify(certificate).site == "north"


def test_the_table_is_plain_json_that_names_every_certificate_and_no_key(federation: Federation) -> None:
    federation.approve(asks("größe"), days=DAYS)
    text = (federation.folder / "enrolment.json").read_text(encoding="utf-8")
    assert "größe" in text
    assert json.loads(text) == {"größe": [asdict(issued) for issued in federation.enrolled()["größe"]]}


# ---- several commands at the same time ---------------------------------------------------------------------------


def test_commands_at_the_same_time_lose_no_site(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a file description of its own, as processes have; the lock does not know threads."""

    def slowly(text: str) -> x509.Name:  # between reading the table and writing it
        time.sleep(0.01)
        return common_name(text)

    monkeypatch.setattr(authority, "common_name", slowly)

    def approve_some(worker: int) -> list[str]:
        own = Federation.open(federation.folder)
        return [own.approve(asks(f"site-{worker}-{k}"), days=DAYS).certificate for k in range(4)]

    with ThreadPoolExecutor(4) as workers:
        issued = list(workers.map(approve_some, range(4)))
    sites = {federation.identify(one.encode()).site for certificates in issued for one in certificates}
    assert sites == {f"site-{worker}-{k}" for worker in range(4) for k in range(4)} == set(federation.enrolled())


# ---- renew -------------------------------------------------------------------------------------------------------


def test_a_renewed_coordinator_has_a_new_key_under_the_same_names(tmp_path: Path) -> None:
    federation = make_federation(tmp_path, hosts=("coordinator.example.org",))
    running = Federation.open(tmp_path)
    before, old = running.credentials(), server_certificate(running)
    federation.renew(days=500)
    after, new = running.credentials(), server_certificate(running)
    assert before.key != after.key
    assert old.public_key() != new.public_key()
    assert old.serial_number != new.serial_number
    names = [one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value for one in (old, new)]
    assert names[0] == names[1]
    assert before.ca == after.ca


def test_a_renewal_that_was_killed_leaves_the_old_certificate_and_can_be_repeated(federation: Federation) -> None:
    before = federation.credentials()
    (federation.folder / "server.pem.part").write_bytes(b"-----BEGIN PRIV")
    assert federation.credentials() == before
    federation.renew(days=10)
    assert federation.credentials() != before
    assert not (federation.folder / "server.pem.part").exists()


def test_a_coordinators_certificate_that_cannot_be_used_is_refused_with_the_command_that_helps(tmp_path: Path) -> None:
    with clock_off(enrolment_table, authority, by=timedelta(days=-20)):
        federation = make_federation(tmp_path / "a", days=10)
    with pytest.raises(IdentityError, match=r"it expired on .*coordinator renew"):
        federation.credentials()
    federation.renew(days=10)
    federation.credentials()
    other = make_federation(tmp_path / "b")
    (tmp_path / "a" / "server.pem").write_bytes((tmp_path / "b" / "server.pem").read_bytes())
    assert other.credentials().certificate
    with pytest.raises(IdentityError, match="did not sign it"):
        federation.credentials()
