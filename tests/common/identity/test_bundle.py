"""The file that comes back to a site."""

from dataclasses import asdict
from pathlib import Path

import pytest
import tomli_w

from fedbnsl.errors import IdentityError
from fedbnsl.identity.bundle import Bundle
from fedbnsl.identity.certificates import Name
from fedbnsl_client.site import identity
from federation_folder import make_federation


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    asked = identity.request(tmp_path / "site", Name("lab", "größe"))
    return make_federation(tmp_path / "federation").approve(asked, days=10)


def test_a_bundle_goes_into_a_file_and_comes_back(bundle: Bundle) -> None:
    assert Bundle.from_toml(bundle.to_toml(), origin="b") == bundle
    assert (bundle.federation, bundle.site, bundle.coordinator) == ("lab", "größe", "127.0.0.1:50051")


def test_a_bundle_survives_the_line_ends_of_a_mail_program(bundle: Bundle) -> None:
    came = Bundle.from_toml(bundle.to_toml().replace("\n", "\r\n"), origin="b")
    assert came.site_certificate == bundle.site_certificate
    assert came.ca_certificate == bundle.ca_certificate


def test_a_bundle_holds_nothing_secret(bundle: Bundle) -> None:
    assert "PRIVATE" not in bundle.to_toml()
    assert bundle.to_toml().count("-----BEGIN CERTIFICATE-----") == 2


@pytest.mark.parametrize("field", ["federation", "site", "coordinator", "certificate", "ca"])
def test_a_bundle_that_lacks_an_entry_or_has_another_type_there_is_refused(bundle: Bundle, field: str) -> None:
    values: dict[str, object] = asdict(bundle)
    for broken in ({k: v for k, v in values.items() if k != field}, {**values, field: 3}, {**values, field + "s": "x"}):
        with pytest.raises(
            IdentityError, match=r"mail\.txt is not a bundle .* entries are missing or unknown"
        ) as caught:
            Bundle.from_toml(tomli_w.dumps(broken), origin="mail.txt")
        assert "participant enrol FOLDER BUNDLE" in caught.value.remedy


@pytest.mark.parametrize("text", ["", "site", "[", "\x00", "= 3", 'site = "' + "a" * 10])
def test_what_is_no_toml_is_refused_as_no_bundle(text: str) -> None:
    with pytest.raises(IdentityError, match="is not a bundle made by `coordinator approve`"):
        Bundle.from_toml(text, origin="mail.txt")


@pytest.mark.parametrize("field", ["certificate", "ca"])
def test_a_bundle_whose_certificate_was_damaged_is_refused_at_the_door(bundle: Bundle, field: str) -> None:
    values = asdict(bundle)
    for damaged in ("", values[field][:200], values[field].replace("MII", "!!!", 1)):
        with pytest.raises(IdentityError, match="is not a certificate"):
            Bundle.from_toml(tomli_w.dumps({**values, field: damaged}), origin="mail.txt")
