"""A round of Algorithm 1 at the coordinator: send W, check each B_p, take the global step."""

from collections.abc import Mapping

import numpy as np

from fedbnsl.rounds.admm import Answer, Task, start_of
from fedbnsl.rounds.kinds import LARGEST_WEIGHT, stage
from fedbnsl.sparse import aligned
from fedbnsl_server.algorithm.admm import AdmmState, advance_admm, begin_start
from fedbnsl_server.algorithm.influence import Compared, sampling_variance
from fedbnsl_server.rounds.kinds import Run


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """W as it is sent; in the first round of another start, everything zero."""
    start, step = _start_of(state, run)
    if start and step == 1:
        state = begin_start(state)
    return state, Task(state.message)


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report entries that the plan excludes, and weights that would make W unusable for the other sites.

    The places of dense messages are not checked: their B_p may have any entry.
    """
    sent = answer.weights
    if not run.plan.dense_messages and not run.mask.allowed.flat[sent.index].all():
        return "has entries that the plan excludes"
    return "" if (np.abs(sent.value) <= LARGEST_WEIGHT).all() else f"has a weight beyond {LARGEST_WEIGHT:g}"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """Alg. 1, lines 5 to 8."""
    start, step = _start_of(state, run)
    sent = {site: answer.weights for site, answer in answers.items()}
    rule = run.rule(state.sites)  # over all of them: a site that sent nothing is still there with what it sent last
    return advance_admm(
        state, sent, run.plan, run.mask, start=start, step=step, rule=rule, rows=run.weights(state.sites)
    )


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


def left_out(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> tuple[str, ...]:
    """Nobody: a robust rule works entry by entry."""
    return ()


def _start_of(state: AdmmState, run: Run) -> tuple[int, int]:
    return start_of(run.plan, stage(run.plan, state.round + 1).step)
