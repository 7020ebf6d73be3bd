"""The charts of a run's report, each an <svg> element with words for those who do not see it."""

import re
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedbnsl.graphs.layout import shortened
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_workbench.pages.chart_files import COLOURS, STYLES, Chart, Figure, as_svg, new_figure

_WIDTH, _HEIGHT = 4.8, 2.9
_MOST_NUMBERED = 25
_MOST_LABELLED = 60
_SITES_AS_LINES = 6
_NAME = 16
_MOST_CURVES, _CURVES_ACROSS = 24, 4
_BAND = 1.96  # standard errors on either side
# Below this ratio powers of ten alone would leave an axis with a label or none.
_FEW_DECADES = 50.0
_POSITIVE, _NEGATIVE = "#0072B2", "#D55E00"

_NEEDLESS = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_GROUP_ID = re.compile(r'<g id="[A-Za-z]+[\w.]*_\d+"')


def curved_effects(curves: Mapping[str, Any] | None, units: Mapping[str, str]) -> str:
    """How variables change with a parent, each a line between points in a band of 95 %; empty: there are none."""
    shown: list[Mapping[str, Any]] = curves["effects"][:_MOST_CURVES] if curves else []
    if not shown:
        return ""
    across = min(len(shown), _CURVES_ACROSS)
    down = -(-len(shown) // across)
    figure, axes = new_figure(2.6 * across, 2.3 * down, rows=down, columns=across)
    for one, panel in zip(shown, axes, strict=False):
        at, change, error = (np.array(one[key]) for key in ("at", "change", "error"))
        panel.fill_between(at, change - _BAND * error, change + _BAND * error, color=_POSITIVE, alpha=0.25, linewidth=0)
        panel.plot(at, change, color=_POSITIVE)
        for name, label in ((one["source"], panel.set_xlabel), (one["target"], panel.set_ylabel)):
            unit = f" ({units[name]})" if name in units else ""
            label(shortened(name, _NAME) + unit, parse_math=False, fontsize=8)
        panel.tick_params(labelsize=7)
    for panel in axes[len(shown) :]:
        panel.set_axis_off()
    return _as_element(figure, "; ".join(f"{one['target']} by {one['source']}" for one in shown))


def scores_by_site(variables: Mapping[str, Any], sites: Sequence[str]) -> str:
    """R^2, or the area under the ROC curve, by variable: a mark for each site, with its own means; empty: no scores."""
    told = {name: [_score(both["sites"][site]["own_means"]) for site in sites] for name, both in variables.items()}
    told = {name: one for name, one in told.items() if any(value is not None for value in one)}
    if not told or len(told) > _MOST_LABELLED:
        return ""
    figure, axes = _chart("R^2 or AUC", "", height=min(max(_HEIGHT, 0.24 * len(told) + 1.1), 13.0))
    for k, site in enumerate(sites):
        values = [float("nan") if (value := one[k]) is None else max(value, 0.0) for one in told.values()]
        many = len(sites) > _SITES_AS_LINES
        colour, mark = (_POSITIVE, "o") if many else (COLOURS[k], "os^Dvx"[k])
        label = "" if many else shortened(site, _NAME)
        axes.plot(values, range(len(told)), mark, color=colour, alpha=0.7, markersize=4.5, label=label)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(len(told) - 0.5, -0.5)
    axes.set_yticks(range(len(told)), [shortened(name, _NAME) for name in told], fontsize=8, parse_math=False)
    if len(sites) <= _SITES_AS_LINES:
        _legend(figure, axes)
    return _as_element(figure, f"R^2 or AUC of {len(told)} variables at each of {len(sites)} sites; below 0 as 0")


def _score(told: Mapping[str, Any]) -> float | None:
    known: float | None = told["r2"] if told["r2"] is not None else told["auc"]
    return known


def as_told(variables: Mapping[str, Any]) -> str:
    """Whether what is predicted comes true, a panel for each variable; empty: nothing is told.

    Of levels, their probabilities; of numbers, the shares of rows in each tenth of their predicted distribution.
    """
    every = {name: both["own_means"] for name, both in variables.items()}
    shown = [(name, one) for name, one in every.items() if one["pit"] or one["calibration"]][:_MOST_CURVES]
    if not shown:
        return ""
    across = min(len(shown), _CURVES_ACROSS)
    down = -(-len(shown) // across)
    figure, axes = new_figure(2.6 * across, 2.3 * down, rows=down, columns=across)
    for (name, one), panel in zip(shown, axes, strict=False):
        if one["pit"]:
            panel.bar([k + 0.5 for k in range(len(one["pit"]))], one["pit"], width=0.9, color=_POSITIVE, alpha=0.6)
            panel.axhline(1.0 / len(one["pit"]), color="#57606a", linestyle="--", linewidth=1)
            panel.set_xlabel("tenth of the distribution", fontsize=8)
            panel.set_ylabel("share of rows", fontsize=8)
        else:
            ends = [[each[key] for each in one["calibration"]] for key in ("predicted", "came_true")]
            panel.plot([0, 1], [0, 1], color="#57606a", linestyle="--", linewidth=1)
            panel.plot(*ends, "o-", color=_POSITIVE, markersize=3.5, linewidth=1.2)
            panel.set_xlabel("predicted", fontsize=8)
            panel.set_ylabel("came true", fontsize=8)
        panel.set_title(shortened(name, _NAME), fontsize=8, parse_math=False)
        panel.tick_params(labelsize=7)
    for panel in axes[len(shown) :]:
        panel.set_axis_off()
    return _as_element(figure, f"Predicted, and what came true, of {', '.join(name for name, _ in shown)}")


def weight_map(W: Matrix, names: Sequence[str]) -> str:
    """Raw W, (d, d), as a heat map: source by row, target by column; with numbers while they can be read.

    NaN, a weight that is withheld, stays blank.
    """
    d = len(names)
    side = min(max(4.2, 0.3 * d + 1.4), 9.0)
    figure, (axes,) = new_figure(side + 0.6, side)
    limit = float(np.nanmax(np.abs(W))) or 1.0
    figure.set_dpi(100 if d <= _MOST_LABELLED else 160)
    colours = _diverging()
    image = axes.imshow(W, cmap=colours, vmin=-limit, vmax=limit, interpolation="nearest", aspect="equal")
    axes.grid(visible=False)
    if d <= _MOST_LABELLED:
        # Lines between the cells lead the eye from a cell to its names.
        axes.set_xticks(np.arange(d + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(d + 1) - 0.5, minor=True)
        axes.grid(visible=True, which="minor", color="#57606a", alpha=0.18, linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    axes.tick_params(which="major", length=0)
    axes.set_xlabel("target")
    axes.set_ylabel("source")
    if d <= _MOST_LABELLED:
        size = 8 if d <= _MOST_NUMBERED else 5.5
        shown = [shortened(name, _NAME) for name in names]
        axes.set_xticks(range(d), shown, rotation=90, fontsize=size, parse_math=False)
        axes.set_yticks(range(d), shown, fontsize=size, parse_math=False)
    if d <= _MOST_NUMBERED:
        for i, j in np.argwhere(np.abs(W) >= 0.05).tolist():
            ink = "white" if abs(W[i, j]) > 0.6 * limit else "#1b1f24"
            axes.text(j, i, f"{W[i, j]:.1f}", ha="center", va="center", fontsize=6.5, color=ink)
    figure.colorbar(image, ax=axes, shrink=0.7, label="weight")
    return _as_element(figure, f"Heat map of the raw weights of {d} by {d} columns, from {-limit:.2g} to {limit:.2g}")


def acyclicity(rounds: Sequence[int], values: Sequence[float | None]) -> str:
    """h(W) by round, on a logarithmic scale; None where it left the finite numbers."""
    figure, axes = _chart("round", "h(W)")
    above_zero = [value if value else float("nan") for value in values]
    axes.plot(rounds, above_zero, **_line(0, rounds))
    if any(values):
        axes.set_yscale("log")
    last = "not finite" if values[-1] is None else f"{values[-1]:.3g}"
    return _as_element(figure, f"Acyclicity h(W) by round; {last} in round {rounds[-1]}")


def edges_by_round(rounds: Sequence[int], counts: Sequence[int]) -> str:
    """Edges above the threshold after each round."""
    return _by_round(rounds, "edges", {"": counts}, f"Edges by round; {counts[-1]} in round {rounds[-1]}")


def seconds_by_round(rounds: Sequence[int], local: Sequence[float], global_: Sequence[float]) -> str:
    """Seconds of the sites' step (and of waiting for it) and of the coordinator's."""
    words = f"Seconds by round: {sum(local):.3g} s local and {sum(global_):.3g} s global in all"
    return _by_round(rounds, "seconds", {"local: sites and network": local, "global: coordinator": global_}, words)


def bytes_by_round(rounds: Sequence[int], up: Sequence[int], down: Sequence[int]) -> str:
    """Serialised kB of all sites by round and direction."""
    kb = {"up: to the coordinator": [n / 1000 for n in up], "down: to the sites": [n / 1000 for n in down]}
    words = f"Serialised bytes by round: {sum(up):,} up and {sum(down):,} down in all"
    return _by_round(rounds, "kB, all sites", kb, words)


def bytes_by_site(rounds: Sequence[int], sites: Sequence[str], both_ways: Matrix) -> str:
    """Serialised kB, (sites, rounds): a line a site, or a map where they are many."""
    figure, axes = _chart("round", "kB, both ways" if len(sites) <= _SITES_AS_LINES else "site")
    if len(sites) <= _SITES_AS_LINES:
        for k, site in enumerate(sites):
            axes.plot(rounds, both_ways[k] / 1000, label=shortened(site, _NAME), **_line(k, rounds))
        axes.set_ylim(bottom=0)
        _legend(figure, axes)
    else:
        extent = (rounds[0] - 0.5, rounds[-1] + 0.5, len(sites) - 0.5, -0.5)
        image = axes.imshow(
            both_ways / 1000, aspect="auto", interpolation="nearest", cmap="cividis", extent=extent, vmin=0
        )
        axes.grid(visible=False)
        every = -(-len(sites) // 12)
        ticks = range(0, len(sites), every)
        shown = [shortened(sites[k], _NAME) for k in ticks]
        axes.set_yticks(list(ticks), shown, fontsize=8, parse_math=False)
        axes.set_ylabel("")
        figure.colorbar(image, ax=axes, label="kB, both ways")
    return _as_element(figure, f"Serialised bytes by round, for each of {len(sites)} sites")


def residual_variances(names: Sequence[str], variances: Sequence[float]) -> str:
    """Residual variance of each column, the largest on top while names can be read."""
    order = sorted(range(len(names)), key=lambda k: variances[k])
    values = [variances[k] for k in order]
    tall = min(max(_HEIGHT, 0.2 * len(names) + 0.9), 11.0) if len(names) <= _MOST_LABELLED else _HEIGHT
    figure, axes = _chart("residual variance", "", height=tall)
    axes.plot(values, range(len(values)), "o", color=_POSITIVE, markersize=4)
    axes.axvline(float(np.median(values)), color="#57606a", linestyle="--", linewidth=1)
    if min(values) > 0 and max(values) > 5 * min(values):
        _log_ticks(axes, max(values) / min(values))
    else:
        axes.set_xlim(0, 1.08 * max(values) or 1.0)
    if len(names) <= _MOST_LABELLED:
        shown = [shortened(names[k], _NAME) for k in order]
        axes.set_yticks(range(len(names)), shown, fontsize=8, parse_math=False)
    else:
        axes.set_yticks([])
        axes.set_ylabel("columns, in order")
    low, high = (f"{names[order[k]]} {values[k]:.3g}" for k in (0, -1))
    return _as_element(figure, f"Residual variances from {low} to {high}; the dashed line is the median")


def threshold_path(taus: Sequence[float], edges: Sequence[int], shd: Sequence[int] | None, chosen: float) -> str:
    """Edges (and SHD to the truth) of raw W cut at each threshold, with the run's threshold marked."""
    figure, axes = _chart("threshold tau", "edges" if shd is None else "count")
    axes.plot(taus, edges, color=COLOURS[0], linestyle=STYLES[0], label="edges")
    if shd is not None:
        axes.plot(taus, shd, color=COLOURS[1], linestyle=STYLES[1], label="SHD to the truth")
    axes.axvline(chosen, color="#1b1f24", linestyle=":", linewidth=1.4, label=f"this run: tau = {chosen:g}")
    most = max(edges)
    near = [count for tau, count in zip(taus, edges, strict=True) if tau >= chosen / 2]
    if near and most > 8 * max(1, *near):
        axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    _legend(figure, axes)
    return _as_element(
        figure, f"Number of edges by threshold: {edges[0]} at {taus[0]:g}, {edges[-1]} at {taus[-1]:.3g}"
    )


def _chart(x: str, y: str, *, height: float = _HEIGHT) -> tuple[Figure, Chart]:
    figure, (axes,) = new_figure(_WIDTH, height)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _by_round(rounds: Sequence[int], y: str, lines: Mapping[str, Sequence[float]], words: str) -> str:
    """Lines from zero by round, with a legend where there are several."""
    figure, axes = _chart("round", y)
    for k, (label, values) in enumerate(lines.items()):
        axes.plot(rounds, values, label=label, **_line(k, rounds))
    axes.set_ylim(bottom=0)
    if len(lines) > 1:
        _legend(figure, axes)
    return _as_element(figure, words)


def _line(index: int, rounds: Sequence[int]) -> dict[str, Any]:
    """Colour and dashes of a line; points too where there are few."""
    return {
        "color": COLOURS[index],
        "linestyle": STYLES[index],
        "marker": "o" if len(rounds) < 8 else "",
        "markersize": 4,
        "linewidth": 1.6,
    }


def _legend(figure: Figure, axes: Chart) -> None:
    """Above the chart, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=9, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a site may be called $x$


def _log_ticks(axes: Chart, ratio: float) -> None:
    """A logarithmic x axis with labels at its major ticks only: those of minor ones would overlap."""
    from matplotlib import ticker as mpl_ticker

    ticker: Any = mpl_ticker
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if ratio < _FEW_DECADES else (1.0,)))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def _diverging() -> Any:
    """Vermilion through white to blue: the colours of negative and positive edges in the drawing of the graph."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("sign", [_NEGATIVE, "#ffffff", _POSITIVE])


def _as_element(figure: Figure, words: str) -> str:
    with warnings.catch_warnings():
        # Letters that matplotlib's font lacks stay text in the SVG, where the reader's fonts draw them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        svg = as_svg(figure)
    svg = _GROUP_ID.sub("<g", _NEEDLESS.sub("", svg))
    return svg.replace("<svg", f'<svg class="chart" role="img" aria-label="{escape(words)}"', 1)
