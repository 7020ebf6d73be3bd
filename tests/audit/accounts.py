"""Prices once more, from the noise that a run really gets, and the order in which a site pays, draws and keeps."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest import mock

import numpy as np

from audit import reference
from audit.reference import LATTICE
from fedbnsl.errors import BudgetExhaustedError, ProtocolError
from fedbnsl.graphs.directed_pair import DirectedPair
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy import calibration as pricing
from fedbnsl.privacy.calibration import Price
from fedbnsl.protocol.messages import Content, LocalUpdate, RoundTask
from fedbnsl.protocol.sparse import Index, Matrix, SparseMatrix
from fedbnsl.rounds import counts as counts_rounds
from fedbnsl.rounds import curvature as curvature_rounds
from fedbnsl.rounds import hinges as hinges_rounds
from fedbnsl.rounds import noise as noise_rounds
from fedbnsl.rounds import regressions as regressions_rounds
from fedbnsl.rounds import residual_moments as residual_rounds
from fedbnsl.rounds import validation as validation_rounds
from fedbnsl.rounds.kinds import KINDS, n_rounds, stage
from fedbnsl_client import participant
from fedbnsl_client.budget import journal as run_journal
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Payments, Request
from fedbnsl_client.budget.policy import DatasetPolicy
from fedbnsl_client.budget.spending import Cap, Spending
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.privacy import many_gaussians, noise, private_moments
from fedbnsl_client.solvers import local_solver

PriceOf = Callable[..., Price]
UNIT = 1e-12
N, D = 50, 3


def plans() -> Iterator[Plan]:
    for solver in ("dp-pgcd", "dp-pgcd-laplace", "noisy-covariance"):
        for epsilon, rounds, steps in ((0.05, 3, 1), (1.0, 10, 10), (5.0, 100, 20), (50.0, 1, 7)):
            for smoothness in ("public", "estimated"):
                yield private_plan(solver, epsilon, rounds, steps, smoothness)
                if (solver, smoothness) == ("dp-pgcd", "estimated"):
                    for admm in (0, rounds):
                        plan = private_plan(solver, epsilon, rounds, steps, smoothness)
                        yield plan.with_settings(rounds=admm, moments_rounds=3)
                    yield prepared_plan(epsilon, rounds=rounds, local_steps=steps)
                    for admm in (0, rounds):
                        yield prepared_plan(epsilon, rounds=admm, local_steps=steps, moments_rounds=3)


def prepared_plan(epsilon: float, **settings: object) -> Plan:
    """A private plan that prepares three columns, two of them of one nominal variable."""
    levels = {"kind": "nominal", "levels": ["x", "y", "z"]}
    return Plan.parse(
        {
            "local_solver": "dp-pgcd",
            "refit_rounds": 0,
            "l1_weight": 0.0,
            "preparation": {},
            "dictionary": {"a": {"range": [-3.0, 4.0]}, "b": levels},
            "privacy": {"epsilon": epsilon, "delta": 1e-6},
            **settings,
        }
    )


def before_admm(plan: Plan) -> int:
    """Rounds that come before the first of Algorithm 1."""
    return 0 if plan.preparation is None else 1


def names_of(plan: Plan) -> tuple[str, ...]:
    return plan.column_names or tuple("abc")


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
    if plan.preparation is not None:  # any three numbers from -1 to 1, their squares alike; rounding adds 1 to each
        return d * (2 * LATTICE + 2) ** 2 / (2 * price.setup_variance)
    estimated = plan.privacy is not None and plan.privacy.smoothness == "estimated"
    return d * LATTICE**2 / (2 * price.setup_variance) if estimated else 0.0


def cost_of_round(plan: Plan, price: Price) -> float:
    """zCDP of a round's noise, from its scales: selections and updates of K steps."""
    return plan.local_steps * sum(costs_of_step(plan, price))


def cost_of_steps(plan: Plan, price: Price) -> float:
    """zCDP of all rounds of steps; where they are counted by Gaussian DP, half the mu^2 of what dominates them."""
    selection, update = costs_of_step(plan, price)
    steps = plan.rounds * plan.local_steps
    if price.gaussian and selection:
        return reference.steps_and_selections(selection, update, steps)
    return steps * (selection + update)


