"""Who has which variables, as a plan says it: what cannot be is refused, and pairs that never meet are told."""

import json
from itertools import combinations
from typing import Any

import pytest
from click.testing import CliRunner

from fedbnsl.cli import fedbnsl
from fedbnsl.errors import PlanError
from fedbnsl.plan.plan import Plan

VARIABLES = ("age", "bmi", "crp", "sex")


def plan(absent: dict[str, list[str]], **settings: Any) -> Plan:
    return Plan.load("standard").with_settings(
        **{"n_participants": 3, "variables": VARIABLES, "absent": absent, **settings}
    )


def test_a_plan_with_absent_variables_survives_its_own_toml() -> None:
    given = plan({"lakeside": ["crp"], "st.anna": ["bmi", "crp"]})
    back = Plan.from_toml(given.to_toml())
    assert back == given
    assert back.digest() == given.digest()
    assert Plan.load("standard", ['absent.lakeside=["crp"]']).absent.of("lakeside") == ("crp",)


def test_a_private_plan_takes_absent_variables_that_two_sites_or_more_have() -> None:
    """Under secure sums, a variable that one site alone has would be that site's own."""
    plan = Plan.load("private").with_settings(n_participants=3, variables=VARIABLES)
    assert plan.with_settings(absent={"a": ["crp"]}).absent
    with pytest.raises(PlanError, match="two sites or more have each variable"):
        plan.with_settings(absent={"a": ["crp"], "b": ["crp"]})


def test_private_sums_tell_nothing_of_a_pair_that_no_site_has() -> None:
    plan = Plan.load("private").with_settings(n_participants=4, variables=VARIABLES)
    absent = {"a": ["crp"], "b": ["crp"], "c": ["bmi"], "d": ["bmi"]}
    with pytest.raises(PlanError, match=r"no site has together, such as '(crp|bmi)' and '(crp|bmi)'"):
        plan.with_settings(absent=absent)


def test_a_private_robust_rule_gives_no_vote_on_absent_variables() -> None:
    plan = Plan.load("private").with_settings(n_participants=4, variables=VARIABLES)
    robust = plan.with_settings(consensus="median", privacy={"epsilon": 3.0, "secure_aggregation": False})
    with pytest.raises(PlanError, match="mean with absent variables and privacy"):
        robust.with_settings(absent={"a": ["crp"]})


def test_private_steps_take_no_absent_variables() -> None:
    with pytest.raises(PlanError, match="empty unless rows with gaps are completed"):
        Plan.load("private-steps").with_settings(variables=VARIABLES, absent={"a": ["crp"]})


def test_only_a_plan_that_says_who_lacks_what_has_another_digest_than_before() -> None:
    plain = Plan.load("standard")
    content = plain.model_dump(mode="json")
    assert "absent" in content
    assert plain.with_settings(absent={}).digest() == plain.digest()
    some = [plan({}), plan({"a": ["crp"]}), plan({"a": ["bmi"]}), plan({"b": ["crp"]})]
    assert len({one.digest() for one in some}) == len(some)


@pytest.mark.parametrize(
    ("absent", "settings", "rule"),
    [
        ({"a": ["crp"], "b": ["crp"], "c": ["crp"]}, {}, "sites has 'crp': leave out of the run what none has"),
        ({"a": ["weight"]}, {}, "variables of the run, which has no 'weight'"),
        ({"a": ["age", "bmi", "crp"]}, {}, "each site has two variables, also a"),
        ({"a": ["crp", "crp"]}, {}, "without repetition, also at a"),
        ({"d": ["crp"]}, {"sites": ["a", "b", "c"]}, "of sites in `sites`, which has no 'd'"),
        ({name: ["crp"] for name in "abcd"}, {}, "of at most n_participants = 3 sites"),
        ({"../a": ["crp"]}, {}, "letters, digits"),
        (
            {"a": ["age", "bmi"], "b": ["crp", "sex"], "c": ["age", "bmi"]},
            {},
            "one of n_participants = 3 sites has 'age' or 'bmi' and",
        ),
        ({"a": ["crp"]}, {"preparation": {"missing": "complete-cases"}}, "empty unless rows with gaps are completed"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_on(absent: Any, settings: Any, rule: str) -> None:
    with pytest.raises(PlanError, match="absent = ") as caught:
        plan(absent, **settings)
    assert rule in str(caught.value)


@pytest.mark.parametrize("n_sites", [2, 3, 4])
def test_pairs_never_meet_as_counting_over_all_sites_tells(n_sites: int) -> None:
    absent = {"a": ["bmi", "crp"], "b": ["crp", "age"], "c": ["bmi"]}
    sites = {f"site {k}": set(VARIABLES) - set(names) for k, names in enumerate(list(absent.values())[:n_sites])}
    sites |= {f"whole {k}": set(VARIABLES) for k in range(n_sites - len(sites))}
    expected = [pair for pair in combinations(VARIABLES, 2) if not any(set(pair) <= has for has in sites.values())]
    told = plan(dict(list(absent.items())[:n_sites]), n_participants=n_sites) if n_sites > 2 else None
    if told is None:  # no site has crp
        with pytest.raises(PlanError, match="2 sites has 'crp'"):
            plan(dict(list(absent.items())[:n_sites]), n_participants=n_sites)
        return
    assert sorted(map(sorted, told.absent.never_together(n_sites))) == sorted(map(list, expected))


def test_the_command_shows_who_lacks_what_and_pairs_that_never_meet() -> None:
    lacking = {"a": ["crp"], "b": ["bmi"], "c": ["crp", "age"]}
    options = [f"--set=absent.{site}={json.dumps(names)}" for site, names in lacking.items()]
    shown = CliRunner().invoke(fedbnsl, ["plan", "show", "standard", "--set", "n_participants=3", *options])
    assert shown.exit_code == 0, shown.output
    assert "'crp': 1 of 3 sites have it, and not a, c" in shown.output
    assert "no site has both of 'crp' and 'bmi': the result says nothing" in shown.output
    assert "absent.c" in shown.output
