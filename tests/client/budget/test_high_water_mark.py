"""An older copy of a ledger is noticed at the site itself, by a note outside the ledger's folder."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.errors import BudgetExhaustedError, LedgerError
from fedbnsl_client.budget import high_water_mark
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.spending import Cap, Spending
from private_site import units_spent

NAMES = ("age", "dose")
TABLE = np.random.default_rng(7).normal(size=(30, 2))
OTHER = np.random.default_rng(8).normal(size=(30, 2))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "fedbnsl"


@pytest.fixture
def path(state: Path, tmp_path: Path) -> Path:
    """A closed ledger with one registration and one payment of 10 units."""
    path = tmp_path / "site" / "ledger.db"
    path.parent.mkdir()
    with Ledger.create(path) as ledger:
        ledger.registrations.register("a", NAMES, TABLE)
        ledger.registrations.register("b", NAMES, TABLE + 1)
        pay(ledger, 1)
    return path


def pay(ledger: Ledger, round_: int, dataset: str = "a") -> None:
    ledger.payments.reserve(Request(dataset, 1, round_, "north"), Payment(10, {}), Cap(1000, 0))


def backed_up(path: Path, use: Callable[[Ledger], None]) -> bytes:
    """The bytes of a ledger before it was used once more."""
    before = path.read_bytes()
    with Ledger.open(path) as ledger:
        use(ledger)
    return before


def older_copy(path: Path) -> LedgerError:
    with pytest.raises(LedgerError, match="is an older copy") as caught:
        Ledger.open(path)
    return caught.value


def test_a_backup_that_is_put_back_is_refused_with_the_way_on(path: Path) -> None:
    newest_is_lost = backed_up(path, lambda ledger: pay(ledger, 2))
    newest = path.read_bytes()
    path.write_bytes(newest_is_lost)
    error = older_copy(path)
    assert "it has 3 entries and lacks what this user has seen in it (4 entries)" in str(error)
    assert "--accept-backup" in error.remedy
    path.write_bytes(newest)
    Ledger.open(path).close()


def test_a_ledger_pays_for_nothing_once_another_copy_of_it_was_used_while_it_was_open(path: Path) -> None:
    """Another machine with the same home: its lock on the mark does not reach this one."""
    with Ledger.open(path) as ledger:
        own = ledger.mark
        high_water_mark.write(ledger.ledger_id, replace(own, n_entries=own.n_entries + 1, link="00"))
        with pytest.raises(LedgerError, match=r"another copy of ledger .* was used while this one was open"):
            pay(ledger, 2)
        assert (ledger.mark, units_spent(ledger, "a")) == (own, 10), "nothing was entered"


def test_a_backup_that_went_on_by_itself_is_refused_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(backed_up(path, lambda ledger: pay(ledger, 2)))
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(path.parent / "elsewhere"))
        with Ledger.open(path, accept_newest=True) as ledger:
            for round_ in range(3, 9):
                pay(ledger, round_)
    older_copy(path)


def test_a_copy_of_the_folder_is_used_instead_of_it_and_never_beside_it(path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(path.parent, tmp_path / "copy")) / "ledger.db"
    with Ledger.open(copy) as one, Ledger.open(path) as other:
        pay(one, 2)
        with pytest.raises(LedgerError, match="another copy"):
            pay(other, 3)
        pay(one, 4)
    older_copy(path)
    Ledger.open(copy).close()


def test_a_backup_that_is_accepted_is_charged_what_it_has_forgotten(path: Path) -> None:
    def use(ledger: Ledger) -> None:
        pay(ledger, 2)
        pay(ledger, 3, "b")
        ledger.payments.note_unprotected("b", 1, bytes(32))

    path.write_bytes(backed_up(path, use))
    with Ledger.open(path, accept_backup=True) as ledger:
        assert (units_spent(ledger, "a"), units_spent(ledger, "b")) == (20, 10)
        assert ledger.payments.unprotected("b")
        assert not ledger.payments.unprotected("a")
        assert [entry.kind for entry in ledger.entries()][3:] == ["restored", "lost", "lost", "unprotected"]
        pay(ledger, 2)
        assert units_spent(ledger, "a") == 30, "its noise is drawn anew, and paid for anew"
        ledger.verify()
    Ledger.open(path).close()


def test_at_how_many_sites_a_person_may_be_is_not_forgotten_with_a_ledger(path: Path) -> None:
    def use(ledger: Ledger) -> None:
        payment = Payment(10, {}, sites_per_person=3)
        ledger.payments.reserve(Request("a", 1, 2, "north"), payment, Cap(100, 100))

    path.write_bytes(backed_up(path, use))
    with Ledger.open(path, accept_backup=True) as ledger:
        assert ledger.payments.sites_per_person("a") == 3
        with pytest.raises(BudgetExhaustedError, match="for somebody with a record at 3 sites"):
            ledger.payments.reserve(
                Request("a", 1, 3, "north"), Payment(1, {}), Cap(100, 100), cap_per_person=Cap(62, 62)
            )
        ledger.payments.reserve(Request("a", 1, 3, "north"), Payment(1, {}), Cap(100, 100), cap_per_person=Cap(63, 63))
    Ledger.open(path).close()


def test_a_newest_ledger_that_turns_up_again_after_a_backup_was_accepted_is_an_older_copy(path: Path) -> None:
    before = backed_up(path, lambda ledger: pay(ledger, 2))
    newest = path.read_bytes()
    path.write_bytes(before)
    Ledger.open(path, accept_backup=True).close()
    path.write_bytes(newest)
    older_copy(path)


def test_where_there_is_no_backup_nothing_is_accepted_or_entered(path: Path) -> None:
    with Ledger.open(path, accept_backup=True) as ledger:
        assert ledger.mark.n_entries == 3


# ---- crashes -------------------------------------------------------------------------------------------------------


def test_the_note_is_written_after_the_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the two leaves a note that is behind, with which the ledger opens."""
    written: list[int] = []
    genuine = high_water_mark.write

    def crash(ledger_id: bytes, mark: high_water_mark.Mark) -> None:
        written.append(mark.n_entries)
        raise KeyboardInterrupt

    with Ledger.open(path) as ledger:
        monkeypatch.setattr(high_water_mark, "write", crash)
        with pytest.raises(KeyboardInterrupt):
            pay(ledger, 2)
        monkeypatch.setattr(high_water_mark, "write", genuine)
        assert written == [4] == [ledger.mark.n_entries], "what the note tells was in the ledger before"
        pay(ledger, 3)
    Ledger.open(path).close()


