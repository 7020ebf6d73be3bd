"""Prices once more, from the noise that a run really gets, and the order in which a site pays, draws and keeps."""

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from audit import reference
from audit.reference import LATTICE
from fedbnsl import price as pricing
from fedbnsl.messages import RoundTask, TaskKind
from fedbnsl.plan import Plan
from fedbnsl.price import Price
from fedbnsl.sparse import Matrix, SparseMatrix
from fedbnsl_client import participant, run_journal
from fedbnsl_client.dataset import Dataset
from fedbnsl_client.ledger import Ledger, Request
from fedbnsl_client.policy import DatasetPolicy

PriceOf = Callable[..., Price]
UNIT = 1e-12
N, D = 50, 3


def plans() -> Iterator[Plan]:
    for solver in ("dp-pgcd", "dp-pgcd-laplace", "noisy-covariance"):
        for epsilon, rounds, steps in ((0.05, 3, 1), (1.0, 10, 10), (5.0, 100, 20), (50.0, 1, 7)):
            for smoothness in ("public", "estimated"):
                yield private_plan(solver, epsilon, rounds, steps, smoothness)
                if solver == "dp-pgcd":
                    yield private_plan(solver, epsilon, rounds, steps, smoothness).with_settings(moments_rounds=3)


def private_plan(solver: str, epsilon: float, rounds: int, steps: int, smoothness: str, **more: object) -> Plan:
    moments = {"feature_bounds": [9.0]} if smoothness == "estimated" else {"second_moments": [2.0]}
    return Plan.parse(
        {
            "local_solver": solver,
            "rounds": rounds,
            "local_steps": steps,
            "refit_rounds": 0,
            "l1_weight": 0.0,
            "privacy": {"epsilon": epsilon, "delta": 1e-6, "smoothness": smoothness, **moments, **more},
        }
    )


def cost_of_setup(plan: Plan, price: Price, d: int) -> float:
    """zCDP of the setup's noise, from its variance."""
    if plan.local_solver == "noisy-covariance":
        return (math.sqrt(2) * LATTICE + d) ** 2 / (2 * price.setup_variance)
    estimated = plan.privacy is not None and plan.privacy.smoothness == "estimated"
    return d * LATTICE**2 / (2 * price.setup_variance) if estimated else 0.0


def cost_of_round(plan: Plan, price: Price) -> float:
    """zCDP of a round's noise, from its scales: selections and updates of K steps."""
    if plan.local_solver == "noisy-covariance":
        return 0.0
    if plan.local_solver == "dp-pgcd":
        # 2^-19 of a score, 2^-38 of a logarithm: what floating point may add.
        selection = (price.sharpness * (1 + 2**-19) + 2**-38) ** 2 / 2
        update = (2 * LATTICE) ** 2 / (2 * price.update_variance)
    else:
        scale = math.ceil((LATTICE + 4) / price.sharpness)
        selection = (2 * (LATTICE + 4) / scale) ** 2 / 2
        update = (2 * LATTICE / price.update_scale) ** 2 / 2
    return plan.local_steps * (selection + update)


def cost_of_moments(price: Price, d: int) -> float:
    """zCDP of the noise of a round of residual moments, from its variance."""
    return (math.sqrt(2) * LATTICE + d) ** 2 / (2 * price.moments_variance) if price.moments_variance else 0.0


def check_prices(price_of: PriceOf) -> None:
    """What is charged covers the noise that is drawn, round by round, and the whole is what was promised."""
    for plan in plans():
        assert plan.privacy is not None
        price = price_of(plan, n_samples=N, n_variables=D)
        assert cost_of_setup(plan, price, D) <= price.units_of(0) * UNIT * (1 + 1e-12), plan.privacy
        rounds = [price.units_of(t) for t in range(1, plan.rounds + 1)]
        assert cost_of_round(plan, price) <= min(rounds) * UNIT * (1 + 1e-12), (plan.local_solver, plan.privacy)
        moments = [price.units_of(plan.rounds + t) for t in range(1, plan.moments_rounds + 1)]
        assert cost_of_moments(price, D) <= min(moments, default=0) * UNIT * (1 + 1e-12)
        assert price.units_of(0) + sum(rounds) + sum(moments) == price.units
        if plan.local_solver == "dp-pgcd":
            actual = cost_of_setup(plan, price, D) + plan.rounds * cost_of_round(plan, price)
            actual += plan.moments_rounds * cost_of_moments(price, D)
            assert reference.epsilon_of(actual, 1e-6) <= plan.privacy.epsilon * (1 + 1e-9)
            assert reference.epsilon_of(price.units * UNIT, 1e-6) >= plan.privacy.epsilon * 0.999  # none is wasted


