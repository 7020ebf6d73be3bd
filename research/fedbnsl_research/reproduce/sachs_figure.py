"""The figure of the Sachs study: SHD and skeleton hits by method, beside what no learning and chance would reach."""

from collections.abc import Mapping, Sequence

from fedbnsl_research.reproduce.study import mean_and_spread, select
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.pages import chart_files as figures
from fedbnsl_workbench.pages.chart_files import Chart, Figure

# (column of the rows, its label, value of the empty graph, column of chance)
_QUANTITIES = (
    ("shd", "SHD (edges; less is better)", "empty_shd", "random_shd"),
    ("skeleton_hits", "skeleton hits (pairs; more is better)", None, "random_hits"),
)
_CHANCE, _PAPER = "0.82", figures.COLOURS[1]
# By split: colour, marker, offset within a method's row.
_LOOKS = {
    "shuffled": (figures.COLOURS[0], "o", -0.17),
    "contiguous": (figures.COLOURS[2], "s", 0.17),
    "pooled": (figures.COLOURS[6], "D", 0.0),
}


def draw_sachs(rows: Sequence[Row], main_reference: str, paper: Mapping[str, Mapping[str, float]]) -> Figure:
    """A row of two charts for each edge list, the main one first and larger.

    Parameters
    ----------
    rows
        Of the methods, not of the sensitivity table.
    main_reference
        The edge list that the paper scores against.
    paper
        Its numbers by method and column.
    """
    names = list(dict.fromkeys(row["reference"] for row in rows))
    references = sorted(names, key=lambda name: (name != main_reference, name))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure, charts = figures.new_figure(10.5, 3.2 * len(references) + 2.2, columns=2, rows=len(references))
    charts[0].get_gridspec().set_height_ratios([1.7] + [1.0] * (len(references) - 1))
    for k, reference in enumerate(references):
        main = reference == main_reference
        for axes, (column, words, empty, chance) in zip(charts[2 * k : 2 * k + 2], _QUANTITIES, strict=True):
            scored = select(rows, reference=reference)
            _draw_controls(axes, scored, methods, chance, 0.0 if empty is None else scored[0][empty])
            for y, method in enumerate(methods):
                _draw_method(axes, y, select(scored, method=method), column)
                if main and column in paper.get(method, {}):
                    axes.plot(paper[method][column], y, "x", color=_PAPER, markersize=8, markeredgewidth=2, zorder=4)
            size = 10 if main else 7.5
            axes.set_ylim(len(methods) - 0.4, -0.6)
            axes.set_yticks(range(len(methods)), methods if column == "shd" else [""] * len(methods), fontsize=size)
            axes.tick_params(axis="y", length=0)
            axes.grid(visible=False, axis="y")
            axes.set_xlim(-0.02 * axes.get_xlim()[1], 1.05 * axes.get_xlim()[1])
            axes.locator_params(axis="x", integer=True)
            axes.set_xlabel(words, fontsize=size)
        title = f"against the {reference.replace('-', ' edges of ', 1)}"
        charts[2 * k].set_title(title, loc="left", fontsize=11 if main else 9, fontweight="bold")
    _legend(figure, charts[0])
    return figure


def _draw_controls(axes: Chart, rows: Sequence[Row], methods: Sequence[str], chance: str, empty: float) -> None:
    """A grey bar a method and split for random DAGs with as many edges; a line for the empty graph."""
    for y, method in enumerate(methods):
        if y % 2:
            axes.axhspan(y - 0.5, y + 0.5, color="0.96", zorder=0, linewidth=0)
        for split, (_, _, offset) in _LOOKS.items():
            own = select(rows, method=method, split=split)
            if own:
                mean, std = (sum(row[name] for row in own) / len(own) for name in (chance, f"{chance}_std"))
                height = 0.7 if split == "pooled" else 0.34
                axes.barh(y + offset, 2 * std, left=mean - std, height=height, color=_CHANCE, zorder=1)
    axes.axvline(empty, color="0.25", linestyle="--", linewidth=1.2, zorder=2)


def _draw_method(axes: Chart, y: int, rows: Sequence[Row], column: str) -> None:
    for split, (colour, marker, offset) in _LOOKS.items():
        own = select(rows, split=split)
        if own:
            mean, spread = mean_and_spread(own, column)
            axes.errorbar(
                mean, y + offset, xerr=spread or 0.0, fmt=marker, color=colour, capsize=2, markersize=5, zorder=3
            )


def _legend(figure: Figure, axes: Chart) -> None:
    handles = [
        axes.plot(
            [], [], marker, color=colour, label=f"{split} rows" if split != "pooled" else "one table of all rows"
        )[0]
        for split, (colour, marker, _) in _LOOKS.items()
    ]
    handles += [
        axes.plot([], [], "x", color=_PAPER, markeredgewidth=2, label="paper")[0],
        axes.plot([], [], "--", color="0.25", label="empty graph")[0],
        axes.plot([], [], "-", color=_CHANCE, linewidth=8, label="random DAGs with as many edges, mean ± std")[0],
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