def test_a_table_that_a_backup_forgets_does_not_get_another_budget(path: Path) -> None:
    def use(ledger: Ledger) -> None:
        ledger.registrations.register("a", NAMES, OTHER, supersedes=True)
        pay(ledger, 2)

    path.write_bytes(backed_up(path, use))
    with Ledger.open(path, accept_backup=True) as ledger:
        ledger.registrations.check_table("a", NAMES, OTHER)
        with pytest.raises(LedgerError, match="registered as 'a'"):
            ledger.registrations.register("fresh", NAMES, OTHER)
        assert units_spent(ledger, "a") == 20


def test_what_was_lost_counts_in_every_run(path: Path) -> None:
    path.write_bytes(backed_up(path, lambda ledger: pay(ledger, 2)))
    with Ledger.open(path, accept_backup=True) as ledger:
        assert units_spent(ledger, "a", 999) == 10


def test_what_was_lost_counts_as_zcdp_even_if_all_of_it_was_gaussian(path: Path) -> None:
    """Nobody knows what it was paid for."""

    def pay_gaussian(ledger: Ledger, round_: int) -> None:
        ledger.payments.reserve(Request("b", 2, round_, "north"), Payment(10, {}, gaussian=True), Cap(30, 40))

    def use(ledger: Ledger) -> None:
        for round_ in range(1, 4):
            pay_gaussian(ledger, round_)

    path.write_bytes(backed_up(path, use))
    with Ledger.open(path, accept_backup=True) as ledger:
        assert ledger.payments.spending("b") == Spending(30, gaussian=False)
        with pytest.raises(BudgetExhaustedError):
            pay_gaussian(ledger, 4)


