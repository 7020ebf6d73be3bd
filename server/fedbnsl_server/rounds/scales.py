"""Before the first private moments round: the units of its residuals, from the mean squares that the sites released."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.scales import Answer, Task
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.search.pooled_moments import first_scales


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """Nothing has to be told."""
    return state, Task()


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Another number of mean squares than there are variables, or one that no site can use."""
    found, d = answer.mean_squares.size, len(run.mask.allowed)
    if found != d:
        return f"has {found} mean squares; {d} were asked for"
    return f"has mean squares beyond {LARGEST:g}" if (np.abs(answer.mean_squares) > LARGEST).any() else ""


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """Scales that fit all sites together."""
    scales = first_scales(
        [answer.mean_squares for answer in answers.values()],
        [run.n_samples[site] for site in answers],
        [price.setup_variance for price in run.prices(answers).values()],
        np.broadcast_to(np.array(run.privacy.feature_bounds), len(run.mask.allowed)),
    )
    return replace(state, scales=scales)
