"""What the private studies share: methods by epsilon or d, a plan over generated data, settings on a page, charts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl_research.reproduce.curves import SCORES
from fedbnsl_research.reproduce.study import Comparison, Settings, mean_and_spread, select
from fedbnsl_research.reproduce.study_page import band
from fedbnsl_research.trials.harness import N_SAMPLES, Row, run_plan, run_row
from fedbnsl_research.trials.plan_digest import short_digest
from fedbnsl_research.trials.trials import Trial
from fedbnsl_workbench.pages.chart_files import COLOURS, Chart, Figure, new_figure
from fedbnsl_workbench.tables.synthetic import synthesise

D, SITES = 20, 8
"""Variables where a study has no others, and P: as in the paper."""

REFERENCE = "Fed-Sparse-BNSL, not private"


@dataclass(frozen=True)
class PrivateGrid:
    """The methods of a private study, each run at every value of one column: epsilon, or the number of variables.

    Attributes
    ----------
    column, label
        The column of trials and rows, and what a value is called on the page, such as "epsilon {:g}".
    plans
        By method, the plan for a value.
    chosen
        By method how the settings were found, where they differ by value.
    values, quick_values
        Of the full and of the quick version.
    quick_methods
        Those of the quick version; empty: all.
    reference
        A plan without privacy that is run once a seed, if there is one.
    """

    column: str
    label: str
    plans: Mapping[str, Callable[[Any], Plan]]
    chosen: Mapping[str, str | Mapping[str, str]]
    values: Sequence[float]
    quick_values: Sequence[float]
    quick_methods: Sequence[str] = ()
    reference: Plan | None = None

    def cells(self, *, quick: bool) -> list[tuple[str, Any]]:
        """Every method with every value."""
        methods = (quick and self.quick_methods) or self.plans
        return [(method, value) for method in methods for value in (self.quick_values if quick else self.values)]

    def plan_of(self, trial: Trial) -> Plan:
        """The plan that a trial runs."""
        if trial["method"] == REFERENCE and self.reference is not None:
            return self.reference
        return self.plans[trial["method"]](trial[self.column])

    def trials(self, seeds: Sequence[int], quick: bool) -> list[Trial]:
        """The reference once a seed, then value by value every method."""
        cells = sorted(self.cells(quick=quick), key=lambda cell: cell[1])
        if self.reference is not None:
            cells = [(REFERENCE, None), *cells]
        wanted = [{"method": method, self.column: value, "seed": seed} for method, value in cells for seed in seeds]
        return [identified(trial, self.plan_of(trial)) for trial in wanted]

    def run(self, trial: Trial) -> list[Row]:
        """One run."""
        return [run_of(self.plan_of(trial), **{key: trial[key] for key in ("method", self.column, "seed")})]

    def compare(self, rows: Sequence[Row]) -> list[Comparison]:
        """The SHD value by value of every method that was run there."""
        found: list[Comparison] = []
        for value in sorted({row[self.column] for row in rows if row["method"] != REFERENCE}):
            for method in self.plans:
                if mine := select(rows, method=method, **{self.column: value}):
                    found.append(shd_of(mine, f"{self.label.format(value)}, {method}", mine[0]["accounted"]))
        return found

    def draw(self, rows: Sequence[Row], *, label: str, title: str) -> Figure:
        """Three charts by the column."""
        methods = [method for method in self.plans if select(rows, method=method)]
        return curves(rows, self.column, methods, label=label, title=title)

    def settings(self, quick: bool) -> list[Settings]:
        """Of the reference, then method by method at every value."""
        found: list[Settings] = []
        if self.reference is not None:
            found.append(Settings(REFERENCE, settings_of(self.reference), "fed-sparse, a plan of this program"))
        for method, value in self.cells(quick=quick):
            chosen, values = self.chosen[method], settings_of(self.plans[method](value))
            why = chosen if isinstance(chosen, str) else chosen[f"{value:g}"]
            found.append(Settings(f"{self.label.format(value)}, {method}", values, why))
        return found


def identified(trial: Trial, plan: Plan) -> Trial:
    """The trial with a digest of its plan, so that outcomes of other settings in a folder are not used for it."""
    return {**trial, "plan": short_digest(plan)}


def run_of(plan: Plan, *, method: str, seed: int, d: int = D, **columns: Any) -> Row:
    """Run one plan on the federation of a seed; the noise uses the same seed."""
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
    """The settings of a plan that differ from the defaults, and always its rounds and threshold."""
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
    for chart, (column, name) in zip(axes, SCORES.items(), strict=True):
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
    for chart, (column, name) in zip(axes, SCORES.items(), strict=True):
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
