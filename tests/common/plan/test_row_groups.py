"""What a data dictionary says of rows that belong together, and what a plan makes of it."""

from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import PlanError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan

GROUP: dict[str, dict[str, Any]] = {"patient": {"kind": "group"}}
TIME: dict[str, dict[str, Any]] = {"visit": {"kind": "time"}}
LAGS: dict[str, dict[str, Any]] = {"visit": {"kind": "time", "lags": 1}}
VARIABLES: dict[str, dict[str, Any]] = {
    "x": {"range": [0, 1]},
    "blood": {"kind": "nominal", "levels": ["0", "A", "B"]},
    "sex": {"kind": "binary", "levels": ["f", "m"], "fixed": True},
}
ALL: dict[str, dict[str, Any]] = {**GROUP, **TIME, **VARIABLES}


def described(*parts: dict[str, dict[str, Any]]) -> Dictionary:
    return Dictionary.from_plain({name: one for part in parts for name, one in part.items()}, origin="it")


def refusal(*parts: dict[str, dict[str, Any]]) -> str:
    with pytest.raises(PlanError) as caught:
        described(*parts)
    return str(caught.value)


def test_the_columns_that_tell_rows_apart_are_no_variables() -> None:
    found = described(ALL)
    assert found.variables == ("x", "blood", "sex")
    assert "patient" not in found
    assert [column.name for column in found.columns()] == ["x", "blood=A", "blood=B", "sex"]
    assert found.over(["sex", "x"]) == described(GROUP, TIME, {name: VARIABLES[name] for name in ("sex", "x")})


@pytest.mark.parametrize(
    ("parts", "within"),
    [
        ((GROUP, VARIABLES), "between"),
        ((TIME, VARIABLES), "rows"),
        ((GROUP, LAGS, VARIABLES), "rows"),
        (({"patient": {"kind": "group", "within": "rows"}}, VARIABLES), "rows"),
    ],
)
def test_what_rows_become_by_default(parts: tuple[dict[str, dict[str, Any]], ...], within: str) -> None:
    assert described(*parts).rows.within == within


def test_lags_add_the_variables_one_row_before_but_for_fixed_ones() -> None:
    found = described(GROUP, LAGS, VARIABLES)
    assert found.variables == ("x", "blood", "sex", "x@-1", "blood@-1")
    assert [column.name for column in found.columns(["blood"])] == ["blood=A", "blood=B", "blood@-1=A", "blood@-1=B"]
    assert found["x@-1"] == found["x"]


def test_a_trend_makes_a_variable_of_time_that_nothing_causes() -> None:
    trend = {"visit": {"kind": "time", "trend": True, "lags": 1}}
    found = described(GROUP, trend, VARIABLES)
    assert found.variables == ("visit", "x", "blood", "sex", "x@-1", "blood@-1")
    assert found.rows == described(GROUP, LAGS, VARIABLES).rows
    assert found.read(["x", "visit"]) == ("x", "visit", "patient")
    assert found.read(["x"]) == ("x", "patient", "visit")
    assert "visit" not in found.over(["x", "sex"]), "a run may leave it out"
    plan = Plan.load("standard").with_dictionary(found, origin="it")
    allowed = EdgeMask(plan.knowledge, plan.columns(plan.column_names)).of_variables.allowed
    assert not allowed[:, 0].any()
    assert allowed[0, 1:].all()
    assert found.digest() != described(GROUP, LAGS, VARIABLES).digest()


def test_digests_of_dictionaries_and_plans_without_such_columns_are_those_of_earlier_versions() -> None:
    before = described({"age": {"range": [0, 110]}, "sex": {"kind": "binary", "levels": ["f", "m"]}})
    assert before.digest() == "42a401acb4d5556283e339eafea1736f178a324173d1a058616b7c22c278cba7"
    plan = Plan.load("private", ["look_for_curves=false", "tell_means=false", "validation=none"])
    plan = plan.with_dictionary(before, origin="it")
    assert plan.digest().hex() == "717396acedf720a628f6cb1307b96725d89200306507f4d8753fff0f3b40c586"
    assert described(ALL).digest() != described(VARIABLES).digest()


