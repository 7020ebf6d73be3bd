"""Where the nodes and edges of a drawn graph go: layers, few crossings, straight lines (Sugiyama's method).

Long edges pass through a dummy in each layer between, so that they keep clear of nodes. Lengths are in pixels. The
report and the page of a run in progress draw what is laid out here.
"""

import itertools
import unicodedata
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from scipy.optimize import isotonic_regression

from fedbnsl.graphs.graph import Edge

FONT_PX = 13.0
NODE_HEIGHT = 28.0
_PADDING = 10.0
_NARROWEST = 34.0
_LONGEST_NAME = 24
# Room for an arrow's head beside others.
_PORT = 10.0
_LAYER_GAP = 78.0
_NODE_GAP = 14.0
_DUMMY_WIDTH = 8.0
_LINE_GAP = 4.0
_CLEAR = 5.0
_COMPONENT_GAP = 34.0
_ROW_GAP = 44.0
_ROW_WIDTH = 1000.0
_ORDER_SWEEPS = 24
_PLACE_SWEEPS = 16
# Straight lines are worth more than centred parents.
_DUMMY_PULL = 4.0


@dataclass(frozen=True)
class Layout:
    """Where everything is."""

    centres: dict[int, tuple[float, float]]  # of each drawn node
    routes: dict[Edge, list[tuple[float, float]]]  # the points that an edge passes, between the middles of its ends
    width: float
    height: float


def layout(widths: Sequence[float], edges: Sequence[Edge], more: Sequence[Edge] = ()) -> Layout:
    """Lay out the nodes that have an edge.

    `edges` are acyclic and all point down; `more` may close cycles with them, and point down where they can.
    """
    down = _downward(len(widths), edges, more)
    whole = Layout({}, {}, 0.0, 0.0)
    x = y = row_height = 0.0
    parts: list[set[int]] = list(nx.weakly_connected_components(nx.DiGraph(down)))
    for nodes in sorted(parts, key=lambda part: (-len(part), min(part))):  # the largest first
        part = _lay_out_component(nodes, widths, [edge for edge in down if edge[0] in nodes])
        if x and x + part.width > max(_ROW_WIDTH, whole.width):
            x, y, row_height = 0.0, y + row_height + _ROW_GAP, 0.0
        whole.centres.update({node: (x + px, y + py) for node, (px, py) in part.centres.items()})
        whole.routes.update({edge: [(x + px, y + py) for px, py in route] for edge, route in part.routes.items()})
        row_height = max(row_height, part.height)
        whole = Layout(whole.centres, whole.routes, max(whole.width, x + part.width), y + row_height)
        x += part.width + _COMPONENT_GAP
    for source, target in more:
        if (source, target) not in whole.routes:
            whole.routes[source, target] = whole.routes[target, source][::-1]
    for turned in set(whole.routes) - {*edges, *more}:
        del whole.routes[turned]
    return whole


def _downward(n_nodes: int, edges: Sequence[Edge], more: Sequence[Edge]) -> list[Edge]:
    """All edges, those of `more` that would close a cycle turned round."""
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(n_nodes))
    for source, target in more:
        if nx.has_path(graph, target, source):
            graph.add_edge(target, source)
        else:
            graph.add_edge(source, target)
    return sorted(graph.edges)


def _lay_out_component(nodes: set[int], widths: Sequence[float], edges: Sequence[Edge]) -> Layout:
    rank = _layers(edges)
    # Between nodes and dummies: each edge goes from one row to the next.
    chained: nx.DiGraph[int] = nx.DiGraph()
    chains: dict[Edge, list[int]] = {}
    for source, target in edges:
        first = max(len(widths), max(rank) + 1)  # dummies: numbers from len(widths) on
        dummies = {first + k: row for k, row in enumerate(range(rank[source] + 1, rank[target]))}
        rank.update(dummies)
        chains[source, target] = [source, *dummies, target]
        chained.add_edges_from(itertools.pairwise(chains[source, target]))
    rows: list[list[int]] = [[] for _ in range(max(rank.values()) + 1)]
    for node in _depth_first(rank, chained):
        rows[rank[node]].append(node)
    rows = _with_few_crossings(rows, chained)
    wide = {node: widths[node] if node < len(widths) else _DUMMY_WIDTH for node in rank}
    x = _across(rows, wide, chained, n_nodes=len(widths))
    left = min(x[node] - wide[node] / 2 for node in rank)
    right = max(x[node] + wide[node] / 2 for node in rank)
    point = {node: (x[node] - left, rank[node] * (_LAYER_GAP + NODE_HEIGHT) + NODE_HEIGHT / 2) for node in rank}
    return Layout(
        {node: point[node] for node in nodes},
        {edge: [point[node] for node in chain] for edge, chain in chains.items()},
        right - left,
        len(rows) * (_LAYER_GAP + NODE_HEIGHT) - _LAYER_GAP,
    )


