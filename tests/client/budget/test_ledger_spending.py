"""What a ledger pays, by any sequence of calls: never beyond the cap, and one answer a round."""

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedbnsl.errors import BudgetExhaustedError, LedgerError
from fedbnsl.privacy.zcdp import UNITS_PER_ZCDP
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.spending import LARGEST_CAP_UNITS, Cap, Spending
from ledgers import NAMES, OTHER, RECIPE, RUN, TABLE, answer, filled, ledger, path, request, reserve
from private_site import units_spent

__all__ = ["filled", "ledger", "path"]  # fixtures


def test_spending_is_counted_by_dataset_and_by_run(ledger):
    ledger.registrations.register("b", NAMES, OTHER)
    reserve(ledger, request(1), 3)
    reserve(ledger, request(2), 5)
    reserve(ledger, request(1, run=RUN - 1), 7)
    reserve(ledger, request(3, dataset="b"), 11)
    assert [units_spent(ledger, dataset) for dataset in "abc"] == [15, 11, 0]
    assert (units_spent(ledger, "a", RUN), units_spent(ledger, "a", RUN - 1)) == (8, 7)
    assert (units_spent(ledger, "b", RUN), units_spent(ledger, "b", 0)) == (11, 0)
    assert ledger.mark.spent == {"a": 15, "b": 11}


def test_a_federation_is_told_of_its_own_payments_from_one_dataset_and_of_nothing_else(ledger):
    ledger.registrations.register("b", NAMES, OTHER)

    def heads():
        return {(dataset, to): ledger.payments.head(dataset, to) for dataset in "ab" for to in ("", "AA", "BB")}

    assert len({head.dataset for head in heads().values()}) == 6, "what stands for a dataset is another everywhere"
    assert {(head.n_entries, head.spent_units) for head in heads().values()} == {(0, 0)}
    for k, (dataset, to) in enumerate([("a", "AA"), ("b", "AA"), ("a", ""), ("a", "AA"), ("a", "BB")], 1):
        before = heads()
        ledger.payments.reserve(request(k, dataset=dataset), Payment(10, {}, authority=to), Cap(1000, 0))
        ledger.payments.store(request(k, dataset=dataset), b"answer")
        ledger.approvals.approve(bytes([k]), "plan")
        changed = {which for which, head in heads().items() if head != before[which]}
        assert changed == {(dataset, to)}
    told = ledger.payments.head("a", "AA")
    assert (told.n_entries, told.spent_units) == (2, 20)
    assert told.digest != before["a", "BB"].digest


def test_the_cap_can_be_spent_to_the_last_unit_and_no_further(ledger):
    reserve(ledger, request(1), 60, cap_units=100)
    with pytest.raises(BudgetExhaustedError):
        reserve(ledger, request(2), 41, cap_units=100)
    reserve(ledger, request(2), 40, cap_units=100)
    with pytest.raises(BudgetExhaustedError):
        reserve(ledger, request(3), 1, cap_units=100)
    reserve(ledger, request(3), 0, cap_units=100)
    with pytest.raises(BudgetExhaustedError):
        reserve(ledger, request(4), 0, cap_units=99)  # a policy that was lowered
    assert units_spent(ledger, "a") == 100
    assert [entry.kind for entry in ledger.entries()] == ["register", "reserve", "reserve", "reserve"]


