"""Appendix: DP-PGCD with Gumbel and Gaussian noise against DP-PGCD with Laplace noise."""

import math
from collections.abc import Callable, Sequence

from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl_research.reproduce.private_runs import REFERENCE, D, PrivateGrid, shd_of
from fedbnsl_research.reproduce.private_study_plans import (
    QUICK_EPSILONS,
    STUDY_EPSILONS,
    exactly,
    laplace_plan,
    study_plan,
)
from fedbnsl_research.reproduce.study import Comparison, described, select, words
from fedbnsl_research.trials.harness import N_SAMPLES, Row
from fedbnsl_research.trials.trials import Trial
from fedbnsl_workbench.pages.chart_files import Figure

OURS = "dp-pgcd, tuned"
LAPLACE = "dp-pgcd-laplace, tuned"
LAPLACE_AT_OURS = "dp-pgcd-laplace, settings of dp-pgcd"
OURS_AT_LAPLACE = "dp-pgcd, settings of dp-pgcd-laplace"

_PLANS: dict[str, Callable[[float], Plan]] = {
    OURS: lambda epsilon: exactly(study_plan(epsilon)),
    LAPLACE: laplace_plan,
    LAPLACE_AT_OURS: lambda epsilon: exactly(study_plan(epsilon)).with_settings(local_solver="dp-pgcd-laplace"),
    OURS_AT_LAPLACE: lambda epsilon: laplace_plan(epsilon).with_settings(local_solver="dp-pgcd"),
}


GRID = PrivateGrid(
    column="epsilon",
    label="epsilon {:g}",
    plans=_PLANS,
    chosen=words("dp-variants")["chosen"],
    values=STUDY_EPSILONS,
    quick_values=QUICK_EPSILONS,
    quick_methods=(OURS, LAPLACE),
    reference=Plan.load("fed-sparse"),
)
plan_of = GRID.plan_of


def run(trial: Trial) -> list[Row]:
    """One run."""
    return GRID.run(trial)


def noise_ratio(epsilon: float) -> float:
    """Standard deviation of the noise on a gradient, Laplace / Gaussian, at the settings tuned for Gaussian noise."""
    ours, theirs = (
        price_of(_PLANS[method](epsilon), n_samples=N_SAMPLES, n_variables=D) for method in (OURS, LAPLACE_AT_OURS)
    )
    return math.sqrt(2.0) * theirs.update_scale / math.sqrt(ours.update_variance)


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """Both variants by epsilon, then the noise that the same budget asks for."""
    note = "the paper: epsilon at least sqrt(2) larger at equal noise; from the prices, without a run"
    ratios = [
        Comparison(
            f"epsilon {epsilon:g}, same settings: standard deviation of a gradient's noise, Laplace / Gaussian",
            None,
            noise_ratio(epsilon),
            note=note,
        )
        for epsilon in sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    ]
    return [shd_of(select(rows, method=REFERENCE), REFERENCE, "fed-sparse"), *GRID.compare(rows), *ratios]


def draw(rows: Sequence[Row]) -> Figure:
    """Three charts by epsilon."""
    title = f"Two variants of DP-PGCD: d={D}, 8 sites, 5000 rows each, delta = 1/rows², exact second moments"
    return GRID.draw(rows, label="epsilon", title=title)


STUDY = described("dp-variants", trials=GRID.trials, run=run, compare=compare, draw=draw, settings=GRID.settings)
