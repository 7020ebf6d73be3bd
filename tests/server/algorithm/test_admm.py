"""Algorithm 1 at the coordinator: h, the global step, the state; and both sides' duals, bit for bit."""

from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from fedbnsl.errors import DivergenceError, StaleRoundError
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import Mask, Matrix, SparseMatrix
from fedbnsl.rounds import admm as admm_rounds
from fedbnsl.rounds import refit as refit_rounds
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.algorithm.acyclicity import acyclicity
from fedbnsl_server.algorithm.admm import AdmmState, acyclicity_coefficients, initial_state, without
from fedbnsl_server.algorithm.global_step import Terms, global_step
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.run import round_loop
from fedbnsl_server.search.squared_residuals import SquaredResiduals
from one_round import advance
from oracles import finite_difference, literal_acyclicity, literal_pgcd

SEEDS = range(5)
SITES = ("a", "b", "c")
VARIABLES = ("v", "w", "x", "y")
D = len(VARIABLES)
FREE = ~np.eye(D, dtype=bool)
EVERYTHING = EdgeMask(Knowledge(), VARIABLES)


def random_weights(seed: int, *, d: int = D, density: float = 0.7, scale: float = 1.0) -> Matrix:
    rng = np.random.default_rng(seed)
    W = np.where(rng.random((d, d)) < density, scale * rng.standard_normal((d, d)), 0.0)
    np.fill_diagonal(W, 0.0)
    return W