def costs_of_step(plan: Plan, price: Price) -> tuple[float, float]:
    """zCDP of a selection and of an update, from their scales."""
    if plan.local_solver == "noisy-covariance" or not plan.rounds:
        return 0.0, 0.0
    if plan.local_solver == "dp-pgcd":
        # 2^-19 of a score, 2^-38 of a logarithm: what floating point may add.
        selection = (price.sharpness * (1 + 2**-19) + 2**-38) ** 2 / 2
        update = (2 * LATTICE) ** 2 / (2 * price.update_variance)
    else:
        scale = math.ceil((LATTICE + 4) / price.sharpness)
        selection = (2 * (LATTICE + 4) / scale) ** 2 / 2
        update = (2 * LATTICE / price.update_scale) ** 2 / 2
    return selection, update


def cost_of_moments(price: Price, d: int) -> float:
    """zCDP of the noise of a round of residual moments, from its variance."""
    return (math.sqrt(2) * LATTICE + d) ** 2 / (2 * price.moments_variance) if price.moments_variance else 0.0


def cost_of_run(plan: Plan, price: Price, d: int) -> float:
    """zCDP of all noise of a run, from its scales alone."""
    of_moments = cost_of_moments(price, d + before_admm(plan))
    rounds = cost_of_steps(plan, price) + plan.moments_rounds * of_moments
    return cost_of_setup(plan, price, d) + rounds


def is_gaussian(plan: Plan) -> bool:
    """Whether Gaussian DP asks for less noise: always without selections, and with them if there are many steps."""
    if plan.local_solver != "dp-pgcd" or not plan.rounds:
        return plan.local_solver != "dp-pgcd-laplace"
    assert plan.privacy is not None
    epsilon, steps = plan.privacy.epsilon, plan.rounds * plan.local_steps
    more = reference.steps_and_selections(0.5, 0.5, steps) / steps  # selections have half of a step's cost
    return reference.gaussian_budget(epsilon, 1e-6) / more > reference.budget(epsilon, 1e-6)


def epsilon_of(plan: Plan, cost: float) -> float:
    """Epsilon of so much zCDP of a plan's releases."""
    of = reference.gaussian_epsilon_of if is_gaussian(plan) else reference.epsilon_of
    return of(cost, 1e-6)


def check_prices(price_of: PriceOf) -> None:
    """What is charged covers the noise that is drawn, round by round, and the whole is what was promised."""
    for plan in plans():
        assert plan.privacy is not None
        price = price_of(plan, n_samples=N, n_variables=D)
        assert cost_of_setup(plan, price, D) <= price.units_of(0) * UNIT * (1 + 1e-12), plan.privacy
        by_kind: dict[str, list[int]] = {"admm": [], "residual_moments": [], "scales": [], "statistics": []}
        for t in range(1, n_rounds(plan) + 1):
            by_kind[stage(plan, t).kind].append(price.units_of(t))
        rounds, moments = by_kind["admm"], by_kind["residual_moments"]
        assert cost_of_round(plan, price) <= min(rounds, default=0) * UNIT * (1 + 1e-12), (plan.rounds, plan.privacy)
        assert cost_of_steps(plan, price) <= (sum(rounds) + price.surcharge_units) * UNIT * (1 + 1e-12), plan.privacy
        assert sum(by_kind["scales"] + by_kind["statistics"]) == 0, "they tell what the setup has paid for"
        assert cost_of_moments(price, D + before_admm(plan)) <= min(moments, default=0) * UNIT * (1 + 1e-12)
        wide = price_of(plan, n_samples=N, n_variables=D, n_squares=D)
        assert cost_of_moments(wide, 2 * D + before_admm(plan)) <= min(moments, default=0) * UNIT * (1 + 1e-12)
        assert price.units_of(0) + sum(rounds) + sum(moments) + price.surcharge_units == price.units
        assert price.gaussian == is_gaussian(plan), (plan.rounds, plan.local_steps, plan.privacy)
        if plan.local_solver != "dp-pgcd-laplace":  # which has advanced composition
            actual = cost_of_run(plan, price, D)
            assert epsilon_of(plan, actual) <= plan.privacy.epsilon * (1 + 1e-9)
            assert epsilon_of(plan, price.units * UNIT) >= plan.privacy.epsilon * 0.999  # none is wasted


# Shares of the zCDP of epsilon 5 that are asked for, one after the other, each Gaussian or not. GDP allows about 1.1.
SEQUENCES = (
    "0.5g 0.5g 0.05g 0.2g 0.05n",
    "1.05g 0.001n 0.01g",
    "0.3g 0.3n 0.5g 0.3g 0.2g",
    "0.3n 0.3g 0.3g 0.2g 0.05g",
    "0.3old 0.6g 0.15g 0.05g",
    "0.2g 0.2g 0.2g 0.2g 0.2g 0.05g 0.1g",
    "0.6n 0.6n 0.3n",
)


