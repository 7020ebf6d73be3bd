"""`participant retire`: approvals are gone, nothing is paid any more, and no older copy undoes it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Outcome, refused
from fedbnsl.errors import LedgerError
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.site import folder as site_folder
from private_site import DATASET, make_site, private_plan


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
    assert "nothing is entered any more" in fedbnsl("participant", "ledger", site).out
    with Ledger.open(site / site_folder.LEDGER) as ledger:
        assert not ledger.approvals.current()
        policy = site_folder.Policy.load(site / site_folder.POLICY)
        with pytest.raises(LedgerError, match="sealed"):
            ledger.payments.reserve(Request(DATASET, 8, 1, "north"), Payment(10, {}), policy.dataset(DATASET).cap)
        with pytest.raises(LedgerError, match="sealed"):
            ledger.payments.note_unprotected(DATASET, 8, b"")
    *_, last = site_folder.lines(site / site_folder.NAME)
    assert last.entry["event"] == "retired"


def test_an_older_copy_that_is_accepted_is_sealed_too(site: Path, tmp_path: Path) -> None:
    shutil.copy(site / site_folder.LEDGER, tmp_path / "older.db")
    with Ledger.open(site / site_folder.LEDGER) as ledger:
        assert ledger.seal() == 1
    shutil.copy(tmp_path / "older.db", site / site_folder.LEDGER)
    with (
        Ledger.open(site / site_folder.LEDGER, accept_backup=True) as ledger,
        pytest.raises(LedgerError, match="sealed"),
    ):
        ledger.require_open()


def test_a_site_in_a_run_does_not_retire(site: Path) -> None:
    with Ledger.open(site / site_folder.LEDGER) as in_run, Ledger.open(site / site_folder.LEDGER) as ledger:
        in_run.payments.take_run(9)
        with pytest.raises(LedgerError, match=f"takes part in run {9:016x}"):
            ledger.seal()
        assert len(ledger.approvals.current()) == 1
