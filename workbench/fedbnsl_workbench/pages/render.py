"""HTML pages from the templates of this package: one file each, with nothing to fetch."""

import base64
import hashlib
import math
import re
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

# Below one, three decimals are all that a few runs tell; of numbers below _SMALL they would leave nothing.
_DECIMALS = 3
_SMALL = 0.01

_ENVIRONMENT = Environment(
    loader=PackageLoader("fedbnsl_workbench.pages"),
    autoescape=True,  # names of variables and sites are data
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def number(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash where there is none."""
    if value is None:
        return "\u2013"
    return f"{value:,d}" if isinstance(value, int) else f"{value:.{digits}g}"


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


def as_markup(svg: str) -> Markup:
    """A drawing of our own, to be placed on the page as it is."""
    return Markup(svg)  # noqa: S704


def drawing_width(svg: str) -> float:
    """Pixels that an <svg> element asks for, in points or in pixels; 0 if it does not say."""
    found = re.search(r'<svg[^>]*? width="([\d.]+)(pt)?', svg)
    return 0.0 if found is None else float(found[1]) * (4 / 3 if found[2] else 1)


@dataclass(frozen=True)
class Script:
    """A script that stands on the page itself.

    Attributes
    ----------
    digest
        As a content security policy names it: a page with this policy runs this very text, and no other.
    """

    text: Markup
    digest: str


def script(name: str) -> Script:
    """A script of the templates' folder."""
    text = _ENVIRONMENT.get_template(name).render()
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(Markup(text), f"sha256-{digest}")  # noqa: S704


_FILTERS: dict[str, Any] = {
    "number": number,
    "with_spread": with_spread,
    "drawing": as_markup,
    "drawing_width": drawing_width,
}
_ENVIRONMENT.filters.update(_FILTERS)


def render(template: str, **content: Any) -> str:
    """A page as text."""
    return _ENVIRONMENT.get_template(template).render(content)
