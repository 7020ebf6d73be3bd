"""The data dictionary: which columns a variable becomes, and what is refused."""

import math
from typing import Any, get_args

import numpy as np
import pytest

from fedbnsl.errors import PlanError
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import TRANSFORMS, Dictionary, Entry, Transform
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan

TEXT = """
[age]
unit = "years"
range = [0, 110]
[crp]
kind = "continuous"
range = [0, 500]
transform = "log1p"
[sex]
kind = "binary"
levels = ["f", "m"]
[stage]
kind = "ordinal"
levels = ["I", "II", "III", "IV"]
[blood]
kind = "nominal"
levels = ["0", "A", "B", "AB"]
[visits]
kind = "count"
"""
DICTIONARY = Dictionary.parse(TEXT, origin="dictionary.toml")


def test_a_variable_becomes_one_column_and_a_nominal_one_a_column_for_each_level_but_the_first():
    assert [column.name for column in DICTIONARY.columns()] == [
        "age", "crp", "sex", "stage", "blood=A", "blood=B", "blood=AB", "visits"
    ]  # fmt: skip


def test_public_bounds_come_from_range_and_levels_after_the_transform():
    bounds = {column.name: (column.low, column.high) for column in DICTIONARY.columns()}
    assert bounds["age"] == (0.0, 110.0)
    assert bounds["crp"] == (0.0, math.log(501.0))
    assert bounds["sex"] == (0.0, 1.0)
    assert bounds["stage"] == (0.0, 3.0)
    assert bounds["blood=AB"] == (0.0, 1.0)
    assert bounds["visits"] == (-math.inf, math.inf)
    assert DICTIONARY.without_range() == ["visits"]


@pytest.mark.parametrize(
    ("setting", "fits"),
    [
        ("range = [-1e15, 1e15]", True),
        ("range = [0, 1.01e15]", False),
        ("range = [0, 1e300]", False),
        ("range = [-1e90, 0]", False),
        ("range = [0, 1e-14]", False),
        ("transform = 'log'\nrange = [1e-300, 1e300]", True),
    ],
)
def test_a_range_whose_numbers_no_run_could_take_is_refused_with_the_dictionary(setting: str, fits: bool):
    text = f"{TEXT}[mass]\n{setting}\n"
    if fits:
        assert "mass" in Dictionary.parse(text, origin="x")
    else:
        with pytest.raises(PlanError, match=r"mass.range = .* a run takes numbers up to 1e\+15"):
            Dictionary.parse(text, origin="x")


def test_what_was_read_becomes_values_by_range_first_and_transform_second():
    crp = DICTIONARY["crp"].values(np.array([-3.0, 0.0, math.e - 1.0, 900.0, np.nan]))
    np.testing.assert_allclose(crp[:, 0], [np.nan, 0.0, 1.0, np.nan, np.nan], rtol=1e-15)
    assert DICTIONARY["crp"].values(np.array([500.0]))[0, 0] == math.log(501.0), "the edge itself is in the range"
    blood = DICTIONARY["blood"].values(np.array([0.0, 1.0, 2.0, 3.0, np.nan]))
    expected = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [np.nan] * 3]
    np.testing.assert_array_equal(blood, expected)
    assert DICTIONARY["visits"].values(np.array([0.0, 7.0]))[:, 0].tolist() == [0.0, math.log(8.0)]


def test_the_digest_is_that_of_the_content_in_any_order():
    reversed_order = DICTIONARY.over(DICTIONARY.variables[::-1])
    assert reversed_order.variables != DICTIONARY.variables
    assert reversed_order.digest() == DICTIONARY.digest()
    assert Dictionary.parse(TEXT.replace("110", "111"), origin="x").digest() != DICTIONARY.digest()


def test_a_plan_keeps_its_dictionary_through_its_file():
    plan = Plan.load("standard").with_dictionary(DICTIONARY, origin="dictionary.toml")
    again = Plan.from_toml(plan.to_toml())
    assert again == plan
    assert again.column_names == tuple(column.name for column in DICTIONARY.columns())
    assert again.with_settings(variables=["sex", "blood"]).column_names == ("sex", "blood=A", "blood=B", "blood=AB")


