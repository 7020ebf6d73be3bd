"""Names, fingerprints and files of an identity."""

import os
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fedbnsl.errors import IdentityError, SetupError
from fedbnsl.identity import certificates
from fedbnsl.identity.certificates import (
    Name,
    fingerprint,
    key_pem,
    name_in,
    new_key,
    read_certificate,
    read_key,
    same_fingerprint,
)
from fedbnsl.identity.passphrase import PassphraseError, Passphrases
from federation_folder import make_federation, request_pem


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        (Name("lab", "north"), "spiffe://fedbnsl/lab/north"),
        (Name("lab"), "spiffe://fedbnsl/lab"),
        (Name("lab", "größe_1.a-b"), "spiffe://fedbnsl/lab/gr%C3%B6%C3%9Fe_1.a-b"),
    ],
)
def test_a_name_goes_into_a_request_and_comes_back(name: Name, uri: str) -> None:
    assert name.uri == uri
    assert name_in(x509.load_pem_x509_csr(request_pem(new_key(), name.uri))) == name


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("spiffe://fedbnsl/lab/north", "spiffe://fedbnsl/lab/south"),
        ("spiffe://fedbnsl/lab/north/wing",),
        ("spiffe://fedbnsl/",),
        ("spiffe://fedbnsl/lab/",),
        ("spiffe://fedbnsl//north",),
        ("spiffe://elsewhere/lab/north",),
        ("https://fedbnsl/lab/north",),
        ("spiffe://fedbnsl/lab/..%2Fnorth",),
        ("spiffe://fedbnsl/lab/%2e%2e",),
        ("spiffe://fedbnsl/lab/a%00b",),
        ("spiffe://fedbnsl/lab/%FF",),
        ("spiffe://fedbnsl/lab/" + "a" * 65,),
    ],
)
def test_anything_but_one_name_of_the_project_is_no_name(uris: tuple[str, ...]) -> None:
    with pytest.raises(IdentityError, match="expected one name such as spiffe://fedbnsl/federation/site"):
        name_in(x509.load_pem_x509_csr(request_pem(new_key(), *uris)))


def test_a_refused_name_cannot_control_a_terminal() -> None:
    with pytest.raises(IdentityError) as caught:
        name_in(x509.load_pem_x509_csr(request_pem(new_key(), "spiffe://fedbnsl/lab/\x1b[2Jnorth")))
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("name", ["", ".hidden", "-x", "a/b", "a b", "a" * 65, "a\n"])
def test_a_name_that_no_certificate_may_carry_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(SetupError, match="use 1 to 64 letters"):
        certificates.check_name("site", name)


