"""What a round's answers are taken to say about the sites' tables."""

from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.protocol.messages import Content, LocalUpdate
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import residual_moments, scales
from fedbnsl_server.results.data_quality import QualityWarning, quality_warnings
from fedbnsl_server.rounds.kinds import Run
from private_site import NAMES, private_plan

D = len(NAMES)
PLAN = private_plan(moments_rounds=2)
ONE_EDGE = np.zeros((D, D))
ONE_EDGE[0, 1] = 1.0


def found(W: Matrix) -> tuple[QualityWarning, ...]:
    """Two sites whose records, in units of the scales, all point in one direction, as far as any record may."""
    task = residual_moments.Task(SparseMatrix.from_dense(W), np.ones(D))
    run = Run(PLAN, EdgeMask(Knowledge(), NAMES), {"north": 10**6, "south": 10**6})
    moments = np.full((D, D), run.privacy.residual_norm_bound(D) ** 2 / D)
    answer = residual_moments.Answer(moments[np.triu_indices(D)], task.digest)
    return quality_warnings(task, {site: LocalUpdate(site, 1, answer) for site in run.n_samples}, run)


def found_of_three(told: dict[str, Any], task: Content, consensus: str) -> tuple[QualityWarning, ...]:
    plan = PLAN.with_settings(consensus=consensus, n_participants=3)
    run = Run(plan, EdgeMask(Knowledge(), NAMES), dict.fromkeys(told, 10**6))
    return quality_warnings(task, {site: LocalUpdate(site, 1, answer) for site, answer in told.items()}, run)


@pytest.mark.parametrize("usual_is_odd", [True, False])
@pytest.mark.parametrize("kind", ["scales", "moments"])
def test_under_a_robust_plan_one_site_neither_makes_nor_hides_a_finding_about_all(
    kind: str, usual_is_odd: bool
) -> None:
    run = Run(PLAN, EdgeMask(Knowledge(), NAMES), {})
    task: Content
    if kind == "scales":
        task, odd, plain = scales.Task(), 0.9 * run.feature_bounds, 0.1 * run.feature_bounds
        answers = {name: scales.Answer(value) for name, value in by_name(odd, plain, usual_is_odd).items()}
        finding = QualityWarning("near_bounds", tuple(range(D)))
    else:
        task = moments_task = residual_moments.Task(SparseMatrix.zeros(D), np.ones(D))
        upper = np.triu_indices(D)
        odd, plain = np.full((D, D), run.privacy.residual_norm_bound(D) ** 2 / D)[upper], 0.1 * np.eye(D)[upper]
        answers = {
            name: residual_moments.Answer(value, moments_task.digest)
            for name, value in by_name(odd, plain, usual_is_odd).items()
        }
        finding = QualityWarning("in_one_direction")
    assert found_of_three(answers, task, "median") == ((finding,) if usual_is_odd else ())
    assert found_of_three(answers, task, "mean") == (() if usual_is_odd else (finding,)), "a mean goes with one site"


def by_name(odd: Matrix, plain: Matrix, usual_is_odd: bool) -> dict[str, Matrix]:
    """Two sites that are odd and one that denies it, or two that are not and one that lies far off."""
    usual, wrong = (odd, -5.0 * odd) if usual_is_odd else (plain, 10.0 * odd)
    return {"east": usual, "north": wrong, "south": usual}


def test_moments_of_the_variables_tell_of_their_means_and_moments_of_residuals_do_not() -> None:
    assert found(np.zeros((D, D))) == (QualityWarning("in_one_direction"),)
    assert found(ONE_EDGE) == ()
