"""Table 1: bytes and structure at d=20 and d=200, beside comparators that see all rows in one place."""

from collections.abc import Sequence

from fedbnsl.plan.plan import Plan
from fedbnsl_research.comparators.pooled import comparators, pooled_graph
from fedbnsl_research.reproduce.baseline_plans import (
    PAPER_CHOICE,
    paper_fed_bnsl,
    paper_plan,
    plan_settings,
    plan_trials,
    tuned_fed_bnsl,
)
from fedbnsl_research.reproduce.curves import SCORES
from fedbnsl_research.reproduce.paper_numbers import CLOSED, SPARSE, TABLE_1, saved_megabytes
from fedbnsl_research.reproduce.study import Comparison, Settings, described, mean_and_spread, select
from fedbnsl_research.trials.harness import N_SAMPLES, Row, run_plan, run_row, scores_row, timed
from fedbnsl_research.trials.trials import Trial
from fedbnsl_workbench.pages import chart_files as figures
from fedbnsl_workbench.pages.chart_files import Chart, Figure
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.tables.synthetic import synthesise

N_SITES = 8
DIMENSIONS = (20, 200)
QUICK_DIMENSIONS = (20, 50)

_OURS = "Fed-Sparse-BNSL, fed-sparse"
_PAPERS = "Fed-Sparse-BNSL, paper's settings"
_FEW_STEPS = 150
_FEW = f"Fed-Sparse-BNSL, paper's settings, {_FEW_STEPS} local steps"
_DENSE = "Fed-BNSL, paper's settings"
_TUNED = "Fed-BNSL, tuned here"
_PLANS: dict[str, tuple[Plan, str]] = {
    _OURS: (Plan.load("fed-sparse"), "on graphs of seeds 100 and up"),
    _PAPERS: (paper_plan(), f"{PAPER_CHOICE}; used at every d, as the paper names no others"),
    _FEW: (
        paper_plan().with_settings(name="paper, few steps", local_steps=_FEW_STEPS),
        f"{PAPER_CHOICE}; the paper names no number of local steps: {_FEW_STEPS} send about as many bytes at d=200, "
        "seed 100, as its table has",
    ),
    _DENSE: (paper_fed_bnsl(), f"{PAPER_CHOICE}; used at every d, as the paper names no others"),
    _TUNED: (
        tuned_fed_bnsl(),
        "the schedule and the refit of fed-sparse; its rho_2 and lambda, too, which are among those with the "
        "lowest mean SHD at d=20 on seeds 1, 100, 400 (grid fed-bnsl)",
    ),
}

_COLUMNS = {"mb_formula": "MB", **SCORES}
_ROW_OF_THE_PAPER = {_OURS: SPARSE, _PAPERS: SPARSE, _FEW: SPARSE, _DENSE: CLOSED, _TUNED: CLOSED}


def _trials(seeds: Sequence[int], quick: bool) -> list[Trial]:
    trials: list[Trial] = []
    for d in QUICK_DIMENSIONS if quick else DIMENSIONS:
        for seed in seeds:
            size = {"d": d, "seed": seed, "sites": N_SITES, "rows": N_SAMPLES}
            trials += plan_trials(size, _PLANS)
            trials += [
                {**size, "method": name, **c.settings} for name, c in comparators().items() if d <= c.most_variables
            ]
    return trials


def _run(trial: Trial) -> list[Row]:
    d = trial["d"]
    federation = synthesise(d, d, trial["sites"], trial["rows"], trial["seed"])
    row: Row = {"method": trial["method"], "d": d, "seed": trial["seed"]}
    if "plan" in trial:
        return [{**row, **run_row(run_plan(Plan.parse(trial["plan"]), federation), federation)}]
    seconds, dag = timed(lambda: pooled_graph(trial["method"], federation.tables))
    return [{**row, **scores_row(score(dag, federation.W != 0)), "seconds": seconds}]


