"""The scores against oracles that count pair by pair."""

import json
from collections import Counter
from itertools import combinations, permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbnsl_workbench.scoring.metrics import empty_graph_scores, random_dag, random_dag_scores, score
from fedbnsl_workbench.scoring.reference import read_full_reference

# What can stand between two nodes, and the steps of cost 1 between these; only SHD knows the reversal.
ADD_OR_REMOVE = nx.Graph([("", ">"), ("", "<"), (">", "<>"), ("<", "<>")])
ADD_REMOVE_OR_REVERSE = nx.Graph([*ADD_OR_REMOVE.edges, (">", "<")])


def graph(n_variables, *edges):
    result = np.zeros((n_variables, n_variables), dtype=bool)
    for i, j in edges:
        result[i, j] = True
    return result


@st.composite
def graph_pairs(draw, *, two_cycles=True):
    d = draw(st.integers(1, 7))
    # For each pair i < j: bit 1 is i -> j, bit 2 is j -> i.
    codes = draw(arrays(int, (2, d, d), elements=st.integers(0, 3 if two_cycles else 2)))
    return tuple(np.triu(code & 1, 1).astype(bool) | np.triu(code & 2, 1).T.astype(bool) for code in codes)


def between(edges, i, j):
    return "<" * int(edges[j, i]) + ">" * int(edges[i, j])


def steps(estimate, reference, moves):
    return sum(
        nx.shortest_path_length(moves, between(estimate, i, j), between(reference, i, j))
        for i, j in combinations(range(len(estimate)), 2)
    )


def edge_set(edges):
    return {(i, j) for i in range(len(edges)) for j in range(len(edges)) if edges[i, j]}


def skeleton(edges):
    return {frozenset(edge) for edge in edge_set(edges)}


def v_structures(edges):
    found = nx.dag.v_structures(nx.from_numpy_array(edges, create_using=nx.DiGraph))
    return {(frozenset((a, b)), c) for a, c, b in found}


@given(graph_pairs())
def test_shd_is_the_least_number_of_edges_to_add_remove_or_reverse_where_double_shd_cannot_reverse(pair):
    assert score(*pair).shd == steps(*pair, ADD_REMOVE_OR_REVERSE)
    assert score(*pair).shd_double == steps(*pair, ADD_OR_REMOVE)


@given(graph_pairs())
def test_missing_extra_and_reversed_edges_are_counted_pair_by_pair(pair):
    estimate, reference = pair
    missing = extra = turned = 0
    for i, j in combinations(range(len(estimate)), 2):
        here, there = between(estimate, i, j), between(reference, i, j)
        if {here, there} == {"<", ">"}:
            turned += 1
        else:
            missing += len(set(there) - set(here))
            extra += len(set(here) - set(there))
    scores = score(estimate, reference)
    assert (scores.missing, scores.extra, scores.reversed) == (missing, extra, turned)


@given(graph_pairs())
def test_ratios_of_edges_are_those_of_plain_sets_and_none_only_over_nothing(pair):
    estimated, true = map(edge_set, pair)
    hits = len(estimated & true)
    scores = score(*pair)
    assert (scores.n_edges, scores.n_reference_edges) == (len(estimated), len(true))
    assert scores.tpr == scores.recall == (hits / len(true) if true else 0)
    assert scores.fdr == (len(estimated - true) / len(estimated) if estimated else 0)
    assert scores.precision == (hits / len(estimated) if estimated else None)
    if hits:
        assert scores.f1 == pytest.approx(2 / (len(estimated) / hits + len(true) / hits))
    else:
        assert scores.f1 == (0 if estimated or true else None)


@given(graph_pairs())
def test_skeleton_scores_are_those_of_sets_of_unordered_pairs(pair):
    estimated, true = map(skeleton, pair)
    hits = len(estimated & true)
    scores = score(*pair)
    assert scores.skeleton_hits == hits
    assert scores.skeleton_precision == (hits / len(estimated) if estimated else None)
    assert scores.skeleton_recall == (hits / len(true) if true else None)


@given(graph_pairs())
def test_v_structures_are_those_of_networkx(pair):
    estimated, true = map(v_structures, pair)
    scores = score(*pair)
    assert scores.v_structures_estimated == len(estimated)
    assert scores.v_structures_reference == len(true)
    assert scores.v_structures_common == len(estimated & true)


@given(graph_pairs(two_cycles=False))
def test_without_2_cycles_the_scores_are_those_of_the_notears_code(pair):
    estimated, true = map(edge_set, pair)
    backwards = {(j, i) for i, j in true}
    turned = (estimated - true) & backwards
    false_positive = estimated - true - backwards
    scores = score(*pair)
    assert scores.shd == len(turned) + len(skeleton(pair[0]) ^ skeleton(pair[1]))
    assert scores.fdr == (len(turned) + len(false_positive)) / max(len(estimated), 1)
    assert scores.tpr == len(estimated & true) / max(len(true), 1)


def test_an_identical_graph_is_perfect():
    reference = graph(5, (0, 2), (1, 2), (2, 3), (3, 4))
    scores = score(reference, reference)
    assert (scores.shd, scores.shd_double, scores.fdr) == (0, 0, 0)
    assert scores.tpr == scores.precision == scores.f1 == scores.skeleton_precision == scores.skeleton_recall == 1
    assert scores.v_structures_common == scores.v_structures_estimated == scores.v_structures_reference == 1


