"""A table that grows: its records keep what they have spent, new ones have a budget of their own."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fedbnsl.errors import BudgetExhaustedError, LedgerError, PolicyRefusal, SetupError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Promised, Request
from fedbnsl_client.budget.spending import Cap, Spending
from fedbnsl_client.data.person_rows import PersonRows, Persons
from ledgers import NAMES, TABLE, ledger, path

__all__ = ["ledger", "path"]  # fixtures

GROWN = np.vstack([TABLE[::-1], TABLE[:20] + 5.0])


def pay(ledger: Ledger, number: int, units: int, *blocks: int, cap: int = 100) -> None:
    ledger.payments.reserve(Request("a", 1, number, "north", blocks), Payment(units, {}), Cap(cap, cap))


def persons(names: list[str] | tuple[str, ...], X: Matrix) -> Persons:
    """One row each."""
    return Persons(names, PersonRows(X, np.ones(len(X), dtype=np.int64)))


def register(ledger: Ledger, names: list[str] | tuple[str, ...], X: Matrix, *, grows: bool = False) -> None:
    """Persons with these records."""
    ledger.registrations.register("b", NAMES, X, persons=persons(names, X), grows=grows)


def spent(ledger: Ledger, *blocks: int) -> int:
    return ledger.payments.spending("a", blocks=blocks).units


def sizes(ledger: Ledger, dataset: str = "a") -> list[tuple[int, int]]:
    known = ledger.registrations.find(dataset)
    assert known is not None
    return [(one.number, one.n_samples) for one in known.blocks]


@pytest.fixture
def grown(ledger: Ledger) -> Ledger:
    """50 of 100 units are spent of 30 records, and nothing of 20 new ones."""
    pay(ledger, 1, 50)
    ledger.registrations.register("a", NAMES, GROWN, grows=True)
    return ledger


def test_new_records_have_a_budget_of_their_own(grown: Ledger) -> None:
    assert sizes(grown) == [(1, 30), (2, 20)]
    assert (spent(grown), spent(grown, 1), spent(grown, 2), spent(grown, 1, 2)) == (50, 50, 0, 50)
    pay(grown, 2, 70, 2)
    assert (spent(grown, 1), spent(grown, 2)) == (50, 70)
    pay(grown, 3, 30, 1, 2)
    assert (spent(grown, 1), spent(grown, 2)) == (80, 100)
    for blocks in [(2,), (1, 2), ()]:
        with pytest.raises(BudgetExhaustedError):
            pay(grown, 4, 1, *blocks)
    pay(grown, 4, 20, 1)
    assert grown.mark.spent == {"a": 170}, "the note outside the ledger counts every payment"


def test_new_records_have_a_budget_of_their_own_against_all_other_sites_too(grown: Ledger) -> None:
    caps = Cap(100, 100), Cap(150, 150)
    for number, blocks, units, in_all in ((2, (1,), 10, 100), (3, (2,), 10, 150)):
        payment = Payment(units, {}, units_against_all=in_all)
        grown.payments.reserve(Request("a", 1, number, "north", blocks), payment, *caps)
    in_all = [grown.payments.spending("a", against_all=True, blocks=[block]).units for block in (1, 2)]
    assert in_all == [150, 150]
    for block in (1, 2):
        request = Request("a", 1, 4, "north", (block,))
        with pytest.raises(BudgetExhaustedError, match="against all other sites together"):
            grown.payments.reserve(request, Payment(1, {}, units_against_all=2), *caps)


def test_the_rows_of_a_block_are_found_in_whatever_order_they_are(grown: Ledger) -> None:
    whole = grown.registrations.find("a")
    assert whole is not None
    order = np.random.default_rng(2).permutation(50)
    of_two = grown.registrations.rows_of(whole.of_blocks([2]), NAMES, GROWN[order])
    assert (np.sort(GROWN[order][of_two], axis=0) == np.sort(TABLE[:20] + 5.0, axis=0)).all()
    assert grown.registrations.rows_of(whole, NAMES, GROWN).all()
    with pytest.raises(SetupError, match="has no block 3; it has 1, 2"):
        whole.of_blocks([3])


def test_the_same_table_again_changes_nothing_and_the_next_month_is_the_next_block(grown: Ledger) -> None:
    before = grown.mark.n_entries
    for grows in (False, True):
        grown.registrations.register("a", NAMES, GROWN, grows=grows)
    assert grown.mark.n_entries == before
    grown.registrations.register("a", NAMES, np.vstack([GROWN, TABLE[:7] - 9.0]), grows=True)
    assert sizes(grown) == [(1, 30), (2, 20), (3, 7)]


def test_a_record_that_is_missing_or_changed_is_no_growth(grown: Ledger) -> None:
    changed = GROWN.copy()
    changed[3, 0] += 1.0
    for X, gone in ((GROWN[1:], "1"), (np.vstack([GROWN[4:], TABLE + 7.0]), "4"), (changed, "1"), (GROWN + 1.0, "50")):
        with pytest.raises(LedgerError, match=rf"of 50 records .* {gone} are not in the table any more") as caught:
            grown.registrations.register("a", NAMES, X, grows=True)
        assert "kind 'group'" in caught.value.remedy
    with pytest.raises(LedgerError, match="of 50 records that were registered it has 50, and 9 others") as caught:
        grown.registrations.register("a", NAMES, np.vstack([GROWN, TABLE[:9] + 7.0]))
    assert "--grows" in caught.value.remedy
    with pytest.raises(LedgerError, match=r"of 50 records that were registered it has 49, and 1 other$") as caught:
        grown.registrations.register("a", NAMES, changed)
    assert "--grows" not in caught.value.remedy
    assert sizes(grown) == [(1, 30), (2, 20)]


@pytest.mark.parametrize("new", [TABLE, TABLE[:1], np.vstack([TABLE, *(TABLE + 9.0 * k for k in range(1, 40))])])
def test_copies_of_records_that_were_there_get_no_second_budget_unless_they_are_other_peoples(
    new: Matrix, ledger: Ledger
) -> None:
    grown = np.vstack([TABLE, new])
    with pytest.raises(LedgerError, match="a copy of a record would have a second budget"):
        ledger.registrations.register("a", NAMES, grown, grows=True)
    assert sizes(ledger) == [(1, 30)]
    ledger.registrations.register("a", NAMES, grown, grows=True, other_records=True)
    assert sizes(ledger) == [(1, 30), (2, len(new))]
    ledger.registrations.register("a", NAMES, grown)


def test_new_records_that_are_alike_by_chance_are_new(ledger: Ledger) -> None:
    few = np.random.default_rng(2).integers(0, 3, size=(900, 2)).astype(float)
    ledger.registrations.register("b", ("x", "y"), few[:600], other_records=True)
    ledger.registrations.register("b", ("x", "y"), few, grows=True)
    assert sizes(ledger, "b") == [(1, 600), (2, 300)]


def test_what_takes_the_place_of_a_grown_table_has_spent_all_of_it(grown: Ledger) -> None:
    pay(grown, 2, 30, 2)
    grown.registrations.register("a", NAMES, TABLE * 2.0, supersedes=True)
    assert (sizes(grown), spent(grown)) == ([(3, 30)], 80)
    pay(grown, 3, 5)
    grown.registrations.register("a", NAMES, np.vstack([TABLE * 2.0, TABLE]), grows=True)
    assert (sizes(grown), spent(grown, 3), spent(grown, 4)) == ([(3, 30), (4, 30)], 85, 80), "records that come back"


@pytest.mark.parametrize("columns", [2, 3])
def test_records_that_come_back_after_another_table_took_their_place_have_spent_what_they_had(
    columns: int, ledger: Ledger
) -> None:
    pay(ledger, 1, 50)
    ledger.payments.note_unprotected("a", 1, b"digest")
    names = NAMES[:columns]
    ledger.registrations.register("a", names, TABLE[:20, :columns], supersedes=True)
    ledger.registrations.register("a", names, TABLE[:, :columns], grows=True)
    assert (sizes(ledger), spent(ledger, 3)) == ([(2, 20), (3, 10)], 50)
    assert ledger.payments.unprotected("a", blocks=[3])


def test_persons_keep_their_budget_whatever_changes_and_those_who_are_erased_stay_charged(ledger: Ledger) -> None:
    names = [f"person {k}" for k in range(30)]
    register(ledger, names, TABLE + 50.0)
    ledger.payments.reserve(Request("b", 1, 1, "north", (1,)), Payment(50, {}), Cap(100, 100))
    now = [*names[10:], "new 1", "new 2"]
    X = np.random.default_rng(4).normal(size=(len(now), 3))
    register(ledger, now, X, grows=True)
    assert sizes(ledger, "b") == [(1, 20), (2, 2)]
    assert ledger.payments.spending("b", blocks=[2]).units == 0
    register(ledger, [*now[:-2], names[0]], X[:-1], grows=True)
    assert sizes(ledger, "b") == [(1, 21)], "a person who was left out is back in the old block"
    assert ledger.registrations.n_left_out("b") == 11
    with pytest.raises(LedgerError, match=r"of 32 persons .* none is in the table any more") as caught:
        register(ledger, ["x", "y", "z"], X[:3], grows=True)
    assert "kind 'group'" not in caught.value.remedy, "that is what the table has"


def test_a_table_of_the_same_persons_with_other_values_says_so(ledger: Ledger) -> None:
    names = [f"person {k}" for k in range(30)]
    register(ledger, names, TABLE + 50.0)

    def refused(names: list[str], X: Matrix) -> LedgerError:
        with pytest.raises(LedgerError, match="is not the one registered") as caught:
            ledger.registrations.check_table("b", NAMES, X, persons(names, X), in_full=True)
        return caught.value

    error = refused(names, TABLE + 51.0)
    assert "their values, or how they are read, have changed" in str(error)
    assert "--grows; new ones get a budget" in error.remedy
    assert str(refused(names[1:], TABLE[1:] + 50.0)).endswith("it has 29, and 0 others")


def test_a_block_of_persons_who_were_all_erased_is_theirs_when_they_come_back(ledger: Ledger) -> None:
    def enter(*names: str) -> None:
        register(ledger, names, TABLE[: len(names)] + 50.0, grows=len(names) > 2)

    enter("ada", "bo")
    ledger.payments.reserve(Request("b", 1, 1, "north", (1,)), Payment(50, {}), Cap(100, 100))
    enter("ada", "bo", "cy", "di", "eve")
    enter("cy", "di", "eve")
    assert (sizes(ledger, "b"), ledger.payments.spending("b").units) == ([(2, 3)], 0)
    enter("cy", "di", "eve", "bo", "new")
    assert sizes(ledger, "b") == [(1, 1), (2, 3), (3, 1)]
    assert [ledger.payments.spending("b", blocks=[block]).units for block in (1, 2, 3)] == [50, 0, 0]


@pytest.mark.parametrize("names", [["new", "bo", "cy"], ["bo", "ada", "cy"], ["x", "y", "z"]])
def test_the_same_values_of_other_persons_are_another_table(names: list[str], ledger: Ledger) -> None:
    """Two persons with each other's values would pay for each other."""
    X = TABLE[:3] + 50.0
    register(ledger, ["ada", "bo", "cy"], X)
    ledger.registrations.check_table("b", NAMES, X[::-1], persons(["cy", "bo", "ada"], X[::-1]))
    for attempt in (
        lambda: register(ledger, names, X),
        lambda: ledger.registrations.check_table("b", NAMES, X, persons(names, X)),
    ):
        with pytest.raises(LedgerError, match="is not the one registered"):
            attempt()


