"""What each kind of round gives to compare: a site that claims few rows is named all the same."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LocalUpdate, SiteState
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import moments, refit, residual_moments, scales, statistics
from fedbnsl_client.data.outlying import tails
from fedbnsl_server.algorithm.admm import initial_state
from fedbnsl_server.algorithm.influence import LIMIT, influences
from fedbnsl_server.results.data_quality import quality_warnings
from fedbnsl_server.rounds import admm as admm_round
from fedbnsl_server.rounds import moments as moments_round
from fedbnsl_server.rounds import refit as refit_round
from fedbnsl_server.rounds import residual_moments as residual_moments_round
from fedbnsl_server.rounds import scales as scales_round
from fedbnsl_server.rounds import statistics as statistics_round
from fedbnsl_server.rounds.kinds import Run

D = 8
VARIABLES = [f"x{k}" for k in range(D)]
SITES = ("a", "b", "c", "liar")
PLAN = Plan().with_settings(n_participants=4)
PRIVATE = PLAN.with_settings(
    local_solver="dp-pgcd",
    local_steps=4,
    refit_rounds=0,
    moments_rounds=2,
    privacy={"epsilon": 4.0, "delta": 1e-6, "feature_bounds": [100.0]},
)


def run_of(plan: Plan, claimed: int) -> Run:
    return Run(plan, EdgeMask(Knowledge(), VARIABLES), {"a": 1000, "b": 1000, "c": 1000, "liar": claimed})


def ratios(module: Any, run: Run, answers: Mapping[str, Any], task: Any = None, **state: Any) -> list[float]:
    after = replace(initial_state(D, SITES), **state)
    return [one.ratio for one in influences(module.compared(after, answers, task, run))]


def named(found: list[float]) -> list[str]:
    return [site for site, ratio in zip(SITES, found, strict=True) if ratio > LIMIT]


def weights(std: float, shift: float) -> list[Matrix]:
    """(d, d) strictly upper triangular, one a site; the last one is wrong."""
    rng = np.random.default_rng(3)
    drawn = [np.triu(std * rng.standard_normal((D, D)) + 1.0, 1) for _ in SITES]
    drawn[-1] += np.triu(np.full((D, D), shift), 1)
    return drawn


@pytest.mark.parametrize("claimed", [1, 10, 1000])
@pytest.mark.parametrize(("plan", "std", "shift"), [(PLAN, 0.03, 1.2), (PRIVATE, 0.3, 18.0)])
def test_weights_of_an_admm_round(plan: Plan, std: float, shift: float, claimed: int) -> None:
    sent = [SparseMatrix.from_dense(B) for B in weights(std, shift)]
    zero = SparseMatrix.zeros(D)
    sites = {site: SiteState(B, zero, None) for site, B in zip(SITES, sent, strict=True)}
    assert named(ratios(admm_round, run_of(plan, claimed), dict.fromkeys(SITES), sites=sites)) == ["liar"]


def test_a_site_cannot_hide_among_entries_that_nobody_else_has() -> None:
    """As zeros, they are no distance from the others', and a mean over them would make the real one small."""
    drawn = [np.triu(B, 1)[:, :3] for B in weights(0.03, 1.2)]
    dense = [np.hstack([B, np.zeros((D, D - 3))]) for B in drawn]
    everywhere = ~np.eye(D, dtype=bool)
    sent = [SparseMatrix.from_dense(B) for B in dense[:-1]]
    honest_places = [*sent, SparseMatrix.from_dense(dense[-1])]
    stored_zeros = [*sent, SparseMatrix.on_support(dense[-1], everywhere)]
    zero = SparseMatrix.zeros(D)
    found = [
        ratios(
            admm_round,
            run_of(PLAN, 1000),
            dict.fromkeys(SITES),
            sites={site: SiteState(B, zero, None) for site, B in zip(SITES, matrices, strict=True)},
        )[-1]
        for matrices in (honest_places, stored_zeros)
    ]
    assert found[1] == pytest.approx(found[0])
    assert found[0] > LIMIT


@pytest.mark.parametrize("claimed", [1, 10, 1000])
@pytest.mark.parametrize("what", ["weights", "variances"])
def test_weights_and_variances_of_a_refit(what: str, claimed: int) -> None:
    factor = [1.0, 1.0, 1.0, 4.0 if what == "variances" else 1.0]
    sent = [SparseMatrix.from_dense(B) for B in weights(0.03, 1.2 if what == "weights" else 0.0)]
    answers = {site: refit.Answer(B, np.full(D, by)) for site, B, by in zip(SITES, sent, factor, strict=True)}
    found = ratios(refit_round, run_of(PLAN, claimed), answers, refit.Task(sent[0]))
    assert named(found) == ["liar"]