def test_an_approval_of_before_does_not_fit_a_plan_that_sends_products_between_rows() -> None:
    rows = described({"patient": {"kind": "group", "within": "rows"}}, {"x": {}, "y": {}})
    plan = Plan(n_participants=3, rounds=3, refit_rounds=0, dictionary=rows, moments_rounds=1, graph_class="cpdag")
    assert plan.sends_between_rows
    assert plan.digest().hex() != "44becc4868e529c0696904b50bafac7715144908568ebdfb047f14e272b94459"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((ALL, {"ward": {"kind": "group"}}), "'patient' and 'ward' are both of kind 'group'"),
        ((ALL, {"day": {"kind": "time"}}), "'visit' and 'day' are both of kind 'time'"),
        ((VARIABLES, {"x": {"lags": 1}}), "lags: a continuous column has none"),
        ((VARIABLES, {"patient": {"kind": "group", "lags": 1}}), "lags: a group column has none"),
        ((VARIABLES, {"x": {"trend": True}}), "trend: a continuous column has none"),
        ((VARIABLES, {"visit": {"kind": "time", "trend": True, "range": [0, 1]}}), "has no range"),
        ((VARIABLES, {"x": {"within": "rows"}}), "within: a continuous column has none"),
        ((VARIABLES, {"patient": {"kind": "group", "unit": "1"}}), "a group column is no variable"),
        ((VARIABLES, LAGS, {"patient": {"kind": "group", "within": "within"}}), "does not go with lags"),
        ((VARIABLES, {"patient": {"kind": "group", "within": "within"}}), "sex.fixed"),
        ((VARIABLES, LAGS, {"x@-1": {}}), "two columns would be called 'x@-1'"),
    ],
)
def test_what_cannot_be_is_refused(parts: tuple[dict[str, dict[str, Any]], ...], said: str) -> None:
    assert said in refusal(*parts)


def test_nothing_causes_what_was_before_it() -> None:
    plan = Plan.load("standard").with_dictionary(described(GROUP, LAGS, VARIABLES), origin="it")
    names = plan.column_names
    mask = plan.edge_mask(names)
    when = {"sex": 0, "x@-1": 1, "blood@-1": 1, "x": 2, "blood": 2}
    variables = mask.columns.variables
    for i, source in enumerate(variables):
        for j, target in enumerate(variables):
            assert mask.of_variables.allowed[i, j] == (i != j and when[source] <= when[target])
    kept = np.array([names.index(name) for name in ("x", "sex", "x@-1")])
    again = EdgeMask(Knowledge(), mask.columns.over(np.sort(kept)))
    assert not again.of_variables.allowed[variables.index("x"), variables.index("sex")]


@pytest.mark.parametrize(
    "parts",
    [(LAGS, VARIABLES), (GROUP, LAGS, VARIABLES), ({"patient": {"kind": "group", "within": "rows"}}, VARIABLES)],
)
def test_a_private_plan_refuses_several_records_of_a_person(parts: tuple[dict[str, dict[str, Any]], ...]) -> None:
    with pytest.raises(PlanError, match="one person has several records"):
        Plan.load("private").with_dictionary(described(*parts), origin="it")
    Plan.load("private").with_dictionary(described(ALL), origin="it")


def test_rows_of_persons_count_where_a_person_is_one_record() -> None:
    by_rows = Plan.load("private", ["privacy.persons_by = 'rows'"])
    assert by_rows.with_dictionary(described(ALL), origin="it").digest() != by_rows.digest()
    with pytest.raises(PlanError, match=r"privacy\.persons_by = 'rows': must be means, unless the data dictionary"):
        by_rows.with_dictionary(described(VARIABLES), origin="it")


def test_a_plan_in_toml_has_them_again() -> None:
    plan = Plan.load("standard").with_dictionary(described(GROUP, LAGS, VARIABLES), origin="it")
    assert Plan.from_toml(plan.to_toml()) == plan
    assert "rows with the same 'patient' follow each other in time" in " ".join(plan.preparation_lines())