def test_rows_of_persons_that_differ_with_the_same_means_are_another_table(ledger: Ledger) -> None:
    rows, names = np.vstack([TABLE[:4], 2.0 * TABLE[:3]]), ("ada", "bo", "cy")
    sizes = np.array([3, 2, 2])

    def of(rows: Matrix) -> tuple[Matrix, Persons]:
        return np.add.reduceat(rows, [0, 3, 5]) / sizes[:, None], Persons(names, PersonRows(rows, sizes))

    X, known = of(rows)
    ledger.registrations.register("b", NAMES, X, persons=known)
    ledger.registrations.check_table("b", NAMES, *of(rows[[0, 1, 2, 4, 3, 5, 6]]))
    further_apart = np.vstack([rows[:3], rows[3:4] + 1.0, rows[4:5] - 1.0, rows[5:]])
    with pytest.raises(LedgerError, match="is not the one registered"):
        ledger.registrations.check_table("b", NAMES, X, of(further_apart)[1])
    with pytest.raises(LedgerError, match="is not the one registered"):
        ledger.registrations.register("b", NAMES, X, persons=of(further_apart)[1])


def test_there_are_as_many_rows_of_a_block_as_were_registered(ledger: Ledger) -> None:
    register(ledger, ["ada", "bo", "cy"], TABLE[:3] + 50.0)
    whole = ledger.registrations.find("b")
    assert whole is not None
    with pytest.raises(LedgerError, match="is not the one registered"):
        ledger.registrations.rows_of(whole, NAMES, TABLE[:3] + 50.0, persons(["new", "bo", "cy"], TABLE[:3] + 50.0))


