"""A site whose policy says `least_cell` refuses exact plans that tell of few rows."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from described_tables import dictionary, write_dictionary, write_ward
from fedbnsl.errors import PolicyRefusal
from fedbnsl.plan.plan import Plan
from fedbnsl_client.cli import participant
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable
from private_site import DATASET, edit, make_site

PLAN = Plan.load("standard").with_settings(n_participants=3, dictionary=dictionary().model_dump())

pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A site that takes part in runs without privacy, of a table of 120 rows or so."""
    own = tmp_path / "north"
    ward = write_ward(tmp_path / "ward.csv", 1)
    make_site(own, table=ward, dictionary=write_dictionary(tmp_path / "given.toml"))
    edit(own / "policy.toml", 'allowed_solvers = ["dp-pgcd"]', 'allowed_solvers = ["pgcd"]')
    edit(own / "policy.toml", "allow_non_private = false", "allow_non_private = true")
    edit(own / "policy.toml", "least_cell = 0", "least_cell = 40")
    return own


def least_cell_of_admitted(folder: Path) -> int:
    with site_folder.opened(folder) as (policy, ledger):
        ledger.approvals.approve(PLAN.digest(), PLAN.name)
        site = GuardedTable(folder, policy, ledger, None)
        site.admit(PLAN, 7, site.variables)
        return site.least_cell


def test_a_plan_that_tells_of_few_rows_is_refused_and_the_table_stays_unused(folder: Path) -> None:
    with pytest.raises(PolicyRefusal, match="rule `least_cell` = 40: without privacy, means and products of columns"):
        least_cell_of_admitted(folder)
    with site_folder.opened(folder) as (_, ledger):
        assert not ledger.payments.unprotected(DATASET)


def test_with_small_pairs_allowed_it_is_admitted_and_larger_tables_are_withheld(folder: Path) -> None:
    edit(folder / "policy.toml", "allow_small_pairs = false", "allow_small_pairs = true")
    assert least_cell_of_admitted(folder) == 40


def test_who_approves_reads_the_rule_and_cannot_approve_what_it_refuses(folder: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.to_toml(), encoding="utf-8")
    command = ["approve", str(plan), str(folder), "--yes"]
    shown = CliRunner().invoke(participant, command)
    assert "means and products of columns tell how many rows have each level, and each pair of levels" in shown.output
    assert "a plan whose sums would tell fewer of a level or of a pair is refused" in shown.output
    assert isinstance(shown.exception, PolicyRefusal)
    edit(folder / "policy.toml", "allow_small_pairs = false", "allow_small_pairs = true")
    shown = CliRunner().invoke(participant, command)
    assert shown.exception is None
    assert "what sums tell of single levels and of pairs may be fewer" in shown.output
    assert "are withheld; which ones are is told" in shown.output
