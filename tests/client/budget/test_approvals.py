"""What a site's owner approves, and how often an agent may make use of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedbnsl.errors import PolicyRefusal
from fedbnsl.plan.plan import Plan
from fedbnsl_client.budget.approvals import Terms
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import UnattendedTable
from private_site import DATASET, NAMES, ROWS, make_site, private_plan, units_spent

PLAN = private_plan(sites=("north", "south"), variables=NAMES)
DIGEST = PLAN.digest()


def terms(plan: Plan = PLAN, runs: int = 1) -> Terms:
    return Terms.of(plan, DATASET, n_samples=ROWS, n_variables=len(NAMES), runs=runs)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    make_site(tmp_path)
    with site_folder.opened(tmp_path) as (_, ledger):
        yield ledger


def admit(folder: Path, plan: Plan, run: int = 1) -> None:
    with site_folder.opened(folder) as (policy, ledger):
        UnattendedTable(folder, policy, ledger, DATASET).admit(plan, run, NAMES)


def test_an_approval_that_was_taken_back_is_none_until_it_is_given_again(ledger: Ledger, tmp_path: Path) -> None:
    ledger.approvals.approve(DIGEST, "plan", terms())
    ledger.approvals.withdraw(DIGEST)
    assert DIGEST.hex() not in ledger.approvals.current()
    ledger.approvals.withdraw(DIGEST)
    (version,) = ledger._file._database.execute("PRAGMA user_version").fetchone()
    assert version == 3, "an older fedbnsl, which would go by the approval, does not open it"
    with Ledger.open(tmp_path / "ledger.db") as again:
        assert DIGEST.hex() not in again.approvals.current()
    ledger.approvals.approve(DIGEST, "plan")
    assert DIGEST.hex() in ledger.approvals.current()
    ledger.verify()


def test_a_run_is_counted_once_however_often_its_agent_is_started(ledger: Ledger, tmp_path: Path) -> None:
    ledger.approvals.approve(DIGEST, "plan", terms(runs=2))
    for run in (1, 1, 2, 1, 2):
        admit(tmp_path, PLAN, run)
    (known,) = ledger.approvals.current()[DIGEST.hex()]
    assert known.taken == (f"{1:016x}", f"{2:016x}")
    with pytest.raises(PolicyRefusal, match=r"approved for 2 run\(s\) of an agent, and it has taken part in 2"):
        admit(tmp_path, PLAN, 3)
    ledger.approvals.approve(DIGEST, "plan", terms(runs=1))
    admit(tmp_path, PLAN, 3)
    admit(tmp_path, PLAN, 1)


def test_12_an_agent_brings_a_table_to_no_run_that_differs_from_what_was_approved(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger.approvals.approve(DIGEST, "plan", terms())
    others = [
        private_plan(sites=("north", "west"), variables=NAMES),
        private_plan(sites=("north", "south", "west"), variables=NAMES, n_participants=3),
        private_plan(sites=("north", "south"), variables=NAMES, privacy={"epsilon": 1.1}),
        private_plan(sites=("north", "south"), variables=NAMES, rounds=4),
        private_plan(variables=NAMES),
        private_plan(sites=("north", "south")),
    ]
    for plan in others:
        with pytest.raises(PolicyRefusal, match="is not approved here"):
            admit(tmp_path, plan)
    assert units_spent(ledger, DATASET) == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"units": 1}, "it costs .* not 1$"),
        ({"units_against_all": 1}, "it costs"),
        ({"sites": ("north", "west")}, "its sites are north, south, not north, west"),
        ({"dataset": "ward-8"}, "it is for dataset 'ward-7', not 'ward-8'"),
    ],
)
def test_12_the_price_the_sites_and_the_table_have_to_be_those_that_were_shown(
    ledger: Ledger, tmp_path: Path, change: dict[str, object], text: str
) -> None:
    ledger.approvals.approve(DIGEST, "plan", replace(terms(), **change))
    with pytest.raises(PolicyRefusal, match=f"not the one that was approved: {text}"):
        admit(tmp_path, PLAN)


def test_12_an_approval_for_a_person_is_none_for_an_agent(ledger: Ledger, tmp_path: Path) -> None:
    ledger.approvals.approve(DIGEST, "plan")
    with pytest.raises(PolicyRefusal, match="approved, but for no run of an agent"):
        admit(tmp_path, PLAN)


def test_12_nobody_has_approved_the_sites_of_a_plan_that_names_none(ledger: Ledger, tmp_path: Path) -> None:
    plan = private_plan(variables=NAMES)
    ledger.approvals.approve(plan.digest(), "plan", terms(plan))
    with pytest.raises(PolicyRefusal, match="names no sites"):
        admit(tmp_path, plan)


def test_a_policy_can_list_plans_for_any_number_of_runs(tmp_path: Path) -> None:
    make_site(tmp_path)
    file = tmp_path / "policy.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("auto_approve = false", f'auto_approve = ["{DIGEST.hex()}"]'), encoding="utf-8")
    for run in (1, 2, 3):
        admit(tmp_path, PLAN, run)


def test_an_approval_that_is_taken_back_between_two_looks_counts(ledger: Ledger) -> None:
    ledger.approvals.approve(DIGEST, "plan", terms())
    (looked_at,) = ledger.approvals.current()[DIGEST.hex()]
    ledger.approvals.withdraw(DIGEST)
    with pytest.raises(PolicyRefusal, match="approved no more"):
        ledger.approvals.note_agent(5, DIGEST, authority="", approval=looked_at)


def runs_left(ledger: Ledger) -> dict[str, int]:
    return {one.authority: one.runs_left for one in ledger.approvals.current().get(DIGEST.hex(), ())}


def test_approvals_of_one_plan_for_two_federations_stand_side_by_side(ledger: Ledger) -> None:
    ledger.approvals.approve(DIGEST, "plan", terms(runs=2), authority="AA")
    ledger.approvals.approve(DIGEST, "plan", terms(runs=5), authority="BB")
    of_a, _ = ledger.approvals.current()[DIGEST.hex()]
    ledger.approvals.note_agent(1, DIGEST, authority="AA", approval=of_a)
    assert runs_left(ledger) == {"AA": 1, "BB": 5}
    assert ledger.approvals.agent_was_in(1, DIGEST, authority="AA")
    assert not ledger.approvals.agent_was_in(1, DIGEST, authority="BB"), "runs of two coordinators may share a number"
    ledger.approvals.note_agent(2, DIGEST, authority="AA", approval=of_a)
    with pytest.raises(PolicyRefusal, match="approved for fewer runs"):
        ledger.approvals.note_agent(3, DIGEST, authority="AA", approval=of_a)
    ledger.approvals.approve(DIGEST, "plan", terms(runs=3), authority="AA")
    assert runs_left(ledger) == {"BB": 5, "AA": 3}
    ledger.approvals.withdraw(DIGEST, authority="BB")
    ledger.approvals.withdraw(DIGEST, authority="CC")
    assert runs_left(ledger) == {"AA": 3}
    ledger.approvals.approve(DIGEST, "plan", authority="BB")
    ledger.approvals.withdraw(DIGEST)
    assert runs_left(ledger) == {}


def test_one_that_names_no_federation_ends_with_the_next_word_about_its_plan(ledger: Ledger) -> None:
    ledger.approvals.approve(DIGEST, "plan", terms(), authority="AA")
    ledger.approvals.approve(DIGEST, "plan", terms(runs=4))
    assert runs_left(ledger) == {"": 4}
    ledger.approvals.approve(DIGEST, "plan", terms(runs=2), authority="BB")
    assert runs_left(ledger) == {"BB": 2}
    ledger.approvals.approve(DIGEST, "plan")
    ledger.approvals.withdraw(DIGEST, authority="BB")
    assert runs_left(ledger) == {}


def test_a_ledger_of_an_older_fedbnsl_says_what_it_said_there(ledger: Ledger) -> None:
    """It had one approval of a plan, whose federation stood in its terms, and counted all runs of an agent for that."""
    file, of_plan = ledger._file, {"digest": DIGEST.hex(), "name": "plan"}
    with file.transaction():
        for authority in ("AA", "BB"):
            file.append("approve", **of_plan, terms=terms(runs=2).to_plain() | {"authority": authority})
        file.append("agent", digest=DIGEST.hex(), run=f"{7:016x}")
    assert runs_left(ledger) == {"BB": 1}
    assert ledger.approvals.agent_was_in(7, DIGEST, authority="BB")
    with file.transaction():
        file.append("approve", **of_plan)
    assert runs_left(ledger) == {"": 0}
    ledger.approvals.approve(DIGEST, "plan", terms(), authority="AA")
    told = [content["terms"]["authority"] for content in file.contents("approve") if "terms" in content]
    assert told[-1] == "AA", "where an older fedbnsl looks for it"
