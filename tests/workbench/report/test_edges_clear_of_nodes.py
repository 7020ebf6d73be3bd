"""Drawn edges run around nodes, never through them: measured along every path of the drawings themselves."""

import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from fedbnsl_server.observe.page.present_graph import _drawing
from fedbnsl_workbench.report.dag_drawing import Arrow, draw
from fedbnsl_workbench.report.lagged_drawing import draw_lagged
from fedbnsl_workbench.scoring.metrics import random_dag

SPACE = "{http://www.w3.org/2000/svg}"
NODE_HEIGHT = 28.0


def along(d: str) -> np.ndarray:
    """Points of a path of M, L, H, V, C and Q with absolute numbers, a few pixels apart."""
    at, points = np.zeros(2), []
    for letter, numbers in re.findall(r"([MLHVCQ])([^MLHVCQ]*)", d):
        values = [float(one) for one in re.findall(r"-?[\d.]+", numbers)]
        if letter == "H":
            values = [values[0], at[1]]
        elif letter == "V":
            values = [at[0], values[0]]
        stops = [at, *np.reshape(values, (-1, 2))]
        if letter != "M":
            t = np.linspace(0, 1, 120)[:, None]
            while len(stops) > 1:  # de Casteljau
                stops = [(1 - t) * one + t * other for one, other in pairwise(stops)]
            points.append(stops[0])
        at = np.array(values[-2:])
    return np.concatenate(points)


def through(paths: dict[tuple[int, int], str], boxes: dict[int, tuple[float, float, float, float]]) -> list:
    """Edges whose path is inside the box of a node that is not an end of it, and those nodes."""
    found = []
    for edge, d in paths.items():
        x, y = along(d).T
        for node, (left, top, width, height) in boxes.items():
            inside = (x > left) & (x < left + width) & (y > top) & (y < top + height)
            if node not in edge and inside.any():
                found.append((edge, node))
    return found


def drawn(svg: str):
    root = ElementTree.fromstring(svg)
    groups = list(root.iter(f"{SPACE}g"))
    paths = {
        (int(one.get("data-source")), int(one.get("data-target"))): one.find(f"{SPACE}path").get("d")
        for one in groups
        if "edge" in one.get("class", "")
    }
    boxes = {
        int(one.get("data-node")): tuple(float(one.find(f"{SPACE}rect").get(k)) for k in ("x", "y", "width", "height"))
        for one in groups
        if one.get("data-node")
    }
    return paths, boxes


def names_of(d: int) -> list[str]:
    return [f"v{k}" if k % 3 else f"a_rather_long_name_{k}" for k in range(d)]


def others(edges: list[list[int]]) -> list[tuple[int, int]]:
    """Pairs of their nodes that no edge links."""
    nodes = sorted({node for edge in edges for node in edge})
    return [pair for pair in combinations(nodes, 2) if [*pair] not in edges and [*pair[::-1]] not in edges][:40]


GRAPHS = [(4, 5, 0), (12, 20, 1), (20, 60, 2), (40, 60, 3), (60, 110, 4)]


@pytest.mark.parametrize(("d", "n", "seed"), GRAPHS)
def test_no_edge_of_a_report_runs_through_a_node(d, n, seed):
    edges = np.argwhere(random_dag(d, n, np.random.default_rng(seed))).tolist()
    arrows = [Arrow(i, j, "positive", 1.0, "", directed=bool((i + j) % 4)) for i, j in edges]
    arrows += [Arrow(i, j, "unsure", 0.0, "", directed=False, share=0.2) for i, j in others(edges)]
    paths, boxes = drawn(draw(names_of(d), arrows, title=""))
    assert len(paths) > n
    assert through(paths, boxes) == []


@pytest.mark.parametrize(("d", "n", "seed"), GRAPHS[:4])
def test_no_edge_of_the_page_of_a_run_runs_through_a_node_even_where_w_has_cycles(d, n, seed):
    edges = {(i, j) for i, j in np.argwhere(random_dag(d, n, np.random.default_rng(seed))).tolist()}
    edges |= {(j, i) for i, j in sorted(edges)[:2]}
    told = _drawing(tuple(names_of(d)), tuple(sorted(edges)))
    boxes = {k: (x - wide / 2, y - NODE_HEIGHT / 2, wide, NODE_HEIGHT) for k, x, y, wide, _ in told["nodes"]}
    paths = {(i, j): d for i, j, d in told["lines"]}
    assert set(paths) == edges
    assert through(paths, boxes) == []
    assert all(x >= -1 and x + wide <= told["width"] + 1 for x, _, wide, _ in boxes.values())


@pytest.mark.parametrize("seed", range(4))
def test_no_edge_of_a_lagged_graph_runs_through_a_node(seed):
    rng, d = np.random.default_rng(seed), 8
    names, before = [*names_of(d), *(f"{name}@-1" for name in names_of(d))], {d + k: k for k in range(d)}
    present = np.argwhere(random_dag(d, 10, rng)).tolist()
    past = [(d + int(i), d + int(j)) for i, j in present[:4]]
    lagged = {(d + int(i), int(j)) for i, j in rng.integers(d, size=(12, 2))}
    learned = [*present, *past, *sorted(lagged)]
    arrows = [Arrow(i, j, "positive", 1.0, "") for i, j in learned]
    arrows += [Arrow(i, j, "unsure", 0.0, "", directed=False, share=0.2) for i, j in others([*map(list, learned)])]
    paths, boxes = drawn(draw_lagged(names, before, arrows, title=""))
    assert len(paths) == len(arrows)
    assert through(paths, boxes) == []
