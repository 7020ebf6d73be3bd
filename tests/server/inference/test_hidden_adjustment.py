"""Effects that a PAG identifies, against all graphs with hidden causes on four variables."""

from collections import defaultdict
from itertools import combinations, permutations, product

import networkx as nx
import numpy as np
import pytest

from fedbnsl.graphs.pag import ARROW, CIRCLE, NONE, TAIL, Known
from fedbnsl_server.inference.ancestral_graphs import is_legal, is_mag, mag_of, of_dag, pag_of
from fedbnsl_server.inference.hidden_adjustment import Adjustments, visible

D = 4
PAIRS = list(combinations(range(D), 2))
SUBSETS = [subset for size in range(D - 1) for subset in combinations(range(D), size)]


def nothing(n):
    return Known(np.zeros((n, n), bool), np.zeros((n, n), bool))


def with_latents(mag, *, also=()):
    """A DAG whose observed part has these marks: a hidden cause for each two-headed edge, and of pairs in `also`."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(mag)))
    for a, b in combinations(range(len(mag)), 2):
        if mag[a, b] == mag[b, a] == ARROW or (a, b) in also or (b, a) in also:
            graph.add_edges_from([((a, b), a), ((a, b), b)])
        if mag[a, b] == ARROW and mag[b, a] == TAIL:
            graph.add_edge(a, b)
        if mag[b, a] == ARROW and mag[a, b] == TAIL:
            graph.add_edge(b, a)
    return graph


def independences(graph):
    return frozenset(
        (a, b, given)
        for a, b in PAIRS
        for given in SUBSETS
        if not {a, b} & set(given) and nx.is_d_separator(graph, {a}, {b}, set(given))
    )


def of_ancestors(graph, mag):
    """Whether marks say who is an ancestor of whom, and no pair without an edge depends whatever is given."""
    for a, b in PAIRS:
        for one, other in ((a, b), (b, a)):
            if mag[one, other] != NONE and (mag[other, one] == TAIL) != nx.has_path(graph, one, other):
                return False
    return True


@pytest.mark.parametrize("seed", range(40))
def test_a_dag_with_hidden_nodes_has_the_marks_of_its_independences_and_ancestors(seed):
    rng = np.random.default_rng(seed)
    order, dag = rng.permutation(D + 2), np.triu(rng.random((D + 2, D + 2)) < 0.45, 1)
    dag = dag[np.ix_(order, order)]
    graph = nx.DiGraph(list(map(tuple, np.argwhere(dag).tolist())))
    graph.add_nodes_from(range(D + 2))
    mag = of_dag(dag, D)
    separated = {(a, b) for a, b, _ in independences(graph)}
    assert {(a, b) for a, b in PAIRS if mag[a, b] == NONE} == separated
    assert of_ancestors(graph, mag)
    assert is_mag(mag)


@pytest.fixture(scope="module")
def classes():
    """All MAGs on four variables by the independences they have, found by d-separation in DAGs with hidden causes."""
    found = defaultdict(list)
    for kinds in product(((NONE, NONE), (TAIL, ARROW), (ARROW, TAIL), (ARROW, ARROW)), repeat=len(PAIRS)):
        mag = np.zeros((D, D), dtype=np.int8)
        for (a, b), (at_a, at_b) in zip(PAIRS, kinds, strict=True):
            mag[b, a], mag[a, b] = at_a, at_b
        graph = with_latents(mag)
        if not nx.is_directed_acyclic_graph(graph) or not of_ancestors(graph, mag):
            assert not is_mag(mag)
            continue
        apart = independences(graph)
        maximal = all(mag[a, b] or any((a, b, given) in apart for given in SUBSETS) for a, b in PAIRS)
        assert is_mag(mag) == maximal
        if maximal:
            found[apart].append(mag)
    return list(found.values())


def invariant(mags):
    marks = mags[0].copy()
    for mag in mags[1:]:
        marks[marks != mag] = CIRCLE
    return marks


def test_the_pag_has_the_marks_that_all_equivalent_graphs_have(classes):
    assert len(classes) > 200
    for mags in classes:
        marks = invariant(mags)
        for mag in mags[:3]:
            assert (pag_of(mag, nothing(D)) == marks).all()
        assert is_legal(marks, nothing(D))
        assert any((mag_of(marks) == mag).all() for mag in mags)


def test_marks_of_no_graph_are_not_legal(classes):
    legal = {invariant(mags).tobytes() for mags in classes}
    rng, n_legal = np.random.default_rng(4), 0
    for _ in range(300):
        marks = invariant(classes[rng.integers(len(classes))]).copy()
        i, j = np.argwhere(marks)[rng.integers(np.count_nonzero(marks))] if marks.any() else (0, 1)
        marks[i, j] = rng.choice([TAIL, ARROW, CIRCLE]) if marks[i, j] else NONE
        if (marks == TAIL).any() and ((marks == TAIL) & (marks.T != ARROW)).any():
            continue  # of selection bias
        assert is_legal(marks, nothing(D)) == (marks.tobytes() in legal)
        n_legal += marks.tobytes() in legal
    assert 20 < n_legal < 280


def dags_of(mag):
    """DAGs with hidden causes that have a MAG: with a hidden cause also behind each edge that it may stand behind."""
    directed = [(a, b) for a, b in permutations(range(D), 2) if mag[a, b] == ARROW and mag[b, a] == TAIL]
    plain = with_latents(mag)
    yield plain
    apart = independences(plain)
    for edge in directed:
        behind = with_latents(mag, also=(edge,))
        if independences(behind) == apart:
            yield behind


def covariance_and_effects(graph, rng):
    """Of the observed ones, for random coefficients."""
    nodes = list(nx.topological_sort(graph))
    place = {node: k for k, node in enumerate(nodes)}
    W = np.zeros((len(nodes), len(nodes)))
    for a, b in graph.edges:
        W[place[a], place[b]] = rng.uniform(0.4, 1.5) * rng.choice([-1, 1])
    T = np.linalg.inv(np.eye(len(nodes)) - W)
    S = T.T @ T
    seen = [place[k] for k in range(D)]
    return S[np.ix_(seen, seen)], T[np.ix_(seen, seen)]


def right_sets(models, x, y):
    """The sets with which a regression gives the effect in all of these models."""
    left = [given for given in SUBSETS if not {x, y} & set(given)]
    for S, T in models:
        left = [
            given
            for given in left
            if abs(np.linalg.solve(S[np.ix_([x, *given], [x, *given])], S[[x, *given], y])[0] - T[x, y]) < 1e-8
        ]
    return left


def test_an_effect_is_identified_if_one_set_gives_it_in_all_graphs_and_by_that_set(classes):
    rng = np.random.default_rng(1)
    n_identified, n_not, reasons = 0, 0, set()
    for mags in [classes[k] for k in rng.permutation(len(classes))[:80]]:
        marks = invariant(mags)
        models = [covariance_and_effects(dag, rng) for mag in mags for dag in dags_of(mag)]
        for x, y in permutations(range(D), 2):
            told, sets = Adjustments(marks).of([x], y), right_sets(models, x, y)
            if told.verdict == "no path":
                assert all(abs(T[x, y]) < 1e-12 for _, T in models)
            elif told.verdict == "identified":
                n_identified += 1
                assert told.given in sets
                of_marks = Adjustments(marks)
                for given in SUBSETS:
                    if not {x, y} & set(given):
                        assert of_marks.has_set([x], y, given) == (given in sets), (marks, x, y, given)
            else:
                n_not += 1
                assert not sets, (marks, x, y)
                reasons.add(told.because)
                if told.edge:
                    assert told.edge[0] == x
                    assert (marks[told.edge] == ARROW and marks[told.edge[::-1]] == TAIL) == (told.because != "open")
    assert "open" in reasons
    assert n_identified > 10
    assert n_not > 100


def test_the_joint_effect_of_two_is_that_of_a_regression_on_both(classes):
    rng = np.random.default_rng(2)
    n_identified = 0
    for mags in [classes[k] for k in rng.permutation(len(classes))[:80]]:
        marks = invariant(mags)
        for y in range(D):
            for pair in combinations([k for k in range(D) if k != y], 2):
                told = Adjustments(marks).of(pair, y)
                if told.verdict == "not identified":
                    continue
                n_identified += told.verdict == "identified"
                for mag in mags:
                    for dag in dags_of(mag):
                        names, seed = [*pair, *told.given], int(rng.integers(1 << 30))
                        S, _ = covariance_and_effects(dag, np.random.default_rng(seed))
                        joint = joint_effects(dag, pair, y, np.random.default_rng(seed))
                        if told.verdict == "no path":
                            assert np.allclose(joint, 0.0)
                        else:
                            found = np.linalg.solve(S[np.ix_(names, names)], S[names, y])[:2]
                            assert np.allclose(found, joint)
    assert n_identified > 10


def joint_effects(dag, pair, y, rng):
    """In the same model as `covariance_and_effects` with this generator: both are set, whatever their causes."""
    nodes = list(nx.topological_sort(dag))
    place = {node: k for k, node in enumerate(nodes)}
    W = np.zeros((len(nodes), len(nodes)))
    for a, b in dag.edges:
        W[place[a], place[b]] = rng.uniform(0.4, 1.5) * rng.choice([-1, 1])
    W[:, [place[k] for k in pair]] = 0.0
    return np.linalg.inv(np.eye(len(nodes)) - W)[[place[k] for k in pair], place[y]]


def test_an_edge_is_visible_if_something_that_is_no_neighbour_of_its_end_points_at_its_start():
    marks = np.zeros((4, 4), dtype=np.int8)
    marks[0, 1], marks[1, 0] = ARROW, CIRCLE  # c o-> a --> b
    marks[1, 2], marks[2, 1] = ARROW, TAIL
    assert visible(marks, 1, 2)
    marks[0, 2], marks[2, 0] = ARROW, CIRCLE
    assert not visible(marks, 1, 2)