def test_what_is_taken_back_is_not_noted(path: Path, state: Path) -> None:
    [note] = state.glob("*.json")
    before = note.read_bytes()
    with Ledger.open(path) as ledger, pytest.raises(LedgerError, match="not registered"):
        pay(ledger, 2, "c")
    assert note.read_bytes() == before


# ---- where the note lies -------------------------------------------------------------------------------------------


def test_the_note_is_the_users_alone_and_holds_what_a_backup_forgets(path: Path, state: Path) -> None:
    [note] = state.glob("*.json")
    assert state.stat().st_mode & 0o777 == 0o700
    with Ledger.open(path) as ledger:
        assert note == high_water_mark.file_of(ledger.ledger_id)
        noted = json.loads(note.read_text("utf-8"))
        assert [entry["dataset"] for entry in noted.pop("registered")] == ["a", "b"]
        assert noted.pop("folder") == str(path.parent)
        assert noted == {"n_entries": 3, "link": ledger.mark.link, "spent": {"a": 10}, "unprotected": []}


def test_without_xdg_state_home_it_lies_in_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for relative_or_none in ("state", ""):
        monkeypatch.setenv("XDG_STATE_HOME", relative_or_none)
        assert high_water_mark.file_of(bytes(16)).parent == tmp_path / ".local" / "state" / "fedbnsl"


def test_a_ledger_that_is_not_noted_here_is_refused_until_somebody_states_that_it_is_the_newest(
    path: Path, state: Path
) -> None:
    """It comes from another machine, from an older fedbnsl, or from a disk of yesterday."""
    [note] = state.glob("*.json")
    kept = note.read_bytes()
    note.unlink()
    with pytest.raises(LedgerError, match="nothing is noted of ledger") as caught:
        Ledger.open(path)
    assert note.name in caught.value.remedy
    note.write_bytes(kept)
    Ledger.open(path).close()
    note.unlink()
    Ledger.open(path, accept_newest=True).close()
    with Ledger.open(path) as ledger:
        assert units_spent(ledger, "a") == 10


@pytest.mark.parametrize("broken", ["a file in its place", "no text", "no mark", "another form"])
def test_a_state_folder_or_a_note_that_cannot_be_used_is_refused_with_the_way_on(
    broken: str, path: Path, state: Path
) -> None:
    [note] = state.glob("*.json")
    if broken == "a file in its place":
        shutil.rmtree(state)
        state.write_text("", encoding="utf-8")
    else:
        note.write_bytes({"no text": b"\xff", "no mark": b"{}", "another form": b"[1]"}[broken])
    with pytest.raises(LedgerError, match="where the state of the ledger is noted, cannot be used") as caught:
        Ledger.open(path)
    assert "Set XDG_STATE_HOME" in caught.value.remedy


def test_without_a_place_for_the_note_no_ledger_is_made_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(LedgerError, match="cannot be used: Not a directory"):
        Ledger.create(tmp_path / "ledger.db")
    assert sorted(os.listdir(tmp_path)) == ["file", "ledger.db.lock"]


def test_nobody_without_a_home_opens_a_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(LedgerError, match="there is no home directory"):
        Ledger.open(path)


# ---- a second name -------------------------------------------------------------------------------------------------


def test_a_ledger_with_a_hard_link_is_refused_under_both_names(path: Path) -> None:
    other = path.with_name("other.db")
    with Ledger.open(path):
        other.hardlink_to(path)
        with pytest.raises(LedgerError, match="has 2 names"):
            Ledger.open(other)
    with pytest.raises(LedgerError, match="has 2 names"):
        Ledger.open(path)
    other.unlink()
    Ledger.open(path).close()
