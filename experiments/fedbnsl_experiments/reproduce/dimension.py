"""Figure 4: private accuracy by the number of variables, epsilon 10."""

from collections.abc import Callable, Sequence

from fedbnsl.plan.plan import Plan
from fedbnsl_experiments.pages.chart_files import Figure
from fedbnsl_experiments.reproduce.private_runs import curves, identified, run_of, settings_of, shd_of
from fedbnsl_experiments.reproduce.private_study_plans import DIMENSIONS, covariance_plan, exactly, wide_plan
from fedbnsl_experiments.reproduce.study import Comparison, Settings, Study, mean_and_spread, select
from fedbnsl_experiments.trials.harness import Row
from fedbnsl_experiments.trials.trials import Trial

QUICK_DIMENSIONS = (20, 50)

EXACT = "DP-Fed-Sparse-BNSL, exact second moments"
ESTIMATED = "DP-Fed-Sparse-BNSL, estimated second moments"
COVARIANCE = "DP-Fed-BNSL (noisy covariance)"

_PLANS: dict[str, Callable[[int], Plan]] = {
    EXACT: lambda d: exactly(wide_plan(d)),
    ESTIMATED: wide_plan,
    COVARIANCE: covariance_plan,
}

# What was searched, by method and d.
_CHOSEN = {
    (EXACT, 20): "as in privacy-utility",
    (EXACT, 50): "clip: plans/grids/private-wide.toml, seeds 100 and 400, lowest mean SHD; local_steps and l1_weight "
    "as for d = 20; the rest as for d = 200",
    (
        EXACT,
        100,
    ): "clip: plans/grids/private-wide-100.toml, seeds 100 and 400, lowest mean SHD (the smallest of three); "
    "the rest as for d = 200",
    (EXACT, 200): "all of it by hand on seeds 100 and 101: consensus_penalty (rho_2), local_steps (K), clip (C), "
    "selection_share, threshold, l1_weight and the acyclicity schedule",
    (COVARIANCE, 20): "plans/grids/private-covariance-20.toml, seeds 100 and 400, lowest mean SHD",
    (COVARIANCE, 50): "plans/grids/private-covariance-50.toml, seeds 100 and 400, lowest mean SHD",
    (COVARIANCE, 100): "plans/grids/private-covariance-100.toml, seeds 100 and 400, lowest mean SHD",
    (
        COVARIANCE,
        200,
    ): "L1 weight 0.03 of plans/grids/private-covariance-200.toml: bounds 10 and 14 on seeds 100 and 400, 20 "
    "on seed 100, where it is level with 14; weights 0.1 and 0.3 with bounds 10 and 14 on seed 100, not better",
}


def _chosen(method: str, d: int) -> str:
    if method == ESTIMATED and d == 20:
        return "as in privacy-utility"
    if method == ESTIMATED:
        return "as with exact second moments; their bound and share as for d = 20, not searched"
    return _CHOSEN[method, d]


# The paper's text on d = 200: SHD about 140 against 70, TPR around 0.5 against over 0.8, which is no number.
_PAPER_200 = {EXACT: (70.0, None, "over 0.8"), COVARIANCE: (140.0, 0.5, "around")}


def plan_of(trial: Trial) -> Plan:
    """The plan that a trial runs."""
    return _PLANS[trial["method"]](trial["d"])


def _dimensions(quick: bool) -> tuple[int, ...]:
    return QUICK_DIMENSIONS if quick else DIMENSIONS


def trials(seeds: Sequence[int], quick: bool) -> list[Trial]:
    """Every method at every dimension."""
    wanted: list[Trial] = [
        {"method": method, "d": d, "seed": seed} for d in _dimensions(quick) for method in _PLANS for seed in seeds
    ]
    return [identified(trial, plan_of(trial)) for trial in wanted]


def run(trial: Trial) -> list[Row]:
    """One run."""
    return [run_of(plan_of(trial), d=trial["d"], method=trial["method"], seed=trial["seed"])]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """Each method by dimension."""
    comparisons: list[Comparison] = []
    for d in sorted({row["d"] for row in rows}):
        for method in _PLANS:
            mine, what = select(rows, method=method, d=d), f"d = {d}, {method}"
            if d == 200 and method in _PAPER_200:
                paper_shd, paper_tpr, word = _PAPER_200[method]
                comparisons.append(shd_of(mine, what, f"the paper: about; {mine[0]['accounted']}", paper_shd))
                mean, spread = mean_and_spread(mine, "tpr")
                comparisons.append(Comparison(f"{what}: TPR", paper_tpr, mean, spread, note=f"the paper: {word}"))
            else:
                comparisons.append(shd_of(mine, what, mine[0]["accounted"]))
    return comparisons


def draw(rows: Sequence[Row]) -> Figure:
    """Three charts by d."""
    title = "Private accuracy by number of variables: epsilon 10, 8 sites, 5000 rows each, delta = 1/rows²"
    return curves(rows, "d", list(_PLANS), label="variables d", title=title)


def settings(quick: bool) -> list[Settings]:
    """Of every method at every dimension."""
    return [
        Settings(f"d = {d}, {method}", settings_of(plan(d)), _chosen(method, d))
        for method, plan in _PLANS.items()
        for d in _dimensions(quick)
    ]


STUDY = Study(
    name="dimension",
    title="Private accuracy as the number of variables grows",
    source="Figure 4",
    claim="SHD grows with d for both methods. At d = 20 and 50 they are similar; at d = 200 DP-Fed-"
    "BNSL has about twice the SHD of DP-Fed-Sparse-BNSL (about 140 against 70) and a TPR around 0.5 "
    "against over 0.8.",
    trials=trials,
    run=run,
    compare=compare,
    draw=draw,
    settings=settings,
    quick="d = 20 and 50 only, two seeds.",
    notes=(
        "The baseline releases X'X of every site once, by the analytic Gaussian mechanism (Balle and "
        "Wang 2018), with records shortened to the norm row_norm_bound; everything after is post-"
        "processing, so that its rounds cost no privacy. It has fewer rounds than the paper's 300, which would take "
        "too long here.",
        "The two were not tuned alike. Of the baseline the bound and the L1 weight were searched for each d, on seeds "
        "100 and 400 (at d = 200 in part on seed 100 alone); rho_2 = 3, threshold 0.3 and one acyclicity schedule were "
        "kept at every d, and the rounds set without a search. Of ours rho_2, K, C, selection_share, threshold, L1 "
        "weight and schedule were chosen on such graphs, too: at d = 20 on seeds 100 and up, at d = 200 by hand on "
        "seeds 100 and 101; at d = 50 and 100 only C was searched, on seeds 100 and 400, and the rest taken over (at "
        "d = 50 K and L1 weight from d = 20, all else from d = 200). A part of what is between the curves may be that.",
        "With exact second moments, as in the paper's main experiments, DP-Fed-Sparse-BNSL does not "
        "pay for them and guarantees nothing for the tables. The baseline needs none. The fair "
        "comparison is between the baseline and the curve with estimated second moments, whose "
        "epsilon covers everything that a site sends.",
        "Per-record clipping, one joint zCDP budget and the optimal conversion to epsilon are used, "
        "as in privacy-utility.",
    ),
)