def test_a_plan_with_another_dictionary_takes_none():
    plan = Plan.load("standard").with_dictionary(DICTIONARY, origin="dictionary.toml")
    assert plan.with_dictionary(DICTIONARY, origin="the same") == plan
    with pytest.raises(PlanError, match=r"the data dictionary of plan .* is not that of other\.toml"):
        plan.with_dictionary(Dictionary.parse(TEXT.replace("110", "120"), origin="x"), origin="other.toml")


def test_a_dictionary_changes_the_digest_that_sites_approve():
    plan = Plan.load("standard")
    assert plan.with_dictionary(DICTIONARY, origin="x").digest() not in plan.approvable_digests()


def test_a_plan_cannot_name_variables_that_its_dictionary_lacks():
    with pytest.raises(PlanError, match="must be names that the data dictionary has"):
        Plan.load("standard").with_settings(variables=["age", "height"], dictionary=DICTIONARY.model_dump())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\n[b]\nkind = 'ordinal'", "variable has at least 2"),
        ("[a]\n[b]\nkind = 'binary'\nlevels = ['x', 'y', 'z']", "a binary variable has exactly 2"),
        ("[a]\n[b]\nkind = 'nominal'\nlevels = ['x', 'y']", "a nominal variable has at least 3"),
        ("[a]\n[b]\nkind = 'nominal'\nlevels = ['x', 'y', 'x']", "one is there twice"),
        ("[a]\n[b]\nlevels = ['x', 'y']", "a continuous variable has none"),
        ("[a]\n[b]\nkind = 'binary'\nlevels = ['x', 'y']\nrange = [0, 1]", "has levels instead"),
        ("[a]\n[b]\nrange = [3, 3]", "the first number must be below the second"),
        ("[a]\n[b]\nrange = [-1, 3]\ntransform = 'log'", "needs values above 0"),
        ("[a]\n[b]\nrange = [0, 3]\ntransform = 'log'", "needs values above 0"),
        ("[a]\n[b]\nkind = 'count'\nrange = [-1, 3]", "counts are not below 0"),
        ("[a]\n[b]\nrange = [0, inf]", "finite number"),
        ("[a]\n[b]\nsize = 3", "b.size = 3: no such setting; there are kind, unit"),
        ("[a]\nkind = 'nominal'\nlevels = ['x', 'y', 'z']\n['a=y']", "two columns would be called 'a=y'"),
        ("[a]", "a network needs at least two"),
        ("[a", "not valid TOML"),
    ],
)
def test_a_dictionary_that_cannot_be_used_says_what_is_wrong(text: str, said: str):
    with pytest.raises(PlanError) as refused:
        Dictionary.parse(text, origin="dictionary.toml")
    assert said in str(refused.value)
    assert "dictionary.toml" in str(refused.value)


@pytest.mark.parametrize("transform", get_args(Transform))
def test_what_a_transform_makes_of_values_can_be_taken_back(transform: Transform):
    formula, x = TRANSFORMS[transform], np.array([0.25, 1.0, 999.0])
    assert np.allclose(formula.back(formula.forth(x)), x, rtol=1e-12)


def test_a_square_root_may_start_at_zero():
    assert Dictionary.parse("[a]\n[b]\nrange = [0, 4]\ntransform = 'sqrt'", origin="x").columns()[1][2:] == (0.0, 2.0)


# ---- columns and variables -----------------------------------------------------------------------------------------

COLUMNS = Columns.of(["x", "b=1", "y", "b=2"], {"b=1": "b", "b=2": "b"})


def test_columns_of_one_variable_need_not_stand_together():
    assert COLUMNS.variables == ("x", "b", "y")
    assert COLUMNS.variable_of.tolist() == [0, 1, 2, 1]
    assert COLUMNS.sizes.tolist() == [1, 2, 1]
    assert [members.tolist() for members in COLUMNS.members()] == [[0], [1, 3], [2]]