def test_an_exhausted_budget_is_told_in_numbers(ledger):
    reserve(ledger, request(1), UNITS_PER_ZCDP // 4, cap_units=UNITS_PER_ZCDP)
    with pytest.raises(BudgetExhaustedError, match=r"'a': spent 0\.25 zCDP, asked 20 more, cap 1\.000000000001$"):
        reserve(ledger, request(2), 20 * UNITS_PER_ZCDP, cap_units=UNITS_PER_ZCDP + 1)


def test_sums_near_the_largest_cap_are_exact(ledger):
    reserve(ledger, request(1), LARGEST_CAP_UNITS - 1, cap_units=LARGEST_CAP_UNITS)
    reserve(ledger, request(2), 1, cap_units=LARGEST_CAP_UNITS)
    assert units_spent(ledger, "a") == LARGEST_CAP_UNITS
    with pytest.raises(BudgetExhaustedError):
        reserve(ledger, request(3), 10**30, cap_units=LARGEST_CAP_UNITS)
    ledger.verify()


@pytest.mark.parametrize("wrong", [-1, True, 1.0, "1", np.int64(1), None])
def test_a_cost_or_cap_that_is_no_whole_number_is_refused(wrong):
    with pytest.raises(ValueError, match="whole numbers"):
        Payment(wrong, {})
    for caps in ((wrong, 0), (0, wrong)):
        with pytest.raises(ValueError, match="whole number of units"):
            Cap(*caps)


def test_no_cap_lets_sums_grow_beyond_what_the_file_adds_up_exactly():
    Cap(LARGEST_CAP_UNITS, LARGEST_CAP_UNITS)
    for caps in ((LARGEST_CAP_UNITS + 1, 0), (0, LARGEST_CAP_UNITS + 1)):
        with pytest.raises(ValueError, match="at most 1000000000000000000"):
            Cap(*caps)


@pytest.mark.parametrize("wrong", [1, 0, None, "yes"])
def test_a_run_is_counted_by_gaussian_dp_or_is_not(wrong):
    with pytest.raises(ValueError, match="is counted by Gaussian DP or is not"):
        Payment(1, {}, wrong)


@pytest.mark.parametrize("wrong", [{"X": TABLE}, {"scale": float("nan")}, {"x": {1, 2}}, {"x": b""}, {"x": "\udc80"}])
def test_a_recipe_that_cannot_be_written_down_is_refused(ledger, wrong):
    with pytest.raises(LedgerError, match="plain values"):
        ledger.payments.reserve(request(1), Payment(1, wrong), Cap(100, 0))
    assert units_spent(ledger, "a") == 0
    ledger.verify()


def pay(ledger: Ledger, round_: int, units: int, *, gaussian: bool, dataset: str = "a") -> None:
    """With 100 units to spend in all, or 110 if all are for Gaussian releases."""
    asked = request(round_, dataset=dataset)
    ledger.payments.reserve(asked, Payment(units, {}, gaussian), Cap(100, 110))


def test_gaussian_releases_alone_may_spend_more_and_then_nothing_else_may_follow(ledger):
    pay(ledger, 1, 60, gaussian=True)
    pay(ledger, 2, 50, gaussian=True)
    assert ledger.payments.spending("a") == Spending(110, gaussian=True)
    for gaussian in (True, False):
        with pytest.raises(BudgetExhaustedError, match=r"spent 0\.00000000011 zCDP, asked 0\.000000000001 more"):
            pay(ledger, 3, 1, gaussian=gaussian)
    assert [entry.content["gaussian"] for entry in ledger.entries()[1:]] == [True, True]


def test_one_release_that_is_not_gaussian_makes_all_count_as_zcdp(ledger):
    pay(ledger, 1, 60, gaussian=True)
    pay(ledger, 2, 10, gaussian=False)
    assert ledger.payments.spending("a") == Spending(70, gaussian=False)
    with pytest.raises(BudgetExhaustedError, match=r"asked 0\.000000000031 more, cap 0\.0000000001$"):
        pay(ledger, 3, 31, gaussian=True)
    pay(ledger, 3, 30, gaussian=True)


def test_private_steps_after_gaussian_releases_need_room_as_zcdp(ledger):
    pay(ledger, 1, 99, gaussian=True)
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, 2, 2, gaussian=False)
    pay(ledger, 2, 0, gaussian=False)  # which releases nothing
    pay(ledger, 3, 11, gaussian=True)


