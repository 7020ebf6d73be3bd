"""A participant in a private run: every answer is paid for, drawn once, and the same after a restart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import FedbnslError, LocalProtocolError, RemoteProtocolError, StaleRoundError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import residual_moments
from fedbnsl.rounds.kinds import KINDS, LARGEST
from fedbnsl_client.budget.journal import RunHere, RunJournal
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Request
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_client.site import folder as site_folder
from private_site import DATASET, NAMES, ROWS, make_site, private_plan, rows, units_spent

PLAN = private_plan(privacy={"epsilon": 4.0})
RUN = 77
SOLVERS = {
    "dp-pgcd": PLAN,
    "float32": private_plan(value_type="float32", privacy={"epsilon": 4.0}),
    "public moments": private_plan(privacy={"epsilon": 4.0, "smoothness": "public", "second_moments": [1.0]}),
    "dp-pgcd-laplace": private_plan(local_solver="dp-pgcd-laplace", privacy={"epsilon": 4.0}),
    "noisy-covariance": private_plan(local_solver="noisy-covariance", privacy={"epsilon": 4.0}),
}
every_solver = pytest.mark.parametrize("plan", SOLVERS.values(), ids=SOLVERS)


def matrix(value: float) -> SparseMatrix:
    return SparseMatrix.from_dense(np.triu(np.full((3, 3), value), k=1))


def task(t: int, W: SparseMatrix | None = None, *, contributed: bool = False, kind: str = "admm") -> RoundTask:
    weights = matrix(0.25) if W is None else W
    return RoundTask(t, KINDS[kind].Task(weights), contributed)


def no_more(n: int) -> int:
    raise AssertionError("noise was drawn")


class Site:
    """A site's ledger, and participants of one run that come and go."""

    def __init__(self, folder: Path) -> None:
        self.dataset = make_site(folder, max_epsilon=50.0).datasets[0]
        self.ledger = Ledger.open(folder / site_folder.LEDGER)

    def start(self, plan: Plan, snapshot: SiteState | None = None, **options: Any) -> Participant:
        price = price_of(plan, n_samples=ROWS, n_variables=3)
        journal = RunJournal(self.ledger.payments, self.dataset, plan, price, RunHere(RUN, "north"))
        return Participant("north", Dataset(NAMES, rows()), plan, snapshot, journal=journal, run=RUN, **options)

    def stored(self, t: int) -> bytes | None:
        return self.ledger.payments.stored(Request(DATASET, RUN, t, "north"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.ledger.close()


def sent(update: LocalUpdate, plan: Plan) -> bytes:
    return codec.update_to_bytes(update, run=RUN, value_type=plan.value_type, dense=plan.dense_messages)


@every_solver
def test_what_is_sent_is_what_was_paid_for_and_kept(plan: Plan, site: Site) -> None:
    price = price_of(plan, n_samples=ROWS, n_variables=3)
    participant = site.start(plan)
    for t in range(1, plan.rounds + 1):
        before = site.ledger.payments.head(DATASET)
        update = participant.handle(task(t, contributed=t > 1))
        assert sent(update, plan) == site.stored(t)
        assert np.isfinite(update.content.weights.to_dense()).all()
        assert update.content.weights.nnz > 0
        assert update.ledger is not None
        assert update.ledger.n_entries > before.n_entries, "the ledger as it stood after the reservation"
        paid = price.setup_units + price.surcharge_units + t * price.round_units
        assert update.ledger.spent_units == units_spent(site.ledger, DATASET) == paid
    assert units_spent(site.ledger, DATASET) == price.units


def test_a_refit_is_refused_and_nothing_is_paid_or_drawn(site: Site) -> None:
    participant = site.start(PLAN, randbelow=no_more)
    with pytest.raises(LocalProtocolError, match=r"round 1 \(refit\) is not in the plan"):
        participant.handle(task(1, kind="refit"))
    with pytest.raises(LocalProtocolError, match="round 4 does not exist"):
        participant.handle(task(4, kind="refit"))
    assert units_spent(site.ledger, DATASET) == 0


@pytest.mark.parametrize("t", [4, 5, 10**6])
def test_a_round_beyond_the_plan_is_refused_and_nothing_is_paid_or_drawn(t: int, site: Site) -> None:
    with pytest.raises(LocalProtocolError, match=f"round {t} does not exist: the plan has rounds 1 to 3"):
        site.start(PLAN, randbelow=no_more).handle(task(t))
    assert units_spent(site.ledger, DATASET) == 0


@pytest.mark.parametrize("plan", [SOLVERS["dp-pgcd"], SOLVERS["dp-pgcd-laplace"]])
@pytest.mark.parametrize("size", [1e13, 1e29, 1e300])
def test_weights_that_private_steps_cannot_start_from_are_refused_before_the_round_is_paid_for(
    size: float, plan: Plan, site: Site
) -> None:
    participant = site.start(plan)
    with np.errstate(over="ignore"), pytest.raises(FedbnslError, match="beyond"):
        participant.handle(task(1, matrix(size)))
    assert units_spent(site.ledger, DATASET, RUN) == participant._problem.price.setup_units * bool(site.stored(0))


@pytest.mark.parametrize("scale", [0.0, -1.0, 5e-324, 0.99e-30, 1.01e30, np.inf, np.nan])
def test_scales_that_give_no_usable_residuals_are_refused_before_the_round_is_paid_for(
    scale: float, site: Site
) -> None:
    """From 1e-30 to 1e30, so that no square of a scaled value overflows; each scale counts."""

    def asked(*scales: float) -> RoundTask:
        return RoundTask(2, residual_moments.Task(SparseMatrix.zeros(3), np.array(scales)), contributed=False)

    participant = site.start(private_plan(rounds=0, moments_rounds=1))
    for scales in ((1.0, scale, 1.0), (1.0,), (1.0, 1.0)):
        with pytest.raises(RemoteProtocolError, match="expected 3 scales from 1e-30 to 1e\\+30; nothing was released"):
            participant.handle(asked(*scales))
    assert units_spent(site.ledger, DATASET) == 0
    assert participant.handle(asked(1 / LARGEST, LARGEST, 1.0)).round == 2


@pytest.mark.parametrize("weight", [1.01e30, -np.inf, np.nan])
@pytest.mark.parametrize("kind", ["residual moments", "noisy-covariance"])
def test_weights_that_no_calculation_could_use_are_refused_before_anything_is_paid_for(
    kind: str, weight: float, site: Site
) -> None:
    plan, asked = SOLVERS["noisy-covariance"], task(1, matrix(weight))
    if kind == "residual moments":
        plan = private_plan(rounds=0, moments_rounds=1)
        asked = RoundTask(2, residual_moments.Task(matrix(weight), np.ones(3)), contributed=False)
    with pytest.raises(RemoteProtocolError, match=r"has a number beyond 1e\+30, or NaN: nothing was released"):
        site.start(plan, randbelow=no_more).handle(asked)
    assert units_spent(site.ledger, DATASET) == 0


@pytest.mark.parametrize("t", [0, -1])
def test_there_is_no_round_before_the_first_one(t: int, site: Site) -> None:
    """Round 0 is the setup's place in the ledger: an answer stored there would be read as second moments."""
    with pytest.raises((LocalProtocolError, StaleRoundError)):
        site.start(PLAN, randbelow=no_more).handle(task(t))
    assert units_spent(site.ledger, DATASET) == 0


@every_solver
def test_the_same_round_with_another_w_gets_the_same_bytes_and_draws_nothing(plan: Plan, site: Site) -> None:
    """A coordinator that asks twice, for the difference of two noises, gets one."""
    first = site.start(plan).handle(task(1))
    spent = units_spent(site.ledger, DATASET)
    participant = site.start(plan, randbelow=no_more)
    again = participant.handle(task(1, matrix(-3.0)))
    assert sent(again, plan) == sent(first, plan)
    assert again == first
    assert participant.handle(task(1, matrix(7.0), contributed=True)) is again
    assert units_spent(site.ledger, DATASET) == spent


@every_solver
def test_after_a_restart_a_site_replays_its_rounds_and_goes_on_with_its_old_setup(plan: Plan, site: Site) -> None:
    participant = site.start(plan)
    first = participant.handle(task(1))
    second = participant.handle(task(2, contributed=True))
    setup = site.stored(0)

    dual = plan.consensus_penalty * (first.content.weights.to_dense() - matrix(0.25).to_dense())
    held = SiteState(first.content.weights, SparseMatrix.from_dense(dual))
    restarted = site.start(plan, held)
    assert sent(restarted.handle(task(2)), plan) == sent(second, plan)
    third = restarted.handle(task(3, contributed=True))
    assert sent(third, plan) == site.stored(3)
    assert site.stored(0) == setup, "the moments are released once a run"
    assert units_spent(site.ledger, DATASET) == price_of(plan, n_samples=ROWS, n_variables=3).units


@every_solver
def test_with_a_seed_and_without_a_ledger_a_run_can_be_repeated(plan: Plan) -> None:
    def play(seed: str) -> list[Matrix]:
        participant = Participant("north", Dataset(NAMES, rows()), plan, randbelow=randomness.seeded(seed))
        return [participant.handle(task(t, contributed=t > 1)).content.weights.to_dense() for t in (1, 2, 3)]

    one, same, other = play("1"), play("1"), play("2")
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[0], other[0])


def test_real_runs_draw_from_the_operating_system() -> None:
    import inspect

    assert inspect.signature(Participant.__init__).parameters["randbelow"].default is randomness.system
    plays = [Participant("north", Dataset(NAMES, rows()), PLAN).handle(task(1)) for _ in range(2)]
    assert plays[0] != plays[1]


def test_a_crash_in_the_setup_wastes_the_setup_alone(site: Site) -> None:
    with pytest.raises(AssertionError, match="noise was drawn"):
        site.start(PLAN, randbelow=no_more).handle(task(1))
    assert [entry.content["round"] for entry in site.ledger.entries() if entry.kind == "reserve"] == [0]
