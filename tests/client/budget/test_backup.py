"""A ledger that is restored from a backup gives no budget back: it is charged for what it may have forgotten."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from command_line import Outcome
from fedbnsl.errors import BudgetExhaustedError, LedgerError
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.policy import DatasetPolicy, Policy
from fedbnsl_client.budget.spending import Cap
from private_site import DATASET, edit, make_site, rows, units_spent, write_table

Run = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "fedbnsl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_site(tmp_path / "north")
    return tmp_path / "north"


@pytest.fixture
def policy(folder: Path) -> DatasetPolicy:
    return Policy.load(folder / "policy.toml").datasets[0]


def pay(ledger: Ledger, cap: Cap, units: int, *, round_: int = 1, dataset: str = DATASET) -> None:
    ledger.payments.reserve(Request(dataset, 1, round_, "north"), Payment(units, {}, gaussian=True), cap)


def spend(folder: Path, cap: Cap, units: int, *, round_: int = 1) -> None:
    with Ledger.open(folder / "ledger.db") as ledger:
        pay(ledger, cap, units, round_=round_)


def backed_up(fedbnsl: Run, folder: Path) -> Path:
    out = folder.with_name("backups")
    out.mkdir(exist_ok=True)
    code, said, _ = fedbnsl("participant", "backup", folder, "--out", out)
    assert code == 0
    assert "--accept-backup" in said
    return Path(said.split(":")[0].removeprefix("wrote "))


def restored(backup: Path, folder: Path) -> Path:
    """The folder as it was, after the disk with it was lost."""
    shutil.rmtree(folder)
    shutil.unpack_archive(backup, folder, filter="data")
    return folder


def test_folders_may_be_named_from_where_one_stands(
    fedbnsl: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    Path("backups").mkdir()
    assert fedbnsl("participant", "backup", folder.name, "--out", "backups")[0] == 0
    assert len([*Path("backups").glob("north-*.tar")]) == 1


def test_a_backup_is_the_whole_folder_for_its_owner_alone_and_leaves_the_ledger_as_it_is(
    fedbnsl: Run, folder: Path, policy: DatasetPolicy, tmp_path: Path
) -> None:
    spend(folder, policy.cap, 10**9)
    before = (folder / "ledger.db").read_bytes()
    backup = backed_up(fedbnsl, folder)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert [backup] == list(backup.parent.iterdir()), "nothing half is left"
    assert (folder / "ledger.db").read_bytes() == before
    shutil.unpack_archive(backup, tmp_path / "copy", filter="data")
    assert {each.name for each in (tmp_path / "copy").iterdir()} == {each.name for each in folder.iterdir()}
    for name in ("policy.toml", "table.csv"):
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()
    spend(folder, policy.cap, 1, round_=2)


def test_only_the_newest_backups_are_kept_and_files_of_others_stay(fedbnsl: Run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "backups"
    out.mkdir()
    older = [out / f"north-2026010{day}T000000Z.tar" for day in (1, 2, 3)]
    others = [out / name for name in ("north-2-20260101T000000Z.tar", "north-20260101T000000Z.tar.gpg", "notes")]
    for file in (*older, *others):
        file.touch()
    code, said, _ = fedbnsl("participant", "backup", folder, "--out", out, "--keep", 2)
    assert code == 0
    assert "removed 2 older" in said
    assert older[2].exists()
    assert not older[0].exists()
    assert not older[1].exists()
    assert all(file.exists() for file in others)
    assert len(list(out.iterdir())) == len(others) + 2


def test_a_backup_into_the_folder_itself_is_refused(fedbnsl: Run, folder: Path) -> None:
    (folder / "backups").mkdir()
    code, _, err = fedbnsl("participant", "backup", folder, "--out", folder / "backups")
    assert code == 2
    assert "would hold all earlier ones" in err
    assert list((folder / "backups").iterdir()) == []


def test_a_backup_is_whole_while_others_pay(
    folder: Path, policy: DatasetPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pay_on() -> None:
        with Ledger.open(folder / "ledger.db") as other:
            for round_ in range(1, 30):
                pay(other, policy.cap, 1, round_=round_)
                other.payments.store(Request(DATASET, 1, round_, "north"), os.urandom(5000))

    paying, copies = threading.Thread(target=pay_on), list[Path]()
    with Ledger.open(folder / "ledger.db") as ledger:
        paying.start()
        while paying.is_alive() and len(copies) < 10:
            copies.append(tmp_path / f"{len(copies)}.db")
            ledger.back_up(copies[-1])
            paying.join(0.01)
    paying.join()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    for copy in (copies[0], copies[-1]):
        shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)
        Ledger.open(copy, accept_backup=True, caps={}).close()  # it is verified


def test_a_restored_backup_is_refused_and_then_charged_with_what_is_noted_to_be_missing(
    fedbnsl: Run, folder: Path, policy: DatasetPolicy
) -> None:
    spend(folder, policy.cap, 10**9)
    backup = backed_up(fedbnsl, folder)
    spend(folder, policy.cap, 2 * 10**9, round_=2)
    restored(backup, folder)
    for accepts in ((), ("--accept-newest",)):
        code, _, err = fedbnsl("participant", "ledger", folder, *accepts)
        assert (code, "is a backup, and forgets what was spent" in err, "--accept-backup" in err) == (11, True, True)
    assert fedbnsl("participant", "ledger", folder, "--accept-backup").code == 0
    with Ledger.open(folder / "ledger.db") as ledger:
        assert units_spent(ledger, DATASET) == 3 * 10**9
        ledger.verify()


def test_a_backup_after_which_nothing_was_spent_is_charged_nothing(
    fedbnsl: Run, folder: Path, policy: DatasetPolicy
) -> None:
    spend(folder, policy.cap, 10**9)
    restored(backed_up(fedbnsl, folder), folder)
    assert fedbnsl("participant", "ledger", folder, "--accept-backup").code == 0
    with Ledger.open(folder / "ledger.db") as ledger:
        assert units_spent(ledger, DATASET) == 10**9
        assert not [entry for entry in ledger.entries() if entry.kind in ("restored", "lost")]


def test_where_the_note_is_lost_too_the_whole_budget_is_taken_as_spent_and_only_a_new_policy_gives_more(
    fedbnsl: Run, folder: Path, policy: DatasetPolicy, state: Path
) -> None:
    spend(folder, policy.cap, 10**9)
    backup = backed_up(fedbnsl, folder)
    spend(folder, policy.cap, policy.cap.gaussian_units - 10**9, round_=2)  # all that there was
    restored(backup, folder)
    shutil.rmtree(state)
    assert fedbnsl("participant", "ledger", folder, "--accept-newest").code == 11
    code, said, _ = fedbnsl("participant", "ledger", folder, "--accept-backup")
    assert code == 0
    assert "without a note of the lost ledger" in said
    told = json.loads(fedbnsl("participant", "ledger", folder, "--json").out)["datasets"][0]
    assert told["left"]["epsilon"] == 0
    with Ledger.open(folder / "ledger.db") as ledger:
        with pytest.raises(BudgetExhaustedError):
            pay(ledger, policy.cap, 1, round_=3)
        assert units_spent(ledger, DATASET) == policy.cap.gaussian_units, "not more than could have been spent"
        more = policy.cap.gaussian_units + 5
        pay(ledger, Cap(more, more), 5, round_=3)
        with pytest.raises(BudgetExhaustedError):
            pay(ledger, Cap(more, more), 1, round_=4)
    assert "backup accepted" in fedbnsl("participant", "audit-log", folder).out


def test_new_records_of_a_restored_table_have_no_budget_of_their_own_that_may_be_spent(
    fedbnsl: Run, folder: Path, policy: DatasetPolicy, state: Path
) -> None:
    """They may have come, and spent it, after the backup."""
    backup = backed_up(fedbnsl, folder)
    restored(backup, folder)
    shutil.rmtree(state)
    assert fedbnsl("participant", "ledger", folder, "--accept-backup").code == 0
    assert fedbnsl("participant", "register", folder).code == 0
    write_table(folder / "table.csv", np.concatenate([rows(), rows(9)]))
    assert fedbnsl("participant", "register", folder, "--grows").code == 0
    with Ledger.open(folder / "ledger.db") as ledger, pytest.raises(BudgetExhaustedError):
        ledger.payments.reserve(Request(DATASET, 1, 1, "north", blocks=(2,)), Payment(1, {}), policy.cap)


def test_a_table_that_a_backup_does_not_know_is_registered_only_if_it_was_never_used(
    fedbnsl: Run, folder: Path, state: Path
) -> None:
    backup = backed_up(fedbnsl, folder)
    restored(backup, folder)
    shutil.rmtree(state)
    assert fedbnsl("participant", "ledger", folder, "--accept-backup").code == 0
    write_table(folder / "later.csv", rows(9))
    edit(folder / "policy.toml", f'id = "{DATASET}"', 'id = "later"')
    edit(folder / "policy.toml", 'path = "table.csv"', 'path = "later.csv"')
    code, _, err = fedbnsl("participant", "register", folder)
    assert (code, "does not know dataset 'later'" in err, "--never-used" in err) == (11, True, True)
    assert fedbnsl("participant", "register", folder, "--never-used").code == 0
    assert fedbnsl("participant", "register", folder).code == 0


def test_a_table_that_the_policy_does_not_name_when_a_backup_is_accepted_has_no_budget_later(
    folder: Path, policy: DatasetPolicy, state: Path, tmp_path: Path
) -> None:
    with Ledger.open(folder / "ledger.db") as ledger:
        ledger.back_up(tmp_path / "copy.db")
    shutil.rmtree(state)
    with Ledger.open(tmp_path / "copy.db", accept_backup=True, caps={}) as ledger:
        with pytest.raises(BudgetExhaustedError):
            pay(ledger, policy.cap, 1)
        ledger.verify()


def test_without_caps_a_backup_that_is_not_noted_is_not_accepted(folder: Path, state: Path) -> None:
    shutil.rmtree(state)
    with pytest.raises(LedgerError, match="nothing is noted"):
        Ledger.open(folder / "ledger.db", accept_backup=True)
