"""Appendix, impact of standardisation: three local solvers on raw columns and on each site's z-scores."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_research.comparators.orderings import sortnregress
from fedbnsl_research.comparators.pooled import TAU, centred_rows
from fedbnsl_research.reproduce.baseline_plans import (
    PAPER_CHOICE,
    paper_fed_bnsl,
    paper_fed_bnsl_fw,
    paper_plan,
    plan_settings,
    plan_trials,
)
from fedbnsl_research.reproduce.curves import SCORES, draw_curve, finish_chart, last_rounds, run_by_round
from fedbnsl_research.reproduce.study import Comparison, Settings, described, select
from fedbnsl_research.trials.harness import N_SAMPLES, Row, scores_row
from fedbnsl_research.trials.trials import Trial
from fedbnsl_workbench.pages import chart_files as figures
from fedbnsl_workbench.pages.chart_files import Chart, Figure
from fedbnsl_workbench.scoring.evaluation import graph_of
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.scoring.varsortability import varsortability
from fedbnsl_workbench.tables.synthetic import SyntheticFederation, synthesise

N_VARIABLES, N_SITES = 20, 8
FW_STEPS, MORE_FW_STEPS = 10, 1000

_SPARSE, _CLOSED = "Fed-Sparse-BNSL (PGCD)", "Fed-BNSL (closed form)"
_FW, _FW_MORE = (f"Fed-BNSL-FW, {steps} steps a round" for steps in (FW_STEPS, MORE_FW_STEPS))
_ORDER = "sortnregress, pooled rows"
_COLUMNS_ARE = ("raw", "standardised")


def _plans() -> dict[str, tuple[Plan, str]]:
    borrowed = "the settings of Fed-Sparse-BNSL, as the paper names none"
    return {
        _SPARSE: (paper_plan(), PAPER_CHOICE),
        _CLOSED: (paper_fed_bnsl(), PAPER_CHOICE),
        _FW: (paper_fed_bnsl_fw(FW_STEPS), f"{borrowed}, nor a number of steps"),
        _FW_MORE: (paper_fed_bnsl_fw(MORE_FW_STEPS), f"{borrowed}; a hundred times the steps"),
    }


def standardised(federation: SyntheticFederation) -> SyntheticFederation:
    """The federation with each site's columns as z-scores of its own rows; the graph is the same."""
    return replace(federation, tables=tuple(_z_scores(X) for X in federation.tables))


def _z_scores(X: Matrix) -> Matrix:
    return np.asarray((X - X.mean(axis=0)) / X.std(axis=0))


def _trials(seeds: Sequence[int], quick: bool) -> list[Trial]:
    size = {"d": N_VARIABLES, "sites": N_SITES, "rows": N_SAMPLES}
    trials: list[Trial] = []
    for seed in seeds:
        for columns in _COLUMNS_ARE:
            head = {**size, "seed": seed, "columns": columns}
            trials += plan_trials(head, _plans())
            trials.append({**head, "method": _ORDER, "threshold": TAU, "centred": True})
    return trials


def _run(trial: Trial) -> list[Row]:
    d = trial["d"]
    federation = synthesise(d, d, trial["sites"], trial["rows"], trial["seed"])
    if trial["columns"] == "standardised":
        federation = standardised(federation)
    head: Row = {"columns": trial["columns"], "method": trial["method"], "seed": trial["seed"]}
    if "plan" in trial:
        _, rows = run_by_round(Plan.parse(trial["plan"]), federation)
        return [{**head, **row} for row in rows]
    X = centred_rows(federation.tables)
    S = SecondMoments.of(X).S
    dag = graph_of(sortnregress(S, len(X)), trial["threshold"])
    scores = scores_row(score(dag, federation.W != 0))
    return [{**head, "round": 1, **scores, "varsortability": varsortability(S, federation.W)}]


def _compare(rows: Sequence[Row]) -> list[Comparison]:
    found: list[Comparison] = []
    for column, name in SCORES.items():
        for method in (*_plans(), _ORDER):
            for columns in _COLUMNS_ARE:
                ends = last_rounds(select(rows, method=method, columns=columns))
                note = "boxplot without numbers" if method != _ORDER else "not in the paper"
                found.append(Comparison.of(f"{name} at the end, {columns}: {method}", ends, column, note=note))
    for columns in _COLUMNS_ARE:
        of_order = select(rows, method=_ORDER, columns=columns)
        note = "1: variances grow along every path; 0.5: they say nothing"
        found.append(Comparison.of(f"varsortability, {columns}", of_order, "varsortability", note=note))
    return found


def _draw(rows: Sequence[Row]) -> Figure:
    figure, charts = figures.new_figure(10, 9, columns=3, rows=3)
    for k, columns in enumerate(_COLUMNS_ARE):
        for axes, column in zip(charts[3 * k : 3 * k + 3], SCORES, strict=True):
            for index, method in enumerate(_plans()):
                draw_curve(axes, select(rows, method=method, columns=columns), column, index, method)
            finish_chart(axes, column)
        charts[3 * k].set_title(f"{columns} columns", loc="left", fontsize=10, fontweight="bold")
    for axes, column in zip(charts[6:], SCORES, strict=True):
        _draw_ends(axes, rows, column)
    charts[6].set_title("at the end", loc="left", fontsize=10, fontweight="bold")
    handles, labels = charts[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_ends(axes: Chart, rows: Sequence[Row], column: str) -> None:
    """Boxes of the last values, raw and standardised side by side."""
    for index, method in enumerate(_plans()):
        for k, columns in enumerate(_COLUMNS_ARE):
            ends = [float(row[column]) for row in last_rounds(select(rows, method=method, columns=columns))]
            x = k * (len(_plans()) + 1) + index
            drawn = axes.boxplot(
                [ends],
                positions=[x],
                widths=0.7,
                patch_artist=True,
                manage_ticks=False,
                medianprops={"color": "black", "linewidth": 1.2},
            )
            drawn["boxes"][0].set(facecolor=figures.COLOURS[index], alpha=0.75, linewidth=0.5)
    middle = (len(_plans()) - 1) / 2
    axes.set_xticks([middle + k * (len(_plans()) + 1) for k in range(2)], _COLUMNS_ARE)
    finish_chart(axes, column, x="")


def _settings(quick: bool) -> list[Settings]:
    return [
        *plan_settings(_plans()),
        Settings(_ORDER, {"threshold": TAU}, "edges along the order of variances by lasso with BIC"),
    ]


STUDY = described(
    "standardisation",
    trials=_trials,
    run=_run,
    compare=_compare,
    draw=_draw,
    settings=_settings,
    numbers={"d": N_VARIABLES, "sites": N_SITES, "rows": N_SAMPLES}
    | {"fw_steps": FW_STEPS, "more_fw_steps": MORE_FW_STEPS},
)