def _layers(edges: Sequence[Edge]) -> dict[int, int]:
    """By longest path from the top; then nodes with more children than parents move down to their children."""
    graph = nx.DiGraph(edges)
    layer = {node: row for row, nodes in enumerate(nx.topological_generations(graph)) for node in nodes}
    for node in sorted(layer, key=lambda node: -layer[node]):
        if graph.out_degree(node) > graph.in_degree(node):
            layer[node] = min(layer[child] for child in graph.successors(node)) - 1
    top = min(layer.values())
    return {node: row - top for node, row in layer.items()}


def _depth_first(rank: Mapping[int, int], chained: "nx.DiGraph[int]") -> list[int]:
    """A first order in which neighbours are near."""
    order: dict[int, None] = {}
    near: nx.Graph[int] = nx.Graph(chained)
    for root in sorted(rank, key=lambda node: (rank[node], node)):
        if root not in order:
            order.update(dict.fromkeys(nx.dfs_preorder_nodes(near, root)))
    return list(order)


def _with_few_crossings(rows: list[list[int]], chained: "nx.DiGraph[int]") -> list[list[int]]:
    """Barycentre sweeps, down and up in turns; the best order seen."""
    best, fewest = [list(row) for row in rows], crossings(rows, chained.succ)
    for sweep in range(_ORDER_SWEEPS):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        neighbours = chained.pred if downwards else chained.succ
        for row in rows[1:] if downwards else rows[-2::-1]:
            place = {node: k for other in rows for k, node in enumerate(other)}
            row.sort(key=lambda node: _mean([place[n] for n in neighbours[node]] or [place[node]]))
        count = crossings(rows, chained.succ)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def crossings(rows: Sequence[Sequence[int]], below: Mapping[int, Iterable[int]]) -> int:
    """Pairs of edges between neighbouring rows that cross."""
    count = 0
    for upper, lower in itertools.pairwise(rows):
        place = {node: k for k, node in enumerate(lower)}
        passed: list[int] = []
        for node in upper:
            ends = [place[child] for child in below[node]]
            count += sum(len(passed) - bisect_right(passed, end) for end in ends)
            for end in ends:
                insort(passed, end)
    return count


def _across(
    rows: Sequence[Sequence[int]], wide: Mapping[int, float], chained: "nx.DiGraph[int]", *, n_nodes: int
) -> dict[int, float]:
    """X of each node: near the mean of its neighbours, in the row's order, without overlap."""
    x: dict[int, float] = {}
    for row in rows:
        right = 0.0
        for node in row:
            x[node] = right + wide[node] / 2
            right += wide[node] + _NODE_GAP
    for sweep in range(_PLACE_SWEEPS):
        last = sweep >= _PLACE_SWEEPS - 2  # both sides count in the end
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wished: list[float] = []
            for node in row:
                above, below = list(chained.pred[node]), list(chained.succ[node])
                near = above + below if last else (above if sweep % 2 == 0 else below)
                wished.append(_mean([x[n] for n in near or [node]]))
            gaps = [
                (wide[left] + wide[right]) / 2 + (_LINE_GAP if min(left, right) >= n_nodes else _NODE_GAP)
                for left, right in itertools.pairwise(row)
            ]
            pull = [_DUMMY_PULL if node >= n_nodes else 1.0 for node in row]
            x.update(zip(row, _spread(wished, pull, gaps), strict=True))
    return x


