"""HTML pages from the templates of this package: one file each, with nothing to fetch."""

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

ENVIRONMENT = Environment(
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


def breakable(name: str) -> Markup:
    """A name that may go on in another line after `_`, `.`, `/` or `-` in it, not in the middle of a word."""
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=[_./-])(?=\w)", name))


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
    text = ENVIRONMENT.get_template(name).render()
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(Markup(text), f"sha256-{digest}")  # noqa: S704


_FILTERS: dict[str, Any] = {
    "breakable": breakable,
    "number": number,
    "drawing": as_markup,
    "drawing_width": drawing_width,
}
ENVIRONMENT.filters.update(_FILTERS)


def render(template: str, **content: Any) -> str:
    """A page as text."""
    return ENVIRONMENT.get_template(template).render(content)
