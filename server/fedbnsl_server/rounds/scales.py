"""Before the first private moments round: the units of its residuals, from the mean squares that the sites released."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.scales import Answer, Task
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.influence import Compared, counted_rows
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.search.private.pooled_moments import first_scales, mean_over_records, mean_square_noise


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """A task without content."""
    return state, Task()


def n_summands(task: Task, run: Run) -> int:
    """Numbers of secure aggregation."""
    return len(run.mask.allowed)


def of_sums(sums: Sequence[int], task: Task, run: Run) -> Answer:
    """What all sites together released."""
    return Answer(np.array(sums, dtype=np.float64) * run.feature_bounds / (LATTICE * sum(run.n_samples.values())))


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report a wrong number of mean squares, or one that no site can use."""
    found, d = answer.mean_squares.size, len(run.mask.allowed)
    if found != d:
        return f"has {found} mean squares; {d} were asked for"
    # Noise may be larger than what it hides: mean squares count in their bounds.
    too_large = (np.abs(answer.mean_squares / run.feature_bounds) > LARGEST).any()
    return f"has mean squares beyond {LARGEST:g} times their bounds" if too_large else ""


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """Scales from the mean squares of all sites together, which are kept."""
    rows, rule = run.rows(answers), run.rule(answers)
    told = [answer.mean_squares for answer in answers.values()]
    mean_squares = mean_over_records(told, rows, rule)
    noise_std = mean_square_noise([price.setup_variance for price in run.prices(answers).values()], rows, rule)
    scales = first_scales(mean_squares, noise_std, run.feature_bounds)
    return replace(state, scales=scales, mean_squares=mean_squares)


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Released mean squares m; those of a Gaussian variable vary by 2 m^2 / rows, and by the noise."""
    values = np.stack([answer.mean_squares for answer in answers.values()])
    rows = counted_rows(run.rows(answers))
    noise = np.array([[float(price.setup_variance)] for price in run.prices(answers).values()]) / (LATTICE * rows) ** 2
    typical = np.maximum(np.median(values, axis=0), 0.0)
    variances = 2.0 * typical**2 / rows + noise * run.feature_bounds**2
    return [Compared(values, variances, np.repeat(np.arange(len(typical))[:, None], 2, axis=1), one_vote=False)]
