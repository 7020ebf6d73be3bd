"""What a round's answers are taken to say about the sites' tables."""

import numpy as np

from fedbnsl.messages import LocalUpdate
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.rounds import residual_moments
from fedbnsl.sparse import Matrix, SparseMatrix
from fedbnsl_server.findings import Finding, findings_of
from fedbnsl_server.rounds.kinds import Run
from private_site import NAMES, private_plan

D = len(NAMES)
PLAN = private_plan(moments_rounds=2)
ONE_EDGE = np.zeros((D, D))
ONE_EDGE[0, 1] = 1.0


def found(W: Matrix) -> tuple[Finding, ...]:
    """Two sites whose records, in units of the scales, all point in one direction, as far as any record may."""
    task = residual_moments.Task(SparseMatrix.from_dense(W), np.ones(D))
    run = Run(PLAN, EdgeMask(Knowledge(), NAMES), {"north": 10**6, "south": 10**6})
    moments = np.full((D, D), run.privacy.residual_norm_bound(D) ** 2 / D)
    answer = residual_moments.Answer(moments[np.triu_indices(D)], task.digest)
    return findings_of(task, {site: LocalUpdate(site, 1, answer) for site in run.n_samples}, run)


def test_moments_of_the_variables_tell_of_their_means_and_moments_of_residuals_do_not() -> None:
    assert found(np.zeros((D, D))) == (Finding("in_one_direction"),)
    assert found(ONE_EDGE) == ()
