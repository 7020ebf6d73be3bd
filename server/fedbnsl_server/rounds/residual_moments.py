"""A private moments round at the coordinator: ask for noisy moments of residuals, and search the next DAG with them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.graphs.family_moments import symmetric
from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.rounds.kinds import LARGEST, stage
from fedbnsl.rounds.residual_moments import Answer, Task
from fedbnsl.sparse import SparseMatrix
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import graph_to_refit
from fedbnsl_server.algorithm.influence import Compared, counted_rows, pairs
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.search.pooled_moments import mean_square_noise, next_scales, pool, search_pooled
from fedbnsl_server.search.residual_variances import residual_variances


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """Ask for residuals under the last searched graph; in the first such round, under the graph of W."""
    weights = state.refitted or graph_to_refit(state, run.plan, run.mask).as_sparse()
    return state, Task(weights, state.scales)


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report a wrong number of moments, or moments of other residuals."""
    d = len(run.mask.allowed)
    if answer.moments.size != d * (d + 1) // 2:
        return f"has {answer.moments.size} moments; {d * (d + 1) // 2} were asked for"
    if (np.abs(answer.moments) > LARGEST).any():
        return f"has moments beyond {LARGEST:g}"
    same = answer.task_digest == task.digest
    return "" if same else "is a kept answer to moments of other residuals, which cannot be used"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """Search a DAG with the noisy moments, for the next round's residuals or as the answer of the run."""
    plan, weights, d = run.plan, task.weights.to_dense(), len(run.mask.allowed)
    rows, rule, prices = run.rows(answers), run.rule(answers), run.prices(answers).values()
    everything = np.triu(np.ones((d, d), dtype=bool))
    pooled = pool(
        [symmetric(answer.moments, everything) for answer in answers.values()],
        rows,
        [price.moments_variance for price in prices],
        W=weights,
        scales=task.scales,
        norm_bound=run.privacy.residual_norm_bound(d),
        rule=rule,
    )
    last = stage(plan, state.round + 1).step == plan.moments_rounds
    found = search_pooled(pooled, weights != 0, task.scales, run.mask, threshold=plan.threshold, keep_small=not last)
    kept = SparseMatrix.on_support(found.weights, found.dag)
    return replace(
        state,
        refitted=kept.as_float32() if plan.value_type == "float32" else kept,
        scales=next_scales(found.residual_variance),
        residual_variance=residual_variances(
            found.residual_variance,
            pooled,
            task.scales,
            mean_squares=state.mean_squares,
            bounds=run.feature_bounds,
            noise_std=mean_square_noise([price.setup_variance for price in prices], rows, rule),
        ),
    )


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Released moments, with the variance of sampling and of the noise: half of that on the diagonal lies beside it."""
    d = len(run.mask.allowed)
    places = pairs(np.triu(np.ones((d, d), dtype=bool)))
    of_one = places[:, 0] == places[:, 1]
    moments = np.stack([answer.moments for answer in answers.values()])
    unit = run.privacy.residual_norm_bound(d) ** 2 / LATTICE
    rows = counted_rows(run.rows(answers))
    noise = np.array([[float(price.moments_variance)] for price in run.prices(answers).values()]) * (unit / rows) ** 2
    size = np.maximum(np.median(moments, axis=0), 0.0)[of_one]
    squared = size[places[:, 0]] * size[places[:, 1]] * np.where(of_one, 2.0, 1.0)
    variances = squared / rows + noise * np.where(of_one, 1.0, 0.5)
    return [Compared(moments, variances, places, one_vote=False)]


def left_out(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> tuple[str, ...]:
    """Nobody: a robust rule works entry by entry."""
    return ()