def check_caps() -> None:
    """A ledger pays as long as what it paid for keeps epsilon, by zCDP or, if all is Gaussian, by that; no less."""
    epsilon, delta = 5.0, 1e-6
    whole, cap = reference.budget(epsilon, delta), Cap.of(epsilon, delta)
    for sequence in SEQUENCES:
        with TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger.db") as ledger:
            ledger.registrations.register("table", tuple("abc"), np.random.default_rng(3).normal(size=(N, D)))
            paid: list[tuple[float, bool]] = []
            for t, asked in enumerate(sequence.split()):
                share, kind = float(asked.rstrip("gnold")), asked.lstrip("0123456789.")
                then = [*paid, (share * whole, kind == "g")]
                total, gaussian = sum(cost for cost, _ in then), all(of_that_kind for _, of_that_kind in then)
                of = reference.gaussian_epsilon_of if gaussian else reference.epsilon_of
                if pays(ledger, t, math.floor(share * whole / UNIT), kind, cap):
                    assert of(total, delta) <= epsilon * (1 + 1e-6), (sequence, asked)
                    paid = then
                else:
                    assert of(total, delta) > epsilon, (sequence, asked)


def pays(ledger: Ledger, t: int, units: int, kind: str, cap: Cap) -> bool:
    """Whether a ledger pays for a request; `old` ones it once paid for without noting their kind."""
    if kind == "old":
        with ledger._file.transaction():
            ledger._file.append("reserve", dataset="table", run="", round=t, site="", units=units, authority="")
        return True
    try:
        ledger.payments.reserve(Request("table", 1, t, "site"), Payment(units, {}, gaussian=kind == "g"), cap)
    except BudgetExhaustedError:
        return False
    return True


class Recorder:
    """A ledger in memory that writes down who asked what of it, and when."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.units: dict[int, int] = {}
        self.gaussian: dict[int, bool] = {}
        self.kept: dict[int, bytes] = {}
        self.recipes: list[Any] = []

    def head(self, *_: object) -> None:
        """There is no ledger to tell of."""

    def stored(self, request: Request) -> bytes | None:
        return self.kept.get(request.round)

    def reserve(self, request: Request, payment: Payment, *_: object, **__: object) -> None:
        self.gaussian[request.round] = payment.gaussian
        self.log.append(f"reserve {request.round}")
        self.recipes.append(payment.recipe)
        self.units[request.round] = self.units.get(request.round, 0) + payment.units

    def store(self, request: Request, payload: bytes) -> None:
        self.log.append(f"store {request.round}")
        self.kept[request.round] = payload


POLICY = DatasetPolicy.model_validate(
    {"id": "table", "path": "table.csv", "max_epsilon": 100.0, "max_delta": 1e-5, "max_epsilon_per_run": 100.0}
)


def journal(recorder: Recorder, plan: Plan, price: Price, *, run: int = 1, site: str = "site") -> Any:
    payments = cast(Payments, recorder)
    return run_journal.RunJournal(payments, POLICY, plan, price, run_journal.RunHere(run, site))


class Touched(np.ndarray):
    """A table that writes down when it is read for the first time after each entry of a log."""

    log: list[str]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        self.log.append("touch")
        plain = [x.view(np.ndarray) if isinstance(x, Touched) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)

    def __array_finalize__(self, parent: Any) -> None:
        self.log = getattr(parent, "log", [])


def site_of(plan: Plan, recorder: Recorder, price: Price) -> participant.Participant:
    """A participant with a journal, whose table writes into the recorder's log when it is read."""
    table = np.random.default_rng(2).normal(size=(N, D)).view(Touched)
    table.log = recorder.log
    dataset = Dataset(names_of(plan), table)
    return participant.Participant("site", dataset, plan, journal=journal(recorder, plan, price))


def task_of(plan: Plan, t: int, *, weight: float = 0.0, scale: float = 1.0) -> RoundTask:
    """The task of round t as the plan says it, with one weight in W and like scales for all variables."""
    W = SparseMatrix(D, np.array([1]), np.array([weight])) if weight else SparseMatrix.zeros(D)
    return RoundTask(t, content_of(stage(plan, t).kind, W, np.full(D, scale)), t > 1)


def content_of(kind: str, W: SparseMatrix, scales: Matrix) -> Content:
    """What a task of this kind holds."""
    if kind in ("scales", "statistics"):  # these ask without content
        return KINDS[kind].Task()
    others: dict[str, Content] = {
        "residual_moments": residual_rounds.Task(W, scales, np.ones_like(scales)),
        "counts": counts_rounds.Task.of(((0, 1),)),
        "hinges": hinges_rounds.Task(np.array([0])),
        "curvature": curvature_rounds.Task(W, np.empty(0, dtype=np.int64)),
        "validation": validation_rounds.Task(""),
        "noise": noise_rounds.Task((DirectedPair(0, 1, ()),)),
        "regressions": regressions_rounds.Task((regressions_rounds.Family((0,), (1,)),), np.zeros(1)),
    }
    return others[kind] if kind in others else KINDS[kind].Task(W)


