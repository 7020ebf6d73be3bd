"""What a plan says was set at a site, and what of it is refused before the run."""

from typing import Any

import pytest

from fedbnsl.errors import PlanError
from fedbnsl.plan.interventions import refuse_other_names
from fedbnsl.plan.plan import Plan

SET = [{"site": "site-3", "variables": ["dose"]}]


def plan(**settings: Any) -> Plan:
    return Plan.load("standard").with_settings(**{"interventions": SET, **settings})


def test_it_survives_a_file_and_changes_the_digest() -> None:
    given = plan()
    assert Plan.from_toml(given.to_toml()) == given
    assert given.set_at == {"site-3": frozenset({"dose"})}
    assert given.digest() != Plan.load("standard").digest()
    assert "'dose' set at site-3" in given.preparation_lines()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sites": ["a", "b", "c"]}, "has no 'site-3'"),
        ({"variables": ["x", "y"]}, "has no 'dose'"),
        ({"interventions": [*SET, *SET]}, "one table"),
        ({"interventions": [{"site": "site-3", "variables": []}]}, "at least 1 item"),
        ({"interventions": [{"site": "site-3", "variable": ["dose"]}]}, "no such setting"),
        ({"consensus": "median"}, "consensus other than mean"),
        ({"dictionary": {"dose": {"kind": "binary", "levels": ["no", "yes"]}, "y": {}}}, "no continuous ones"),
        ({"dictionary": {"dose": {}, "y": {}, "id": {"kind": "group", "within": "rows"}}}, "rows of groups"),
    ],
)
def test_what_cannot_hold_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match="interventions") as refused:
        plan(**settings)
    assert words in str(refused.value)


def test_a_private_plan_has_none() -> None:
    with pytest.raises(PlanError, match=r"\[privacy\]"):
        Plan.load("private").with_settings(interventions=SET)


def test_sites_and_variables_that_a_run_does_not_have_are_refused_when_they_are_known() -> None:
    given = plan().interventions
    refuse_other_names(given, ["site-3"], ["dose"])
    with pytest.raises(PlanError, match=r"no site of the run is called 'site-3'; the sites are a, b"):
        refuse_other_names(given, ["a", "b"], ["dose"])
    with pytest.raises(PlanError, match="no variable 'dose', which site-3 has set"):
        refuse_other_names(given, ["site-3"], ["x"])