@pytest.mark.parametrize("claimed", [1, 10, 1000])
def test_moments(claimed: int) -> None:
    task = moments.Task(SparseMatrix.from_dense(np.triu(np.ones((D, D)), 1)))
    S = np.eye(D)[np.triu_indices(D)]
    wrong = np.where(S == 1.0, 1.0, 0.9)
    answers = {site: moments.Answer(wrong if site == "liar" else S) for site in SITES}
    assert named(ratios(moments_round, run_of(PLAN, claimed), answers, task)) == ["liar"]


def heavy(X: Matrix) -> None:
    """One value that carries nearly all of the column's variance."""
    X[0, 1] = 400.0


def in_another_unit(X: Matrix) -> None:
    X[:, 1] *= 10.0


def with_a_code(X: Matrix) -> None:
    """In one of ten rows."""
    X[::10, 1] = 99.0


def shared(X: Matrix) -> None:
    """Something that all columns have in common."""
    X += X[:, :1]


def tables_with(wrong: Callable[[Matrix], None]) -> dict[str, Matrix]:
    """Of normal columns, that of the last site changed."""
    rng = np.random.default_rng(5)
    tables = {site: rng.standard_normal((1000, D)) for site in SITES}
    wrong(tables["liar"])
    return tables


@pytest.mark.parametrize(("wrong", "expected"), [(heavy, []), (in_another_unit, ["liar"]), (with_a_code, ["liar"])])
def test_a_variance_that_a_few_values_make_names_nobody(wrong: Callable[[Matrix], None], expected: list[str]) -> None:
    answers: dict[str, statistics.Answer] = {}
    for site, X in tables_with(wrong).items():
        spreads, far = tails(X, np.ones(D, dtype=bool))
        answers[site] = statistics.Answer(np.empty(0), X.var(axis=0), 1000.0, spreads=spreads, far=far)
    run = run_of(Plan.load("standard"), 1000)
    assert named(ratios(statistics_round, run, answers)) == expected
    told = quality_warnings(statistics.Task(), {s: LocalUpdate(s, 1, a) for s, a in answers.items()}, run)
    assert [(one.code, one.site, one.variables) for one in told] == [("other_spread", site, (1,)) for site in expected]
    without = {
        site: replace(one, spreads=np.empty(0), far=np.empty((0, 3), dtype=int)) for site, one in answers.items()
    }
    assert named(ratios(statistics_round, run, without)) == ["liar"], "where no site tells spreads"


def test_moments_that_one_row_makes_name_nobody_and_pairs_that_differ_do() -> None:
    task = moments.Task(SparseMatrix.from_dense(np.triu(np.ones((D, D)), 1)))

    def sent(wrong: Callable[[Matrix], None]) -> dict[str, moments.Answer]:
        return {site: moments.Answer((X.T @ X / 1000)[np.triu_indices(D)]) for site, X in tables_with(wrong).items()}

    standard = Plan.load("standard")
    for wrong, expected in ((heavy, []), (shared, ["liar"])):
        assert named(ratios(moments_round, run_of(standard, 1000), sent(wrong), task)) == expected
    scaled = sent(in_another_unit)
    assert named(ratios(moments_round, run_of(PLAN, 1000), scaled, task)) == ["liar"], "no statistics have told it"
    robust = run_of(standard.with_settings(consensus="trimmed-mean"), 1000)
    assert moments_round.left_out(initial_state(D, SITES), scaled, task, robust) == ("liar",)


def test_released_mean_squares_have_no_wider_noise_than_with_a_hundredth_of_the_rows() -> None:
    answers = {site: scales.Answer(np.full(D, 1e5 if site == "liar" else 1.0)) for site in SITES}
    few, fewer = (ratios(scales_round, run_of(PRIVATE, n), answers)[-1] for n in (10, 1))
    assert few > LIMIT
    assert fewer == pytest.approx(few, rel=0.1)


def test_released_moments_have_no_wider_noise_than_with_a_hundredth_of_the_rows() -> None:
    size = D * (D + 1) // 2
    answers = {site: residual_moments.Answer(np.full(size, 1e5 if site == "liar" else 1.0), b"") for site in SITES}
    task = residual_moments.Task(SparseMatrix.zeros(D), np.ones(D))
    few, fewer = (ratios(residual_moments_round, run_of(PRIVATE, n), answers, task)[-1] for n in (10, 1))
    assert few > LIMIT
    assert fewer == pytest.approx(few, rel=0.1)
