"""`fedbnsl participant peers`: what people read to each other by telephone, and whom a site relies on."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedbnsl.cli import fedbnsl
from fedbnsl.errors import SetupError
from fedbnsl.events.security_log import NAME
from fedbnsl.identity.certificates import key_fingerprint
from fedbnsl_client.secure_aggregation.keys import public_key_of
from fedbnsl_client.site.identity import Identity
from federation_folder import enrol, make_federation


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    folder = tmp_path_factory.mktemp("federation")
    federation = make_federation(folder / "federation")
    return {site: enrol(federation, folder / site, site) for site in ("east", "north")}


def call(identity: Identity, *options: str) -> Result:
    folder = identity._folder.parent
    return CliRunner().invoke(fedbnsl, ["participant", "peers", str(folder), *options])


def test_two_sites_confirm_each_other_by_what_they_print(sites: dict[str, Identity]) -> None:
    east, north = sites["east"], sites["north"]
    own = json.loads(call(north, "--json").output)
    assert own["fingerprint"] == key_fingerprint(public_key_of(north.certificate))
    assert own["fingerprint"] in call(north).output
    said = call(east, "--confirm", "north", own["fingerprint"])
    assert said.exit_code == 0
    assert "confirmed here: 1" in said.output
    assert json.loads(call(east, "--json").output)["confirmed"] == {"north": own["fingerprint"]}
    log = (east._folder.parent / NAME).read_text(encoding="utf-8")
    assert "peer confirmed" in log
    assert json.loads(call(east, "--forget", "north", "--json").output)["confirmed"] == {}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--confirm", "east", "AB" * 32), "that is this site itself"),
        (("--confirm", "north", "AB"), "64 hexadecimal digits"),
        (("--forget", "south"), "not among the confirmed"),
    ],
)
def test_what_cannot_be_is_refused(sites: dict[str, Identity], options: tuple[str, ...], text: str) -> None:
    refused = call(sites["east"], *options)
    assert isinstance(refused.exception, SetupError)
    assert text in str(refused.exception)


def test_a_site_that_is_not_enrolled_has_no_fingerprint(tmp_path: Path) -> None:
    refused = CliRunner().invoke(fedbnsl, ["participant", "peers", str(tmp_path)])
    assert isinstance(refused.exception, SetupError)
