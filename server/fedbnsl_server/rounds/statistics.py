"""A statistics round at the coordinator: a centre and a scale for each column, from what the sites say of theirs."""

from collections.abc import Mapping

import numpy as np

from fedbnsl.errors import LocalProtocolError
from fedbnsl.messages import Units
from fedbnsl.plan.preparation import Preparation
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.statistics import Answer, Task
from fedbnsl_server.algorithm.admm import AdmmState, in_units
from fedbnsl_server.algorithm.influence import Compared, sampling_variance
from fedbnsl_server.rounds.kinds import Run


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """The plan says what is asked for."""
    return state, Task()


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report means that should have stayed at the site or are missing, and columns that do not vary."""
    if bool(answer.means.size) != (_preparation(run).intercept == "common"):
        return "has means where the plan has none, or none where it has them"
    if not ((answer.variances > 1 / LARGEST) & (answer.variances < LARGEST)).all():
        return f"has a variance that is not between {1 / LARGEST:g} and {LARGEST:g}"
    return f"has a mean beyond {LARGEST:g}" if (np.abs(answer.means) > LARGEST).any() else ""


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """The units of all rounds to come: pooled over the records, or over the sites if each has one vote."""
    preparation, rule, rows = _preparation(run), run.rule(answers), run.weights(answers)
    variances = np.stack([answer.variances for answer in answers.values()])
    centres = np.empty(0)
    if preparation.intercept == "common":
        means = np.stack([answer.means for answer in answers.values()])
        centres = np.average(means, axis=0, weights=rows) if rule is None else rule(means)
        variances = variances + np.square(means - centres)
    pooled = np.average(variances, axis=0, weights=rows) if rule is None else rule(variances)
    scales = np.sqrt(pooled) if preparation.scale == "pooled" else np.ones_like(pooled)
    return in_units(state, Units(centres, scales))


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Logarithms of the variances; those of Gaussian columns vary by 2 / rows."""
    variances = np.stack([answer.variances for answer in answers.values()])
    one = np.repeat(np.arange(len(variances[0]))[:, None], 2, axis=1)
    return [
        Compared(np.log(variances), 2.0 * sampling_variance(run.rows(answers)), one, one_vote=not run.plan.weighs_rows)
    ]


def left_out(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> tuple[str, ...]:
    """Nobody: a robust rule works entry by entry."""
    return ()


def _preparation(run: Run) -> Preparation:
    if run.plan.preparation is None:
        raise LocalProtocolError("statistics belong to plans with [preparation]")
    return run.plan.preparation
