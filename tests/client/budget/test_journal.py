"""What a private run does with the ledger: pay, draw, keep; never draw twice, never draw unpaid."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pytest

from fedbnsl.errors import BudgetExhaustedError, LedgerError, PolicyRefusal
from fedbnsl.privacy.calibration import Price, price_of
from fedbnsl_client.budget.journal import RunHere, RunJournal
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.policy import DatasetPolicy
from fedbnsl_client.budget.spending import Cap
from fedbnsl_client.site import folder as site_folder
from private_site import DATASET, NAMES, ROWS, make_site, private_plan, units_spent

PLAN = private_plan()
PRICE = price_of(PLAN, n_samples=120, n_variables=3)
FIRST = PRICE.round_units + PRICE.surcharge_units  # of whichever ADMM round is paid for first
RUN = 2**64 - 3


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policy = make_site(folder).datasets[0]
        self.ledger = Ledger.open(folder / site_folder.LEDGER)

    def journal(self, *, units: int | None = None, run: int = RUN) -> RunJournal:
        """The journal of a run; with `units`, of a site whose budget holds no more than that."""
        policy = self.policy if units is None else Capped.model_validate({**self.policy.model_dump(), "units": units})
        return RunJournal(self.ledger.payments, policy, PLAN, PRICE, RunHere(run, "north"))

    @property
    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.ledger.entries()][1:]  # without the registration


class Capped(DatasetPolicy):
    units: int

    @cached_property
    def cap(self) -> Cap:
        return Cap(self.units, self.units)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.ledger.close()


def untouched() -> bytes:
    raise AssertionError("noise was drawn")


def test_a_release_is_on_the_disk_before_its_noise_is_drawn_and_kept_before_it_is_returned(site: Site) -> None:
    seen: list[tuple[list[str], int]] = []

    def draw() -> bytes:
        seen.append((site.kinds, units_spent(site.ledger, DATASET)))
        return b"answer"

    assert site.journal().release(1, draw) == b"answer"
    assert seen == [(["reserve"], FIRST)]
    assert site.kinds == ["reserve", "store"]


def test_what_was_released_is_given_again_bit_for_bit_and_costs_nothing(site: Site) -> None:
    first = site.journal().release(2, lambda: b"\x00first\xff")
    spent = units_spent(site.ledger, DATASET)
    assert site.journal().release(2, untouched) == first
    site.ledger.close()
    site.ledger = Ledger.open(site.folder / site_folder.LEDGER)
    assert site.journal().release(2, untouched) == first, "after a restart as well"
    assert units_spent(site.ledger, DATASET) == spent


def test_the_setup_and_the_rounds_cost_their_own_price(site: Site) -> None:
    journal = site.journal()
    for t in range(PLAN.rounds + 1):
        journal.release(t, lambda: b"x")
    whole = PRICE.setup_units + 3 * PRICE.round_units + PRICE.surcharge_units
    assert units_spent(site.ledger, DATASET) == whole == PRICE.units


def test_another_run_pays_again_and_gets_its_own_answer(site: Site) -> None:
    site.journal().release(1, lambda: b"one")
    assert site.journal(run=RUN - 1).release(1, lambda: b"other") == b"other"
    assert units_spent(site.ledger, DATASET) == 2 * FIRST


def test_nothing_is_drawn_if_the_budget_does_not_hold_the_round(site: Site) -> None:
    journal = site.journal(units=FIRST)
    journal.release(1, lambda: b"x")
    with pytest.raises(BudgetExhaustedError, match="cap"):
        journal.release(2, untouched)
    assert units_spent(site.ledger, DATASET) == FIRST
    assert journal.release(1, untouched) == b"x", "what is paid for is still given"


def test_nothing_is_drawn_if_the_ledger_cannot_be_written(site: Site) -> None:
    journal = site.journal()
    site.ledger.close()
    with pytest.raises(LedgerError):
        journal.release(1, untouched)


@pytest.mark.parametrize("crash", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_crash_while_drawing_wastes_the_round_and_gives_nothing_back(crash: type[BaseException], site: Site) -> None:
    def draw() -> bytes:
        raise crash

    with pytest.raises(crash):
        site.journal().release(1, draw)
    assert units_spent(site.ledger, DATASET) == FIRST
    site.journal().release(1, lambda: b"drawn after the crash")
    assert units_spent(site.ledger, DATASET) == 2 * FIRST, "whether the first noise was seen, nobody knows"


def test_each_reservation_keeps_what_its_cost_is_computed_from(site: Site) -> None:
    site.journal().release(1, lambda: b"x")
    (entry,) = [entry for entry in site.ledger.entries() if entry.kind == "reserve"]
    recipe = entry.content["recipe"]
    assert recipe["solver"] == "dp-pgcd"
    assert (recipe["price"]["rounds"], recipe["price"]["local_steps"]) == (3, 4)
    assert recipe["privacy"]["clip"] == 2.0
    assert {"version", "round"} <= set(recipe)


@pytest.mark.parametrize("rounds", [[2], [2, 1], [0, 2, 1]])
def test_the_surcharge_comes_with_the_first_round_of_steps_that_is_asked_for_and_never_again(
    rounds: list[int], site: Site
) -> None:
    """A coordinator that begins with a later round gets none without it."""
    spent = 0
    for t in rounds:
        site.journal().release(t, lambda: b"x")
        paid, spent = units_spent(site.ledger, DATASET) - spent, units_spent(site.ledger, DATASET)
        first = t and t == next(filter(None, rounds))
        assert paid == PRICE.units_of(t) + (PRICE.surcharge_units if first else 0)
    site.journal(units=PRICE.units).check()
    with pytest.raises(BudgetExhaustedError):
        site.journal(units=PRICE.units - 1).check()


# ---- at the start of a run -----------------------------------------------------------------------------------------


def rejoin(n_rounds: int) -> Callable[[Site], None]:
    def play(site: Site) -> None:
        for t in range(n_rounds + 1):
            site.journal().release(t, lambda: b"x")

    return play


def test_a_run_is_checked_as_a_whole_before_its_first_round(site: Site) -> None:
    site.journal(units=PRICE.units).check()
    with pytest.raises(BudgetExhaustedError):
        site.journal(units=PRICE.units - 1).check()
    assert site.kinds == [], "a check enters nothing"


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_after_a_restart_only_what_is_still_to_come_must_fit(done: int, site: Site) -> None:
    rejoin(done)(site)
    site.journal(units=PRICE.units).check()
    if done < PLAN.rounds:
        with pytest.raises(BudgetExhaustedError):
            site.journal(units=PRICE.units - 1).check()


def test_a_round_that_a_crash_wasted_must_fit_once_more(site: Site) -> None:
    with pytest.raises(AssertionError, match="drawn"):
        site.journal().release(1, untouched)
    with pytest.raises(BudgetExhaustedError):
        site.journal(units=PRICE.units).check()
    site.journal(units=PRICE.units + FIRST).check()


def other_price(**changes: object) -> Price:
    return replace(PRICE, **cast(dict[str, Any], changes))


@pytest.mark.parametrize(
    "now",
    [
        price_of(private_plan(local_steps=8), n_samples=120, n_variables=3),
        other_price(gaussian=False, surcharge_units=0),
        other_price(surcharge_units=PRICE.surcharge_units + 1),
        other_price(update_variance=PRICE.update_variance - 1),
    ],
)
def test_a_run_that_was_begun_at_another_price_is_not_gone_on_with(now: Price, site: Site) -> None:
    """Its surcharge was for other steps; before this version, steps had discrete noise, and no surcharge was paid."""
    site.journal().release(1, lambda: b"x")
    with pytest.raises(PolicyRefusal, match="began this run at another cost"):
        RunJournal(site.ledger.payments, site.policy, PLAN, now, RunHere(RUN, "north")).check()
    site.journal().check()


def test_a_run_begun_by_an_older_version_goes_on_if_its_price_has_not_changed(site: Site) -> None:
    """Fields that the older version did not know have their defaults."""
    plan = private_plan(rounds=0, moments_rounds=2)
    price = price_of(plan, n_samples=120, n_variables=3)
    recipe = {"variables": [], "version": "0", "price": {k: v for k, v in vars(price).items() if "surcharge" not in k}}
    request = Request(dataset=DATASET, run=RUN, round=0, site="north")
    site.ledger.payments.reserve(request, Payment(price.setup_units, recipe, gaussian=True), Cap(10**15, 0))
    RunJournal(site.ledger.payments, site.policy, plan, price, RunHere(RUN, "north")).check()
    dearer = replace(price, moments_units=price.moments_units + 1)
    with pytest.raises(PolicyRefusal, match="by fedbnsl 0"):
        RunJournal(site.ledger.payments, site.policy, plan, dearer, RunHere(RUN, "north")).check()


def test_the_limit_of_a_run_holds_over_its_restarts(site: Site) -> None:
    strict = site.policy.model_copy(update={"max_epsilon_per_run": 1.0})
    journal = RunJournal(site.ledger.payments, strict, PLAN, PRICE, RunHere(RUN, "north"))
    journal.check()
    with pytest.raises(AssertionError, match="drawn"):
        journal.release(1, untouched)
    with pytest.raises(PolicyRefusal, match="max_epsilon_per_run"):
        journal.check()


def test_two_sites_of_one_ledger_do_not_get_each_others_answers(site: Site) -> None:
    site.journal().release(1, lambda: b"north")
    other = RunJournal(site.ledger.payments, site.policy, PLAN, replace(PRICE), RunHere(RUN, "south"))
    assert other.release(1, lambda: b"south") == b"south"


def test_13_what_a_run_that_goes_on_is_still_to_pay_is_not_promised_to_another(tmp_path: Path) -> None:
    """Two runs of epsilon 4 do not both fit in 5: the second is refused at once, not in its last rounds."""
    make_site(tmp_path)
    plan = private_plan(privacy={"epsilon": 4.0})
    price = price_of(plan, n_samples=ROWS, n_variables=len(NAMES))
    with site_folder.opened(tmp_path) as (policy, ledger), site_folder.opened(tmp_path) as (_, other):
        dataset = policy.dataset(None)
        first = RunJournal(ledger.payments, dataset, plan, price, RunHere(1, "north", NAMES))
        second = RunJournal(other.payments, dataset, plan, price, RunHere(2, "north", NAMES))
        first.check()
        with pytest.raises(BudgetExhaustedError, match="other runs that go on here are still to pay is counted"):
            second.check()
        assert other.payments.promised(DATASET, but=2).spending.units == price.units
        first.release(1, lambda: b"noise")
        assert other.payments.promised(DATASET, but=2).spending.units == price.units - units_spent(ledger, DATASET), (
            "what is paid is not"
        )
        assert other.payments.promised(DATASET, but=1).spending.units == 0
        ledger.close()
        assert other.payments.promised(DATASET, but=2).spending.units == 0


def test_of_two_runs_that_begin_at_once_and_do_not_both_fit_one_is_refused(tmp_path: Path) -> None:
    make_site(tmp_path)
    plan = private_plan(privacy={"epsilon": 4.0})
    price = price_of(plan, n_samples=ROWS, n_variables=len(NAMES))
    ready, decided = threading.Barrier(2), threading.Barrier(2)

    def begin(run: int) -> bool:
        with site_folder.opened(tmp_path) as (policy, ledger):
            journal = RunJournal(ledger.payments, policy.dataset(None), plan, price, RunHere(run, "north", NAMES))
            ready.wait()
            try:
                journal.check()
                return True
            except BudgetExhaustedError:
                return False
            finally:
                decided.wait()

    with ThreadPoolExecutor(2) as both:
        assert sorted(both.map(begin, (1, 2))) == [False, True]