def test_a_use_without_privacy_ends_the_guarantee_of_the_records_that_there_were(ledger: Ledger) -> None:
    ledger.payments.note_unprotected("a", 1, b"digest")
    ledger.registrations.register("a", NAMES, GROWN, grows=True)
    ledger.payments.require_protected("a", blocks=[2])
    for blocks in [(1,), (1, 2), ()]:
        with pytest.raises(PolicyRefusal, match="without privacy"):
            ledger.payments.require_protected("a", blocks=blocks)
    ledger.payments.note_unprotected("a", 2, b"digest")
    assert ledger.payments.unprotected("a", blocks=[2])
    ledger.registrations.register("a", NAMES, TABLE * 3.0, supersedes=True)
    assert ledger.payments.unprotected("a", blocks=[3])


def test_other_runs_count_for_the_blocks_that_they_read(grown: Ledger) -> None:
    for run, blocks in ((7, (1,)), (8, (2,)), (9, ())):
        grown.payments.take_run(run)
        grown.payments.promise(run, "a", Promised(Spending(10 ** (run - 7))), blocks=blocks)
    promised = {
        blocks: grown.payments.promised("a", but=1, blocks=blocks).spending.units for blocks in [(1,), (2,), ()]
    }
    assert promised == {(1,): 101, (2,): 110, (): 111}