def play(plan: Plan, recorder: Recorder, *, restart_before: int = 0) -> None:
    """All rounds of a run with a journal, perhaps with one restart, after which the last round is asked for again."""
    price = pricing.price_of(plan, n_samples=N, n_variables=D)
    site = site_of(plan, recorder, price)
    sent: list[LocalUpdate] = []
    for t in range(1, n_rounds(plan) + 1):
        if t == restart_before:
            site = site_of(plan, recorder, price)
            n_entries = len(recorder.log)
            again = site.handle(task_of(plan, t - 1, weight=0.5, scale=3.0))  # the difference would tell of the table
            assert again == sent[-1], "another answer for the same round"
            assert len(recorder.log) == n_entries, recorder.log[n_entries:]
        sent.append(site.handle(task_of(plan, t)))


@contextmanager
def counted_draws(module: Any) -> Iterator[list[int]]:
    """The variance of each draw of rounded Gaussian noise that a module asks for, in the order drawn."""
    genuine, drawn = module.rounded_gaussian, list[int]()

    def draw(variance: int, randbelow: noise.Randbelow) -> int:
        drawn.append(variance)
        return int(genuine(variance, randbelow))

    def draw_many(variances: Sequence[int], which: Index, randbelow: noise.Randbelow) -> many_gaussians.Numbers:
        drawn.extend(variances[k] for k in which.tolist())
        return many_gaussians.rounded_gaussians(variances, which, randbelow)

    with mock.patch.object(module, "rounded_gaussian", draw), ExitStack() as stack:
        if hasattr(module, "rounded_gaussians"):
            stack.enter_context(mock.patch.object(module, "rounded_gaussians", draw_many))
        yield drawn


def check_whole_runs() -> None:
    """What is reserved in a whole run, a restart included, is its price, and covers the noise; data comes after."""
    for solver in ("dp-pgcd", "dp-pgcd-laplace", "noisy-covariance"):
        for smoothness in ("estimated", "public"):
            plan = private_plan(solver, 2.0, 4, 2, smoothness)
            check_whole_run(plan, restart_before=3)
    check_whole_run(private_plan("dp-pgcd", 2.0, 4, 5, "estimated"), restart_before=3)  # enough steps for Gaussian DP
    for admm in (0, 2):
        plan = private_plan("dp-pgcd", 2.0, 2, 2, "estimated").with_settings(rounds=admm, moments_rounds=2)
        for restart_before in range(2, n_rounds(plan) + 1):
            check_whole_run(plan, restart_before=restart_before)
    for moments in (0, 2):
        plan = prepared_plan(2.0, rounds=2, local_steps=2, moments_rounds=moments)
        for restart_before in range(2, n_rounds(plan) + 1):
            check_whole_run(plan, restart_before=restart_before)


def check_whole_run(plan: Plan, *, restart_before: int) -> None:
    recorder = Recorder()
    with counted_draws(private_moments) as drawn, counted_draws(local_solver) as updates:
        play(plan, recorder, restart_before=restart_before)
    price = pricing.price_of(plan, n_samples=N, n_variables=D)
    units, cap = recorder.units, POLICY.run_cap
    rounds = units_of_steps(plan, recorder)
    assert sum(units.values()) == price.units, (units, price)
    assert cap.allows(Spending(price.units, price.gaussian)), (cap, price)
    # Of the whole run: a site that stops it after its Gaussian part must not be counted otherwise.
    assert set(recorder.gaussian.values()) == {is_gaussian(plan)}, recorder.gaussian
    if plan.local_solver == "dp-pgcd":  # Gaussian DP holds for no other noise
        assert updates == [price.update_variance] * (plan.rounds * plan.local_steps * price.gaussian), updates
    check_surcharge(plan, price, recorder)
    assert min(rounds, default=0) * UNIT * (1 + 1e-12) >= cost_of_round(plan, price), units
    assert units.get(0, 0) * UNIT * (1 + 1e-12) >= cost_of_setup(plan, price, D), units
    check_log(recorder.log, plan)
    if plan.moments_rounds:
        check_moments(plan, recorder, drawn)


