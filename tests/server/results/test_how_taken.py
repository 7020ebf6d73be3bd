"""How each variable was taken, and why: contents of results written by hand."""

from typing import Any

import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_server.results.how_taken import how_taken
from fedbnsl_server.results.sentences import in_words, note, taken_in_words

DICTIONARY = {
    "a": {"unit": "mg"},
    "straight": {"shape": "linear"},
    "bent": {"shape": "curved"},
    "n": {"kind": "count"},
    "s": {"kind": "binary", "levels": ["f", "m"]},
    "w": {"kind": "nominal", "levels": ["x", "y", "z"]},
    "g": {"kind": "ordinal", "levels": ["I", "II"]},
}
STANDARD = Plan.load("standard").with_settings(dictionary=DICTIONARY)
ROWS = {"kind": "group", "within": "rows"}
PRIVATE = Plan.load("private", ["look_for_curves=true"], epsilon=1.0)
OF_LINES = STANDARD.with_settings(dictionary={**DICTIONARY, "bent": {}})


def content(**changes: Any) -> dict[str, Any]:
    return {
        "variables": [*DICTIONARY],
        "estimation": {},
        "unused": [],
        "references": {"w": "x"},
        "curves": None,
        "categories": None,
        "regressions": [],
        "outlying": {},
        "verdict": {"assumed": [], "not_tested": []},
        **changes,
    }


def told(plan: Plan = STANDARD, families: dict[str, str] | None = None, **changes: Any) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = in_words(how_taken(content(**changes), plan, families or {}))
    return found


def test_every_variable_has_a_form_and_a_reason() -> None:
    effects = [{"source": "a", "target": "n"}]
    taken = told(
        curves={"variables": ["a", "bent"], "effects": effects},
        regressions=[{"child": "s", "kind": "odds ratio", "estimates": [{}]}],
        outlying={"n": {"above": 8.0, "below": None, "values": {"north": 2, "south": 1}}},
        unused=[{"variable": "straight", "level": None, "why": "constant"}],
        verdict={"assumed": [note("not_counted", names=["a"], one=True)], "not_tested": []},
        families={"n": "curved", "s": "regression"},
    )
    assert {name: (one["form"], one["family"]) for name, one in taken.items()} == {
        "a": ("curve", "linear"),
        "straight": ("unused", "linear"),
        "bent": ("curve", "linear"),
        "n": ("line", "curved"),
        "s": ("indicator", "regression"),
        "w": ("indicators", "linear"),
        "g": ("ranks", "linear"),
    }
    assert {name: one["how"] for name, one in taken.items()} == {
        "a": "curve",
        "straight": "not used",
        "bent": "curve",
        "n": "straight line; changes along curves with 'a'; 3 values far from all others counted as missing",
        "s": "zero and one; odds ratios by its parents",
        "w": "columns of zeros and ones, one for each level but 'x'",
        "g": "levels as 0, 1, 2, ...",
    }
    assert {name: one["why"] for name, one in taken.items()} == {
        "a": "lines with bends at knots explain more of another number than a straight line does",
        "straight": "'straight': one value in all rows that are used, so that nothing can be learned about it: no edge",
        "bent": "shape = 'curved' in the data dictionary",
        "n": "lines with bends at knots explain hardly more of any number that it may act on than a straight line does",
        "s": "binary in the data dictionary; not counted, as not all variables are categories",
        "w": "nominal in the data dictionary; not counted, as not all variables are categories",
        "g": "ordinal in the data dictionary",
    }
    assert taken_in_words(taken) == (
        "straight line: 1; curve: 2 (a, bent); columns of zeros and ones: 1 (w); zero and one: 1 (s); "
        "levels as 0, 1, 2, ...: 1 (g); not used: 1 (straight)"
    )


def not_searched(**why: bool) -> dict[str, Any]:
    reasons = {"few": False, "none": False, "many": False, "withheld": False, **why}
    untested = note("curves_not_searched", why=note("no_curves_found_out", **reasons))
    return {"assumed": [], "not_tested": [untested]}


@pytest.mark.parametrize(
    ("plan", "verdict", "why"),
    [
        (STANDARD, not_searched(few=True), "there are too few rows"),
        (STANDARD, not_searched(many=True), "there are too many numbers"),
        (OF_LINES.with_settings(consensus="median"), content()["verdict"], "sums over all sites have no robust rule"),
        (
            Plan.load("standard").with_settings(dictionary={"a": {}, "b": {}, "who": ROWS}),
            content()["verdict"],
            "rows of a group are not independent",
        ),
        (OF_LINES.with_settings(look_for_curves=False), content()["verdict"], "the plan does not ask for it"),
        (PRIVATE, content()["verdict"], "the noise of privacy is too large for it"),
        (PRIVATE.with_settings(look_for_curves=False), content()["verdict"], "the plan does not ask for it"),
    ],
)
def test_where_no_curves_were_looked_for_the_reason_is_said(plan: Plan, verdict: dict[str, Any], why: str) -> None:
    one = told(plan, variables=["a"], verdict=verdict)["a"]
    assert one["form"] == "line"
    assert one["why"].startswith(f"no curves were looked for: {why}")


@pytest.mark.parametrize("plan", [OF_LINES, PRIVATE])
def test_a_run_that_ended_before_its_search_has_not_looked(plan: Plan) -> None:
    assert told(plan, variables=["a"], estimation=None)["a"]["why"] == "no curves were looked for: the run ended before"


def test_a_private_run_goes_by_squares() -> None:
    taken = told(PRIVATE, variables=["a", "b"], curves={"variables": ["a"], "effects": []})
    assert [one["why"] for one in taken.values()] == [
        "its square explains more of another number than a straight line does",
        "its square explains hardly more of any number that it may act on than a straight line does",
    ]


def test_the_dictionary_is_the_reason_only_where_curves_would_be_looked_for() -> None:
    verdict = not_searched(few=True)
    assert told(verdict=verdict)["straight"]["why"] == "shape = 'linear' in the data dictionary"
    without = OF_LINES.with_settings(look_for_curves=False)
    assert told(without)["straight"]["why"] == "no curves were looked for: the plan does not ask for it"


def test_of_groups_a_level_is_an_average() -> None:
    plan = Plan.load("standard").with_settings(dictionary={**DICTIONARY, "bent": {}, "who": {"kind": "group"}})
    assert told(plan)["s"]["how"] == "zero and one, averaged over a group"


def test_counted_categories_are_tables() -> None:
    plan = STANDARD.with_settings(dictionary={name: DICTIONARY[name] for name in "sw"})
    taken = told(plan, variables=["s", "w"], categories={"s": {}, "w": {}}, families={"s": "table"})
    assert [one["how"] for one in taken.values()] == ["table of counts"] * 2
    assert "records of each combination of levels were counted" in taken["s"]["why"]
