"""Figure 1: SHD, TPR and FDR by round on homogeneous and heterogeneous data."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedbnsl.plan.plan import Plan
from fedbnsl_research.comparators.pooled import comparators, pooled_graph
from fedbnsl_research.reproduce.baseline_plans import (
    PAPER_CHOICE,
    paper_fed_bnsl,
    paper_plan,
    plan_settings,
    plan_trials,
)
from fedbnsl_research.reproduce.curves import (
    SCORES,
    draw_curve,
    finish_chart,
    last_rounds,
    mean_curve,
    run_by_round,
    settled,
)
from fedbnsl_research.reproduce.paper_numbers import CLOSED, SPARSE, TABLE_1
from fedbnsl_research.reproduce.study import Comparison, Settings, described, mean_and_spread, select
from fedbnsl_research.trials.harness import N_SAMPLES, Row, scores_row
from fedbnsl_research.trials.trials import Trial
from fedbnsl_workbench.pages import chart_files as figures
from fedbnsl_workbench.pages.chart_files import Figure
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.tables.synthetic import synthesise

N_VARIABLES = 20


@dataclass(frozen=True)
class _Data:
    """One kind of data: its sites, and the variance of a site's weights around the common ones."""

    sites: int
    variance: float


_KINDS = {"homogeneous": _Data(8, 0.0), "heterogeneous": _Data(5, 0.1)}
_OURS = "Fed-Sparse-BNSL, fed-sparse"
_PAPERS = "Fed-Sparse-BNSL, paper's settings"
_DENSE = "Fed-BNSL, paper's settings"
_POOLED = "NOTEARS, pooled rows"

# Table 1 has the end of the upper half of the figure: the same data and settings.
_ENDS = {_PAPERS: TABLE_1[SPARSE, N_VARIABLES], _DENSE: TABLE_1[CLOSED, N_VARIABLES]}


def _plans(kind: str) -> dict[str, tuple[Plan, str]]:
    return {
        _OURS: (Plan.load("fed-sparse"), "on homogeneous graphs of seeds 100 and up"),
        _PAPERS: (paper_plan(), PAPER_CHOICE),
        _DENSE: (paper_fed_bnsl(heterogeneous=kind == "heterogeneous"), PAPER_CHOICE),
    }


def _trials(seeds: Sequence[int], quick: bool) -> list[Trial]:
    trials: list[Trial] = []
    for kind, data in _KINDS.items():
        for seed in seeds:
            size = {"data": kind, "d": N_VARIABLES, "sites": data.sites, "variance": data.variance, "rows": N_SAMPLES}
            trials += plan_trials({**size, "seed": seed}, _plans(kind))
            trials.append({**size, "seed": seed, "method": _POOLED, **comparators()[_POOLED].settings})
    return trials


def _run(trial: Trial) -> list[Row]:
    d = trial["d"]
    federation = synthesise(d, d, trial["sites"], trial["rows"], trial["seed"], weight_variance=trial["variance"])
    head: Row = {"data": trial["data"], "method": trial["method"], "seed": trial["seed"]}
    if "plan" in trial:
        _, rows = run_by_round(Plan.parse(trial["plan"]), federation)
        return [{**head, **row} for row in rows]
    dag = pooled_graph(trial["method"], federation.tables)
    # It has no rounds: the row holds its final scores, for a line across the chart.
    return [{**head, "round": 1, **scores_row(score(dag, federation.W != 0))}]


def _compare(rows: Sequence[Row]) -> list[Comparison]:
    found: list[Comparison] = []
    for kind in _KINDS:
        for method in (_OURS, _PAPERS, _DENSE, _POOLED):
            ends = last_rounds(select(rows, data=kind, method=method))
            for column, name in SCORES.items():
                paper = _ENDS.get(method, {}).get(column) if kind == "homogeneous" else None
                note = "paper: Table 1, same data and settings" if paper else "curve without numbers"
                what = f"{name} at the end, {kind}: {method}"
                found.append(Comparison.of(what, ends, column, paper=paper or (None, None), note=note))
    for kind in _KINDS:
        for method in (_OURS, _PAPERS, _DENSE):
            what = f"round from which the SHD stays within 1 of its end, {kind}: {method}"
            rounds = settled(select(rows, data=kind, method=method))
            found.append(Comparison.of(what, rounds, "settled", note="paper: Fed-Sparse-BNSL stabilises earlier"))
    for kind in _KINDS:
        for method in (_OURS, _PAPERS):
            found += _against_dense(rows, kind, method)
    return found


def _against_dense(rows: Sequence[Row], kind: str, method: str) -> list[Comparison]:
    """Share of the rounds in which the mean is lower than Fed-BNSL's."""
    found: list[Comparison] = []
    for column in ("shd", "fdr"):
        sparse, dense = (mean_curve(select(rows, data=kind, method=m), column) for m in (method, _DENSE))
        pairs = list(zip(sparse.mean, dense.mean, strict=False))
        share = sum(a < b for a, b in pairs) / len(pairs)
        what = f"share of the rounds with a lower mean {SCORES[column]} than Fed-BNSL, {kind}: {method}"
        found.append(Comparison(what, None, share, note="paper: consistently lower"))
    return found


def _draw(rows: Sequence[Row]) -> Figure:
    figure, charts = figures.new_figure(10, 6.2, columns=3, rows=2)
    for k, kind in enumerate(_KINDS):
        for axes, column in zip(charts[3 * k : 3 * k + 3], SCORES, strict=True):
            for index, method in enumerate((_OURS, _PAPERS, _DENSE)):
                draw_curve(axes, select(rows, data=kind, method=method), column, index, method)
            level, _ = mean_and_spread(select(rows, data=kind, method=_POOLED), column)
            axes.axhline(level, color="black", linestyle=":", label=f"{_POOLED}, at its end")
            finish_chart(axes, column)
        data = _KINDS[kind]
        charts[3 * k].set_title(f"{kind}, P = {data.sites}", loc="left", fontsize=10, fontweight="bold")
    handles, labels = charts[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _settings(quick: bool) -> list[Settings]:
    found = [settings for kind in _KINDS for settings in plan_settings(_plans(kind), data=f"; {kind}")]
    notears = comparators()[_POOLED]
    return [*found, Settings(_POOLED, notears.settings, notears.chosen)]


STUDY = described(
    "convergence",
    trials=_trials,
    run=_run,
    compare=_compare,
    draw=_draw,
    settings=_settings,
    numbers={"d": N_VARIABLES, "rows": N_SAMPLES, "sites": _KINDS["homogeneous"].sites}
    | {"uneven_sites": _KINDS["heterogeneous"].sites, "variance": _KINDS["heterogeneous"].variance},
)
