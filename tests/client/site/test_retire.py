"""`participant retire`: approvals are gone, nothing is paid any more, and no older copy undoes it."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from command_line import Outcome, refused
from fedbnsl.errors import LedgerError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.agent.agent import _Rules
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.ledger_schema import SEALED
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable
from private_site import DATASET, edit, make_site, private_plan


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With an approved plan and a round that was paid for."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    policy = make_site(tmp_path / "north")
    with Ledger.open(tmp_path / "north" / site_folder.LEDGER) as ledger:
        ledger.approvals.approve(private_plan().digest(), "heart")
        ledger.payments.reserve(Request(DATASET, 7, 1, "north"), Payment(10, {}), policy.dataset(DATASET).cap)
    return tmp_path / "north"


def test_nothing_is_approved_or_paid_from_then_on(fedbnsl: Callable[..., Outcome], site: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(private_plan(sites=["north", "south"]).to_toml(), encoding="utf-8")
    told = json.loads(fedbnsl("participant", "retire", site, "--yes", "--json").out)
    assert (told["site"], [*told["runs"]], told["approvals_taken_back"]) == ("north", [f"{7:016x}"], 1)
    assert told["spent"][DATASET]["spent"]["epsilon"] > 0
    for command in (("retire", site, "--yes"), ("approve", plan, site, "--yes"), ("agent", site, "--insecure"),
                    ("join", "127.0.0.1:1", "--policy", site, "--insecure")):  # fmt: skip
        refused(fedbnsl("participant", *command), 11, "was sealed on", "this site left for good")
    ledger = fedbnsl("participant", "ledger", site).out
    assert ledger.startswith("SEALED on ")
    assert "room for one more run of up to epsilon 0 (0 zCDP)" in ledger
    assert "nothing is entered any more" in ledger
    with Ledger.open(site / site_folder.LEDGER) as ledger:
        assert not ledger.approvals.current()
        policy = site_folder.Policy.load(site / site_folder.POLICY)
        with pytest.raises(LedgerError, match="sealed"):
            ledger.payments.reserve(Request(DATASET, 8, 1, "north"), Payment(10, {}), policy.dataset(DATASET).cap)
        with pytest.raises(LedgerError, match="sealed"):
            ledger.payments.note_unprotected(DATASET, 8, b"")
    *_, last = site_folder.lines(site / site_folder.NAME)
    assert last.entry["event"] == "retired"


def test_runs_are_told_by_plan_day_and_federation_as_far_as_the_ledger_knows(
    fedbnsl: Callable[..., Outcome], site: Path
) -> None:
    digest, other = private_plan().digest(), "ef" * 32
    cap = site_folder.Policy.load(site / site_folder.POLICY).dataset(DATASET).cap
    with Ledger.open(site / site_folder.LEDGER) as ledger:
        ledger.approvals.note_agent(8, digest, authority="AA", approval=None)
        for run, plan, authority in ((8, digest.hex(), "AA"), (9, other, "BB")):
            paid = Payment(10, {"plan": plan}, authority=authority)
            ledger.payments.reserve(Request(DATASET, run, 1, "north"), paid, cap)
        day = f"{ledger.entries()[-1].time:%Y-%m-%d}"
    told = fedbnsl("participant", "ledger", site).out
    assert f"the agent takes part in run {8:016x} of plan 'heart', federation AA" in told
    assert f"{DATASET}, run {8:016x} of plan 'heart', round 1" in told
    assert f"{DATASET}, run {9:016x} of digest {other[:16]}..., round 1" in told
    assert f"{DATASET}, run {7:016x}, round 1" in told
    runs = json.loads(fedbnsl("participant", "ledger", site, "--json").out)["runs"]
    assert [(one["number"][-1], one["plan"]) for one in runs] == [("7", ""), ("8", "heart"), ("9", "")]
    said = [line for line in fedbnsl("participant", "retire", site, "--yes").out.splitlines() if "took part" in line]
    assert said == [
        f"  took part in run {7:016x}, from {day} on",
        f"  took part in run {8:016x} of plan 'heart', federation AA, from {day} on",
        f"  took part in run {9:016x} of digest {other[:16]}..., federation BB, from {day} on",
    ]


def test_an_older_copy_that_is_accepted_is_sealed_too(site: Path, tmp_path: Path) -> None:
    shutil.copy(site / site_folder.LEDGER, tmp_path / "older.db")
    with Ledger.open(site / site_folder.LEDGER) as ledger:
        assert ledger.seal() == 1
    with closing(sqlite3.connect(site / site_folder.LEDGER)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
    assert version == SEALED, "an older fedbnsl, which would pay from it, does not open it"
    shutil.copy(tmp_path / "older.db", site / site_folder.LEDGER)
    with (
        Ledger.open(site / site_folder.LEDGER, accept_backup=True) as ledger,
        pytest.raises(LedgerError, match="sealed"),
    ):
        ledger.require_open()


def test_a_site_that_waited_for_others_while_it_was_sealed_takes_no_part(site: Path) -> None:
    """Also not with a public table, of which nothing is entered."""
    edit(site / site_folder.POLICY, "\npublic = false", "\npublic = true")
    edit(site / site_folder.POLICY, '["dp-pgcd"]', '["pgcd"]')
    edit(site / site_folder.POLICY, "auto_approve = false", "auto_approve = true")
    plan = Plan.parse({"n_participants": 2, "rounds": 1, "refit_rounds": 0, "local_solver": "pgcd"})
    with site_folder.opened(site) as (policy, ledger), Ledger.open(site / site_folder.LEDGER) as other:
        waiting = GuardedTable(site, policy, ledger, None)
        waiting.admit(plan, 8, waiting.variables)
    with site_folder.opened(site) as (policy, ledger), Ledger.open(site / site_folder.LEDGER) as other:
        waiting = GuardedTable(site, policy, ledger, None)
        other.seal()
        with pytest.raises(LedgerError, match="sealed"):
            waiting.admit(plan, 9, waiting.variables)


def test_check_says_that_the_ledger_is_sealed(fedbnsl: Callable[..., Outcome], site: Path) -> None:
    with Ledger.open(site / site_folder.LEDGER) as ledger:
        ledger.seal()
    found = json.loads(fedbnsl("participant", "check", site, "127.0.0.1:1", "--insecure", "--json").out)["findings"]
    assert [(one["state"], one["exit_code"], "sealed" in one["text"]) for one in found if one["check"] == "data"] == [
        ("failed", 11, True)
    ]


def test_an_agent_that_is_up_while_its_site_retires_decides_about_no_run(site: Path) -> None:
    rules = _Rules(site, "")
    assert len(rules.read()) == 1
    with Ledger.open(site / site_folder.LEDGER) as ledger:
        ledger.seal()
    with pytest.raises(LedgerError, match="sealed"):
        rules.read()
    rules.close()


def test_of_two_sealed_copies_each_can_be_looked_at(site: Path, tmp_path: Path) -> None:
    file, older, sealed = site / site_folder.LEDGER, tmp_path / "older.db", tmp_path / "sealed.db"
    shutil.copy(file, older)
    with Ledger.open(file) as ledger:
        ledger.seal()
    shutil.copy(file, sealed)
    shutil.copy(older, file)
    with Ledger.open(file, accept_backup=True):
        pass
    shutil.copy(sealed, file)
    with Ledger.open(file, accept_backup=True) as ledger, pytest.raises(LedgerError, match="sealed"):
        ledger.require_open()


def test_a_site_in_a_run_does_not_retire(site: Path) -> None:
    with Ledger.open(site / site_folder.LEDGER) as in_run, Ledger.open(site / site_folder.LEDGER) as ledger:
        in_run.payments.take_run(9)
        with pytest.raises(LedgerError, match=f"takes part in run {9:016x}"):
            ledger.seal()
        assert len(ledger.approvals.current()) == 1