def test_a_restored_copy_is_charged_for_all_blocks(path: Path, tmp_path: Path) -> None:
    with Ledger.create(path) as made:
        made.registrations.register("a", NAMES, TABLE)
    shutil.copy(path, tmp_path / "older")
    with Ledger.open(path) as made:
        pay(made, 1, 50, 1)
        made.registrations.register("a", NAMES, GROWN, grows=True)
        pay(made, 2, 30, 2)
    shutil.copy(tmp_path / "older", path)
    with Ledger.open(path, accept_backup=True) as restored:
        assert spent(restored) == 80
        restored.registrations.check_table("a", NAMES, GROWN)
        with pytest.raises(LedgerError, match="without tags of its records"):
            restored.registrations.register("a", NAMES, np.vstack([GROWN, TABLE * 9.0]), grows=True)
        restored.registrations.register("a", NAMES, GROWN)
        assert (len(sizes(restored)), spent(restored)) == (1, 80)
        restored.registrations.register("a", NAMES, np.vstack([GROWN, TABLE * 9.0]), grows=True)
        assert spent(restored, sizes(restored)[1][0]) == 80, "perhaps they were in the copy that is lost"


def test_new_records_after_a_restored_copy_may_have_been_in_the_one_that_is_lost(path: Path, tmp_path: Path) -> None:
    with Ledger.create(path) as made:
        made.registrations.register("a", NAMES, TABLE)
    shutil.copy(path, tmp_path / "older")
    with Ledger.open(path) as made:
        made.registrations.register("a", NAMES, GROWN, grows=True)
        pay(made, 2, 30)
        made.payments.note_unprotected("a", 2, b"digest")
    shutil.copy(tmp_path / "older", path)
    with Ledger.open(path, accept_backup=True) as restored:
        restored.registrations.register("a", NAMES, TABLE, supersedes=True)
        restored.registrations.register("a", NAMES, GROWN, grows=True)
        assert spent(restored, sizes(restored)[1][0]) == 30
        assert restored.payments.unprotected("a", blocks=[sizes(restored)[1][0]])


def test_a_damaged_tag_is_noticed(grown: Ledger, path: Path) -> None:
    grown._file._database.execute("DROP TRIGGER outbox_stays")
    grown._file._database.execute("UPDATE outbox SET payload = zeroblob(length(payload)) WHERE number = 3")
    grown.close()
    with pytest.raises(LedgerError, match="payload of entry 3 is not what was stored"):
        Ledger.open(path)


@pytest.mark.parametrize(
    "other", [GROWN[:30] + 0.0, GROWN[::2], np.vstack([TABLE * 3.0, TABLE[:9]])], ids=["subset", "half", "among others"]
)
def test_records_of_another_dataset_are_refused_until_somebody_says_what_they_are(grown: Ledger, other: Matrix) -> None:
    other = np.column_stack([other, np.zeros(len(other))])[:, :3]
    with pytest.raises(LedgerError, match="registered as 'a'") as caught:
        grown.registrations.register("b", NAMES, other)
    assert "--other-records" in caught.value.remedy
    grown.registrations.register("b", NAMES, np.vstack([other, TABLE * 30.0])[::-1], other_records=True)
    assert grown.registrations.account("b") == {"b"}
    grown.registrations.register("b", NAMES, np.vstack([other, TABLE * 30.0]))
    grown.registrations.register("a", NAMES, np.vstack([GROWN, TABLE * 40.0]), grows=True)
    assert sizes(grown)[-1] == (3, 30)