class Recorder:
    """A ledger in memory that writes down who asked what of it, and when."""

    head = None

    def __init__(self) -> None:
        self.log: list[str] = []
        self.units: dict[int, int] = {}
        self.kept: dict[int, bytes] = {}

    def stored(self, request: Request) -> bytes | None:
        return self.kept.get(request.round)

    def reserve(self, request: Request, units: int, **_: object) -> None:
        self.log.append(f"reserve {request.round}")
        self.units[request.round] = self.units.get(request.round, 0) + units

    def store(self, request: Request, payload: bytes) -> None:
        self.log.append(f"store {request.round}")
        self.kept[request.round] = payload


def journal(recorder: Recorder, plan: Plan, price: Price) -> Any:
    dataset = DatasetPolicy.model_validate(
        {"id": "table", "path": "table.csv", "max_epsilon": 100.0, "max_delta": 1e-5, "max_epsilon_per_run": 100.0}
    )
    ledger = cast(Ledger, recorder)
    return run_journal.RunJournal(ledger, dataset, plan, price, run=1, site="site")


def check_order() -> None:
    """Paid before it is drawn, kept after; a second question gets the kept answer."""
    plan = private_plan("dp-pgcd", 1.0, 2, 1, "public")
    recorder = Recorder()
    entries = journal(recorder, plan, pricing.price_of(plan, n_samples=N, n_variables=D))

    def draw() -> bytes:
        recorder.log.append("draw")
        return b"noise"

    assert entries.release(1, draw) == entries.release(1, draw) == b"noise"
    assert recorder.log == ["reserve 1", "draw", "store 1"], recorder.log


class Touched(np.ndarray):
    """A table that writes down when it is read for the first time after each entry of a log."""

    log: list[str]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        self.log.append("touch")
        plain = [x.view(np.ndarray) if isinstance(x, Touched) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)

    def __array_finalize__(self, parent: Any) -> None:
        self.log = getattr(parent, "log", [])


def play(plan: Plan, recorder: Recorder, *, restart_before: int = 0) -> list[Matrix]:
    """All rounds of a run with a journal, perhaps with one restart."""
    X = np.random.default_rng(2).normal(size=(N, D))
    table = X.view(Touched)
    table.log = recorder.log
    price = pricing.price_of(plan, n_samples=N, n_variables=D)

    def start() -> participant.Participant:
        names = tuple("abc")
        return participant.Participant("site", Dataset(names, table), plan, journal=journal(recorder, plan, price))

    site, sent = start(), []
    for t in range(1, plan.rounds + 1):
        if t == restart_before:
            site = start()
        sent.append(site.handle(RoundTask(t, TaskKind.ADMM, SparseMatrix.zeros(D), t > 1)).local_weights.to_dense())
    return sent


def check_whole_runs() -> None:
    """What is reserved in a whole run, a restart included, is its price, and covers the noise; data comes after."""
    for solver in ("dp-pgcd", "dp-pgcd-laplace", "noisy-covariance"):
        for smoothness in ("estimated", "public"):
            plan = private_plan(solver, 2.0, 4, 2, smoothness)
            recorder = Recorder()
            play(plan, recorder, restart_before=3)
            price = pricing.price_of(plan, n_samples=N, n_variables=D)
            rounds = [recorder.units.get(t, 0) for t in range(1, plan.rounds + 1)]
            assert sum(recorder.units.values()) == price.units, (recorder.units, price)
            assert min(rounds) * UNIT * (1 + 1e-12) >= cost_of_round(plan, price), recorder.units
            assert recorder.units.get(0, 0) * UNIT * (1 + 1e-12) >= cost_of_setup(plan, price, D), recorder.units
            log = recorder.log
            if cost_of_setup(plan, price, D):
                assert log.index("reserve 0") < log.index("touch"), log
                assert log.count("store 0") == 1, log
                log = log[log.index("store 0") + 1 :]
            assert "touch" not in log[: log.index("reserve 1")], log
