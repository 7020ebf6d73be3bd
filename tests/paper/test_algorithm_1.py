"""Algorithm 1 of the paper ("Algorithm Overview"), one test a line, beside plain numpy that shares nothing with it.

Three rounds of three participants over four variables. The oracles are slow and exact: the local problem is solved by
trying every pattern of signs, the global one by BFGS with numerical gradients on the sum as it stands in Eq. W.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.algorithm.admm import initial_state
from fedbnsl_server.run import round_loop

D = 4
VARIABLES = ("a", "b", "c", "d")
SITES = ("p1", "p2", "p3")
LAM, RHO_1, RHO_2 = 0.3, 100.0, 1.5
PLAN = Plan(
    global_gain=0.0,
    n_participants=3,
    rounds=3,
    refit_rounds=0,
    l1_weight=LAM,
    consensus_penalty=RHO_2,
    acyclicity_schedule="augmented",
    acyclicity_penalty=RHO_1,
    acyclicity_growth=1.0,
    local_tol=1e-13,
    global_iterations=10_000,
)


def draw(seed, n):
    """Rows of the chain a -> b -> c, whose links explain each other both ways, and of d, which has no part in it."""
    rng = np.random.default_rng(seed)
    a, b, c, d = rng.standard_normal((4, n))
    b = 1.2 * a + b
    c = -0.9 * b + c
    return np.column_stack([a, b, c, d])


TABLES = {site: draw(seed, n) for site, seed, n in zip(SITES, (1, 2, 3), (40, 60, 50), strict=True)}


# ---- oracles ---------------------------------------------------------------------------------------------------


def exact_local(X, W, beta):
    """Eq. Bp: argmin L(B; X) + lam |B|_1 + tr(beta (B - W)') + rho_2/2 |B - W|^2 over B without diagonal.

    The columns are independent of each other, and once the sign of every entry is known a column's minimum solves a
    linear system: all 3^(d-1) patterns of signs are tried, and the best of those that keep their promise is taken.
    """
    n = len(X)
    B = np.zeros((D, D))
    for j in range(D):
        others = [i for i in range(D) if i != j]
        best = np.inf
        for signs in product((-1, 0, 1), repeat=D - 1):
            s = np.zeros(D)
            s[others] = signs
            A = np.flatnonzero(s)
            b = np.zeros(D)
            left = X[:, A].T @ X[:, A] / n + RHO_2 * np.eye(len(A))
            b[A] = np.linalg.solve(left, X[:, A].T @ X[:, j] / n + RHO_2 * W[A, j] - beta[A, j] - LAM * s[A])
            if (np.sign(b) != s).any():
                continue
            gap = b - W[:, j]
            value = np.sum((X[:, j] - X @ b) ** 2) / (2 * n) + LAM * np.sum(np.abs(b))
            value += beta[:, j] @ gap + RHO_2 / 2 * gap @ gap
            if value < best:
                best, B[:, j] = value, b
    return B


def h(W):
    """tr(exp(W o W)) - d by the power series."""
    total, term = 0.0, np.eye(D)
    for k in range(1, 80):
        term = term @ (W * W) / k
        total += np.trace(term)
    return total


def global_objective(W, Bs, betas, alpha):
    """Eq. W, term by term."""
    value = alpha * h(W) + RHO_1 / 2 * h(W) ** 2
    for B, beta in zip(Bs, betas, strict=True):
        value += np.trace(beta @ (B - W).T) + RHO_2 / 2 * np.sum((B - W) ** 2)
    return value


def exact_global(Bs, betas, alpha, start):
    """Eq. W by BFGS over every off-diagonal entry, from `start`."""
    off_diagonal = ~np.eye(D, dtype=bool)

    def matrix(w):
        W = np.zeros((D, D))
        W[off_diagonal] = w
        return W

    found = minimize(
        lambda w: global_objective(matrix(w), Bs, betas, alpha),
        start[off_diagonal],
        method="BFGS",
        jac="3-point",
        options={"gtol": 1e-8, "maxiter": 10_000},
    )
    return matrix(found.x)


# ---- three rounds, as they happen -------------------------------------------------------------------------------


@dataclass
class Round:
    """What went down, what came up, and the coordinator's state after it."""

    tasks: dict
    updates: dict
    state: object = None

    def sent(self, site):
        return self.updates[site].content.weights.to_dense()

    @property
    def W(self):
        return self.state.global_weights.to_dense()


class Walk:
    """An Exchange that writes down everything in the order in which it happens."""

    def __init__(self, tables=TABLES, *, backwards=False, plan=PLAN):
        self.rounds = []
        self.order = []
        self._backwards = backwards
        self._participants = {site: Participant(site, Dataset(VARIABLES, X), plan) for site, X in tables.items()}
        self.final = round_loop.run(plan, VARIABLES, dict.fromkeys(SITES, 100), self, on_round=self._after_round)

    def exchange(self, tasks, snapshots, check):
        updates = {}
        for site in sorted(tasks, reverse=self._backwards):
            self.order.append(site)
            updates[site] = self._participants[site].handle(tasks[site])
        self.rounds.append(Round(dict(tasks), updates))
        return updates

    def _after_round(self, state, record):
        self.order.append("server")
        self.rounds[-1].state = state

    def duals_before(self, t):
        """beta_p and alpha at the start of round t (from 0), by Eq. beta and Eq. alpha on all rounds before."""
        betas = {site: np.zeros((D, D)) for site in SITES}
        alpha = 0.0
        for earlier in self.rounds[:t]:
            for site in SITES:
                betas[site] = betas[site] + RHO_2 * (earlier.sent(site) - earlier.W)
            alpha = alpha + RHO_1 * h(earlier.W)
        return betas, alpha

    def W_before(self, t):
        return self.rounds[t - 1].W if t else np.zeros((D, D))


@pytest.fixture(scope="module")
def walk():
    return Walk()


def test_line_1_everything_starts_at_zero(walk):
    start = initial_state(D, SITES)
    assert start.global_weights.to_dense().tolist() == np.zeros((D, D)).tolist()
    assert start.acyclicity_dual == 0
    assert list(start.sites) == list(SITES)
    for site in start.sites.values():
        assert not site.local_weights.to_dense().any()
        assert not site.consensus_dual.to_dense().any()
    for task in walk.rounds[0].tasks.values():
        assert not task.content.weights.to_dense().any()


@pytest.mark.parametrize("T", [1, 2, 5])
def test_line_2_there_are_t_rounds_numbered_from_one(T):
    walked = Walk(plan=PLAN.with_settings(rounds=T))
    assert [task.round for each in walked.rounds for task in each.tasks.values()] == [
        t for t in range(1, T + 1) for _ in SITES
    ]
    assert all(task.content.kind == "admm" for each in walked.rounds for task in each.tasks.values())
    assert walked.final.round == T
    assert walked.final is walked.rounds[-1].state


def test_line_3_each_participant_works_in_every_round_and_by_itself(walk):
    assert all(set(each.tasks) == set(each.updates) == set(SITES) for each in walk.rounds)
    # In parallel: whoever is asked first, the numbers are the same.
    backwards = Walk(backwards=True)
    for here, there in zip(walk.rounds, backwards.rounds, strict=True):
        for site in SITES:
            assert here.sent(site).tobytes() == there.sent(site).tobytes()
    # By itself: another table at p2 changes nothing at the others before W has come round.
    other = Walk({**TABLES, "p2": draw(9, 60)})
    for site in SITES:
        assert (other.rounds[0].sent(site).tobytes() == walk.rounds[0].sent(site).tobytes()) == (site != "p2")
        assert other.rounds[1].sent(site).tobytes() != walk.rounds[1].sent(site).tobytes()


@pytest.mark.parametrize("t", range(3))
@pytest.mark.parametrize("site", SITES)
def test_line_4_a_participant_solves_equation_bp(t, site, walk):
    betas, _ = walk.duals_before(t)
    exact = exact_local(TABLES[site], walk.W_before(t), betas[site])
    assert walk.rounds[t].sent(site) == pytest.approx(exact, abs=1e-9)
    assert np.abs(exact).max() > 0.1


@pytest.mark.parametrize("step_size", [0.3, 1.0])
def test_line_4_holds_for_every_step_size(step_size):
    walked = Walk(plan=PLAN.with_settings(step_size=step_size, rounds=1))
    for site in SITES:
        exact = exact_local(TABLES[site], np.zeros((D, D)), np.zeros((D, D)))
        assert walked.rounds[0].sent(site) == pytest.approx(exact, abs=1e-9)


def test_line_5_only_the_entries_that_are_not_zero_are_sent(walk):
    n_zeros = 0
    for t, each in enumerate(walk.rounds):
        betas, _ = walk.duals_before(t)
        for site in SITES:
            exact = exact_local(TABLES[site], walk.W_before(t), betas[site])
            sent = each.updates[site].content.weights
            named = {(int(k) // D, int(k) % D) for k in sent.index}
            assert named == {(i, j) for i in range(D) for j in range(D) if exact[i, j] != 0}
            assert sent.value.all()
            assert all(i != j for i, j in named)
            n_zeros += D * (D - 1) - len(named)
    assert n_zeros > 0, "the L1 term leaves some entries out"


def test_line_6_the_server_goes_on_when_every_participant_has_answered(walk):
    assert walk.order == [*SITES, "server"] * 3


@pytest.mark.parametrize("t", range(3))
def test_line_7_the_server_solves_equation_w(t, walk):
    betas, alpha = walk.duals_before(t)
    Bs = [walk.rounds[t].sent(site) for site in SITES]
    duals = [betas[site] for site in SITES]
    W, exact = walk.rounds[t].W, exact_global(Bs, duals, alpha, walk.W_before(t))
    assert pytest.approx(exact, abs=2e-5) == W
    assert global_objective(W, Bs, duals, alpha) < global_objective(exact, Bs, duals, alpha) + 1e-8
    # Neither the mean of the B_p nor the start would have passed for it.
    assert np.abs(np.mean(Bs, axis=0) - exact).max() > 0.01
    assert np.abs(walk.W_before(t) - exact).max() > 0.01


def test_line_7_an_entry_that_is_zero_at_every_participant_stays_zero(walk):
    quiet = np.ones((D, D), dtype=bool)
    for each in walk.rounds:
        for site in SITES:
            quiet &= each.sent(site) == 0
        assert not each.W[quiet].any()
    assert (quiet & ~np.eye(D, dtype=bool)).any()


@pytest.mark.parametrize("t", range(3))
def test_line_8_both_dual_variables_move_by_what_is_left_of_their_constraint(t, walk):
    betas, alpha = walk.duals_before(t)
    each = walk.rounds[t]
    assert h(each.W) > 1e-6
    assert each.state.acyclicity_dual == pytest.approx(alpha + RHO_1 * h(each.W), rel=1e-9)
    for site in SITES:
        beta = betas[site] + RHO_2 * (each.sent(site) - each.W)
        assert each.state.sites[site].consensus_dual.to_dense() == pytest.approx(beta, abs=1e-12)
        assert each.state.sites[site].local_weights.to_dense() == pytest.approx(each.sent(site), abs=0)
        assert np.abs(beta).max() > 0.01


def test_line_9_the_server_sends_the_same_sparse_w_to_every_participant(walk):
    for before, after in zip(walk.rounds, walk.rounds[1:], strict=False):
        dense = before.W
        for site in SITES:
            sent = after.tasks[site].content.weights
            assert {(int(k) // D, int(k) % D) for k in sent.index} == {(i, j) for i, j in np.argwhere(dense)}
            assert sent.to_dense().tobytes() == dense.tobytes()
            assert after.tasks[site].contributed
        assert 0 < np.count_nonzero(dense) < D * (D - 1)


def test_line_10_after_t_rounds_the_result_is_that_of_the_loop_written_down_by_hand(walk):
    # Line 1
    W, alpha = np.zeros((D, D)), 0.0
    betas = [np.zeros((D, D)) for _ in SITES]
    for t in range(3):  # line 2
        Bs = [exact_local(X, W, beta) for X, beta in zip(TABLES.values(), betas, strict=True)]  # lines 3 to 6
        W = exact_global(Bs, betas, alpha, W)  # line 7
        alpha += RHO_1 * h(W)  # line 8
        betas = [beta + RHO_2 * (B - W) for beta, B in zip(betas, Bs, strict=True)]
        assert pytest.approx(W, abs=1e-4) == walk.rounds[t].W
    assert walk.final.acyclicity_dual == pytest.approx(alpha, rel=1e-3)
    for site, beta in zip(SITES, betas, strict=True):
        assert walk.final.sites[site].consensus_dual.to_dense() == pytest.approx(beta, abs=1e-2)