def _spread(wished: Sequence[float], pull: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The places at least `gaps` apart that are nearest to those wished, by weighted least squares.

    With the gaps taken off, that is isotonic regression.
    """
    offsets = np.concatenate([[0.0], np.cumsum(gaps)])
    places: list[float] = (isotonic_regression(np.array(wished) - offsets, weights=pull).x + offsets).tolist()
    return places


def box_widths(names: Sequence[str], edges: Iterable[Edge]) -> list[float]:
    """Of each node: room for its name, and for the ends of its edges beside each other."""
    leave, arrive = Counter[int](), Counter[int]()
    for source, target in edges:
        leave[source] += 1
        arrive[target] += 1
    return [max(box_width(name), max(leave[node], arrive[node]) * _PORT) for node, name in enumerate(names)]


def box_width(name: str) -> float:
    """Of a node with few edges."""
    return max(_NARROWEST, text_width(shortened(name)) + 2 * _PADDING)


def shortened(name: str, longest: int = _LONGEST_NAME) -> str:
    """A name without its middle, if it is too long: both ends tell names apart."""
    if len(name) <= longest:
        return name
    end = (longest - 1) * 2 // 5
    return f"{name[: longest - 1 - end]}\u2026{name[-end:]}"


def text_width(text: str) -> float:
    """At least the width in pixels that common fonts give a label; no font is asked, as the reader's is unknown."""
    return FONT_PX * sum(map(_ems, text))


def _ems(letter: str) -> float:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(letter) in ("W", "F") or ord(letter) > 0xFFFF:
        return 1.35 if ord(letter) > 0xFFFF else 1.05
    if letter in "ijl.,:;|!'I ":
        return 0.4
    if letter in "mwMW@%\u2026\u2014":
        return 1.02
    return 0.76 if letter.isupper() else 0.66


def ports(
    routes: Mapping[Edge, Sequence[tuple[float, float]]], widths: Sequence[float]
) -> dict[Edge, tuple[float, float]]:
    """How far from the middles of its ends an edge leaves and arrives: side by side, in the order of the other ends."""
    ends: dict[tuple[int, bool], list[tuple[float, Edge, int]]] = {}
    for edge, route in routes.items():
        for which, (node, here, there) in enumerate(((edge[0], route[0], route[1]), (edge[1], route[-1], route[-2]))):
            ends.setdefault((node, there[1] > here[1]), []).append((there[0], edge, which))
    shift: dict[Edge, list[float]] = {edge: [0.0, 0.0] for edge in routes}
    for (node, _), sharing in ends.items():
        step = min(12.0, 0.92 * widths[node] / len(sharing))
        for k, (_, edge, which) in enumerate(sorted(sharing)):
            shift[edge][which] = (k - (len(sharing) - 1) / 2) * step
    return {edge: (first, last) for edge, (first, last) in shift.items()}


def tips(route: Sequence[tuple[float, float]], leaves: float, arrives: float) -> list[tuple[float, float]]:
    """A route from the rim of one node to that of the other instead of between their middles."""
    (x0, y0), (x1, y1) = route[0], route[-1]
    half = NODE_HEIGHT / 2 if y1 > y0 else -NODE_HEIGHT / 2
    return [(x0 + leaves, y0 + half), *route[1:-1], (x1 + arrives, y1 - half)]


def around(edge: Edge, centres: Mapping[int, tuple[float, float]], widths: Sequence[float]) -> str:
    """An SVG path between two nodes of a layout that has no place for their edge: past the nodes of the layers between.

    `centres` are those of all drawn nodes, `widths` of all nodes.
    """
    (ax, ay), (bx, by) = sorted((centres[node] for node in edge), key=lambda centre: centre[1])
    boxes: dict[float, list[tuple[float, float]]] = {}
    for node, (x, y) in centres.items():
        boxes.setdefault(y, []).append((x - widths[node] / 2 - _CLEAR, x + widths[node] / 2 + _CLEAR))
    if ay == by:  # a bow in the room between two layers
        side = 1 if ay < max(boxes) else -1
        rim = ay + side * NODE_HEIGHT / 2
        depth = rim + side * _ROW_GAP
        return f"M{ax:.1f} {rim:.1f}C{ax:.1f} {depth:.1f} {bx:.1f} {depth:.1f} {bx:.1f} {rim:.1f}"
    between = [
        (_nearest_free(ax + (bx - ax) * (y - ay) / (by - ay), boxes[y]), y) for y in sorted(boxes) if ay < y < by
    ]
    return curve(tips([(ax, ay), *between, (bx, by)], 0, 0))


def _nearest_free(x: float, boxes: Sequence[tuple[float, float]]) -> float:
    """The place nearest to x that is in none of some intervals."""
    places = [x, *itertools.chain.from_iterable(boxes)]
    free = [place for place in places if not any(left < place < right for left, right in boxes)]
    return min(free, key=lambda place: abs(place - x))


def curve(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path from end to end: upright past each layer between, so that it bends only where no nodes are."""
    down = 1 if points[-1][1] > points[0][1] else -1
    half = down * NODE_HEIGHT / 2
    inner = [[(x, y - half), (x, y + half)] for x, y in points[1:-1]]
    stops = [points[0], *itertools.chain.from_iterable(inner), points[-1]]
    path = [f"M{stops[0][0]:.1f} {stops[0][1]:.1f}"]
    for k, ((ax, ay), (bx, by)) in enumerate(itertools.pairwise(stops)):
        middle = (ay + by) / 2
        bend = f"C{ax:.1f} {middle:.1f} {bx:.1f} {middle:.1f} {bx:.1f} {by:.1f}"
        path.append(f"V{by:.1f}" if k % 2 else bend)
    return "".join(path)