# ---- h(W) ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.5, 1.5])
@pytest.mark.parametrize("seed", SEEDS)
def test_h_is_its_power_series(seed: int, scale: float) -> None:
    W = random_weights(seed, d=6, scale=scale)
    assert acyclicity(W)[0] == pytest.approx(literal_acyclicity(W), rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gradient_of_h_agrees_with_finite_differences(seed: int) -> None:
    W = random_weights(seed, d=5)
    _, gradient = acyclicity(W)
    assert np.abs(gradient).max() > 0.1
    assert gradient == pytest.approx(finite_difference(literal_acyclicity, W), rel=1e-6, abs=1e-6)


def test_h_of_a_two_cycle_is_known_in_closed_form() -> None:
    W = np.array([[0.0, 1.5], [-0.5, 0.0]])
    h, gradient = acyclicity(W)
    product = 1.5 * 0.5  # tr(exp) = 2 cosh(|w_01 w_10|)
    assert h == pytest.approx(2 * np.cosh(product) - 2)
    assert gradient[0, 1] == pytest.approx(2 * np.sinh(product) * 0.5)
    assert gradient[1, 0] == pytest.approx(-2 * np.sinh(product) * 1.5)


def test_h_of_an_acyclic_matrix_is_zero_and_its_gradient_there_too() -> None:
    h, gradient = acyclicity(np.triu(random_weights(3, d=8, density=1.0), k=1))
    assert h == pytest.approx(0.0, abs=1e-12)
    assert np.triu(gradient) == pytest.approx(0.0, abs=1e-12)
    assert not np.tril(gradient).any()


# ---- the global step -----------------------------------------------------------------------------------------------


def objective(A: Matrix, weight: float, alpha: float, rho_1: float) -> Callable[[Matrix], float]:
    """weight / 2 ||W - A||^2 + alpha h + rho_1 / 2 h^2, h by its power series."""

    def value(W: Matrix) -> float:
        h = literal_acyclicity(W)
        return float(weight / 2 * np.sum((W - A) ** 2) + alpha * h + rho_1 / 2 * h**2)

    return value


def step(A: Matrix, W: Matrix, *, allowed: Mask = FREE, max_iterations: int = 10_000, **terms: float) -> Matrix:
    of_all = Terms(3, **{"rho_2": 2.0, "alpha": 0.0, "rho_1": 0.0, **terms})
    A_entries, W_entries = SparseMatrix.from_dense(A), SparseMatrix.from_dense(W)
    return global_step(
        A_entries, W_entries, of_all, allowed=allowed, max_iterations=max_iterations, least_gain=0
    ).to_dense()


@pytest.mark.parametrize(("alpha", "rho_1"), [(0.5, 0.0), (5.0, 0.0), (0.0, 3.0), (1.0, 2.0)])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.long
def test_the_global_step_finds_the_minimum_over_all_entries(seed: int, alpha: float, rho_1: float) -> None:
    A, W = random_weights(seed, scale=0.8), random_weights(seed + 100, scale=0.3)
    found = W
    for _ in range(5):  # as over the rounds: one call ends where the value, not the matrix, has settled
        found = step(A, found, alpha=alpha, rho_1=rho_1)
    f = objective(A, 3 * 2.0, alpha, rho_1)
    expected = minimize(
        lambda w: f(w.reshape(D, D)), W.ravel(), jac="3-point", method="BFGS", options={"gtol": 1e-7}
    ).x.reshape(D, D)
    assert np.abs(found - expected).max() < 1e-5
    assert np.abs(found - A).max() > 1e-3  # the term in h was felt


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_term_in_h_the_l1_term_shrinks_the_mean_by_lambda_over_p_rho_2(seed: int) -> None:
    A, lam = random_weights(seed, density=1.0), 3.0
    expected = np.sign(A) * np.maximum(np.abs(A) - lam / (3 * 2.0), 0.0)
    assert (FREE & (expected == 0.0)).any()
    found = random_weights(seed + 9)
    for _ in range(5):
        found = step(A, found, l1_weight=lam)
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_an_l1_term_no_direction_goes_down_from_the_minimum(seed: int) -> None:
    """0 is in the subdifferential: -gradient = lambda sign(W) at an entry, |gradient| <= lambda where W is zero."""
    A, lam, alpha, rho_1 = random_weights(seed, scale=0.8), 0.9, 1.0, 2.0
    found = random_weights(seed + 100, scale=0.3)
    for _ in range(5):
        found = step(A, found, alpha=alpha, rho_1=rho_1, l1_weight=lam)
    smooth = objective(A, 3 * 2.0, alpha, rho_1)
    gradient = finite_difference(smooth, found)
    kept = np.abs(found) > 1e-8
    assert gradient[kept] == pytest.approx(-lam * np.sign(found[kept]), abs=1e-4)
    assert np.abs(gradient[FREE & ~kept]).max() < lam + 1e-4
    assert 0 < kept.sum() < FREE.sum(), "the L1 term was felt"
    without = smooth(step(A, found, alpha=alpha, rho_1=rho_1))
    assert smooth(found) > without + 0.01


def test_a_capped_step_with_an_l1_term_goes_down_from_its_start() -> None:
    A, W = random_weights(2), random_weights(3)

    def value(M: Matrix) -> float:
        return objective(A, 3 * 2.0, 1.0, 2.0)(M) + 0.4 * float(np.abs(M).sum())

    once = step(A, W, alpha=1.0, rho_1=2.0, l1_weight=0.4, max_iterations=2)
    often = step(A, W, alpha=1.0, rho_1=2.0, l1_weight=0.4)
    assert value(often) < value(once) < value(W)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_term_in_h_the_minimum_is_the_mean_itself(seed: int) -> None:
    A = random_weights(seed)
    assert step(A, np.zeros((D, D))) == pytest.approx(A, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_entry_that_is_zero_in_mean_and_start_stays_exactly_zero(seed: int) -> None:
    A, W = random_weights(seed, d=8, density=0.3), random_weights(seed + 50, d=8, density=0.2)
    found = step(A, W, alpha=2.0, rho_1=1.0, allowed=~np.eye(8, dtype=bool))
    off = (A == 0.0) & (W == 0.0)
    assert off.sum() > 20
    assert (found[off] == 0.0).all()
    assert (found[~off] != 0.0).any()


def test_an_entry_that_only_the_start_has_is_a_variable_and_returns_to_zero() -> None:
    W = random_weights(2)
    zero = np.zeros((D, D))
    on_the_way = step(zero, W, max_iterations=1)
    assert (on_the_way[W != 0] != 0.0).all()
    assert step(zero, W) == pytest.approx(zero, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_mask_excludes_is_exactly_zero(seed: int) -> None:
    allowed = FREE & (np.random.default_rng(seed).random((D, D)) < 0.6)
    A, W = random_weights(seed, density=1.0), random_weights(seed + 50, density=1.0)
    found = step(A, W, alpha=1.0, allowed=allowed)
    assert (FREE & ~allowed).any()
    assert (found[~allowed] == 0.0).all()
    f = objective(np.where(allowed, A, 0.0), 6.0, 1.0, 0.0)
    rng = np.random.default_rng(seed)
    for _ in range(30):
        assert f(found + np.where(allowed, 1e-2 * rng.standard_normal((D, D)), 0.0)) > f(found)


def test_a_stronger_term_in_h_gives_a_matrix_closer_to_acyclic() -> None:
    A = random_weights(1)
    h = [acyclicity(step(A, np.zeros((D, D)), alpha=alpha))[0] for alpha in (0.0, 1.0, 10.0, 1000.0)]
    assert h == sorted(h, reverse=True)
    assert h[0] > 0.1
    assert h[-1] < 1e-3


def test_a_capped_step_goes_down_but_not_all_the_way() -> None:
    A, W = random_weights(4), np.zeros((D, D))
    f = objective(A, 6.0, 5.0, 0.0)
    values = [f(W), *(f(step(A, W, alpha=5.0, max_iterations=k)) for k in (1, 3, 1000))]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 4


def test_nothing_to_do_gives_zero() -> None:
    zero = np.zeros((D, D))
    assert not step(zero, zero, alpha=1000.0).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_inputs_are_not_changed(seed: int) -> None:
    A, W = random_weights(seed), random_weights(seed + 9)
    copies = A.copy(), W.copy()
    step(A, W, alpha=1.0)
    assert np.array_equal(A, copies[0])
    assert np.array_equal(W, copies[1])


@pytest.mark.parametrize("scale", [1e3, 1e200])
def test_weights_beyond_all_numbers_are_a_divergence(scale: float) -> None:
    A = random_weights(0, scale=scale)
    with pytest.raises(DivergenceError):
        step(A, A, alpha=1.0, max_iterations=20)


# ---- the schedule of the acyclicity term ---------------------------------------------------------------------------


def continuation(rounds: int) -> list[float]:
    """Coefficient of h in every round; index 0 is round 1."""
    plan = Plan(rounds=rounds, acyclicity_schedule="continuation")
    pairs = [acyclicity_coefficients(plan, t, 99.0) for t in range(1, rounds + 1)]
    assert all(rho_1 == 0.0 for _, rho_1 in pairs)
    return [alpha for alpha, _ in pairs]


def test_the_coefficient_grows_geometrically_to_1000_at_80_percent_and_then_by_1_3_a_round() -> None:
    c = continuation(100)
    assert c[0] == 0.1
    assert c[79] == pytest.approx(1000.0)
    assert np.diff(np.log(c[:80])) == pytest.approx(np.log(1e4) / 79)
    assert c[80] == pytest.approx(1300.0)
    assert c[81] == pytest.approx(1690.0)
    assert c[99] == pytest.approx(1000.0 * 1.3**20)


def test_a_run_of_one_round_has_the_first_coefficient() -> None:
    assert continuation(1) == [0.1]


def test_a_turn_between_two_rounds_is_passed_at_its_own_place() -> None:
    c = continuation(7)  # the turn is at 5.6 rounds
    assert c[0] == 0.1
    assert np.diff(np.log(c[:5])) == pytest.approx(np.log(1e4) / 4.6)
    assert c[5] == pytest.approx(1000.0 * 1.3**0.4)
    assert c[6] == pytest.approx(1000.0 * 1.3**1.4)


@pytest.mark.parametrize("rounds", [2, 3, 5, 10, 33])
def test_the_coefficient_never_falls_and_ends_beyond_1000(rounds: int) -> None:
    c = continuation(rounds)
    assert c == sorted(c)
    assert c[0] == 0.1
    assert c[-1] >= 1000.0


def test_the_longest_run_has_coefficients_up_to_the_largest() -> None:
    plan = Plan(rounds=100_000)
    coefficients = [acyclicity_coefficients(plan, t, 0.0)[0] for t in (1, 80_000, 80_001, 90_000, 100_000)]
    assert coefficients == pytest.approx([0.1, 1000.0, 1300.0, 1e12, 1e12])


def test_the_augmented_weight_grows_by_its_factor_up_to_its_largest() -> None:
    plan = Plan(acyclicity_schedule="augmented", acyclicity_penalty=4e10, acyclicity_growth=3.0)
    pairs = [acyclicity_coefficients(plan, t, 0.7) for t in range(1, 6)]
    assert [alpha for alpha, _ in pairs] == [0.7] * 5
    assert [rho_1 for _, rho_1 in pairs] == pytest.approx([4e10, 12e10, 36e10, 1e12, 1e12])
    assert acyclicity_coefficients(plan, 100_000, 0.7) == (0.7, 1e12)


# ---- one round of the state ----------------------------------------------------------------------------------------


# Hardly any term in h.
NO_ACYCLICITY: dict[str, Any] = {"acyclicity_schedule": "augmented", "acyclicity_penalty": 1e-12}


def a_state(plan: Plan) -> AdmmState:
    """A state after a round, with all parts in use."""
    state = initial_state(D, SITES)
    updates = {site: update(site, 1, seed) for seed, site in enumerate(SITES)}
    return advance(state, updates, plan, EVERYTHING)


def update(site: str, round_: int, seed: int) -> LocalUpdate:
    return LocalUpdate(site, round_, admm_rounds.Answer(SparseMatrix.from_dense(random_weights(seed))))


def test_everything_starts_at_zero() -> None:
    state = initial_state(D, ["b", "a"])
    assert state.round == 0
    assert list(state.sites) == ["a", "b"]
    matrices = [state.global_weights, *(m for s in state.sites.values() for m in (s.local_weights, s.consensus_dual))]
    assert all(matrix == SparseMatrix.zeros(D) for matrix in matrices)
    assert (state.acyclicity_dual, state.acyclicity, state.contributed) == (0.0, 0.0, frozenset())


@pytest.mark.parametrize("value_type", ["float64", "float32"])
def test_the_duals_follow_their_equation(value_type: str) -> None:
    plan = Plan(rounds=10, consensus_penalty=1.7, value_type=value_type)  # type: ignore[arg-type]
    before = a_state(plan)
    updates = {site: update(site, 2, 10 + k) for k, site in enumerate(SITES)}
    after = advance(before, updates, plan, EVERYTHING)
    W = after.global_weights.to_dense()
    for site in SITES:
        beta = before.sites[site].consensus_dual.to_dense()
        B = updates[site].content.weights.to_dense()
        got = after.sites[site].consensus_dual.to_dense()
        for i in range(D):
            for j in range(D):
                assert got[i, j] == beta[i, j] + 1.7 * (B[i, j] - W[i, j])
        assert after.sites[site].local_weights == updates[site].content.weights
    assert after.round == 2
    assert after.contributed == frozenset(SITES)
    assert after.acyclicity == pytest.approx(literal_acyclicity(W), rel=1e-9)
    assert after.refitted is None


def test_the_mean_of_weights_and_duals_enters_the_global_step() -> None:
    before = a_state(Plan(rounds=10, consensus_penalty=1.7))
    plan = Plan(rounds=10, consensus_penalty=1.7, global_iterations=1000, **NO_ACYCLICITY)
    updates = {site: update(site, 2, 10 + k) for k, site in enumerate(SITES[:2])}
    after = advance(before, updates, plan, EVERYTHING)
    B = [updates["a"].content.weights, updates["b"].content.weights, before.sites["c"].local_weights]
    beta = [before.sites[site].consensus_dual.to_dense() for site in SITES]
    assert np.abs(sum(beta)).max() > 0.1
    A = sum(matrix.to_dense() for matrix in B) / 3 + sum(beta) / 3 / 1.7  # without a term in h the minimum itself
    assert after.global_weights.to_dense() == pytest.approx(A, abs=1e-5)


def test_a_site_that_did_not_contribute_keeps_its_weights_and_its_dual() -> None:
    plan = Plan(rounds=10)
    before = a_state(plan)
    after = advance(before, {"b": update("b", 2, 77)}, plan, EVERYTHING)
    assert after.contributed == {"b"}
    for site in ("a", "c"):
        assert after.sites[site].local_weights == before.sites[site].local_weights
        assert after.sites[site].consensus_dual == before.sites[site].consensus_dual
    assert after.sites["b"].local_weights != before.sites["b"].local_weights
    assert after.sites["b"].consensus_dual != before.sites["b"].consensus_dual


def test_the_state_before_a_round_is_left_as_it_was() -> None:
    plan = Plan(rounds=10)
    before, twin = a_state(plan), a_state(plan)
    advance(before, {"a": update("a", 2, 5)}, plan, EVERYTHING)
    assert before.round == 1
    assert before.global_weights == twin.global_weights
    assert before.sites == twin.sites
    with pytest.raises(FrozenInstanceError):
        before.round = 2  # type: ignore[misc]


def test_the_same_updates_give_the_same_bits_in_whatever_order_they_came() -> None:
    plan = Plan(rounds=10)
    before = a_state(plan)
    updates = {site: update(site, 2, 10 + k) for k, site in enumerate(SITES)}
    one = advance(before, updates, plan, EVERYTHING)
    other = advance(before, dict(reversed(updates.items())), plan, EVERYTHING)
    assert one.global_weights == other.global_weights
    assert one.sites == other.sites


def test_alpha_grows_by_the_weight_times_h() -> None:
    plan = Plan(
        rounds=10,
        acyclicity_schedule="augmented",
        acyclicity_penalty=0.5,
        acyclicity_growth=2.0,
    )
    first = a_state(plan)
    second = advance(first, {site: update(site, 2, 10 + k) for k, site in enumerate(SITES)}, plan, EVERYTHING)
    assert first.acyclicity > 1e-3
    assert first.acyclicity_dual == pytest.approx(0.5 * literal_acyclicity(first.global_weights.to_dense()))
    gain = 1.0 * literal_acyclicity(second.global_weights.to_dense())
    assert second.acyclicity_dual == pytest.approx(first.acyclicity_dual + gain)
    assert gain > 1e-3


def test_alpha_stays_zero_in_the_continuation() -> None:
    assert a_state(Plan(rounds=10)).acyclicity_dual == 0.0
    assert a_state(Plan(rounds=10)).acyclicity > 0.0


def test_a_forbidden_edge_never_enters_the_consensus() -> None:
    mask = EdgeMask(Knowledge(forbidden=(("v", "w"),)), VARIABLES)
    state = advance(
        initial_state(D, SITES), {site: update(site, 1, k) for k, site in enumerate(SITES)}, Plan(rounds=10), mask
    )
    assert state.global_weights.to_dense()[0, 1] == 0.0
    assert state.sites["a"].local_weights.to_dense()[0, 1] != 0.0


@pytest.mark.parametrize("value_type", ["float64", "float32"])
def test_a_refit_round_averages_weights_and_variances_of_those_who_answered(value_type: str) -> None:
    plan = Plan(rounds=1, value_type=value_type)  # type: ignore[arg-type]
    before = a_state(plan)
    index = np.array([1, 2, 7])
    answers = {
        "a": LocalUpdate(
            "a",
            2,
            refit_rounds.Answer(SparseMatrix(D, index, np.array([1.0, 0.0, -2.0])), np.array([1.0, 2.0, 3.0, 4.0])),
        ),
        "c": LocalUpdate(
            "c",
            2,
            refit_rounds.Answer(SparseMatrix(D, index, np.array([1.2, 0.0, -1.0])), np.array([2.0, 2.0, 5.0, 0.0])),
        ),
    }
    asked = refit_rounds.Task(SparseMatrix(D, index, np.ones(3)))
    after = round_loop.advance(before, answers, asked, Run(plan, EVERYTHING, {}))
    assert after.refitted is not None
    assert after.refitted.index.tolist() == [1, 2, 7]  # a zero stays on the support
    expected = [1.1, 0.0, -1.5]
    if value_type == "float32":
        expected = [float(np.float32(value)) for value in expected]
    assert after.refitted.value.tolist() == expected
    assert after.residual_variance.tolist() == [1.5, 2.0, 4.0, 2.0]
    assert after.round == 2
    assert after.contributed == {"a", "c"}
    assert after.global_weights == before.global_weights
    assert after.sites == before.sites


# ---- both sides together -------------------------------------------------------------------------------------------


def tables(n: int = 60) -> dict[str, Dataset]:
    rng = np.random.default_rng(8)
    mixing = np.eye(D) + np.triu(rng.standard_normal((D, D)), k=1)
    return {site: Dataset(VARIABLES, rng.standard_normal((n, D)) @ mixing) for site in SITES}


def plan_of(**settings: object) -> Plan:
    return Plan.parse({"rounds": 8, "l1_weight": 0.05, "consensus_penalty": 1.7, "local_tol": 1e-6, **settings})


VARIANTS = pytest.mark.parametrize(
    "settings",
    [
        {},
        {"value_type": "float32"},
        {"acyclicity_schedule": "augmented"},
        {"step_size": 0.7, "local_steps": 9},
        {"knowledge": {"required": [["v", "w"]], "forbidden": [["x", "v"]]}},
        {"local_solver": "closed-form", "knowledge": {"forbidden": [["x", "v"]]}},
        {"local_solver": "closed-form", "value_type": "float32"},
        {"send_tolerance": 0.02},
        {"send_tolerance": 0.02, "value_type": "float32"},
        {"send_tolerance": 0.02, "send_step": 0.0078125},
    ],
    ids=[
        "default",
        "float32",
        "augmented",
        "few short steps",
        "knowledge",
        "closed-form",
        "closed-form float32",
        "changes",
        "float32 changes",
        "rounded changes",
    ],
)


def task_for(state: AdmmState, site: str) -> RoundTask:
    return RoundTask(state.round + 1, admm_rounds.Task(state.message), site in state.contributed)


def answers(state: AdmmState, participants: Mapping[str, Participant]) -> dict[str, LocalUpdate]:
    return {site: participants[site].handle(task_for(state, site)) for site in SITES}


def assert_duals_agree(state: AdmmState, participants: Mapping[str, Participant]) -> None:
    """After a participant has seen W of the last round, its beta is the coordinator's, bit for bit."""
    for site in SITES:
        assert participants[site]._rounds["admm"]._beta == state.sites[site].consensus_dual


def recruit(plan: Plan, data: Mapping[str, Dataset]) -> dict[str, Participant]:
    return {site: Participant(site, data[site], plan) for site in SITES}


@VARIANTS
def test_the_duals_of_both_sides_are_the_same_bits(settings: dict[str, object]) -> None:
    plan = plan_of(**settings)
    mask = EdgeMask(plan.knowledge, VARIABLES)
    participants = recruit(plan, tables())
    state = initial_state(D, SITES, sends_changes=plan.sends_changes)
    for _ in range(plan.rounds):
        updates = answers(state, participants)
        assert_duals_agree(state, participants)
        state = advance(state, updates, plan, mask)
    assert all(state.sites[site].consensus_dual.nnz > 3 for site in SITES)
    assert state.round == plan.rounds


@VARIANTS
def test_the_duals_stay_the_same_bits_when_a_round_closes_without_some_sites(settings: dict[str, object]) -> None:
    plan = plan_of(**settings)
    mask = EdgeMask(plan.knowledge, VARIABLES)
    participants = recruit(plan, tables())
    late = {1: {"a"}, 3: {"b", "c"}, 4: {"b"}, 6: {"a", "b"}}
    state = initial_state(D, SITES, sends_changes=plan.sends_changes)
    for t in range(1, plan.rounds):
        updates = answers(state, participants)
        assert_duals_agree(state, participants)
        in_time = {site: sent for site, sent in updates.items() if site not in late.get(t, set())}
        state = advance(state, in_time, plan, mask)
    answers(state, participants)
    assert_duals_agree(state, participants)


@VARIANTS
@pytest.mark.parametrize("restart_in", [1, 2, 5])
def test_a_restored_participant_answers_with_the_same_bits(settings: dict[str, object], restart_in: int) -> None:
    plan = plan_of(**settings)
    mask = EdgeMask(plan.knowledge, VARIABLES)
    data = tables()
    participants = recruit(plan, data)
    state = initial_state(D, SITES, sends_changes=plan.sends_changes)
    for t in range(1, plan.rounds + 1):
        if t >= restart_in:
            restored = {site: Participant(site, data[site], plan, state.sites[site]) for site in SITES}
            expected, got = answers(state, participants), answers(state, restored)
            assert all(got[site] == expected[site] for site in SITES)
            if t == restart_in:
                participants = {**participants, "b": restored["b"]}
        state = advance(state, answers(state, participants), plan, mask)


@pytest.mark.parametrize("value_type", ["float64", "float32"])
def test_only_what_moved_is_sent_and_the_algorithm_goes_on_from_it(value_type: str) -> None:
    plan = plan_of(send_tolerance=0.02, value_type=value_type, rounds=60)
    participants = recruit(plan, tables())
    state = initial_state(D, SITES, sends_changes=True)
    sent_up = sent_down = 0
    for _ in range(plan.rounds):
        updates = answers(state, participants)
        after = advance(state, updates, plan, EVERYTHING)
        for site in SITES:
            before, message, now = (
                m.to_dense()
                for m in (
                    state.sites[site].local_weights,
                    updates[site].content.weights,
                    after.sites[site].local_weights,
                )
            )
            told = updates[site].content.weights.support()
            assert (now == np.where(told, message, before)).all()
            assert (np.abs(now - before)[told] > 0.02).all()
            sent_up += told.sum()
        W_before, W = state.global_weights.to_dense(), after.global_weights.to_dense()
        moved = W_before != W
        assert (np.abs(W - W_before)[moved] > 0.02).all()
        assert (after.message.support() == moved).all()
        sent_down += moved.sum()
        state = after
    assert 0 < sent_up < plan.rounds * sum(state.sites[site].local_weights.nnz for site in SITES) / 2
    assert 0 < sent_down < plan.rounds * state.global_weights.nnz


def test_a_participant_solves_its_local_problem_as_the_plan_says() -> None:
    plan = plan_of(step_size=0.6, l1_weight=0.2, local_steps=7, knowledge={"forbidden": [["v", "w"], ["y", "x"]]})
    data = tables()["a"]
    participant = Participant("a", data, plan)
    allowed = FREE.copy()
    allowed[0, 1] = allowed[3, 2] = False
    zero = np.zeros((D, D))
    first = participant.handle(RoundTask(1, admm_rounds.Task(SparseMatrix.zeros(D)), contributed=False))
    B, steps = literal_pgcd(data.X, zero, zero, zero, 0.2, 1.7, 0.6, 7, 1e-6, allowed)
    assert steps == 7
    assert first.content.weights.to_dense() == pytest.approx(B, abs=1e-12)
    W = np.where(allowed, random_weights(3), 0.0)
    second = participant.handle(RoundTask(2, admm_rounds.Task(SparseMatrix.from_dense(W)), contributed=True))
    B, _ = literal_pgcd(data.X, B, W, 1.7 * (B - W), 0.2, 1.7, 0.6, 7, 1e-6, allowed)
    assert second.content.weights.to_dense() == pytest.approx(B, abs=1e-12)


@pytest.mark.parametrize(("solver", "shrinks"), [("pgcd", False), ("closed-form", True)])
def test_the_l1_weight_is_on_w_only_where_the_local_solver_has_none(solver: str, *, shrinks: bool) -> None:
    plan = Plan(local_solver=solver, l1_weight=0.6, consensus_penalty=2.0, **NO_ACYCLICITY)
    B = random_weights(4) + np.eye(D)
    updates = {site: LocalUpdate(site, 1, admm_rounds.Answer(SparseMatrix.from_dense(B))) for site in SITES}
    state = advance(initial_state(D, SITES), updates, plan, EVERYTHING)
    W = np.where(FREE, B, 0.0)
    if shrinks:
        W = np.sign(W) * np.maximum(np.abs(W) - 0.6 / (3 * 2.0), 0.0)
    assert state.global_weights.to_dense() == pytest.approx(W, abs=1e-5)
    dual = state.sites["a"].consensus_dual.to_dense()
    assert dual == pytest.approx(2.0 * (B - W), abs=1e-4)
    assert dual.diagonal() == pytest.approx(2.0), "W has no diagonal to follow the one of B"


def test_a_participant_stops_at_the_plans_tolerance() -> None:
    data = tables()["a"]
    zero = np.zeros((D, D))
    plan = plan_of(local_tol=0.1)
    answer = Participant("a", data, plan).handle(
        RoundTask(1, admm_rounds.Task(SparseMatrix.zeros(D)), contributed=False)
    )
    B, steps = literal_pgcd(data.X, zero, zero, zero, 0.05, 1.7, 1.0, 10_000, 0.1, FREE)
    assert 0 < steps < 100
    assert answer.content.weights.to_dense() == pytest.approx(B, abs=1e-12)


def test_a_repeated_task_gets_the_same_answer_and_changes_nothing() -> None:
    plan = plan_of()
    participants, twins = recruit(plan, tables()), recruit(plan, tables())
    state = initial_state(D, SITES)
    for _ in range(4):
        updates = answers(state, participants)
        assert all(answers(state, participants)[site] is updates[site] for site in SITES)
        assert all(answers(state, twins)[site] == updates[site] for site in SITES)
        state = advance(state, updates, plan, EVERYTHING)


def test_a_task_of_an_earlier_round_is_refused() -> None:
    plan = plan_of()
    participant = recruit(plan, tables())["a"]
    zero = SparseMatrix.zeros(D)
    participant.handle(RoundTask(2, admm_rounds.Task(zero), contributed=False))
    with pytest.raises(StaleRoundError, match="round 1 came after the answer to round 2"):
        participant.handle(RoundTask(1, admm_rounds.Task(zero), contributed=False))


def test_the_answer_to_a_float32_plan_has_float32_values() -> None:
    participant = recruit(plan_of(value_type="float32"), tables())["a"]
    answer = participant.handle(RoundTask(1, admm_rounds.Task(SparseMatrix.zeros(D)), contributed=False))
    assert answer.content.weights.nnz > 3
    assert answer.content.weights == answer.content.weights.as_float32()


@pytest.mark.parametrize("value_type", ["float64", "float32"])
def test_a_refit_answers_with_least_squares_on_the_graph_that_was_sent(value_type: str) -> None:
    data = tables()["a"]
    participant = Participant("a", data, plan_of(value_type=value_type))
    graph = SparseMatrix(D, np.array([1, 2, 6]), np.array([0.5, 0.0, -1.0]))  # v -> w, v -> x, w -> x
    answer = participant.handle(RoundTask(9, refit_rounds.Task(graph), contributed=True))
    X = data.X
    w = np.linalg.lstsq(X[:, [0]], X[:, 1], rcond=None)[0]
    x = np.linalg.lstsq(X[:, [0, 1]], X[:, 2], rcond=None)[0]
    rounding = 1e-6 if value_type == "float32" else 1e-9
    assert (answer.site, answer.round) == ("a", 9)
    assert answer.content.weights.index.tolist() == [1, 2, 6]
    assert answer.content.weights.value == pytest.approx([w[0], x[0], x[1]], rel=rounding)
    residuals = [X[:, 0], X[:, 1] - X[:, [0]] @ w, X[:, 2] - X[:, [0, 1]] @ x, X[:, 3]]
    assert answer.content.residual_variance == pytest.approx([np.mean(r**2) for r in residuals], rel=1e-9)


def test_a_refit_answers_on_the_whole_graph_even_where_a_weight_is_zero() -> None:
    data = tables()["a"]
    data.X[:, 0] = 0.0
    graph = SparseMatrix(D, np.array([1, 6]), np.array([0.5, -1.0]))  # v -> w with a weight of zero, w -> x
    answer = Participant("a", data, plan_of()).handle(RoundTask(9, refit_rounds.Task(graph), contributed=True))
    assert answer.content.weights.index.tolist() == [1, 6]
    assert answer.content.weights.value[0] == 0.0


def test_a_snapshot_is_taken_over_as_it_is() -> None:
    B, beta = SparseMatrix.from_dense(random_weights(1)), SparseMatrix.from_dense(random_weights(2))
    participant = Participant("a", tables()["a"], plan_of(local_steps=1), SiteState(B, beta))
    answer = participant.handle(RoundTask(5, admm_rounds.Task(SparseMatrix.zeros(D)), contributed=True))
    assert (answer.content.weights.to_dense() != B.to_dense()).sum() == 1  # one step from B, not from zero
    assert participant._rounds["admm"]._beta == beta  # advanced already by the coordinator


def test_nothing_of_a_site_that_was_taken_out_is_left_for_curves() -> None:
    squares = {site: SquaredResiduals(np.eye(2), np.ones((2, 2))) for site in ("x", "y")}
    state = replace(initial_state(2, ["x", "y"]), squares=squares)
    assert list(without(state, ["y"]).squares) == ["x"]