def test_edges_between_variables_are_any_between_their_columns_and_the_weight_is_the_largest():
    W = np.zeros((4, 4))
    W[1, 0], W[3, 0], W[3, 2], W[1, 3] = 0.5, -2.0, 0.1, 9.0
    largest = COLUMNS.largest(W)
    assert largest.tolist() == [[0, 0, 0], [-2.0, 0, 0.1], [0, 0, 0]], "nothing within a variable"
    assert np.array_equal(COLUMNS.joined(W != 0), largest != 0)
    spread = COLUMNS.spread(COLUMNS.joined(W != 0))
    assert sorted(map(tuple, np.argwhere(spread).tolist())) == [(1, 0), (1, 2), (3, 0), (3, 2)]


def test_the_coefficient_of_largest_size_stands_for_an_edge_and_unknown_ones_come_last():
    sizes = np.zeros((4, 4))
    sizes[1, 0], sizes[3, 0], sizes[1, 2], sizes[3, 2] = 2.0, 2.0, np.nan, 0.0
    places = COLUMNS.places(sizes)
    assert [divmod(int(places[1, w]), 4) for w in (0, 2)] == [(1, 0), (3, 2)], "the first of equal ones"
    assert COLUMNS.levels(int(places[1, 2])) == (COLUMNS.names[3].removeprefix("b="), "")


def test_without_blocks_columns_and_variables_are_the_same():
    plain = Columns.of(["a", "b"])
    W = np.array([[0.0, 1.5], [0.0, 0.0]])
    assert not plain.has_blocks
    assert np.array_equal(plain.largest(W), W)
    assert np.array_equal(plain.spread(W != 0), W != 0)


def test_what_is_known_of_a_nominal_variable_holds_for_its_columns():
    knowledge = Knowledge(required=(("x", "b"),), forbidden=(("b", "y"),))
    mask = EdgeMask(knowledge, COLUMNS)
    assert sorted(map(tuple, np.argwhere(mask.required).tolist())) == [(0, 1), (0, 3)]
    for b in (1, 3):
        assert not mask.allowed[b, 2], "forbidden"
        assert not mask.allowed[b, 0], "it would close a cycle with what is required"
        assert mask.allowed[2, b]
    assert not mask.allowed[1, 3], "no edge within a variable"
    assert not mask.allowed[3, 1]
    with pytest.raises(PlanError, match="not a variable of this run"):
        EdgeMask(Knowledge(forbidden=(("b=1", "y"),)), COLUMNS)


@pytest.mark.parametrize(
    ("name", "said"), [("a ", "begin or end with a space"), ("a" * 501, "more than 500 characters")]
)
def test_a_name_that_no_header_or_page_can_have_is_refused(name: str, said: str):
    with pytest.raises(PlanError, match=said) as refused:
        Dictionary.parse(f'{TEXT}["{name}"]\n', origin="x")
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "binary", "levels": ["a", "b"], "shape": "linear"},
        {"kind": "time", "trend": True, "shape": "curved"},
        {"kind": "group", "shape": "linear"},
    ],
)
def test_only_numbers_have_a_shape(entry):
    with pytest.raises(ValueError, match=r"shape: a .* has none"):
        Entry.model_validate(entry)


def test_curves_need_a_plan_that_looks_for_them():
    with pytest.raises(PlanError, match="no shape = 'curved' where the plan does not look for curves: 'x'"):
        Plan.load("lean").with_settings(dictionary={"x": {"shape": "curved"}, "y": {}})
    assert Plan.load("standard").with_settings(dictionary={"x": {"shape": "curved"}, "y": {}}).searches_curves


@pytest.mark.parametrize("entry", [{"kind": "group", "tier": 1}, {"kind": "time", "trend": True, "tier": 2}])
def test_what_is_no_variable_or_is_time_has_no_tier(entry: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="tier"):
        Dictionary.from_plain({"x": entry, "a": {}, "b": {}}, origin="x")


def test_a_tier_is_part_of_what_sites_approve_and_dictionaries_without_one_have_the_digest_of_before() -> None:
    with_tier = Dictionary.from_plain({"age": {"tier": 1}, "crp": {}}, origin="x")
    without = Dictionary.from_plain({"age": {}, "crp": {}}, origin="x")
    assert with_tier.digest() != without.digest()
    assert "tier" not in without.content()["age"]
    assert with_tier.tiers == {"age": 1}