def test_the_empty_graph_misses_every_edge_and_has_no_precision():
    scores = empty_graph_scores(graph(4, (0, 1), (1, 0), (1, 2), (3, 2)))
    assert (scores.shd, scores.shd_double, scores.missing, scores.n_edges) == (4, 4, 4, 0)
    assert (scores.tpr, scores.fdr, scores.f1, scores.skeleton_recall) == (0, 0, 0, 0)
    assert scores.precision is None
    assert scores.skeleton_precision is None


def test_a_graph_with_all_edges_reversed_has_the_whole_skeleton_and_no_edge():
    reference = graph(4, (0, 1), (1, 2), (3, 2))
    scores = score(reference.T, reference)
    assert (scores.reversed, scores.shd, scores.shd_double) == (3, 3, 6)
    assert (scores.tpr, scores.fdr, scores.precision, scores.f1) == (0, 1, 0, 0)
    assert (scores.skeleton_hits, scores.skeleton_precision, scores.skeleton_recall) == (3, 1, 1)
    assert (scores.v_structures_reference, scores.v_structures_common) == (1, 0)


def test_no_dag_matches_a_cyclic_reference_in_full_but_all_of_its_skeleton():
    scores = score(graph(3, (0, 1), (1, 2), (0, 2)), graph(3, (0, 1), (1, 2), (2, 0)))
    assert (scores.shd, scores.reversed, scores.skeleton_recall) == (1, 1, 1)


def test_half_of_a_2_cycle_is_one_missing_edge_in_either_direction():
    for edge in ((0, 1), (1, 0)):
        scores = score(graph(2, edge), graph(2, (0, 1), (1, 0)))
        assert (scores.shd, scores.missing, scores.extra, scores.reversed) == (1, 1, 0, 0)
        assert (scores.tpr, scores.fdr, scores.skeleton_recall) == (0.5, 0, 1)


def test_scores_are_json_with_null_for_what_is_undefined():
    reference = graph(3, (0, 1))
    scores = json.loads(json.dumps(empty_graph_scores(reference).as_dict(), allow_nan=False))
    assert (scores["precision"], scores["recall"], scores["tpr"], scores["shd"]) == (None, 0, 0, 1)
    chance = json.loads(json.dumps(random_dag_scores(reference, 0, n_draws=3), allow_nan=False))
    assert chance == {"mean": scores, "std": {name: None if x is None else 0 for name, x in scores.items()}}


def drawn_dags(d, n_edges):
    """Every order with every choice of forward pairs: equally likely draws, as edge sets."""
    return [
        frozenset(edges) for order in permutations(range(d)) for edges in combinations(combinations(order, 2), n_edges)
    ]


@pytest.mark.long
def test_random_dags_are_a_uniform_order_and_a_uniform_choice_of_forward_pairs():
    rng = np.random.default_rng(5)
    exact = Counter(drawn_dags(3, 2))
    n_draws = 9000
    drawn = Counter(frozenset(edge_set(random_dag(3, 2, rng))) for _ in range(n_draws))
    assert drawn.keys() == exact.keys()
    for edges, ways in exact.items():
        p = ways / exact.total()
        assert abs(drawn[edges] / n_draws - p) < 5 * np.sqrt(p * (1 - p) / n_draws)


@pytest.mark.long
def test_random_scores_approach_the_mean_and_spread_over_all_draws():
    reference = graph(4, (0, 2), (1, 2), (2, 3))
    exact = [score(graph(4, *edges), reference).as_dict() for edges in drawn_dags(4, 3)]
    n_draws = 4000
    scores = random_dag_scores(reference, 3, n_draws=n_draws)
    assert scores["mean"].keys() == scores["std"].keys() == exact[0].keys()
    for name in exact[0]:
        values = [draw[name] for draw in exact]
        assert scores["mean"][name] == pytest.approx(np.mean(values), abs=5 * np.std(values) / np.sqrt(n_draws) + 1e-12)
        assert scores["std"][name] == pytest.approx(np.std(values), rel=0.2)


@given(st.integers(1, 12), st.integers(0, 66))
def test_random_dags_have_exactly_as_many_edges_and_no_cycle(d, n_edges):
    n_edges = min(n_edges, d * (d - 1) // 2)
    dag = nx.from_numpy_array(random_dag(d, n_edges, np.random.default_rng(d)), create_using=nx.DiGraph)
    assert dag.number_of_edges() == n_edges
    assert nx.is_directed_acyclic_graph(dag)


def test_random_scores_depend_on_the_seed_alone():
    reference = graph(6, (0, 1), (2, 3), (3, 4))
    first, again, other = (random_dag_scores(reference, 5, n_draws=20, seed=seed) for seed in (7, 7, 8))
    assert first == again != other


def test_more_edges_than_a_dag_can_have_are_refused():
    with pytest.raises(ValueError, match="3 variables has 0 to 3 edges, not 4"):
        random_dag_scores(graph(3), 4)


def test_with_sachs_data_the_empty_graph_has_shd_18_and_random_dags_have_27(sachs):
    variables = (sachs / "sachs.csv").read_text(encoding="utf-8").split("\n", 1)[0].strip().split(",")
    reference = read_full_reference(sachs / "edges-18-cdt.csv", variables)
    assert not nx.is_directed_acyclic_graph(nx.from_numpy_array(reference, create_using=nx.DiGraph))
    assert empty_graph_scores(reference).shd == 18
    scores = random_dag_scores(reference, 18)
    assert scores["mean"]["shd"] == pytest.approx(27.2, abs=0.3)
    assert scores["std"]["shd"] == pytest.approx(2.8, abs=0.2)
    assert scores["mean"]["skeleton_hits"] == pytest.approx(5.9, abs=0.2)
