"""Figure 3: accuracy by epsilon at d = 20."""

from collections.abc import Sequence

from fedbnsl.plan.plan import Plan
from fedbnsl_research.reproduce.curves import SCORES
from fedbnsl_research.reproduce.paper_numbers import SPARSE, TABLE_1
from fedbnsl_research.reproduce.private_runs import REFERENCE, D, PrivateGrid
from fedbnsl_research.reproduce.private_study_plans import (
    QUICK_EPSILONS,
    STUDY_EPSILONS,
    exactly,
    paper_private_plan,
    study_plan,
)
from fedbnsl_research.reproduce.study import Comparison, described, select, words
from fedbnsl_research.trials.harness import Row
from fedbnsl_research.trials.trials import Trial
from fedbnsl_workbench.pages.chart_files import Figure

EXACT = "exact second moments, our settings"
ESTIMATED = "estimated second moments, our settings"
PAPER = "exact second moments, the paper's settings"


GRID = PrivateGrid(
    column="epsilon",
    label="epsilon {:g}",
    plans={EXACT: lambda epsilon: exactly(study_plan(epsilon)), ESTIMATED: study_plan, PAPER: paper_private_plan},
    chosen=words("privacy-utility")["chosen"],
    values=STUDY_EPSILONS,
    quick_values=QUICK_EPSILONS,
    reference=Plan.load("fed-sparse"),
)
plan_of = GRID.plan_of


def run(trial: Trial) -> list[Row]:
    """One run."""
    return GRID.run(trial)


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """The reference beside Table 1, then each method by epsilon."""
    reference = select(rows, method=REFERENCE)
    note = "the paper's: Table 1; ours: fed-sparse, with refit"
    return [
        Comparison.of(f"{REFERENCE}: {name}", reference, column, paper=TABLE_1[SPARSE, D][column], note=note)
        for column, name in SCORES.items()
    ] + GRID.compare(rows)


def draw(rows: Sequence[Row]) -> Figure:
    """Three charts by epsilon."""
    title = f"DP-Fed-Sparse-BNSL by privacy budget: d={D}, 8 sites, 5000 rows each, delta = 1/rows²"
    return GRID.draw(rows, label="epsilon", title=title)


STUDY = described("privacy-utility", trials=GRID.trials, run=run, compare=compare, draw=draw, settings=GRID.settings)