def test_a_fingerprint_is_the_one_that_openssl_prints_in_any_spelling(tmp_path: Path) -> None:
    ca = make_federation(tmp_path).ca
    command = ["openssl", "x509", "-in", tmp_path / "ca.pem", "-noout", "-fingerprint", "-sha256"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ours = fingerprint(ca)
    assert printed.strip().lower() == f"sha256 fingerprint={ours}".lower()
    for spelling in (
        printed,
        ours.lower(),
        ours.replace(":", ""),
        f"sha256:{ours}",
        f"SHA256={ours}",
        f" {ours[:40]} \n{ours[40:]}",
    ):
        assert same_fingerprint(ours, spelling), spelling
    wrong = ("0" if ours[0] != "0" else "1") + ours[1:]
    for other in (wrong, ours[:-1], ours[:2], "", "sha256:", "SHA256 Fingerprint="):
        assert not same_fingerprint(ours, other), other


def test_a_certificate_is_good_between_its_days_and_under_its_authority_only(tmp_path: Path) -> None:
    federation, other = make_federation(tmp_path / "a"), make_federation(tmp_path / "b")
    certificate = read_certificate((tmp_path / "a" / "server.pem").read_bytes(), origin="server.pem")
    good_from, good_until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    second = timedelta(seconds=1)
    for now, words in [
        (None, ""),
        (good_from, ""),
        (good_until, ""),
        (good_from - second, "not valid before"),
        (good_until + second, "it expired on"),
    ]:
        found = certificates.why_unusable(certificate, federation.ca, now=now)
        assert words in found
        assert bool(words) is bool(found)
    assert "did not sign it" in certificates.why_unusable(certificate, other.ca), "although it has the same name"
    assert "did not sign it" in certificates.why_unusable(other.ca, certificate)


def test_new_certificates_are_dated_back_by_an_hour_for_clocks_that_differ(tmp_path: Path) -> None:
    make_federation(tmp_path)
    certificate = read_certificate((tmp_path / "server.pem").read_bytes(), origin="server.pem")
    back = datetime.now(UTC) - certificate.not_valid_before_utc
    assert timedelta(minutes=60) <= back < timedelta(minutes=62)


def test_what_is_no_certificate_or_key_is_refused_by_the_name_of_its_file() -> None:
    for pem in (b"", b"hello", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(IdentityError, match=r"there\.pem is not a certificate"):
            read_certificate(pem, origin="there.pem")
        with pytest.raises(IdentityError, match=r"there\.pem is not a private key"):
            read_key(pem, origin="there.pem")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    foreign = rsa.generate_private_key(65_537, 2048).private_bytes(*form, serialization.NoEncryption())
    with pytest.raises(IdentityError, match="not a key that this program made"):
        read_key(foreign, origin="key.pem")


def test_a_protected_key_opens_with_its_passphrase_and_no_other(tmp_path: Path) -> None:
    key, file = new_key(), tmp_path / "passphrase"
    locked = key_pem(key, b"correct horse battery")
    assert b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in locked
    for content in (b"correct horse battery", b"correct horse battery\n", b"correct horse battery\r\n"):
        file.write_bytes(content)
        assert key_pem(read_key(locked, origin="key.pem", passphrases=Passphrases(file))) == key_pem(key)
    file.write_bytes(b"correct horse batterie\n")
    with pytest.raises(PassphraseError, match=r"does not open key\.pem"):
        read_key(locked, origin="key.pem", passphrases=Passphrases(file))
    file.write_bytes(b"\n")
    with pytest.raises(PassphraseError, match="is empty"):
        read_key(locked, origin="key.pem", passphrases=Passphrases(file))
    with pytest.raises(PassphraseError, match="cannot be read: No such file"):
        read_key(locked, origin="key.pem", passphrases=Passphrases(tmp_path / "gone"))
    with pytest.raises(PassphraseError, match="nobody here to ask"):
        read_key(locked, origin="key.pem")


def test_a_person_is_asked_once_for_each_key_and_for_none_that_needs_no_passphrase() -> None:
    asked: list[tuple[str, bool]] = []

    def answer(question: str, new: bool) -> str:
        asked.append((question, new))
        return "correct horse battery"

    passphrases = Passphrases(ask=answer)
    open_key = key_pem(new_key())
    read_key(open_key, origin="open.pem", passphrases=passphrases)
    assert asked == []
    locked = key_pem(new_key(), b"correct horse battery")
    for origin in ("a.pem", "b.pem", "a.pem"):
        read_key(locked, origin=origin, passphrases=passphrases)
    assert asked == [("passphrase of a.pem", False), ("passphrase of b.pem", False)]


def test_a_new_passphrase_is_long_enough_or_none(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("11 letters!\n", encoding="utf-8")
    with pytest.raises(PassphraseError, match="at least 12"):
        Passphrases(tmp_path / "short").for_new("k.pem")
    (tmp_path / "long").write_text("12 letters!!\n", encoding="utf-8")
    assert Passphrases(tmp_path / "long").for_new("k.pem") == b"12 letters!!"
    assert Passphrases(ask=lambda question, new: "", ask_for_new=True).for_new("k.pem") is None
    assert Passphrases(ask=lambda question, new: "x" * 12).for_new("k.pem") is None
    with pytest.raises(PassphraseError, match="no terminal"):
        Passphrases(ask_for_new=True).for_new("k.pem")


def test_a_private_file_is_its_owners_alone_and_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key.pem"
    before = os.umask(0)
    try:
        certificates.write_private(path, b"first")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(IdentityError, match="a key is never overwritten"):
        certificates.write_private(path, b"second")
    assert path.read_bytes() == b"first"


def test_a_private_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "key.pem").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IdentityError, match="never overwritten"):
        certificates.write_private(tmp_path / "key.pem", b"key")
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_leaves_no_half_a_key_that_stands_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(IdentityError, match="No space left"):
            certificates.write_private(tmp_path / "key.pem", b"key")
    certificates.write_private(tmp_path / "key.pem", b"key")
    assert (tmp_path / "key.pem").read_bytes() == b"key"


def test_the_repr_of_credentials_holds_no_key(tmp_path: Path) -> None:
    credentials = make_federation(tmp_path).credentials()
    assert b"PRIVATE KEY" in credentials.key
    assert "PRIVATE" not in repr(credentials)
    assert credentials.key.decode().splitlines()[1] not in repr(credentials)
