"""Appendix: what share of epsilon 5 the second moments should get."""

from collections.abc import Sequence

from fedbnsl.plan.plan import Plan
from fedbnsl_research.private_plans import steps_alone
from fedbnsl_research.reproduce.private_runs import D, boxes, identified, run_of, settings_of, shd_of
from fedbnsl_research.reproduce.private_study_plans import exactly, split_plan
from fedbnsl_research.reproduce.study import Comparison, Settings, described, select
from fedbnsl_research.trials.harness import N_SAMPLES, Row
from fedbnsl_research.trials.trials import Trial
from fedbnsl_workbench.pages.chart_files import Figure

EPSILON = 5.0
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
QUICK_SHARES = (0.1, 0.3, 0.5)

BASELINE = "exact second moments, not charged"


def _method(share: float) -> str:
    return f"{share:.0%} of epsilon for the second moments"


def plan_of(trial: Trial) -> Plan:
    """The plan that a trial runs."""
    share = trial["share"]
    return exactly(steps_alone(EPSILON)) if share is None else split_plan(share, N_SAMPLES)


def _shares(quick: bool) -> tuple[float, ...]:
    return QUICK_SHARES if quick else SHARES


def trials(seeds: Sequence[int], quick: bool) -> list[Trial]:
    """The baseline and every share."""
    wanted: list[Trial] = [{"share": share, "seed": seed} for share in (None, *_shares(quick)) for seed in seeds]
    return [identified(trial, plan_of(trial)) for trial in wanted]


def run(trial: Trial) -> list[Row]:
    """One run."""
    share = trial["share"]
    method = BASELINE if share is None else _method(share)
    return [run_of(plan_of(trial), method=method, share=share, seed=trial["seed"])]


def compare(rows: Sequence[Row]) -> list[Comparison]:
    """The baseline and every share."""
    said = {0.1: "large variance, severe degradation", 0.2: "comparable to the baseline"}
    said |= {0.3: said[0.2], 0.4: "degraded: the steps are starved", 0.5: "degraded: the steps are starved"}
    comparisons: list[Comparison] = []
    for method, share in dict.fromkeys((row["method"], row["share"]) for row in rows):
        note = f"the paper: {said[share]}" if share in said else "the paper shows boxes without numbers"
        comparisons.append(shd_of(select(rows, method=method), method, note))
    return comparisons


def draw(rows: Sequence[Row]) -> Figure:
    """Three charts of boxes."""
    labels = {row["method"]: "exact" if row["share"] is None else f"{row['share']:.0%}" for row in rows}
    title = f"Share of epsilon {EPSILON:g} for the second moments: d={D}, 8 sites, 5000 rows each"
    return boxes(rows, list(labels), labels=labels, label="epsilon_M / epsilon_total", title=title)


def settings(quick: bool) -> list[Settings]:
    """Of the baseline and every share."""
    chosen = "the ready plan private-steps, found with estimated second moments on seeds 100 and up"
    return [Settings(BASELINE, settings_of(exactly(steps_alone(EPSILON))), chosen)] + [
        Settings(
            _method(share), settings_of(split_plan(share, N_SAMPLES)), f"{chosen}; smoothness_share from the share"
        )
        for share in _shares(quick)
    ]


STUDY = described(
    "smoothness",
    trials=trials,
    run=run,
    compare=compare,
    draw=draw,
    settings=settings,
)
