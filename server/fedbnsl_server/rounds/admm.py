"""A round of Algorithm 1 at the coordinator: send W, check each B_p, take the global step.

In a plan with a final search, private steps are kept, and the last round ends with the graph that explains all of them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.sparse import Matrix, SparseMatrix, aligned
from fedbnsl.rounds.admm import Answer, Task
from fedbnsl.rounds.kinds import LARGEST_WEIGHT, stage
from fedbnsl_server.algorithm.admm import AdmmState, advance_admm
from fedbnsl_server.algorithm.consensus_graph import graphs_at
from fedbnsl_server.algorithm.influence import Compared, sampling_variance
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.search.private.released_steps import ReleasedSteps
from fedbnsl_server.search.private.steps_search import search_steps

# Starts of the final search: W cut at so many times the plan's threshold.
_CUTS = (1.0, 0.5, 1.5)


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """W as it is sent."""
    return state, Task(state.message)


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report entries that the plan excludes, and weights that would make W unusable for the other sites.

    Of private steps also more of them than the plan has, or some that it does not ask for.

    The places of dense messages are not checked: their B_p may have any entry.
    """
    sent = answer.weights
    if not run.plan.dense_messages and not run.mask.allowed.flat[sent.index].all():
        return "has entries that the plan excludes"
    if answer.index.size > run.plan.steps_sent:
        return f"has {answer.index.size} private steps, more than the plan asks for"
    if not run.mask.allowed.flat[answer.index].all():
        return "has private steps that the plan excludes"
    if any((np.abs(one) > LARGEST_WEIGHT).any() for one in (answer.gradient, answer.bound, answer.weight)):
        return f"has private steps with a number beyond {LARGEST_WEIGHT:g}"
    return "" if (np.abs(sent.value) <= LARGEST_WEIGHT).all() else f"has a weight beyond {LARGEST_WEIGHT:g}"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """Alg. 1, lines 5 to 8; after the last round the final search, if the plan has one."""
    step = stage(run.plan, state.round + 1, state.iterations).step
    sent = {site: answer.weights for site, answer in answers.items()}
    rule = run.rule(state.sites)  # over all of them: a site that sent nothing is still there with what it sent last
    after = advance_admm(state, sent, run.plan, run.mask, step=step, rule=rule, rows=run.weights(state.sites))
    if not run.plan.sends_steps:
        return after
    steps = dict(state.steps)
    for site, answer in answers.items():
        steps[site] = np.concatenate([steps.get(site, np.empty((0, 4))), _told(answer)])
    after = replace(after, steps=steps)
    return _searched(after, run) if step == run.plan.rounds else after


def _told(answer: Answer) -> Matrix:
    """(K, 4) the steps of a site."""
    return np.stack([answer.index.astype(np.float64), answer.gradient, answer.bound, answer.weight], axis=1)


def _searched(state: AdmmState, run: Run) -> AdmmState:
    """With the DAG that explains the steps of all rounds.

    W stands without any step, and where a variable has several columns, whose noise variances are never equal.
    """
    plan, d = run.plan, len(run.mask.allowed)
    noise = {
        site: math.sqrt(price.update_variance) / (LATTICE * price.n_samples)
        for site, price in run.prices(state.steps).items()
    }
    sites = [ReleasedSteps.of_site(told, d, noise[site]) for site, told in state.steps.items() if len(told)]
    if not sites or run.mask.columns.has_blocks:
        return state
    starts = [one.dag for one in graphs_at(state, [cut * plan.threshold for cut in _CUTS], plan, run.mask)]
    found = search_steps(
        ReleasedSteps.merged(sites),
        sum(run.rows(state.steps)),
        run.mask,
        state.global_weights.to_dense(),
        starts,
        threshold=plan.threshold,
        progress=run.progress,
    )
    weights = SparseMatrix.on_support(found.weights, found.dag)
    return replace(state, refitted=weights.as_float32() if plan.value_type == "float32" else weights)


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """B_p. For noise of equal variances, a regression weight has a sampling variance of about 1 / rows."""
    index, values = aligned(*(state.sites[site].local_weights for site in answers))
    variances = sampling_variance(run.rows(answers))
    if run.plan.privacy is not None:  # the noise of a step has a standard deviation in proportion to 1 / rows
        variances = variances * np.maximum(1.0, variances / np.median(variances))
    d = state.global_weights.n_variables
    has = values != 0.0
    of_others = (has.sum(axis=0) - has > 0).sum(axis=1)  # by site: otherwise it could hide among entries of its own
    return [
        Compared(
            values,
            variances,
            np.stack(np.divmod(index, d), axis=1),
            one_vote=not run.plan.weighs_rows,
            counted=of_others,
        )
    ]
