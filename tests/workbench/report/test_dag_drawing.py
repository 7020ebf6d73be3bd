"""The drawing of a graph: where nodes and edges end up, and what the SVG says."""

from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import pytest

from fedbnsl.graphs.layout import NODE_HEIGHT, crossings, layout, shortened, text_width
from fedbnsl_workbench.report.dag_drawing import STYLES, Arrow, draw
from fedbnsl_workbench.scoring.metrics import random_dag

SPACE = "{http://www.w3.org/2000/svg}"


def random_edges(d, n, seed):
    return [(int(i), int(j)) for i, j in np.argwhere(random_dag(d, n, np.random.default_rng(seed)))]


@pytest.mark.parametrize(("d", "n"), [(2, 1), (8, 12), (20, 22), (20, 100), (100, 110), (200, 220)])
def test_edges_point_down_and_nodes_keep_apart_inside_the_drawing(d, n):
    edges = random_edges(d, n, seed=d + n)
    widths = [40.0 + 7 * (k % 9) for k in range(d)]
    placed = layout(widths, edges)
    assert set(placed.centres) == {node for edge in edges for node in edge}
    assert set(placed.routes) == set(edges)
    for source, target in edges:
        assert placed.centres[source][1] + NODE_HEIGHT < placed.centres[target][1]
        assert placed.routes[source, target][0] == placed.centres[source]
        assert placed.routes[source, target][-1] == placed.centres[target]
    for node, (x, y) in placed.centres.items():
        assert x - widths[node] / 2 >= -1e-6
        assert x + widths[node] / 2 <= placed.width + 1e-6
        assert NODE_HEIGHT / 2 - 1e-6 <= y <= placed.height - NODE_HEIGHT / 2 + 1e-6
    for (a, (ax, ay)), (b, (bx, by)) in combinations(placed.centres.items(), 2):
        assert abs(ay - by) >= NODE_HEIGHT or abs(ax - bx) >= (widths[a] + widths[b]) / 2 + 5


def test_a_long_edge_keeps_clear_of_the_nodes_between():
    edges = [(0, 1), (1, 2), (2, 3), (0, 3)]
    placed = layout([60.0] * 4, edges)
    for x, y in placed.routes[0, 3][1:-1]:
        for nx, ny in placed.centres.values():
            assert abs(y - ny) > NODE_HEIGHT or abs(x - nx) > 30


def test_edges_that_need_not_cross_do_not():
    # A path's leaves in a bad order, and a tree.
    for edges in ([(0, 7), (1, 6), (2, 5), (3, 4)], [(0, k) for k in range(1, 5)] + [(k, k + 4) for k in range(1, 5)]):
        placed = layout([40.0] * 9, edges)
        for (a, b), (c, e) in combinations(edges, 2):
            if placed.centres[a][1] == placed.centres[c][1] and a != c and b != e:
                left = placed.centres[a][0] - placed.centres[c][0]
                assert left * (placed.centres[b][0] - placed.centres[e][0]) > 0


def test_an_edge_that_fewer_draws_have_is_paler():
    shares = (1.0, 0.57, 0.05)
    svg = draw("abcd", [Arrow(0, k, "positive", 1.0, "", share=share) for k, share in enumerate(shares, 1)], title="")
    edges = {
        edge.get("data-share"): edge for edge in ElementTree.fromstring(svg).iter(f"{SPACE}g") if edge.get("data-share")
    }
    assert [float(edges[f"{share:g}"].get("stroke-opacity")) for share in shares] == [1.0, 0.57, 0.3]


@pytest.mark.parametrize("seed", range(5))
def test_crossings_are_counted_as_by_looking_at_every_pair(seed):
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(6).tolist(), (6 + rng.permutation(6)).tolist()]
    below = {node: [int(t) for t in 6 + np.flatnonzero(rng.random(6) < 0.5)] for node in rows[0]}
    ends = [(rows[0].index(s), rows[1].index(t)) for s in below for t in below[s]]
    pairs = sum((a - c) * (b - d) < 0 for (a, b), (c, d) in combinations(ends, 2))
    assert crossings(rows, below) == pairs


def test_an_edge_that_closes_a_cycle_points_up():
    placed = layout([40.0] * 3, [(0, 1), (1, 2)], [(2, 0)])
    route = placed.routes[2, 0]
    assert (route[0], route[-1]) == (placed.centres[2], placed.centres[0])
    assert route[0][1] > route[-1][1]
    assert set(placed.routes) == {(0, 1), (1, 2), (2, 0)}


