"""The page of a study: its template, and the numbers and bands that only studies have."""

import math
from collections.abc import Sequence
from typing import Any

from jinja2 import ChoiceLoader, PackageLoader

from fedbnsl_workbench.pages.chart_files import COLOURS, STYLES, Chart
from fedbnsl_workbench.pages.render import ENVIRONMENT, number

# Below one, three decimals are all that a few runs tell; of numbers below _SMALL they would leave nothing.
_DECIMALS = 3
_SMALL = 0.01


def with_spread(mean: float | None, spread: float | None, sign: str = "\u00b1") -> str:
    """A mean and its standard deviation, which has two digits and no more decimals than the mean.

    Numbers from 0.01 to 1 have three decimals at most, smaller ones three digits.
    """
    if mean is None or isinstance(mean, int) or not math.isfinite(mean):
        shown, decimals = number(mean), _DECIMALS
    else:
        size = abs(mean)
        decimals = _DECIMALS if size == 0 or _SMALL <= size < 1 else max(0, 2 - math.floor(math.log10(size)))
        shown = number(round(mean, decimals))
    if spread is None:
        return shown
    rounded = round(spread, decimals)
    least = f"<{10**-decimals:g}" if spread > 0 else "0"
    return f"{shown} {sign} {number(rounded, 2) if rounded else least}"


def band(axes: Chart, x: Sequence[float], mean: Sequence[float], std: Sequence[float], index: int, label: str) -> None:
    """A line with a shaded band of one standard deviation, in the colour and style of its index."""
    colour, style = COLOURS[index % len(COLOURS)], STYLES[index % len(STYLES)]
    axes.plot(x, mean, color=colour, linestyle=style, label=label)
    low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


_PAGES = ENVIRONMENT.overlay(
    loader=ChoiceLoader([PackageLoader("fedbnsl_research.reproduce"), PackageLoader("fedbnsl_workbench.pages")])
)


def study_page(**content: Any) -> str:
    """A study's page as text; for the content see the template."""
    return _PAGES.get_template("study.html.j2").render(content, with_spread=with_spread)
