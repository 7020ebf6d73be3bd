"""Figure 1: SHD, TPR and FDR by round on homogeneous and heterogeneous data."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedbnsl.plan.plan import Plan
from fedbnsl_experiments.comparators.pooled import comparators, pooled_graph
from fedbnsl_experiments.pages import chart_files as figures
from fedbnsl_experiments.pages.chart_files import Figure
from fedbnsl_experiments.plan_settings import short_digest
from fedbnsl_experiments.reproduce.baseline_plans import (
    PAPER_CHOICE,
    own_settings,
    paper_fed_bnsl,
    paper_plan,
    shown_settings,
)
from fedbnsl_experiments.reproduce.curves import (
    SCORES,
    draw_curve,
    finish_chart,
    last_rounds,
    mean_curve,
    run_by_round,
    settled,
)
from fedbnsl_experiments.reproduce.paper_numbers import CLOSED, SPARSE, TABLE_1
from fedbnsl_experiments.reproduce.study import Comparison, Settings, Study, mean_and_spread, select
from fedbnsl_experiments.scoring.metrics import score
from fedbnsl_experiments.tables.synthetic import synthesise
from fedbnsl_experiments.trials.harness import N_SAMPLES, Row, scores_row
from fedbnsl_experiments.trials.trials import Trial

N_VARIABLES = 20


@dataclass(frozen=True)
class _Data:
    """One kind of data: its sites, and the variance of a site's weights around the common ones."""

    sites: int
    variance: float


_KINDS = {"homogeneous": _Data(8, 0.0), "heterogeneous": _Data(5, 0.1)}
_OURS = "Fed-Sparse-BNSL, default plan"
_PAPERS = "Fed-Sparse-BNSL, paper's settings"
_DENSE = "Fed-BNSL, paper's settings"
_POOLED = "NOTEARS, pooled rows"

# Table 1 has the end of the upper half of the figure: the same data and settings.
_ENDS = {_PAPERS: TABLE_1[SPARSE, N_VARIABLES], _DENSE: TABLE_1[CLOSED, N_VARIABLES]}


def _plans(kind: str) -> dict[str, tuple[Plan, str]]:
    return {
        _OURS: (Plan(), "on homogeneous graphs of seeds 100 and up; see fedbnsl bench tuning"),
        _PAPERS: (paper_plan(), PAPER_CHOICE),
        _DENSE: (paper_fed_bnsl(heterogeneous=kind == "heterogeneous"), PAPER_CHOICE),
    }


def _trials(seeds: Sequence[int], quick: bool) -> list[Trial]:
    trials: list[Trial] = []
    for kind, data in _KINDS.items():
        for seed in seeds:
            size = {"data": kind, "d": N_VARIABLES, "sites": data.sites, "variance": data.variance, "rows": N_SAMPLES}
            trials += [
                {**size, "seed": seed, "method": method, "plan": own_settings(plan), "digest": short_digest(plan)}
                for method, (plan, _) in _plans(kind).items()
            ]
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
    # Not a number of rounds: what it ends with, for a line across the chart.
    return [{**head, "round": 1, **scores_row(score(dag, federation.W != 0))}]


def _compare(rows: Sequence[Row]) -> list[Comparison]:
    found: list[Comparison] = []
    for kind in _KINDS:
        for method in (_OURS, _PAPERS, _DENSE, _POOLED):
            of_method = select(rows, data=kind, method=method)
            for column, name in SCORES.items():
                paper = _ENDS.get(method, {}).get(column) if kind == "homogeneous" else None
                mean, spread = mean_and_spread(last_rounds(of_method), column)
                note = "paper: Table 1, same data and settings" if paper else "curve without numbers"
                value, std = paper or (None, None)
                found.append(Comparison(f"{name} at the end, {kind}: {method}", value, mean, spread, std, note))
    for kind in _KINDS:
        for method in (_OURS, _PAPERS, _DENSE):
            mean, spread = mean_and_spread(settled(select(rows, data=kind, method=method)), "settled")
            what = f"round from which the SHD stays within 1 of its end, {kind}: {method}"
            found.append(Comparison(what, None, mean, spread, note="paper: Fed-Sparse-BNSL stabilises earlier"))
    for kind in _KINDS:
        for method in (_OURS, _PAPERS):
            found += _against_dense(rows, kind, method)
    return found


def _against_dense(rows: Sequence[Row], kind: str, method: str) -> list[Comparison]:
    """In how many rounds the mean is lower than Fed-BNSL's."""
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
    found: list[Settings] = []
    for kind in _KINDS:
        for method, (plan, chosen) in _plans(kind).items():
            found.append(Settings(f"{method}; {kind}", shown_settings(plan), chosen))
    notears = comparators()[_POOLED]
    return [*found, Settings(_POOLED, notears.settings, notears.chosen)]


STUDY = Study(
    name="convergence",
    title="Convergence on homogeneous and heterogeneous data",
    source="Figure 1",
    claim="Fed-Sparse-BNSL consistently achieves lower SHD than Fed-BNSL across iterations and stabilizes earlier, "
    "with narrower variability; both quickly reach high TPR, and Fed-Sparse-BNSL maintains a lower FDR throughout. It "
    "maintains these advantages on heterogeneous data.",
    trials=_trials,
    run=_run,
    compare=_compare,
    draw=_draw,
    settings=_settings,
    quick="Two seeds in place of ten; everything else is as in the full version.",
    notes=(
        f"d={N_VARIABLES}, {N_SAMPLES} rows a site; homogeneous: P={_KINDS['homogeneous'].sites}, the same weights "
        f"everywhere; heterogeneous: P={_KINDS['heterogeneous'].sites}, each site's weights drawn around the common "
        f"ones with variance {_KINDS['heterogeneous'].variance}. The bands are one standard deviation over the seeds.",
        "The graph of a round is the one that a run ending there would give: |W| > 0.3, then without the weakest edge "
        "of each cycle. The paper cuts at 0.3. Early W have many cycles, so that its early SHD may be higher.",
        "The last step of the default plan's curve is its refit, least squares on the learned support; a run that has "
        "ended counts with its last value in later rounds. Its acyclicity term grows over the rounds, so that it is "
        "late on purpose: a fair comparison of speed is that of the two runs with the paper's settings.",
        "The settings of the default plan were searched on homogeneous graphs of this kind, and it alone ends with a "
        "refit. The paper's settings are run as they are printed; pooled NOTEARS has lambda of its published example, "
        "neither tuned on such graphs nor refitted.",
        "Centralised NOTEARS sees the rows of all sites in one table, which is centred. On heterogeneous data one "
        "table of all rows does not have unit noise, and is no upper limit of what can be learned. The paper shows it "
        "by iteration; it has no rounds, so here it is a line at its end.",
        "Fed-BNSL's L1 term stands once beside the sum over all sites, on W, as in NOTEARS-ADMM's code; that of "
        "Fed-Sparse-BNSL stands at every site. The same lambda need not mean the same.",
    ),
)