def test_a_truth_in_both_directions_beside_a_learned_edge_is_drawn_once_each():
    placed = layout([40.0] * 2, [(0, 1)], [(1, 0)])
    assert set(placed.routes) == {(0, 1), (1, 0)}


def test_the_svg_holds_names_and_words_as_text_and_leaves_out_nodes_without_edges():
    names = ["<b>", "a & b", "alone", "x" * 60]
    arrows = [Arrow(0, 1, "correct", 1.0, "<b> -> a & b"), Arrow(1, 3, "missing", 0.0, 'says "so"')]
    root = ElementTree.fromstring(draw(names, arrows, title="<a title>"))
    assert root.get("aria-label") == "<a title>"
    assert [text.text for text in root.iter(f"{SPACE}text")] == ["<b>", "a & b", shortened("x" * 60)]
    assert [title.text for title in root.iter(f"{SPACE}title")] == ['says "so"', "<b> -> a & b", "x" * 60]
    dashes = {path.get("stroke-dasharray") for path in root.iter(f"{SPACE}path") if path.get("stroke")}
    assert dashes == {None, STYLES["missing"].dashes}


def test_verdicts_differ_in_colour_and_in_dashes():
    verdicts = [STYLES[kind] for kind in ("correct", "reversed", "extra", "missing")]
    assert len({style.colour for style in verdicts}) == len({style.dashes for style in verdicts}) == 4
    assert STYLES["positive"].dashes != STYLES["negative"].dashes


def test_long_names_keep_both_ends():
    assert shortened("short") == "short"
    assert shortened("the_first_part_" + "z" * 40 + "_7") != shortened("the_first_part_" + "z" * 40 + "_8")
    assert len(shortened("y" * 500)) == 24
    assert text_width("e\u0301") == text_width("e")
    assert text_width("\u767d") > text_width("W") > text_width("i")


def test_an_undirected_edge_has_no_head_and_a_directed_one_has():
    arrows = [Arrow(0, 1, "positive", 1.0, "x"), Arrow(1, 2, "positive", 1.0, "y", directed=False)]
    root = ElementTree.fromstring(draw(["a", "b", "c"], arrows, title=""))
    for group in root.iter(f"{SPACE}g"):
        if "edge" in group.get("class", ""):
            heads = [path for path in group.iter(f"{SPACE}path") if path.get("fill")]
            assert len(heads) == int(group.get("data-directed"))


def test_undirected_edges_that_would_close_a_cycle_in_their_written_order_are_drawn():
    # Directed 2 -> 0, undirected 0 - 1 and 1 - 2, whose names stand in the variables' order: 0 1 2 0 is a cycle.
    arrows = [
        Arrow(2, 0, "positive", 1.0, "down"),
        Arrow(0, 1, "positive", 1.0, "", directed=False),
        Arrow(1, 2, "positive", 1.0, "", directed=False),
    ]
    root = ElementTree.fromstring(draw(["a", "b", "c"], arrows, title=""))
    assert len([g for g in root.iter(f"{SPACE}g") if "edge" in g.get("class", "")]) == 3
    heights = {
        g.get("data-name"): float(g.find(f"{SPACE}rect").get("y")) for g in root.iter(f"{SPACE}g") if g.get("data-name")
    }
    assert heights["c"] < heights["a"], "the directed edge points down"


def test_an_unsure_pair_moves_nothing_and_is_drawn_only_between_drawn_nodes():
    names, arrows = list("abcd"), [Arrow(0, 1, "positive", 1.0, ""), Arrow(0, 2, "positive", 1.0, "")]
    unsure = [Arrow(1, 2, "unsure", 0.0, "", directed=False, share=0.25), Arrow(1, 3, "unsure", 0.0, "", share=0.5)]
    before, after = (ElementTree.fromstring(draw(names, drawn, title="")) for drawn in (arrows, [*arrows, *unsure]))
    assert before.get("viewBox") == after.get("viewBox")
    nodes = [
        [g.find(f"{SPACE}rect").attrib for g in root.iter(f"{SPACE}g") if g.get("data-name")]
        for root in (before, after)
    ]
    assert nodes[0] == nodes[1]
    drawn = [g.get("data-share") for g in after.iter(f"{SPACE}g") if g.get("class") == "edge unsure"]
    assert drawn == ["0.25"]
