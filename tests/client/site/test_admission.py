"""A site goes into a run: refusals come before a record is read, and the table is the one that was registered."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import BudgetExhaustedError, DataError, LedgerError, PolicyRefusal, SchemaMismatchError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.zcdp import zcdp_of
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.report import approval_lines, ledger_as_json, ledger_lines, refuse_what_cannot_run
from fedbnsl_client.budget.spending import Cap
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Unaccounted
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable, PublicTable
from private_site import DATASET, NAMES, ROWS, edit, make_site, private_plan, rows, units_spent, write_table

RUN = 2**63 + 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_site(tmp_path / "north")
    return tmp_path / "north"


def admit(folder: Path, plan: Plan, *, approve: bool = True, **options: Any) -> tuple[Dataset, Any]:
    with site_folder.opened(folder) as (policy, ledger):
        if approve:
            ledger.approvals.approve(plan.digest(), plan.name)
        site = GuardedTable(folder, policy, ledger, None, **options)
        return site.admit(plan, RUN, site.variables)


def without_rows(folder: Path) -> None:
    """The registered table is there no more: whoever wants to read it fails."""
    (folder / "table.csv").unlink()


def spend(folder: Path, units: int) -> None:
    with site_folder.opened(folder) as (_, ledger):
        ledger.payments.reserve(Request(DATASET, 1, 1, "north"), Payment(units, {}), Cap(10**18, 0))


def test_an_approved_plan_within_the_budget_gets_the_table(folder: Path) -> None:
    table, _ = admit(folder, private_plan())
    assert table.variables == NAMES
    assert np.array_equal(table.X, rows())


def test_rows_and_columns_are_known_without_the_table(folder: Path) -> None:
    without_rows(folder)
    with site_folder.opened(folder) as (policy, ledger):
        site = GuardedTable(folder, policy, ledger, None)
        assert (site.site, site.variables, site.n_samples) == ("north", NAMES, ROWS)
        assert site.ledger_head == ledger.payments.head(DATASET)


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (Plan(), "allow_non_private"),
        (private_plan(local_solver="dp-pgcd-laplace"), "allowed_solvers"),
        (private_plan(n_participants=1), "min_participants"),
        (private_plan(privacy={"smoothness": "exact"}), "public"),
        (private_plan(privacy={"delta": 1e-5}), "max_delta"),
        (private_plan(privacy={"epsilon": 5.1}), "max_epsilon_per_run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_plan_that_the_policy_forbids_is_refused_before_the_table_is_opened(
    plan: Plan, rule: str, folder: Path
) -> None:
    if rule == "allow_non_private":
        edit(folder / "policy.toml", 'allowed_solvers = ["dp-pgcd"]', 'allowed_solvers = ["dp-pgcd", "pgcd"]')
    without_rows(folder)
    with pytest.raises(PolicyRefusal, match=f"rule `{rule}`"):
        admit(folder, plan)


def test_a_run_without_privacy_is_noted_with_its_admission_and_ends_the_guarantee(folder: Path) -> None:
    edit(folder / "policy.toml", 'allowed_solvers = ["dp-pgcd"]', 'allowed_solvers = ["dp-pgcd", "pgcd"]')
    edit(folder / "policy.toml", "allow_non_private = false", "allow_non_private = true")
    admit(folder, Plan())
    with pytest.raises(PolicyRefusal, match="was used in a run without privacy"):
        admit(folder, private_plan())
    with site_folder.opened(folder) as (policy, ledger):
        assert ledger_as_json(policy, ledger)["datasets"][0]["unprotected"] is True
        assert "NO GUARANTEE" in "\n".join(ledger_lines(policy, ledger))
        ledger.verify()
        dataset = policy.datasets[0]
        assert "no private run can use this table any more" in "\n".join(approval_lines(Plan(), dataset, ledger))
        with pytest.raises(PolicyRefusal, match="no guarantee can be given"):
            refuse_what_cannot_run(private_plan(), policy, dataset, ledger, folder)


def test_a_table_that_is_refused_was_not_used_without_privacy(folder: Path) -> None:
    edit(folder / "policy.toml", "allow_non_private = false", "allow_non_private = true")
    edit(folder / "policy.toml", 'allowed_solvers = ["dp-pgcd"]', 'allowed_solvers = ["dp-pgcd", "pgcd"]')
    write_table(folder / "table.csv", rows(7))
    with pytest.raises(LedgerError, match="is not the one registered"):
        admit(folder, Plan(n_participants=2))
    with site_folder.opened(folder) as (_, ledger):
        assert not ledger.payments.unprotected(DATASET)


def test_an_approval_holds_when_the_coordinator_names_variables_and_sites(folder: Path) -> None:
    named = private_plan(variables=NAMES, sites=["north", "south"])
    with site_folder.opened(folder) as (_, ledger):
        ledger.approvals.approve(private_plan(sites=["north", "south"]).digest(), "plan")
    admit(folder, named, approve=False)
    with pytest.raises(PolicyRefusal, match="rule `auto_approve`"):
        admit(folder, named.with_settings(rounds=4), approve=False)
    with pytest.raises(PolicyRefusal, match="rule `auto_approve`"):
        admit(folder, private_plan(sites=["north", "west"]), approve=False)


def test_a_plan_that_nobody_approved_is_refused_before_the_table_is_opened(folder: Path) -> None:
    without_rows(folder)
    with pytest.raises(PolicyRefusal, match="rule `auto_approve`"):
        admit(folder, private_plan(), approve=False)


def test_an_exhausted_budget_is_told_before_the_table_is_opened(folder: Path) -> None:
    with site_folder.opened(folder) as (policy, _):
        cap = policy.datasets[0].cap.units
    spend(folder, cap)
    without_rows(folder)
    with pytest.raises(BudgetExhaustedError, match="spent so far epsilon 5 "):
        admit(folder, private_plan())


def test_after_all_refusals_the_table_is_missed(folder: Path) -> None:
    """What the tests above rest on: without a refusal, the missing file is noticed."""
    without_rows(folder)
    with pytest.raises(DataError, match=r"table\.csv"):
        admit(folder, private_plan())


def test_a_refusal_spends_and_enters_nothing(folder: Path) -> None:
    with site_folder.opened(folder) as (_, ledger):
        before = ledger.mark
    with pytest.raises(PolicyRefusal):
        admit(folder, private_plan(), approve=False)
    with site_folder.opened(folder) as (_, ledger):
        assert ledger.mark == before


@pytest.mark.parametrize("change", ["one value", "one row more", "one row less", "a column renamed"])
def test_a_table_that_has_changed_is_refused(change: str, folder: Path) -> None:
    X, names = rows(), NAMES
    if change == "one value":
        X[17, 1] = np.nextafter(X[17, 1], 10.0)
    elif change == "one row more":
        X = np.vstack([X, rows(2)[:1]])
    elif change == "one row less":
        X = X[1:]
    else:
        names = ("age", "dose", "height")
    write_table(folder / "table.csv", X, names)
    with pytest.raises(LedgerError, match="is not the one registered"):
        admit(folder, private_plan())


def test_a_new_table_is_used_once_it_supersedes_the_old_one_and_what_was_spent_stays_spent(folder: Path) -> None:
    spend(folder, 12345)
    write_table(folder / "table.csv", rows(9))
    with site_folder.opened(folder) as (policy, ledger):
        table = site_folder.read_table(folder, policy, DATASET, max_file_bytes=10**6)
        ledger.registrations.register(DATASET, table.variables, table.X, supersedes=True)
    assert np.array_equal(admit(folder, private_plan())[0].X, rows(9))
    with site_folder.opened(folder) as (policy, ledger):
        assert units_spent(ledger, DATASET) == 12345
        told = [line for line in ledger_lines(policy, ledger) if "register" in line]
        assert [line.endswith("; in place of the one before") for line in told] == [False, True]


def test_some_of_the_columns_can_be_offered_in_any_order(folder: Path) -> None:
    table, _ = admit(folder, private_plan(), columns=["mass", "age"])
    assert table.variables == ("mass", "age")
    assert np.array_equal(table.X, rows()[:, [2, 0]])


def test_a_column_that_is_not_registered_is_refused_by_name(folder: Path) -> None:
    without_rows(folder)
    with pytest.raises(PolicyRefusal, match="rule `columns`: the registered table has no height"):
        admit(folder, private_plan(), columns=["age", "height"])


def test_a_column_that_the_policy_leaves_out_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    make_site(folder, columns=["age", "mass"])
    assert admit(folder, private_plan())[0].variables == ("age", "mass")
    with pytest.raises(PolicyRefusal, match="has no dose"):
        admit(folder, private_plan(), columns=["dose"])


def test_a_dataset_that_the_ledger_does_not_know_is_refused(folder: Path) -> None:
    edit(folder / "policy.toml", f'id = "{DATASET}"', 'id = "ward-8"')
    with pytest.raises(PolicyRefusal, match=r"rule `datasets`: 'ward-8' is not registered in the ledger"):
        admit(folder, private_plan())


def test_a_second_name_for_the_same_table_is_no_second_budget(folder: Path) -> None:
    edit(folder / "policy.toml", f'id = "{DATASET}"', 'id = "ward-8"')
    with site_folder.opened(folder) as (policy, ledger):
        table = site_folder.read_table(folder, policy, "ward-8", max_file_bytes=10**6)
        with pytest.raises(LedgerError, match="registered as 'ward-7', where its spending is counted"):
            ledger.registrations.register("ward-8", table.variables, table.X)


def test_a_public_table_under_a_policy_may_be_used_without_privacy_and_is_not_charged(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    make_site(folder, public=True)
    edit(folder / "policy.toml", 'allowed_solvers = ["dp-pgcd"]', 'allowed_solvers = ["pgcd"]')
    _, journal = admit(folder, Plan())
    assert isinstance(journal, Unaccounted)


def test_a_public_table_without_a_policy_is_refused_nothing_and_has_no_ledger() -> None:
    site = PublicTable("north", Dataset(NAMES, rows()))
    table, journal = site.admit(private_plan(privacy={"smoothness": "exact"}), RUN, NAMES)
    assert isinstance(journal, Unaccounted)
    assert site.ledger_head is None
    assert np.array_equal(table.X, rows())


def paid_with(folder: Path, variables: tuple[str, ...]) -> None:
    """A site begins a run with its columns in this order, and comes to the first answer."""
    with site_folder.opened(folder) as (policy, ledger):
        ledger.approvals.approve(private_plan().digest(), "plan")
        site = GuardedTable(folder, policy, ledger, None, columns=sorted(variables), authority="AA:BB")
        table, journal = site.admit(private_plan(), RUN, variables)
        assert table.variables == variables
        journal.release(0, lambda: np.ones(len(variables)).tobytes())
        assert (journal.head, site.ledger_head.n_entries) == (ledger.payments.head(DATASET, "AA:BB"), 1)


@pytest.mark.parametrize("variables", [("age", "mass"), ("dose", "age", "mass"), NAMES])
def test_a_run_that_was_begun_with_other_variables_is_not_gone_on_with(
    variables: tuple[str, ...], folder: Path
) -> None:
    """What was released and kept for one choice of columns is of another length, or is read as that of others."""
    paid_with(folder, ("age", "dose", "mass"))
    without_rows(folder)
    with site_folder.opened(folder) as (policy, ledger):
        before = ledger.mark
        site = GuardedTable(folder, policy, ledger, None, columns=variables)
        if variables == NAMES:
            with pytest.raises(DataError, match=r"table\.csv"):
                site.admit(private_plan(), RUN, variables)
            return
        with pytest.raises(SchemaMismatchError, match="began this run with the variables age, dose, mass"):
            site.admit(private_plan(), RUN, variables)
        assert ledger.mark == before


# ---- blocks of a table that has grown ------------------------------------------------------------------------------

GROWN = np.vstack([rows(), rows(9, n=60)])


@pytest.fixture
def grown(folder: Path) -> Path:
    """All of the budget is spent of 120 rows, and nothing of 60 that came later."""
    with site_folder.opened(folder) as (policy, _):
        units = policy.dataset(DATASET).cap.units
    spend(folder, units)
    write_table(folder / "table.csv", GROWN[::-1])
    grow(folder)
    edit(folder / "policy.toml", "min_rows = 100", "min_rows = 50")
    return folder


def grow(folder: Path) -> None:
    with site_folder.opened(folder) as (policy, ledger):
        table = site_folder.read_table(folder, policy, DATASET)
        site_folder.register(folder, policy, ledger, DATASET, table, grows=True)


def release(folder: Path, *blocks: int) -> Dataset:
    """The table of a run that is admitted, after its first answer."""
    with site_folder.opened(folder) as (policy, ledger):
        ledger.approvals.approve(private_plan().digest(), "plan")
        table, journal = GuardedTable(folder, policy, ledger, None, blocks=blocks).admit(private_plan(), RUN, NAMES)
        assert journal.release(0, lambda: b"noise") == b"noise"
    return table


@pytest.mark.parametrize("blocks", [(), (1,), (1, 2)])
def test_a_block_that_cannot_pay_is_not_read(blocks: tuple[int, ...], grown: Path) -> None:
    without_rows(grown)
    with pytest.raises(BudgetExhaustedError):
        admit(grown, private_plan(), blocks=blocks)
    with site_folder.opened(grown) as (policy, ledger):
        dataset = policy.dataset(DATASET)
        with pytest.raises(
            BudgetExhaustedError, match="over block 2 alone, 60 records, the run would be allowed"
        ) as caught:
            refuse_what_cannot_run(private_plan(), policy, dataset, ledger, grown, blocks=blocks)
        assert caught.value.remedy == "To approve it, and to join: --blocks 2."
        assert refuse_what_cannot_run(private_plan(), policy, dataset, ledger, grown, blocks=[2]).n_samples == 60


def test_what_a_restored_ledger_was_charged_for_lost_entries_is_of_no_run(tmp_path: Path) -> None:
    cap = make_site(tmp_path).dataset(DATASET).cap
    file = tmp_path / site_folder.LEDGER

    def pay(run: int, t: int, units: int) -> None:
        with site_folder.opened(tmp_path) as (_, ledger):
            ledger.payments.reserve(Request(DATASET, run, t, "north"), Payment(units, {}), cap)

    pay(1, 1, 10)
    older = file.read_bytes()
    pay(1, 2, 200)
    pay(2, 1, 3000)
    file.write_bytes(older)
    with site_folder.opened(tmp_path, accept_backup=True) as (policy, ledger):
        table = GuardedTable(tmp_path, policy, ledger, None)
        assert [table.paid_units(run) for run in (1, 2)] == [10, 0]
        assert table.budget().lost_zcdp == zcdp_of(3200)
        assert ledger.payments.spending(DATASET, 2).units == 3200, "what a run may cost is held to the worst"


def test_a_run_reads_and_charges_the_blocks_that_it_names(grown: Path) -> None:
    assert np.array_equal(release(grown, 2).X, GROWN[::-1][:60])
    with site_folder.opened(grown) as (policy, ledger):
        spent = [ledger.payments.spending(DATASET, blocks=[block]) for block in (1, 2)]
        assert spent[0].units == policy.dataset(DATASET).cap.units
        assert 0 < spent[1].units < spent[0].units
        site = GuardedTable(grown, policy, ledger, None, blocks=[2])
        assert (site.n_samples, site.paid_units(RUN)) == (60, spent[1].units)
        told = ledger_as_json(policy, ledger)["datasets"][0]["blocks"]
        assert [(one["block"], one["n_samples"], one["left"]["epsilon"] > 0.0) for one in told] == [
            (1, 120, False),
            (2, 60, True),
        ]
        lines = "\n".join(
            ledger_lines(policy, ledger) + approval_lines(private_plan(), policy.dataset(DATASET), ledger)
        )
        assert "block 2 (60 records, since " in lines
        assert "180 rows (block 1 120, block 2 60), 3 variables; it has grown" in lines


def test_a_run_that_was_begun_with_some_blocks_goes_on_with_these(grown: Path) -> None:
    release(grown, 2)
    write_table(grown / "table.csv", np.vstack([GROWN, rows(10, n=99)]))
    grow(grown)
    with pytest.raises(PolicyRefusal, match="began this run with block 2 of its table") as caught:
        admit(grown, private_plan(), blocks=[3])
    assert caught.value.remedy == "Go on with them: --blocks 2."
    assert np.array_equal(release(grown, 2).X, GROWN[120:])


@pytest.mark.parametrize("blocks", [(), (1, 2)])
def test_records_that_come_while_a_site_joins_are_not_read_uncharged(blocks: tuple[int, ...], grown: Path) -> None:
    edit(grown / "policy.toml", "max_epsilon = ", "max_epsilon = 1")  # ten times as much, and more
    with site_folder.opened(grown) as (policy, ledger):
        ledger.approvals.approve(private_plan().digest(), "plan")
        site = GuardedTable(grown, policy, ledger, None, blocks=blocks)
        write_table(grown / "table.csv", np.vstack([GROWN, rows(10, n=99)]))
        grow(grown)
        with pytest.raises(LedgerError, match="was registered again while this site joined"):
            site.admit(private_plan(), RUN, NAMES)
    table, _ = admit(grown, private_plan(), blocks=blocks)
    assert len(table.X) == (180 if blocks else 279)


def test_records_that_came_after_a_use_without_privacy_are_still_protected(folder: Path) -> None:
    with site_folder.opened(folder) as (_, ledger):
        ledger.payments.note_unprotected(DATASET, 1, b"digest")
    write_table(folder / "table.csv", GROWN)
    grow(folder)
    edit(folder / "policy.toml", "min_rows = 100", "min_rows = 50")
    for blocks in [(), (1,)]:
        with pytest.raises(PolicyRefusal, match="used in a run without privacy"):
            admit(folder, private_plan(), blocks=blocks)
    assert release(folder, 2).n_samples == 60


def test_a_run_without_privacy_reads_no_blocks(grown: Path) -> None:
    edit(grown / "policy.toml", "allow_non_private = false", "allow_non_private = true")
    plan = Plan.parse({"n_participants": 2})
    with pytest.raises(PolicyRefusal, match="reads the whole table"):
        admit(grown, plan, blocks=[2])
