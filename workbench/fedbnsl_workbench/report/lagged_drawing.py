"""A lagged graph as one SVG element of two columns: what was before stands left, the present right.

Edges into the present run to the right, or bow beside its column; those among the variables of the row before bow at
their left and are pale, since they only say what that row had in common.
"""

from collections.abc import Mapping, Sequence
from html import escape

import networkx as nx

from fedbnsl.graphs.layout import FONT_PX, NODE_HEIGHT, box_width
from fedbnsl_workbench.report.dag_drawing import (
    ARROW,
    MARGIN,
    STYLES,
    THINNEST,
    WIDEST,
    Arrow,
    box,
    group,
)

_ROW = 62.0
_BETWEEN = 240.0
_BOW, _A_ROW_FURTHER, _WIDEST_BOW = 26.0, 15.0, 150.0
_PORT = 6.0
_PALE = 0.45
_CLEAR = 4.0

# At which sides of source and target an edge leaves and arrives, by whether they were before: 1 is the right side.
_SIDES = {(True, False): (1, -1), (True, True): (-1, -1), (False, False): (1, 1), (False, True): (-1, 1)}

Point = tuple[float, float]


def draw_lagged(
    names: Sequence[str],
    before: Mapping[int, int],
    arrows: Sequence[Arrow],
    *,
    title: str,
    words: Sequence[str] = (),
) -> str:
    """An <svg> of the nodes that have an edge; a variable and itself before stand side by side.

    Parameters
    ----------
    names
        V names.
    before
        The nodes of the left column, and the node of the present that each stands beside; itself where there is none.
    words
        See `dag_drawing.draw`.
    """
    drawn = [arrow for arrow in arrows if arrow.kind != "unsure"]
    with_edges = {node for arrow in drawn for node in (arrow.source, arrow.target)}
    nodes = with_edges | {before[node] for node in with_edges & set(before)}
    row = _rows(nodes, before, drawn)
    widths = {node: box_width(names[node]) for node in nodes}
    left = max((widths[node] for node in nodes if node in before), default=0.0)
    right = max((widths[node] for node in nodes if node not in before), default=0.0)
    unsure = [arrow for arrow in arrows if arrow.kind == "unsure" and {arrow.source, arrow.target} <= nodes]
    reach = {side: _reach([*drawn, *unsure], before, row, side=side) for side in (True, False)}
    centre = {True: reach[True] + left / 2, False: reach[True] + left + _BETWEEN + right / 2}
    centres = {node: (centre[node in before], row[node] * _ROW + NODE_HEIGHT / 2) for node in nodes}
    width = reach[True] + left + _BETWEEN + right + reach[False] + 2 * MARGIN
    height = (max(row.values(), default=0)) * _ROW + NODE_HEIGHT + 2 * MARGIN
    edges = {True: (centre[True], left / 2), False: (centre[False], right / 2)}
    ends = _ports(drawn, before, centres)
    parts = [
        f'<svg class="dag" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-MARGIN:g} {-MARGIN:g} {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f'<g fill="none" stroke-linecap="butt">'
    ]
    for k in sorted(range(len(drawn)), key=lambda k: drawn[k].strength):
        arrow = drawn[k]
        line = _line(arrow, before, centres, widths, ends[k], row, edges)
        parts.append(f'<g opacity="{_PALE}">{line}</g>' if _is_past(arrow, before) else line)
    parts += [_line(arrow, before, centres, widths, (0.0, 0.0), row, edges) for arrow in unsure]
    parts.append(f'</g><g font-size="{FONT_PX:g}" text-anchor="middle">')
    parts += [
        box(node, names[node], centres[node], widths[node], words[node] if words else "") for node in sorted(nodes)
    ]
    return "".join([*parts, "</g></svg>"])


def _is_past(arrow: Arrow, before: Mapping[int, int]) -> bool:
    return arrow.source in before and arrow.target in before


def _rows(nodes: set[int], before: Mapping[int, int], arrows: Sequence[Arrow]) -> dict[int, int]:
    """By node: the present in the order of its causes, as few rows as that leaves; each node before beside itself."""
    present: nx.DiGraph[int] = nx.DiGraph()
    present.add_nodes_from(sorted(node for node in nodes if node not in before))
    for arrow in arrows:
        if arrow.source not in before and arrow.target not in before and arrow.kind not in ("missing", "unsure"):
            s, t = arrow.source, arrow.target
            if not nx.has_path(present, t, s):
                present.add_edge(s, t)
    order = list(nx.lexicographical_topological_sort(present))
    row = {node: k for k, node in enumerate(order)}
    alone = sorted(node for node in nodes & set(before) if before[node] == node)
    row = {**{node: k for k, node in enumerate(alone)}, **{node: k + len(alone) for node, k in row.items()}}
    return {**row, **{node: row[before[node]] for node in nodes & set(before)}}


