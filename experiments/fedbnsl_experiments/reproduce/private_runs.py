"""What the private studies share: one plan over one generated federation, its settings on a page, and three charts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl_experiments.pages.chart_files import COLOURS, Chart, Figure, band, new_figure
from fedbnsl_experiments.plan_settings import short_digest
from fedbnsl_experiments.reproduce.study import Comparison, mean_and_spread, select
from fedbnsl_experiments.tables.synthetic import synthesise
from fedbnsl_experiments.trials.harness import N_SAMPLES, Row, run_plan, run_row
from fedbnsl_experiments.trials.trials import Trial

SITES = 8
"""P, as in the paper."""

QUANTITIES = {"shd": "SHD", "tpr": "TPR", "fdr": "FDR"}

REFERENCE = "Fed-Sparse-BNSL, not private"


def identified(trial: Trial, plan: Plan) -> Trial:
    """The trial with a digest of its plan: what a folder holds of other settings is not taken for its outcome."""
    return {**trial, "plan": short_digest(plan)}


def run_of(plan: Plan, *, d: int, method: str, seed: int, **columns: Any) -> Row:
    """One plan over the federation of a seed, which its noise comes from too."""
    federation = synthesise(d, d, SITES, N_SAMPLES, seed)
    result = run_plan(plan, federation, noise_seed=seed if plan.privacy else None)
    row = run_row(result, federation)
    return {"method": method, "d": d, **columns, "seed": seed, **row, "accounted": accounted(plan)}


def accounted(plan: Plan) -> str:
    """What the epsilon of a plan covers."""
    if plan.privacy is None:
        return "not private"
    if plan.local_solver != "noisy-covariance" and plan.privacy.smoothness == "exact":
        return "epsilon does not cover the second moments"
    return "epsilon covers all that is sent"


def settings_of(plan: Plan) -> dict[str, Any]:
    """What a plan sets otherwise than the default plan does."""
    default = Plan().model_dump()
    values = {
        key: value
        for key, value in plan.model_dump(exclude={"name", "privacy"}).items()
        if value != default[key] or key in ("rounds", "threshold")
    }
    if plan.privacy is not None:
        # feature_bounds and the like are one value for all variables here
        given = plan.privacy.model_dump(exclude_defaults=True)
        if plan.local_solver != "noisy-covariance":
            given["clip"] = plan.privacy.clip  # the paper's is the default at some budgets
        values |= {f"privacy.{key}": value[0] if isinstance(value, tuple) else value for key, value in given.items()}
    return values


def curves(rows: Sequence[Row], x: str, methods: Sequence[str], *, label: str, title: str) -> Figure:
    """SHD, TPR and FDR by the column x (logarithmic), a curve a method; rows without privacy as a dashed line."""
    figure, axes = new_figure(11.5, 4.1, columns=3)
    across = select(rows, method=REFERENCE)
    for chart, (column, name) in zip(axes, QUANTITIES.items(), strict=True):
        for k, method in enumerate(methods):
            mine = select(rows, method=method)
            places = sorted({row[x] for row in mine})
            pairs = [mean_and_spread(select(mine, **{x: place}), column) for place in places]
            band(chart, places, [mean for mean, _ in pairs], [spread or 0.0 for _, spread in pairs], k, method)
            chart.plot(places, [mean for mean, _ in pairs], "o", markersize=3.5, color=COLOURS[k % len(COLOURS)])
        if across:
            mean, _ = mean_and_spread(across, column)
            chart.axhline(mean, color="#444444", linestyle=(0, (6, 3)), linewidth=1.2, label=REFERENCE)
        _scale(chart, sorted({row[x] for row in rows if row["method"] in methods}))
        chart.set(xlabel=label, ylabel=name)
        _bound(chart, column)
    _legend(figure, axes[0], title)
    return figure


def boxes(rows: Sequence[Row], methods: Sequence[str], *, labels: Mapping[str, str], label: str, title: str) -> Figure:
    """SHD, TPR and FDR as one box a method, with every run as a point."""
    figure, axes = new_figure(11.5, 4.0, columns=3)
    for chart, (column, name) in zip(axes, QUANTITIES.items(), strict=True):
        for k, method in enumerate(methods):
            values = [row[column] for row in select(rows, method=method)]
            colour = COLOURS[0] if k == 0 else COLOURS[1]
            chart.boxplot(
                [values],
                positions=[k],
                widths=0.55,
                showfliers=False,
                boxprops={"color": colour},
                whiskerprops={"color": colour},
                capprops={"color": colour},
                medianprops={"color": colour, "linewidth": 2},
            )
            # side by side, since whole numbers fall on each other
            shifts = [k + 0.36 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))]
            chart.plot(shifts, values, "o", markersize=3, color=colour, alpha=0.5)
        chart.set(xlabel=label, ylabel=name, xlim=(-0.6, len(methods) - 0.4))
        chart.set_xticks(range(len(methods)), [labels[method] for method in methods])
        _bound(chart, column)
    figure.suptitle(title, fontsize=11)
    return figure


def shd_of(rows: Sequence[Row], what: str, note: str, paper: float | None = None) -> Comparison:
    """The mean SHD over rows beside the paper's, with the other two quantities in the note."""
    mean, spread = mean_and_spread(rows, "shd")
    tpr, fdr = (mean_and_spread(rows, column)[0] for column in ("tpr", "fdr"))
    return Comparison(f"{what}: SHD", paper, mean, spread, note=f"TPR {tpr:.2f}, FDR {fdr:.2f}; {note}")


def _scale(chart: Chart, places: Sequence[float]) -> None:
    chart.set_xscale("log")
    chart.minorticks_off()
    chart.set_xticks(places, [f"{place:g}" for place in places])


def _bound(chart: Chart, column: str) -> None:
    """Limits that hold what is drawn, in steps of 0.1 for the rates, and keep points on an end whole."""
    low, high = chart.get_ylim()
    if column == "shd":
        high = max(high, 2.0)
        chart.set_ylim(-0.02 * high, high)
    elif column == "tpr":
        chart.set_ylim(max(-0.02, min(0.8, math.floor(10.0 * low) / 10.0)), 1.02)
    else:
        high = min(1.02, max(0.2, math.ceil(10.0 * high) / 10.0))
        chart.set_ylim(-0.02 * high, high)


def _legend(figure: Figure, chart: Chart, title: str) -> None:
    handles, names = chart.get_legend_handles_labels()
    columns = 2 if len(names) == 4 else 3  # rows of one length
    figure.legend(handles, names, loc="outside lower center", ncols=columns, handlelength=3.2, frameon=False)
    figure.suptitle(title, fontsize=11)