def _compare(rows: Sequence[Row]) -> list[Comparison]:
    found: list[Comparison] = []
    for d in _dimensions(rows):
        for method, of_paper in _ROW_OF_THE_PAPER.items():
            here = select(rows, d=d, method=method)
            numbers = TABLE_1.get((of_paper, d), {})
            note = f"paper: {of_paper}" if numbers else ""
            for column, name in _COLUMNS.items():
                paper = numbers.get(column, (None, None))
                found.append(Comparison.of(f"{name}, d={d}: {method}", here, column, paper=paper, note=note))
            what = f"MB as sent, d={d}: {method}"
            found.append(Comparison.of(what, here, "mb_serialised", note="serialised messages"))
    note = "not federated; not in the paper's table"
    for d in _dimensions(rows):
        for method in (method for method in _methods(rows) if method not in _PLANS):
            if here := select(rows, d=d, method=method):
                found += [Comparison.of(f"{SCORES[c]}, d={d}: {method}", here, c, note=note) for c in SCORES]
    return found


def _dimensions(rows: Sequence[Row]) -> list[int]:
    return sorted({row["d"] for row in rows})


def _methods(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows))


def _draw(rows: Sequence[Row]) -> Figure:
    dimensions, methods = _dimensions(rows), _methods(rows)
    figure, charts = figures.new_figure(9.5, 0.8 + 2.6 * len(dimensions), columns=2, rows=len(dimensions))
    for k, d in enumerate(dimensions):
        for axes, column in zip(charts[2 * k : 2 * k + 2], ("shd", "mb_formula"), strict=True):
            for y, method in enumerate(methods):
                _draw_method(axes, y, select(rows, d=d, method=method), method, column, d)
            axes.set_ylim(len(methods) - 0.5, -0.5)
            axes.set_yticks(range(len(methods)), methods if column == "shd" else [""] * len(methods))
            axes.grid(visible=False, axis="y")
        shd, megabytes = charts[2 * k : 2 * k + 2]
        shd.set_title(f"d = {d}", loc="left", fontsize=10, fontweight="bold")
        shd.set_xlim(left=-0.02 * shd.get_xlim()[1])  # a point at zero stays whole
        _scale_by_logarithm(megabytes)
        shd.set_xlabel("SHD (edges)")
        megabytes.set_xlabel("MB by the paper's formula (log scale)")
    handles = [
        charts[0].plot([], [], "o", color=figures.COLOURS[0], label="ours, mean ± std")[0],
        charts[0].plot([], [], ".", color="0.5", label="ours, by seed")[0],
        charts[0].plot([], [], "D", color=figures.COLOURS[1], fillstyle="none", label="paper, mean ± std")[0],
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _scale_by_logarithm(axes: Chart) -> None:
    """Ticks at 1, 2, 5, 10, ... in plain numbers."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [t for t in (m * 10.0**e for e in range(-4, 6) for m in (1, 2, 5)) if low <= t <= high]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlim(low, high)


def _draw_method(axes: Chart, y: int, rows: Sequence[Row], method: str, column: str, d: int) -> None:
    values = [row[column] for row in rows if row.get(column) is not None]
    if not values:
        axes.text(
            0.02,
            y,
            "not run" if not rows else "not federated",
            transform=axes.get_yaxis_transform(),
            va="center",
            color="0.4",
            fontsize=8,
        )
        return
    axes.plot(values, [y + 0.32] * len(values), ".", color="0.5", markersize=5)
    mean, spread = mean_and_spread(rows, column)
    axes.errorbar(mean, y + 0.12, xerr=spread, fmt="o", color=figures.COLOURS[0], capsize=3)
    paper = TABLE_1.get((_ROW_OF_THE_PAPER.get(method, ""), d), {}).get(column)
    if paper is not None:
        axes.errorbar(paper[0], y - 0.22, xerr=paper[1], fmt="D", color=figures.COLOURS[1], fillstyle="none", capsize=3)


def _settings(quick: bool) -> list[Settings]:
    return plan_settings(_PLANS) + [Settings(name, c.settings, c.chosen) for name, c in comparators().items()]


STUDY = described(
    "table1",
    trials=_trials,
    run=_run,
    compare=_compare,
    draw=_draw,
    settings=_settings,
    numbers={"quick_d": QUICK_DIMENSIONS[-1], "largest_d": DIMENSIONS[-1], "sites": N_SITES, "rows": N_SAMPLES}
    | {"saved_20": saved_megabytes(20), "saved_200": saved_megabytes(200)}
    | {"mb_sparse": TABLE_1[SPARSE, 20]["mb_formula"][0], "mb_closed": TABLE_1[CLOSED, 20]["mb_formula"][0]},
)