def _bow(rows_apart: int) -> float:
    return min(_BOW + _A_ROW_FURTHER * rows_apart, _WIDEST_BOW)


def _reach(arrows: Sequence[Arrow], before: Mapping[int, int], row: Mapping[int, int], *, side: bool) -> float:
    """How far bows stand out beside a column, the left one or not."""
    bows = [
        _bow(abs(row[arrow.source] - row[arrow.target]))
        for arrow in arrows
        if (arrow.source in before) == side == (arrow.target in before)
    ]
    return max(bows, default=0.0)


def _ports(
    arrows: Sequence[Arrow], before: Mapping[int, int], centres: Mapping[int, Point]
) -> list[tuple[float, float]]:
    """How far above or below the middle an edge leaves and arrives: in the order of the other ends."""
    ends: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for k, arrow in enumerate(arrows):
        sides = _SIDES[arrow.source in before, arrow.target in before]
        for which, (node, other) in enumerate(((arrow.source, arrow.target), (arrow.target, arrow.source))):
            ends.setdefault((node, sides[which]), []).append((centres[other][1], k, which))
    shifts = [[0.0, 0.0] for _ in arrows]
    for sharing in ends.values():
        step = min(_PORT, 0.8 * NODE_HEIGHT / len(sharing))
        for place, (_, k, which) in enumerate(sorted(sharing)):
            shifts[k][which] = (place - (len(sharing) - 1) / 2) * step
    return [(first, last) for first, last in shifts]


def _line(
    arrow: Arrow,
    before: Mapping[int, int],
    centres: Mapping[int, Point],
    widths: Mapping[int, float],
    shifts: tuple[float, float],
    row: Mapping[int, int],
    columns: Mapping[bool, tuple[float, float]],
) -> str:
    """A curve that leaves and arrives level; directed, with a head at its end.

    It bends only outside the columns, (middle, half its width) by whether it is the left one: in them it would run
    through wider nodes.
    """
    style, (s, t) = STYLES[arrow.kind], (arrow.source, arrow.target)
    thick = THINNEST + (WIDEST - THINNEST) * min(max(arrow.strength, 0.0), 1.0)
    head = ARROW + thick if arrow.directed else 0.0
    leaves, arrives = _SIDES[s in before, t in before]
    x0, y0 = centres[s][0] + leaves * widths[s] / 2, centres[s][1] + shifts[0]
    tip = centres[t][0] + arrives * (widths[t] / 2 + (1 if arrow.directed else 0)), centres[t][1] + shifts[1]
    x1, y1 = tip[0] + arrives * head * 0.8, tip[1]
    bends, unbends = (
        columns[node in before][0] + side * (columns[node in before][1] + _CLEAR)
        for node, side in ((s, leaves), (t, arrives))
    )
    bends, unbends = (
        (max(bends, x0) if leaves > 0 else min(bends, x0)),
        (max(unbends, x1) if arrives > 0 else min(unbends, x1)),
    )
    if (s in before) == (t in before):  # one bow, whose ends may stand under each other
        far = (max if leaves > 0 else min)(bends, unbends) + leaves * _bow(abs(row[s] - row[t])) * 0.9
        bow = f"{far:.1f} {y0:.1f} {far:.1f} {y1:.1f}"
    else:
        middle = (bends + unbends) / 2
        bow = f"{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f}"
    d = f"M{x0:.1f} {y0:.1f}H{bends:.1f}C{bow} {unbends:.1f} {y1:.1f}H{x1:.1f}"
    dashes = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
    line = f'<path d="{d}" stroke="{style.colour}" stroke-width="{thick:.1f}"{dashes}/>'
    if not arrow.directed:
        return group(arrow, line)
    half = head * 0.42
    point = f"M{tip[0]:.1f} {tip[1]:.1f}l{arrives * head:.1f} {-half:.1f}v{2 * half:.1f}z"
    return group(arrow, f'{line}<path d="{point}" fill="{style.colour}"/>')
