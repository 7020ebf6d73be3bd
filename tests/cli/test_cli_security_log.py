"""`audit-log` as a person meets it: a table, JSON, the check of the chain and its exit code."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedbnsl.events import security_log
from fedbnsl.events.security_log import SecurityLog
from federation_folder import enrol, make_federation
from private_site import make_site


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    members = make_federation(tmp_path / "lab")
    enrol(members, tmp_path / "north")
    members.revoke("north")
    return members.folder


def test_the_log_of_a_federation_is_shown_the_oldest_first(fedbnsl, lab) -> None:
    shown = fedbnsl("coordinator", "audit-log", lab)
    assert (shown.code, shown.err) == (0, "")
    assert [line[21:].split()[:2] for line in shown.out.splitlines()] == [
        ["coordinator", "certified"], ["approved", "north"], ["revoked", "north"]
    ]  # fmt: skip
    by_file = fedbnsl("coordinator", "audit-log", lab / security_log.NAME)
    assert by_file.out == shown.out


def test_a_site_has_a_log_of_its_own(fedbnsl, tmp_path) -> None:
    make_site(tmp_path)
    shown = fedbnsl("participant", "audit-log", tmp_path)
    assert "registered" in shown.out
    assert "dataset ward-7" in shown.out
    assert fedbnsl("participant", "audit-log", tmp_path, "--verify").code == 0


def test_json_gives_the_lines_as_they_are(fedbnsl, lab) -> None:
    shown = fedbnsl("coordinator", "audit-log", lab, "--json")
    assert shown.out == (lab / security_log.NAME).read_text(encoding="ascii")
    assert [json.loads(line)["n"] for line in shown.out.splitlines()] == [1, 2, 3]


def test_since_leaves_out_what_was_before(fedbnsl, lab) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert fedbnsl("coordinator", "audit-log", lab, "--since", f"{tomorrow:%Y-%m-%d}").out == ""
    yesterday = datetime.now(UTC) - timedelta(days=1)
    assert len(fedbnsl("coordinator", "audit-log", lab, "--since", f"{yesterday:%Y-%m-%dT%H:%M}").out.splitlines()) == 3


def test_9_a_line_that_was_changed_is_named(fedbnsl, lab) -> None:
    whole = fedbnsl("coordinator", "audit-log", lab, "--verify")
    assert whole.code == 0
    assert "the chain is whole: entries 1 to 3" in whole.out
    log = lab / security_log.NAME
    log.write_bytes(log.read_bytes().replace(b'"approved"', b'"refused"'))
    broken = fedbnsl("coordinator", "audit-log", lab, "--verify")
    assert (broken.code, broken.out) == (9, "")
    assert f"{log}, line 3: the chain is broken" in broken.err


@pytest.mark.parametrize("kept", [0, -1])
def test_9_a_log_whose_end_is_missing(fedbnsl, lab, kept: int) -> None:
    head = fedbnsl("coordinator", "audit-log", lab, "--verify").out.split()[-1]
    assert fedbnsl("coordinator", "audit-log", lab, "--verify", "--head", head).code == 0
    log = lab / security_log.NAME
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:kept]))
    for noted in ((), ("--head", head)):
        cut = fedbnsl("coordinator", "audit-log", lab, "--verify", *noted)
        assert cut.code == 9
        assert "its end was cut off" in cut.err
    assert fedbnsl("coordinator", "audit-log", lab, "--head", head).code == 2


def test_15_nobody_has_noted_where_a_log_ends(fedbnsl, lab, tmp_path) -> None:
    copy = tmp_path / "copy" / security_log.NAME
    copy.parent.mkdir()
    copy.write_bytes((lab / security_log.NAME).read_bytes())
    unknown = fedbnsl("coordinator", "audit-log", copy, "--verify")
    assert unknown.code == 15
    assert "nothing tells whether its end is there" in unknown.err


def test_9_a_folder_without_a_log_is_named(fedbnsl, tmp_path) -> None:
    outcome = fedbnsl("coordinator", "audit-log", tmp_path)
    assert outcome.code == 9
    assert "there is no security log" in outcome.err


def test_what_a_caller_sent_does_nothing_to_a_terminal(fedbnsl, tmp_path) -> None:
    log = SecurityLog(tmp_path / security_log.NAME)
    log.enter("refused", site="\x1b[2Jnorth\u202e", said="speaks for '\x07\u2066south'\nrevoked  east")
    for option in ((), ("--json",)):
        shown = fedbnsl("coordinator", "audit-log", tmp_path, *option)
        assert shown.out.count("\n") == 1
        assert all(c.isprintable() for c in shown.out.removesuffix("\n"))
    with log.path.open("ab") as file:
        file.write(b"\x07 no entry\n")
    for option in ((), ("--json",)):
        assert "\x07" not in fedbnsl("coordinator", "audit-log", tmp_path, *option).out
