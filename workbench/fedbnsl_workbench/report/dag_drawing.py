"""A graph as one SVG element that needs nothing else: layers from parents down to children, readable names.

Edges and nodes carry numbers in `data-` attributes, by which the page's script knows them; without it they do nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from fedbnsl.graphs.graph import Edge
from fedbnsl.graphs.layout import FONT_PX, NODE_HEIGHT, around, box_widths, curve, layout, ports, shortened, tips

MARGIN = 12.0
ARROW = 9.0
THINNEST, WIDEST = 1.2, 4.2
_PALEST = 0.3


@dataclass(frozen=True)
class Style:
    """How one kind of edge looks; kinds differ in colour and in dashes."""

    colour: str
    dashes: str  # SVG's stroke-dasharray; empty: a solid line
    meaning: str  # for the legend


STYLES: Mapping[str, Style] = {
    "positive": Style("#0072b2", "", "positive weight"),
    "negative": Style("#c04a00", "7 4", "negative weight"),
    "levels": Style("#1b1f24", "", "several coefficients, by level: no sign"),
    "curved": Style("#5b4a86", "12 3 3 3", "curved effect: see the plots"),
    "correct": Style("#00734f", "", "correct"),
    "reversed": Style("#c04a00", "10 4", "reversed: the truth has the other direction"),
    "extra": Style("#8e2f7c", "2 4", "extra: not in the truth"),
    "open": Style("#7a5c00", "14 3 3 3", "open: undirected either here or in the truth's class"),
    "unscored": Style("#6b7280", "", "unscored: the truth lacks one of the variables"),
    "missing": Style("#6b7280", "8 4 1.5 4", "missing: in the truth only"),
    "unsure": Style("#6b7280", "1.5 4", "not in the graph, but found in some bootstrap draws"),
}

_NOT_LEARNED = ("missing", "unsure")


@dataclass(frozen=True)
class Arrow:
    """An edge to draw.

    `missing` and `unsure` edges were not learned. An unsure one has no place in the layout: it is drawn across other
    edges, and only where both its ends are drawn anyway.
    """

    source: int
    target: int
    kind: str  # one of STYLES
    strength: float  # 0 to 1: from the thinnest to the widest line
    words: str  # what the reader is told who points at it, line by line
    directed: bool = True  # undirected edges have no head
    share: float | None = None  # of the bootstrap draws in which the pair is adjacent; None where there is none
    # What is drawn at source and target: tail, arrow or circle. None: a head where it is directed
    ends: tuple[str, str] | None = None

    @property
    def drawn_ends(self) -> tuple[str, str]:
        """What is drawn at source and target."""
        return self.ends or ("tail", "arrow" if self.directed else "tail")


def draw(names: Sequence[str], arrows: Sequence[Arrow], *, title: str, words: Sequence[str] = ()) -> str:
    """An <svg> of the nodes that have an edge; learned directed edges must be acyclic, and point down.

    `words`: by node, what the reader is told who points at it, line by line; empty: nothing.
    """
    laid_out = [arrow for arrow in arrows if arrow.kind != "unsure"]
    widths = box_widths(names, _ends(laid_out))
    fixed = [arrow for arrow in laid_out if arrow.directed and arrow.kind not in _NOT_LEARNED]
    # The learned ones first: a missing edge never decides which way an undirected one is drawn.
    free = sorted((arrow for arrow in laid_out if arrow not in fixed), key=lambda arrow: arrow.kind in _NOT_LEARNED)
    placed = layout(widths, _ends(fixed), _ends(free))
    shifts = ports(placed.routes, widths)
    width, height = placed.width + 2 * MARGIN, placed.height + 2 * MARGIN
    parts = [
        f'<svg class="dag" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-MARGIN:g} {-MARGIN:g} {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f'<g fill="none" stroke-linecap="butt">'
    ]
    # The thin ones first, so that the strong ones lie on top.
    for arrow in sorted(laid_out, key=lambda arrow: arrow.strength):
        edge = arrow.source, arrow.target
        parts.append(_line(arrow, placed.routes[edge], *shifts[edge]))
    for arrow in arrows:
        if arrow.kind == "unsure" and {arrow.source, arrow.target} <= set(placed.centres):
            path = around((arrow.source, arrow.target), placed.centres, widths)
            dotted = f'stroke="{STYLES[arrow.kind].colour}" stroke-dasharray="{STYLES[arrow.kind].dashes}"'
            parts.append(group(arrow, f'<path d="{path}" stroke-width="1.8" {dotted}/>'))
    parts.append(f'</g><g font-size="{FONT_PX:g}" text-anchor="middle">')
    for node, centre in sorted(placed.centres.items()):
        parts.append(box(node, names[node], centre, widths[node], words[node] if words else ""))
    return "".join([*parts, "</g></svg>"])


def box(node: int, name: str, centre: tuple[float, float], width: float, words: str = "") -> str:
    """A node with its name."""
    (x, y), shown = centre, shortened(name)
    said = f"{name}\n{words}" if words else name if shown != name else ""
    full = f"<title>{escape(said)}</title>" if said else ""
    return (
        f'<g class="node" data-node="{node}" data-name="{escape(name)}">{full}'
        f'<rect x="{x - width / 2:.1f}" y="{y - NODE_HEIGHT / 2:.1f}" '
        f'width="{width:.1f}" height="{NODE_HEIGHT:g}" rx="7" fill="#f3f6fa" stroke="#5b6773"/>'
        f'<text x="{x:.1f}" y="{y + 0.35 * FONT_PX:.1f}" fill="#1b1f24">{escape(shown)}</text></g>'
    )


def _ends(arrows: Sequence[Arrow]) -> list[Edge]:
    return [(arrow.source, arrow.target) for arrow in arrows]


def sample(kind: str, *, directed: bool = True, share: float = 1.0) -> str:
    """A short line for the legend, of an edge that this share of the bootstrap draws has."""
    style = STYLES[kind]
    head = f'<path d="M45 6l-9 -4v8z" fill="{style.colour}"/>' if directed else ""
    return (
        f'<svg class="sample" width="46" height="12" viewBox="0 0 46 12" opacity="{_opacity(share)}" '
        f'aria-hidden="true"><path d="M1 6H'
        f'{38 if directed else 45}" stroke="{style.colour}" stroke-width="2.6" stroke-dasharray="{style.dashes}" '
        f'fill="none"/>{head}</svg>'
    )


def sample_of_marks(marks: str) -> str:
    """A short line for the legend with the marks of two variables, such as `o->`."""
    arrow = {"<": '<path d="M1 6l9 -4v8z" fill="#1b1f24"/>', ">": '<path d="M45 6l-9 -4v8z" fill="#1b1f24"/>'}
    at = {"<": 9, "o": 8, "-": 1}[marks[0]], {">": 38, "o": 38, "-": 45}[marks[2]]
    circles = "".join(
        f'<circle cx="{x}" cy="6" r="3.5" fill="#fff" stroke="#1b1f24" stroke-width="1.4"/>'
        for x, mark in ((4.5, marks[0]), (41.5, marks[2]))
        if mark == "o"
    )
    return (
        '<svg class="sample" width="46" height="12" viewBox="0 0 46 12" aria-hidden="true">'
        f'<path d="M{at[0]} 6H{at[1]}" stroke="#1b1f24" stroke-width="2" fill="none"/>'
        f"{arrow.get(marks[0], '')}{arrow.get(marks[2], '')}{circles}</svg>"
    )


def _line(arrow: Arrow, route: Sequence[tuple[float, float]], leaves: float, arrives: float) -> str:
    """A curve through the route, vertical at every point of it, with a mark at each end."""
    style = STYLES[arrow.kind]
    down = 1 if route[-1][1] > route[0][1] else -1
    width = THINNEST + (WIDEST - THINNEST) * min(max(arrow.strength, 0.0), 1.0)
    start, *between, end = tips(route, leaves, arrives)
    first, marked = _end(arrow.drawn_ends[0], start, down, width, style.colour)
    last, headed = _end(arrow.drawn_ends[1], end, -down, width, style.colour)
    dashes = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
    line = f'<path d="{curve([first, *between, last])}" stroke="{style.colour}" stroke-width="{width:.1f}"{dashes}/>'
    return group(arrow, line + marked + headed)


def _end(mark: str, at: tuple[float, float], away: int, width: float, colour: str) -> tuple[tuple[float, float], str]:
    """Where a line ends, and the mark between it and its node at `at`; `away` is 1 where the line comes from below."""
    x, y = at
    if mark == "arrow":
        length, y = ARROW + width, y + away
        half = length * 0.42
        point = f"M{x:.1f} {y:.1f}l{-half:.1f} {away * length:.1f}h{2 * half:.1f}z"
        return (x, y + away * length * 0.8), f'<path d="{point}" fill="{colour}"/>'
    if mark == "circle":
        r = 2.6 + width / 2
        circle = f'<circle cx="{x:.1f}" cy="{y + away * r:.1f}" r="{r:.1f}" fill="#fff" stroke="{colour}" '
        return (x, y + away * 2 * r), f'{circle}stroke-width="1.4"/>'
    return at, ""


def _opacity(share: float) -> float:
    """Of an edge: the fewer bootstrap draws have it, the paler it is; every learned edge can be seen."""
    return round(max(_PALEST, share), 2)


def group(arrow: Arrow, paths: str) -> str:
    """An edge with what the page's script knows it by."""
    share = ""
    if arrow.share is not None:
        share = f' data-share="{arrow.share:.4g}"'
        if arrow.kind != "unsure":  # they are shown only where their share is asked for
            share += f' stroke-opacity="{_opacity(arrow.share)}" fill-opacity="{_opacity(arrow.share)}"'
    return (
        f'<g class="edge {arrow.kind}" data-source="{arrow.source}" data-target="{arrow.target}" '
        f'data-directed="{int(arrow.directed)}"{share}><title>{escape(arrow.words)}</title>{paths}</g>'
    )