def test_kinds_are_told_by_dataset_and_by_run(ledger):
    ledger.registrations.register("b", NAMES, OTHER)
    pay(ledger, 1, 10, gaussian=True)
    pay(ledger, 2, 10, gaussian=False, dataset="b")
    ledger.payments.reserve(request(3, run=5), Payment(10, {}), Cap(100, 0))
    assert ledger.payments.spending("a", RUN) == Spending(10, gaussian=True)
    assert ledger.payments.spending("a", 5) == Spending(10, gaussian=False)
    assert ledger.payments.spending("a") == Spending(20, gaussian=False)
    assert ledger.payments.spending("b") == Spending(10, gaussian=False)
    assert ledger.payments.spending("c") == Spending(0)


def test_what_an_older_fedbnsl_paid_for_was_not_gaussian(ledger):
    with ledger._file.transaction():
        old = {"dataset": "a", "run": "0" * 16, "round": 1, "site": "north", "units": 10, "recipe": {}, "authority": ""}
        ledger._file.append("reserve", **old)
    ledger.verify()
    assert ledger.payments.spending("a") == Spending(10, gaussian=False)
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, 1, 91, gaussian=True)


def test_the_recipe_comes_back_bit_for_bit_and_the_time_is_utc(ledger):
    before = datetime.now(UTC) - timedelta(seconds=1)
    reserve(ledger, request(1), 7)
    entry = ledger.entries()[-1]
    assert (entry.number, entry.kind) == (2, "reserve")
    assert entry.content == {
        "dataset": "a",
        "run": "ffffffffffffffff",
        "round": 1,
        "site": "north",
        "units": 7,
        "gaussian": False,
        "recipe": RECIPE,
        "authority": "",
    }
    assert before <= entry.time <= datetime.now(UTC)
    assert entry.time.utcoffset() == timedelta(0)


def test_a_reservation_without_a_payload_is_paid_again_and_never_given_back(ledger):
    reserve(ledger, request(1), 10, cap_units=25)
    reserve(ledger, request(1), 10, cap_units=25)
    assert units_spent(ledger, "a") == 20
    with pytest.raises(BudgetExhaustedError):
        reserve(ledger, request(1), 10, cap_units=25)
    ledger.payments.store(request(1), b"late")
    assert units_spent(ledger, "a") == 20


def test_an_answered_request_is_not_reserved_again(ledger):
    answer(ledger, 1, b"first")
    with pytest.raises(LedgerError, match="answered already"):
        reserve(ledger, request(1))
    assert units_spent(ledger, "a") == 10
    reserve(ledger, request(1, run=RUN - 1))
    reserve(ledger, request(1, site="south"))
    reserve(ledger, request(2))
    assert units_spent(ledger, "a") == 40


@pytest.mark.parametrize("answered", [False, True])
def test_a_request_belongs_to_the_dataset_that_paid(ledger, answered):
    ledger.registrations.register("b", NAMES, OTHER)
    reserve(ledger, request(1))
    if answered:
        ledger.payments.store(request(1), b"a's")
    other = request(1, dataset="b")
    for attempt in (
        lambda: reserve(ledger, other),
        lambda: ledger.payments.store(other, b"a's"),
        lambda: ledger.payments.stored(other),
    ):
        with pytest.raises(LedgerError, match="reserved for dataset 'a', not 'b'"):
            attempt()
    assert units_spent(ledger, "b") == 0


def test_nothing_is_stored_that_was_not_paid(ledger):
    for unpaid in (request(1), request(2, site="south"), request(2, run=0)):
        with pytest.raises(LedgerError, match="nothing was reserved"):
            ledger.payments.store(unpaid, b"free")
        assert ledger.payments.stored(unpaid) is None
        reserve(ledger, request(2)) if units_spent(ledger, "a") == 0 else None


