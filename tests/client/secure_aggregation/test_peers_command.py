"""`fedbnsl participant peers`: what people read to each other by telephone, and whom a site relies on."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import segno
from click.testing import CliRunner, Result

from fedbnsl.cli import fedbnsl
from fedbnsl.errors import SetupError
from fedbnsl.events.security_log import NAME
from fedbnsl.identity.certificates import key_fingerprint
from fedbnsl.identity.roster_sheet import RosterSheet
from fedbnsl.plan.plan import Plan
from fedbnsl_client.secure_aggregation.keys import public_key_of
from fedbnsl_client.secure_aggregation.needed import peer_lines, peers_lacking
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


# ---- the sheet of all sites ----------------------------------------------------------------------------------------


@pytest.fixture
def sheet(sites: dict[str, Identity], tmp_path: Path) -> Path:
    """As the coordinator writes it, which north and east have imported nothing of."""
    for site, other in (("east", "north"), ("north", "east")):
        call(sites[site], "--forget", other)
    hub = sites["east"].place.parent / "federation"
    done = CliRunner().invoke(fedbnsl, ["coordinator", "roster", str(hub), "--out", str(tmp_path / "lab.sites.toml")])
    assert done.exit_code == 0, done.output
    return tmp_path / "lab.sites.toml"


def digest_of(sheet: Path) -> str:
    return RosterSheet.from_text(sheet.read_text("utf-8"), origin="sheet").digest


def confirmed(identity: Identity) -> dict[str, str]:
    found: dict[str, str] = json.loads(call(identity, "--json").stdout)["confirmed"]
    return found


def test_the_qr_image_is_that_of_the_digest(sites: dict[str, Identity], sheet: Path, tmp_path: Path) -> None:
    hub = sites["east"].place.parent / "federation"
    other = ["--out", str(tmp_path / "again.toml"), "--qr", str(tmp_path / "digest.svg")]
    assert CliRunner().invoke(fedbnsl, ["coordinator", "roster", str(hub), *other]).exit_code == 0
    drawn = ElementTree.fromstring((tmp_path / "digest.svg").read_text(encoding="utf-8"))  # our own
    code = segno.make(digest_of(sheet), error="q", micro=False)
    (path,) = [one.attrib["d"] for one in drawn.iter() if one.attrib.get("class") == "qrline"]
    dark = sum(map(sum, code.matrix))
    assert sum(int(n) for n in re.findall(r"h(\d+)", path)) == dark, (
        "as many dark squares as the code of the digest has"
    )


def test_a_sheet_confirms_all_sites_where_their_people_have_read_out_its_digest(
    sites: dict[str, Identity], sheet: Path
) -> None:
    east, north = sites["east"], sites["north"]
    said = call(east, "--import", str(sheet), "--digest", digest_of(sheet).lower().replace(" ", ""))
    assert said.exit_code == 0, said.output
    assert "worth no more than the coordinator's word" in said.output
    assert digest_of(sheet) in said.output
    own = json.loads(call(north, "--json").stdout)["fingerprint"]
    assert confirmed(east) == {"north": own}
    assert call(north, "--import", str(sheet)).exit_code != 0, "nobody answered"
    other = call(north, "--import", str(sheet), "--digest", "AB12 " * 10)
    assert "another digest" in str(other.exception)
    assert confirmed(north) == {}


@pytest.mark.parametrize(
    ("site", "text"), [("east", "another key for this site"), ("north", "site 'north': the sheet")]
)
def test_a_sheet_with_another_key_is_refused_and_nobody_is_half_confirmed(
    sites: dict[str, Identity], sheet: Path, site: str, text: str
) -> None:
    """Of this site itself, or of one that had been confirmed; a third one is new."""
    east, north = sites["east"], sites["north"]
    own = json.loads(call(north, "--json").stdout)["fingerprint"]
    call(east, "--confirm", "north", own)
    good = RosterSheet.from_text(sheet.read_text("utf-8"), origin="sheet")
    forged = good.model_copy(
        update={"sites": {**good.sites, "abel": ":".join(["01"] * 32), site: ":".join(["AB"] * 32)}}
    )
    sheet.write_text(forged.to_text(), encoding="utf-8")
    refused = call(east, "--import", str(sheet), "--digest", forged.digest)
    assert isinstance(refused.exception, SetupError)
    assert text in str(refused.exception)
    assert confirmed(east) == {"north": own}


def test_how_many_peers_a_plan_needs_is_said_before_the_run(sites: dict[str, Identity], sheet: Path) -> None:
    folder = sites["east"]._folder.parent
    plan = Plan.load("private", ["n_participants=4", 'sites=["east","north","south","west"]', "privacy.delta=1e-8"])
    assert peer_lines(plan, folder, "east") == (
        "secure aggregation needs 2 confirmed peers at this site; 0 are confirmed: a run is refused until more are "
        f"(north, south, west are not): fedbnsl participant peers {folder}",
    )
    for site, byte in (("north", "AB"), ("south", "CD"), ("other", "EF")):
        call(sites["east"], "--confirm", site, byte * 32)
    assert peers_lacking(plan, folder, "east") == (
        "secure aggregation needs 2 confirmed peers at this site; 2 are confirmed",
        False,
    )
    for site in ("north", "south", "other"):
        call(sites["east"], "--forget", site)
