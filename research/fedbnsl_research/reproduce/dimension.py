"""Figure 4: private accuracy by the number of variables, epsilon 10."""

from collections.abc import Sequence

from fedbnsl_research.reproduce.private_runs import PrivateGrid, shd_of
from fedbnsl_research.reproduce.private_study_plans import DIMENSIONS, covariance_plan, exactly, wide_plan
from fedbnsl_research.reproduce.study import Comparison, described, select, words
from fedbnsl_research.trials.harness import Row
from fedbnsl_research.trials.trials import Trial
from fedbnsl_workbench.pages.chart_files import Figure

EXACT = "DP-Fed-Sparse-BNSL, exact second moments"
ESTIMATED = "DP-Fed-Sparse-BNSL, estimated second moments"
COVARIANCE = "DP-Fed-BNSL (noisy covariance)"

# The paper's text on d = 200: SHD about 140 against 70, TPR around 0.5 against over 0.8, which is no number.
_PAPER_200 = {EXACT: (70.0, None, "over 0.8"), COVARIANCE: (140.0, 0.5, "around")}


GRID = PrivateGrid(
    column="d",
    label="d = {}",
    plans={EXACT: lambda d: exactly(wide_plan(d)), ESTIMATED: wide_plan, COVARIANCE: covariance_plan},
    chosen=words("dimension")["chosen"],
    values=DIMENSIONS,
    quick_values=(20, 50),
)
plan_of = GRID.plan_of


def run(trial: Trial) -> list[Row]:
    """One run."""
    return GRID.run(trial)


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """Each method by dimension; at d = 200 beside what the paper's text says."""
    found: list[Comparison] = []
    for line in GRID.compare(rows):
        method = line.what.removeprefix("d = 200, ").removesuffix(": SHD")
        if method not in _PAPER_200:
            found.append(line)
            continue
        paper_shd, paper_tpr, word = _PAPER_200[method]
        mine, what = select(rows, method=method, d=200), f"d = 200, {method}"
        found.append(shd_of(mine, what, f"the paper: about; {mine[0]['accounted']}", paper_shd))
        found.append(Comparison.of(f"{what}: TPR", mine, "tpr", paper=(paper_tpr, None), note=f"the paper: {word}"))
    return found


def draw(rows: Sequence[Row]) -> Figure:
    """Three charts by d."""
    title = "Private accuracy by number of variables: epsilon 10, 8 sites, 5000 rows each, delta = 1/rows²"
    return GRID.draw(rows, label="variables d", title=title)


STUDY = described("dimension", trials=GRID.trials, run=run, compare=compare, draw=draw, settings=GRID.settings)