@pytest.mark.parametrize("payload", [b"", b"\0\xff" * 3, os.urandom(200_000)], ids=len)
def test_the_stored_payload_comes_back_bit_for_bit_and_stays(ledger, payload):
    assert ledger.payments.stored(request(1)) is None
    reserve(ledger, request(1))
    assert ledger.payments.stored(request(1)) is None
    ledger.payments.store(request(1), payload)
    ledger.payments.store(request(1), payload)
    assert ledger.payments.stored(request(1)) == payload
    with pytest.raises(LedgerError, match="another answer already"):
        ledger.payments.store(request(1), payload + b"!")
    assert ledger.payments.stored(request(1)) == payload
    assert [entry.kind for entry in ledger.entries()] == ["register", "reserve", "store"]
    assert ledger.entries()[-1].content["sha256"] == hashlib.sha256(payload).hexdigest()


CAP = 100
KEYS = st.builds(Request, st.sampled_from("ab"), st.integers(1, 2), st.integers(1, 3), st.just("north"))


class AnySequence(RuleBasedStateMachine):
    """Reserve, store, copy away, reopen in any order, against a list of what succeeded."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.path = self.folder / "ledger.db"
        self.ledger = Ledger.create(self.path)
        self.ledger.registrations.register("a", NAMES, TABLE)
        self.ledger.registrations.register("b", NAMES, OTHER)
        self.paid: list[tuple[Request, int, bool]] = []
        self.answers: dict[tuple[int, int], tuple[str, bytes]] = {}

    def payer(self, asked: Request) -> str | None:
        return next((r.dataset for r, *_ in self.paid if (r.run, r.round) == (asked.run, asked.round)), None)

    @rule(asked=KEYS, units=st.integers(0, 60), gaussian=st.booleans())
    def reserve(self, asked: Request, units: int, gaussian: bool) -> None:
        allowed = self.payer(asked) in (None, asked.dataset) and (asked.run, asked.round) not in self.answers
        pays = self.within_its_cap([*self.paid, (asked, units, gaussian)], asked.dataset)
        try:
            self.ledger.payments.reserve(asked, Payment(units, RECIPE, gaussian), Cap(CAP, CAP + 40))
        except LedgerError:
            assert not allowed
        except BudgetExhaustedError:
            assert allowed
            assert not pays
        else:
            assert allowed
            assert pays
            self.paid.append((asked, units, gaussian))

    def within_its_cap(self, paid: list[tuple[Request, int, bool]], dataset: str) -> bool:
        kinds = [(units, gaussian) for asked, units, gaussian in paid if asked.dataset == dataset]
        larger = all(gaussian for units, gaussian in kinds if units)
        return sum(units for units, _ in kinds) <= CAP + 40 * larger

    @rule(asked=KEYS, payload=st.sampled_from([b"", b"x", b"y"]))
    def store(self, asked: Request, payload: bytes) -> None:
        key = (asked.run, asked.round)
        allowed = self.payer(asked) == asked.dataset and self.answers.get(key, (asked.dataset, payload))[1] == payload
        try:
            self.ledger.payments.store(asked, payload)
        except LedgerError:
            assert not allowed
        else:
            assert allowed
            self.answers[key] = (asked.dataset, payload)

    @rule()
    def reopen(self) -> None:
        mark = self.ledger.mark
        self.ledger.close()
        self.ledger = Ledger.open(self.path)
        assert self.ledger.mark == mark

    @precondition(lambda self: hasattr(self, "ledger"))
    @invariant()
    def the_file_says_what_happened(self) -> None:
        for dataset in "ab":
            spent = sum(units for asked, units, _ in self.paid if asked.dataset == dataset)
            assert units_spent(self.ledger, dataset) == spent
            assert self.within_its_cap(self.paid, dataset)
        for (run, round_), (dataset, payload) in self.answers.items():
            assert self.ledger.payments.stored(Request(dataset, run, round_, "north")) == payload
        assert self.ledger.mark.n_entries == 2 + len(self.paid) + len(self.answers)

    def teardown(self) -> None:
        with suppress(AttributeError):  # nothing was begun
            self.ledger.verify()
            self.ledger.close()
            shutil.rmtree(self.folder)


@pytest.mark.long
def test_no_sequence_of_calls_overspends_or_answers_twice():
    run_state_machine_as_test(AnySequence, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))