def test_new_records_of_a_large_table_are_looked_at_by_themselves(ledger: Ledger) -> None:
    large = np.random.default_rng(5).normal(size=(5000, 3))
    ledger.registrations.register("b", NAMES, large)
    ledger.registrations.register("c", NAMES, large + 10.0)
    grown = np.vstack([large + 10.0, large[:40]])
    with pytest.raises(LedgerError, match="about 100% of the new records"):
        ledger.registrations.register("c", NAMES, grown, grows=True)
    ledger.registrations.register("c", NAMES, grown, grows=True, other_records=True)
    with pytest.raises(LedgerError, match="about 100% of the new records"):
        ledger.registrations.register("c", NAMES, np.vstack([grown, large[40:80]]), grows=True)
    assert sizes(ledger, "c") == [(1, 5000), (2, 40)]


class Months(RuleBasedStateMachine):
    """A site over months. What each record has lost is counted by hand, from the records that each payment was for."""

    folder: Path
    cap = 100

    @initialize()
    def begin(self) -> None:
        self.file = self.folder / f"ledger-{len(list(self.folder.iterdir()))}.db"
        self.ledger = Ledger.create(self.file)
        self.records = [float(k) for k in range(6)]  # each is a row of one value, which names it
        self.lost: dict[float, int] = dict.fromkeys(self.records, 0)
        self.n_made = 6
        self.number = 0
        self.ledger.registrations.register("a", NAMES, self.table)

    @property
    def table(self) -> Matrix:
        return np.outer(self.records, [1.0, 2.0, 3.0])

    @rule(n=st.integers(0, 3), back=st.sets(st.integers(0, 9)), shuffled=st.randoms())
    def grow(self, n, back, shuffled) -> None:
        new = [float(self.n_made + k) for k in range(n)]
        self.n_made += n
        left_out = [record for record in self.lost if record not in self.records]
        self.lost |= dict.fromkeys(new, 0)
        self.records += new + [record for k, record in enumerate(left_out) if k in back]
        shuffled.shuffle(self.records)
        self.ledger.registrations.register("a", NAMES, self.table, grows=True)

    @rule(left=st.integers(1, 4))
    def supersede(self, left: int) -> None:
        self.records = [*self.records[:left], float(self.n_made)]
        self.lost[float(self.n_made)] = 0
        self.n_made += 1
        self.ledger.registrations.register("a", NAMES, self.table, supersedes=True)

    @rule(choice=st.sets(st.integers(0, 5)), units=st.integers(1, 60))
    def run(self, choice: set[int], units: int) -> None:
        known = self.ledger.registrations.find("a")
        assert known is not None
        used = known.of_blocks([number for k, number in enumerate(known.numbers) if k in choice])
        self.number += 1
        request = Request("a", 1, self.number, "north", used.numbers)
        rows = self.ledger.registrations.rows_of(used, NAMES, self.table)
        try:
            self.ledger.payments.reserve(request, Payment(units, {}), Cap(self.cap, self.cap))
        except BudgetExhaustedError:
            assert self.ledger.payments.spending("a", blocks=used.numbers).units + units > self.cap
            return
        for record in np.array(self.records)[rows]:
            self.lost[record] += units

    @rule()
    def close_and_open(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(self.file)

    @invariant()
    def no_record_has_lost_more_than_its_block_has_spent(self) -> None:
        known = self.ledger.registrations.find("a")
        assert known is not None
        assert known.n_samples == len(self.records) == sum(one.n_samples for one in known.blocks)
        for block in known.blocks:
            rows = self.ledger.registrations.rows_of(known.of_blocks([block.number]), NAMES, self.table)
            assert rows.sum() == block.n_samples
            most = max(self.lost[record] for record in np.array(self.records)[rows])
            assert most <= self.cap
            # That of what took another table's place is the sum over its blocks, which may be more than the cap.
            assert most <= self.ledger.payments.spending("a", blocks=[block.number]).units

    def teardown(self) -> None:
        self.ledger.close()


def test_over_months_no_record_loses_more_than_the_policy_allows(tmp_path: Path) -> None:
    class Here(Months):
        folder = tmp_path

    run_state_machine_as_test(Here, settings=settings(max_examples=15, stateful_step_count=12, deadline=None))


def test_entries_show_blocks_and_no_fingerprints(grown: Ledger) -> None:
    entries = grown.entries()
    assert [entry.content["made"] for entry in entries if entry.kind == "register"] == [1, 2]
    assert "fingerprint" not in json.dumps([dict(entry.content) for entry in entries])
