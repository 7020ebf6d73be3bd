"""Figure 3: accuracy by epsilon at d = 20."""

from collections.abc import Callable, Sequence

from fedbnsl.plan.plan import Plan
from fedbnsl_experiments.pages.chart_files import Figure
from fedbnsl_experiments.reproduce.paper_numbers import SPARSE, TABLE_1
from fedbnsl_experiments.reproduce.private_runs import (
    QUANTITIES,
    REFERENCE,
    curves,
    identified,
    run_of,
    settings_of,
    shd_of,
)
from fedbnsl_experiments.reproduce.private_study_plans import (
    STUDY_EPSILONS,
    exactly,
    paper_private_plan,
    reference_plan,
    study_plan,
)
from fedbnsl_experiments.reproduce.study import Comparison, Settings, Study, mean_and_spread, select
from fedbnsl_experiments.trials.harness import Row
from fedbnsl_experiments.trials.trials import Trial

D = 20
QUICK_EPSILONS = (0.5, 2.0, 10.0)

EXACT = "exact second moments, our settings"
ESTIMATED = "estimated second moments, our settings"
PAPER = "exact second moments, the paper's settings"

_PLANS: dict[str, Callable[[float], Plan]] = {
    EXACT: lambda epsilon: exactly(study_plan(epsilon)),
    ESTIMATED: study_plan,
    PAPER: paper_private_plan,
}

_CHOSEN_BY_US = (
    "epsilon up to 10: the plans of plans/private-epsilon-*.toml, found with estimated second moments"
    " on generated graphs (seeds 100 and up); 25: plans/grids/private-large-epsilon.toml with "
    "exact ones, seeds 100, 101, 400, lowest mean SHD; 50: as 25"
)
_CHOSEN_BY_THE_PAPER = (
    "by the paper, on seed 1 of its own data: its table of C, T, K; it has no row for epsilon 10, "
    "which is the row d = 20 of its dimensionality study (epsilon 10)"
)
_CHOSEN = {EXACT: _CHOSEN_BY_US, ESTIMATED: _CHOSEN_BY_US, PAPER: _CHOSEN_BY_THE_PAPER}


def plan_of(trial: Trial) -> Plan:
    """The plan that a trial runs."""
    return reference_plan() if trial["method"] == REFERENCE else _PLANS[trial["method"]](trial["epsilon"])


def _epsilons(quick: bool) -> tuple[float, ...]:
    return QUICK_EPSILONS if quick else STUDY_EPSILONS


def trials(seeds: Sequence[int], quick: bool) -> list[Trial]:
    """The reference once a seed, every method at every epsilon."""
    wanted: list[Trial] = [{"method": REFERENCE, "epsilon": None, "seed": seed} for seed in seeds]
    wanted += [
        {"method": method, "epsilon": epsilon, "seed": seed}
        for epsilon in _epsilons(quick)
        for method in _PLANS
        for seed in seeds
    ]
    return [identified(trial, plan_of(trial)) for trial in wanted]


def run(trial: Trial) -> list[Row]:
    """One run."""
    return [run_of(plan_of(trial), d=D, method=trial["method"], epsilon=trial["epsilon"], seed=trial["seed"])]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """The reference beside Table 1, then each method by epsilon."""
    reference = select(rows, method=REFERENCE)
    note = "the paper's: Table 1; ours: the default plan, with refit"
    comparisons: list[Comparison] = []
    for column, name in QUANTITIES.items():
        paper, paper_spread = TABLE_1[SPARSE, D][column]
        mean, spread = mean_and_spread(reference, column)
        what = f"{REFERENCE}: {name}"
        comparisons.append(Comparison(what, paper, mean, spread, paper_spread, note))
    for epsilon in sorted({row["epsilon"] for row in rows if row["epsilon"] is not None}):
        for method in _PLANS:
            mine = select(rows, method=method, epsilon=epsilon)
            comparisons.append(shd_of(mine, f"epsilon {epsilon:g}, {method}", mine[0]["accounted"]))
    return comparisons


def draw(rows: Sequence[Row]) -> Figure:
    """Three charts by epsilon."""
    title = f"DP-Fed-Sparse-BNSL by privacy budget: d={D}, 8 sites, 5000 rows each, delta = 1/rows²"
    return curves(rows, "epsilon", list(_PLANS), label="epsilon", title=title)


def settings(quick: bool) -> list[Settings]:
    """Of every method at every epsilon."""
    reference = Settings(REFERENCE, settings_of(reference_plan()), "the default plan of this program")
    return [reference] + [
        Settings(f"epsilon {epsilon:g}, {method}", settings_of(plan(epsilon)), _CHOSEN[method])
        for method, plan in _PLANS.items()
        for epsilon in _epsilons(quick)
    ]


STUDY = Study(
    name="privacy-utility",
    title="Accuracy by privacy budget",
    source="Figure 3",
    claim="SHD falls and TPR rises as epsilon grows; epsilon 5 is a strong compromise, epsilon 10 "
    "nearly matches the run without privacy. The paper shows curves and gives no numbers for them.",
    trials=trials,
    run=run,
    compare=compare,
    draw=draw,
    settings=settings,
    quick="Epsilon 0.5, 2 and 10 only, two seeds.",
    notes=(
        "Who pays for what: with exact second moments, as in the paper's main experiments, these are "
        "read off the data and not charged, so that epsilon covers the steps alone and nothing is "
        "guaranteed for the tables. With estimated ones they are released with noise and charged to "
        "the same budget: that curve is the one whose epsilon covers everything that a site sends.",
        "The mechanism is not the paper's to the letter. Gradients are clipped record by record (the "
        "clipped mean that the paper's text describes has a sensitivity of 2C, not of 2C/n). The clip"
        " of variable i is C sqrt(M_i / sum M) with the sum over the d variables: over all d² "
        "entries, the paper's C would cut everything away. Selections, updates and, if charged, "
        "second moments share one zCDP budget, converted to epsilon by the optimal conversion, which "
        "needs 2 to 15 % less noise than the paper's formula.",
        "The paper's settings are good for its own reading of the clip; how they do here is a statement about settings "
        "under this mechanism, not about the paper's results. The row for epsilon 10 is taken from the table of its "
        "dimensionality study.",
        "The dashed line is the default plan, which ends with a round of least squares on the learned"
        " support. In a private run that round would be one more release, and there is none.",
    ),
)
