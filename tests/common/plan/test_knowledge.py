"""Prior knowledge as a mask, with networkx as the judge."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedbnsl.errors import PlanError
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan

NAMES = ["a", "b", "c", "d", "e", "f"]
EDGES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).filter(lambda e: e[0] != e[1]), max_size=6)


def pairs(mask: np.ndarray, names: list[str]) -> set[tuple[str, str]]:
    return {(names[i], names[j]) for i, j in np.argwhere(mask).tolist()}


def test_without_knowledge_everything_but_the_diagonal_is_allowed() -> None:
    mask = EdgeMask(Knowledge(), NAMES)
    assert np.array_equal(mask.allowed, ~np.eye(6, dtype=bool))
    assert not mask.required.any()


def test_a_forbidden_edge_is_not_allowed_and_its_reverse_is() -> None:
    mask = EdgeMask(Knowledge(forbidden=(("b", "a"),)), ["a", "b", "c"])
    assert pairs(~mask.allowed, ["a", "b", "c"]) == {("a", "a"), ("b", "b"), ("c", "c"), ("b", "a")}


def test_a_required_edge_is_named_source_first_and_forbids_its_reverse() -> None:
    mask = EdgeMask(Knowledge(required=(("a", "c"),)), ["a", "b", "c"])
    assert mask.required.tolist() == [[False, False, True], [False] * 3, [False] * 3]
    assert mask.allowed[0, 2]
    assert not mask.allowed[2, 0]


def test_an_edge_that_closes_a_cycle_with_a_chain_of_required_edges_is_not_allowed() -> None:
    chain = tuple((f"v{k}", f"v{k + 1}") for k in range(40))
    mask = EdgeMask(Knowledge(required=chain), [f"v{k}" for k in range(41)])
    assert np.array_equal(mask.allowed, np.triu(np.ones((41, 41), dtype=bool), k=1))


def test_no_edge_points_from_a_later_tier_to_an_earlier_one() -> None:
    names = ["late", "free", "early", "also_early"]
    mask = EdgeMask(Knowledge(tiers=(("early", "also_early"), ("late",))), names)
    off_diagonal = {(i, j) for i in names for j in names if i != j}
    assert off_diagonal - pairs(mask.allowed, names) == {("late", "early"), ("late", "also_early")}


def test_edges_within_a_tier_and_over_several_tiers_are_allowed() -> None:
    mask = EdgeMask(Knowledge(tiers=(("a", "b"), ("c",), ("d",))), ["a", "b", "c", "d"])
    allowed = pairs(mask.allowed, ["a", "b", "c", "d"])
    assert allowed == {("a", "b"), ("b", "a"), *((i, j) for i in "ab" for j in "cd"), ("c", "d")}


def test_tiers_of_the_dictionary_keep_arrows_away_and_from_the_first_also_those_of_variables_in_none() -> None:
    names = ["free", "late", "first", "early", "other"]
    tiers = {"late": 3, "first": 1, "early": 2}
    mask = EdgeMask(Knowledge(), Columns.of(names, tier_of=lambda name: tiers.get(name, 0)))
    off_diagonal = {(i, j) for i in names for j in names if i != j}
    assert off_diagonal - pairs(mask.allowed, names) == {
        *((name, "first") for name in ("free", "late", "early", "other")),
        ("late", "early"),
    }


def test_tiers_of_dictionary_and_plan_hold_together_for_all_columns_of_a_variable() -> None:
    entries = {"sex": {"tier": 1}, "ward": {"kind": "nominal", "levels": ["a", "b", "c"]}, "crp": {}, "died": {}}
    plan = Plan.load("standard").with_settings(dictionary=entries, knowledge={"tiers": [["crp"], ["died"]]})
    names = ["sex", "ward=b", "ward=c", "crp", "died"]
    against = {("ward=b", "sex"), ("ward=c", "sex"), ("crp", "sex"), ("died", "sex"), ("died", "crp")}
    within = {("ward=b", "ward=c"), ("ward=c", "ward=b")}
    assert pairs(~plan.edge_mask(names).allowed, names) == against | within | {(name, name) for name in names}


@settings(max_examples=200, deadline=None)
@given(EDGES, EDGES)
@pytest.mark.long
def test_what_is_allowed_is_what_is_not_forbidden_and_closes_no_cycle(
    required: list[tuple[str, str]], forbidden: list[tuple[str, str]]
) -> None:
    graph = nx.DiGraph(required)
    graph.add_nodes_from(NAMES)
    assume(nx.is_directed_acyclic_graph(graph))
    assume(not set(required) & set(forbidden))
    mask = EdgeMask(Knowledge(required=tuple(required), forbidden=tuple(forbidden)), NAMES)
    expected = {
        (i, j) for i in NAMES for j in NAMES if i != j and (i, j) not in forbidden and not nx.has_path(graph, j, i)
    }
    assert pairs(mask.allowed, NAMES) == expected
    assert pairs(mask.required, NAMES) == set(required)
    assert expected >= set(required)


@pytest.mark.parametrize(
    ("knowledge", "text"),
    [
        ({"required": [["a", "z"]]}, "knowledge.required names 'z', which is not a variable"),
        ({"forbidden": [["z", "a"]]}, "knowledge.forbidden names 'z', which is not a variable"),
        ({"tiers": [["a"], ["z"]]}, "knowledge.tiers names 'z', which is not a variable"),
        ({"required": [["a", "a"]]}, "knowledge.required holds the edge 'a' -> 'a'"),
        ({"forbidden": [["b", "b"]]}, "knowledge.forbidden holds the edge 'b' -> 'b'"),
        ({"required": [["a", "b"]], "forbidden": [["a", "b"]]}, "requires and forbids the edge 'a' -> 'b'"),
        ({"required": [["b", "a"]], "tiers": [["a"], ["b"]]}, "requires and forbids the edge 'b' -> 'a'"),
        ({"required": [["a", "b"], ["b", "a"]]}, "knowledge.required has a cycle"),
        ({"required": [["a", "b"], ["b", "c"], ["c", "a"]]}, "knowledge.required has a cycle"),
        ({"tiers": [["a", "b"], ["b"]]}, "lists 'b' in two tiers"),
    ],
)
def test_contradictory_knowledge_is_refused(knowledge: dict[str, object], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        EdgeMask(Knowledge.model_validate(knowledge), ["a", "b", "c"])


def test_an_empty_tier_changes_nothing() -> None:
    mask = EdgeMask(Knowledge(tiers=((), ("b",), (), ("a",))), ["a", "b"])
    assert pairs(mask.allowed, ["a", "b"]) == {("b", "a")}


def test_names_are_composed_wherever_a_plan_has_them() -> None:
    decomposed, composed = "a\u0302ge", "\xe2ge"
    knowledge = {"required": [[decomposed, "b"]], "forbidden": [["c", decomposed]], "tiers": [[decomposed], ["b"]]}
    plan = Plan.parse({"variables": [decomposed, "b", "c"], "knowledge": knowledge})
    assert plan.variables == (composed, "b", "c")
    assert plan.knowledge.required == ((composed, "b"),)
    assert plan.knowledge.forbidden == (("c", composed),)
    assert plan.knowledge.tiers == ((composed,), ("b",))


@pytest.mark.parametrize("known", [{"variables": ["age", "dose", "crp"]}, {"dictionary": {"age": {}, "crp": {}}}])
def test_a_plan_that_has_its_variables_refuses_knowledge_about_others_with_names_near_them(known) -> None:
    plan = Plan().with_settings(knowledge={"tiers": [["ages"], ["crp"]]})  # which variables there are is not known yet
    with pytest.raises(PlanError, match=r"knowledge.tiers names 'ages', .* \(near it: age\)"):
        plan.with_settings(**known)