def check_surcharge(plan: Plan, price: Price, recorder: Recorder) -> None:
    """It is paid whole before a step is released, in whatever order rounds are asked for, and enough for all steps."""
    if not price.surcharge_units:
        assert not (price.gaussian and plan.rounds and plan.local_solver == "dp-pgcd"), plan
        return
    assert cost_of_steps(plan, price) <= sum(units_of_steps(plan, recorder)) * UNIT * (1 + 1e-12)
    late = Recorder()
    site = site_of(plan, late, price)
    first = before_admm(plan) + 2  # the coordinator skips a round
    site.handle(task_of(plan, first))
    for paid in (units_of_steps(plan, recorder)[0], late.units[first]):
        assert paid == price.units_of(first) + price.surcharge_units, (paid, price)


def units_of_steps(plan: Plan, recorder: Recorder) -> list[int]:
    """What was reserved for each ADMM round."""
    return [recorder.units.get(t + before_admm(plan), 0) for t in range(1, plan.rounds + 1)]


def check_log(log: list[str], plan: Plan) -> None:
    """The table is read for what is being paid for and nothing else; each round is paid for, and kept, once."""
    paid = ""
    touched: set[int] = set()
    for entry in log:
        what, _, t = entry.partition(" ")
        if what == "touch":
            assert paid, log
            touched.add(int(paid))
        else:
            assert (what == "reserve") == (not paid), log
            paid = t if what == "reserve" else ""
    entries = [entry for entry in log if entry != "touch"]
    assert len(entries) == len(set(entries)), log
    releases = {t for t in range(1, n_rounds(plan) + 1) if stage(plan, t).kind not in ("scales", "statistics")}
    assert touched - {0} <= releases, "scales and statistics are told from what was kept"


def check_moments(plan: Plan, recorder: Recorder, drawn: list[int]) -> None:
    """The noise that was drawn is that of the recipes in the ledger, and it keeps what the plan promises."""
    assert plan.privacy is not None
    prices = [Price(**recipe["price"]) for recipe in recorder.recipes]
    assert len(set(prices)) == 1, "one price for all rounds"
    price = prices[0]
    assert [recipe["round"] for recipe in recorder.recipes] == list(range(n_rounds(plan) + 1))
    k, free = D + before_admm(plan), 1 if before_admm(plan) else plan.rounds + 1
    for t in range(plan.rounds + 2, n_rounds(plan) + 1):
        assert recorder.units[t] * UNIT * (1 + 1e-12) >= cost_of_moments(price, k), recorder.units
    assert recorder.units[free] == 0, recorder.units
    assert epsilon_of(plan, cost_of_run(plan, price, D)) <= plan.privacy.epsilon * (1 + 1e-9)
    one_release = [price.moments_variance // (1 if i == j else 2) for i in range(k) for j in range(i, k)]
    n_setup = 2 * D + len(plan.dictionary.root) if before_admm(plan) else D
    assert drawn == [price.setup_variance] * n_setup + one_release * plan.moments_rounds, drawn


def _error_of(site: participant.Participant, task: RoundTask) -> type[Exception] | None:
    try:
        site.handle(task)
    except Exception as error:
        return type(error)
    return None


def check_order_of_tasks() -> None:
    """A task of another kind than the plan has in that round, or without its scales, is refused and costs nothing."""
    for admm in (0, 2):
        plan = private_plan("dp-pgcd", 2.0, 2, 2, "estimated").with_settings(rounds=admm, moments_rounds=2)
        price = pricing.price_of(plan, n_samples=N, n_variables=D)
        recorder = Recorder()
        site = site_of(plan, recorder, price)
        for t in range(-1, n_rounds(plan) + 2):  # 0 is the setup
            known = 1 <= t <= n_rounds(plan)
            planned = stage(plan, t).kind if known else ""
            zero = SparseMatrix.zeros(D)
            wrong = [RoundTask(t, content_of(kind, zero, np.ones(D)), False) for kind in KINDS if kind != planned]
            huge = SparseMatrix(D, np.array([1]), np.array([1e300]))
            if planned == "admm":
                wrong.append(RoundTask(t, content_of(planned, huge, np.ones(D)), False))
            if planned == "residual_moments":
                impossible = (np.empty(0), np.zeros(D), -np.ones(D), np.full(D, np.nan), np.full(D, 1e300))
                wrong += [RoundTask(t, content_of(planned, zero, scales), False) for scales in impossible]
                wrong.append(RoundTask(t, content_of(planned, huge, np.ones(D)), False))
            before = list(recorder.log)
            for task in wrong:
                assert issubclass(_error_of(site, task) or int, ProtocolError), task
                assert recorder.log == before, recorder.log
            if known:
                site.handle(task_of(plan, t))
