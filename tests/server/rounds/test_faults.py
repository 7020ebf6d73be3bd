"""What a coordinator refuses of an answer, so that no one site can make a run useless for the others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedbnsl.graphs.family_moments import needed_moments, parent_candidates
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.limits import LARGEST_VALUE, LEAST_SPREAD
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import admm, moments, refit
from fedbnsl.rounds.kinds import LARGEST, LARGEST_WEIGHT
from fedbnsl_server.algorithm.admm import initial_state
from fedbnsl_server.rounds import admm as admm_round
from fedbnsl_server.rounds import moments as moments_round
from fedbnsl_server.rounds import refit as refit_round
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.store.checkpoint import load, save

D, SITES = 3, ("a", "b", "c")
PLAN = Plan(rounds=2, refit_rounds=0, moments_rounds=1, value_type="float32")
RUN = Run(PLAN, EdgeMask(Knowledge(), ["x", "y", "z"]), dict.fromkeys(SITES, 100))
GRAPH = SparseMatrix(D, np.array([1, 5]), np.ones(2))


def test_products_between_rows_are_refused_where_none_were_asked_for_or_no_rows_can_have_them() -> None:
    described = Dictionary.model_validate({"p": {"kind": "group", "within": "rows"}, "x": {}, "y": {}, "z": {}})
    asked = replace(RUN, plan=Plan.load("standard").with_dictionary(described, origin="test"))
    task, plain = moments.Task(GRAPH), answer_of(np.eye(D))
    told = replace(plain, between=0.5 * plain.moments, n_row_pairs=900)
    assert not moments_round.fault(told, task, asked)
    assert "none were asked for" in moments_round.fault(told, task, RUN)
    assert "none were asked for" in moments_round.fault(replace(plain, n_row_pairs=1), task, RUN)
    assert "has 0 products between rows; 6 were" in moments_round.fault(plain, task, asked)
    assert "no rows have" in moments_round.fault(replace(told, between=np.full(6, 1e40)), task, asked)
    assert "no rows have" in moments_round.fault(replace(told, n_row_pairs=2**64 - 1), task, asked)


def test_products_between_rows_count_as_those_of_rows_that_are_all_alike_at_most() -> None:
    described = Dictionary.model_validate({"p": {"kind": "group", "within": "rows"}, "x": {}, "y": {}, "z": {}})
    run = replace(RUN, plan=Plan.load("standard").with_dictionary(described, origin="test"))
    task, plain = moments.Task(GRAPH), answer_of(np.eye(D))
    told = {site: replace(plain, between=0.0 * plain.moments, n_row_pairs=300) for site in SITES}
    told["c"] = replace(plain, between=1e9 * plain.moments, n_row_pairs=300)
    found = moments_round._dependent_rows(told, np.triu(np.ones((D, D), dtype=bool)), np.arange(D), run, None)
    assert not moments_round.fault(told["c"], task, run), "patients with more rows may have larger values"
    assert found["a"].between == pytest.approx(np.eye(D) / 3)


def test_means_are_refused_where_none_were_asked_for_or_no_column_can_have_them() -> None:
    plain, asked = moments.Answer(np.array([1.0, 0, 0, 1, 0, 1])), moments.Task(GRAPH, GRAPH)
    squared = replace(plain, squares=np.ones(6))
    tells = replace(RUN, plan=RUN.plan.with_settings(preparation={}, tell_means=True))
    assert moments_round.fault(replace(squared, means=np.zeros(3)), asked, tells) == ""
    assert moments_round.fault(squared, asked, tells) == "", "a site may withhold them"
    assert "has 2 means" in moments_round.fault(replace(squared, means=np.zeros(2)), asked, tells)
    assert "has 3 means" in moments_round.fault(replace(squared, means=np.zeros(3)), asked, RUN)
    assert "has 3 means" in moments_round.fault(replace(plain, means=np.zeros(3)), moments.Task(GRAPH), tells)
    assert "a mean beyond" in moments_round.fault(replace(squared, means=np.full(3, 1e300)), asked, tells)


def test_means_are_those_of_the_sites_that_tell_them() -> None:
    plain = moments.Answer(np.array([1.0, 0, 0, 1, 0, 1]))
    run = replace(RUN, plan=RUN.plan.with_settings(preparation={}), n_samples={"a": 100, "b": 100, "c": 300})
    state = initial_state(D, SITES)
    answers = {site: replace(plain, means=np.full(D, float(k))) for k, site in enumerate(SITES)}
    np.testing.assert_allclose(moments_round._means(state, answers, run), np.full(D, 0.2 + 0.6 * 2.0))
    answers["b"] = plain
    np.testing.assert_allclose(moments_round._means(state, answers, run), np.full(D, 0.75 * 2.0))
    assert moments_round._means(state, dict.fromkeys(SITES, plain), run).size == 0


def test_a_robust_plan_takes_the_median_of_the_means_that_sites_tell() -> None:
    plain = moments.Answer(np.array([1.0, 0, 0, 1, 0, 1]))
    run = replace(RUN, plan=RUN.plan.with_settings(preparation={}, consensus="median"))
    answers = {
        site: replace(plain, means=np.full(D, mean)) for site, mean in zip(SITES, (1.0, 2.0, 900.0), strict=True)
    }
    np.testing.assert_allclose(moments_round._means(initial_state(D, SITES), answers, run), np.full(D, 2.0))


def test_means_are_kept_in_a_checkpoint(tmp_path: Path) -> None:
    state = replace(initial_state(D, SITES), means=np.array([1.0, np.nan, 3.0]))
    save(tmp_path / "checkpoint.npz", state, plan_digest=b"plan")
    np.testing.assert_array_equal(load(tmp_path / "checkpoint.npz", plan_digest=b"plan").means, state.means)


def test_products_of_squares_are_refused_where_none_were_asked_for_or_no_rows_can_have_them() -> None:
    asked, plain = moments.Task(GRAPH, SparseMatrix.zeros(D)), answer_of(np.eye(D))
    told = replace(plain, squares=np.ones(6))
    assert not moments_round.fault(told, asked, RUN)
    assert not moments_round.fault(plain, moments.Task(GRAPH), RUN)
    assert "has 6 products of squares" in moments_round.fault(told, moments.Task(GRAPH), RUN)
    assert "has 0 products of squares" in moments_round.fault(plain, asked, RUN)
    for impossible in (-1e-9, 1.01 * PLAN.max_rows):
        assert "no rows have" in moments_round.fault(replace(plain, squares=np.full(6, impossible)), asked, RUN)


@pytest.mark.parametrize("value", [LARGEST_WEIGHT * 1.01, -1e160])
def test_a_weight_that_no_site_could_work_with_is_refused(value: float) -> None:
    """A site refuses a W beyond LARGEST, and leaves: one entry of one site would send all others home."""
    answer = admm.Answer(SparseMatrix(D, np.array([1]), np.array([value])))
    assert "beyond 1e+20" in admm_round.fault(answer, admm.Task(GRAPH), RUN)
    assert not admm_round.fault(admm.Answer(GRAPH), admm.Task(GRAPH), RUN)


STEPPING = Run(
    Plan(
        rounds=1,
        local_solver="dp-pgcd",
        local_steps=2,
        refit_rounds=0,
        final_search="steps",
        privacy=Privacy(epsilon=1.0, feature_bounds=(4.0,)),
    ),
    EdgeMask(Knowledge(forbidden=(("x", "z"),)), ["x", "y", "z"]),
    RUN.n_samples,
)


def stepping(*index: int, number: float = 1.0) -> admm.Answer:
    numbers = np.full(len(index), number)
    return admm.Answer(SparseMatrix.zeros(D), np.array(index, dtype=np.int64), numbers, np.abs(numbers), numbers)


def test_private_steps_that_were_not_asked_for_are_refused() -> None:
    task = admm.Task(GRAPH)
    assert not admm_round.fault(stepping(1, 5), task, STEPPING)
    assert "3 private steps, more than" in admm_round.fault(stepping(1, 5, 1), task, STEPPING)
    assert "1 private steps, more than" in admm_round.fault(stepping(1), task, RUN)
    assert "steps that the plan excludes" in admm_round.fault(stepping(2), task, STEPPING)
    assert "beyond 1e+20" in admm_round.fault(stepping(1, number=-1e21), task, STEPPING)


def test_steps_of_any_size_that_is_accepted_and_answers_without_any_end_no_run() -> None:
    task, state = admm.Task(GRAPH), initial_state(D, SITES)
    for number in (1e-20, 1.0, LARGEST_WEIGHT):
        answers = {"a": stepping(1, 5, number=number), "b": stepping(3, 5), "c": stepping()}
        assert not any(admm_round.fault(answer, task, STEPPING) for answer in answers.values())
        after = admm_round.advance(state, answers, task, STEPPING)
        assert after.refitted is not None
        assert np.isfinite(after.refitted.value).all()
    assert admm_round.advance(state, dict.fromkeys(SITES, stepping()), task, STEPPING).refitted is None


def test_a_refitted_weight_that_cannot_be_kept_is_refused() -> None:
    huge = refit.Answer(SparseMatrix(D, GRAPH.index, np.array([1.0, LARGEST * 1.01])), np.ones(D))
    assert "beyond 1e+30" in refit_round.fault(huge, refit.Task(GRAPH), RUN)
    assert not refit_round.fault(refit.Answer(GRAPH, np.ones(D)), refit.Task(GRAPH), RUN)


def answer_of(S: Matrix) -> moments.Answer:
    needed = needed_moments(parent_candidates(GRAPH.support(), RUN.mask))
    return moments.Answer(S[needed])


@pytest.mark.parametrize("square", [1e-90, 1.01e30, 0.0])
def test_moments_of_a_size_that_no_weight_could_be_told_in_are_refused(square: float) -> None:
    size = np.array([1.0, 1.0, np.sqrt(square)])
    assert "cannot be second moments" in moments_round.fault(
        answer_of(np.eye(D) * size * size[:, None]), moments.Task(GRAPH), RUN
    )


@pytest.mark.parametrize("size", [LARGEST_VALUE, LEAST_SPREAD])
def test_moments_of_columns_that_a_site_may_have_are_taken(size: float) -> None:
    sizes = np.array([1.0, 1.0, size])
    assert not moments_round.fault(answer_of(np.eye(D) * sizes * sizes[:, None]), moments.Task(GRAPH), RUN)


@pytest.mark.parametrize("beyond", [0.0, 1e-9, 9e-6])
def test_moments_that_are_exactly_singular_end_no_run(beyond: float) -> None:
    """Moments of 1 + 1e-9 cancel the search's ridge."""
    S = np.full((D, D), 1.0 + beyond)
    np.fill_diagonal(S, 1.0)
    answers = {"a": answer_of(S), "b": answer_of(np.eye(D) + 0.1), "c": answer_of(np.eye(D) + 0.1)}
    task = moments.Task(GRAPH)
    assert not any(moments_round.fault(answer, task, RUN) for answer in answers.values())
    after = moments_round.advance(initial_state(D, SITES), answers, task, RUN)
    assert after.refitted is not None
    assert np.isfinite(after.refitted.value).all()
