"""A site without a variable joins only if its plan and its own columns.toml say the same of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from click.testing import CliRunner

from described_tables import dictionary, write_dictionary, write_ward
from fedbnsl.errors import SchemaMismatchError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.cli import participant
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.reading import ColumnMap
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable, PublicTable
from fedbnsl_client.site.doctor import Finding, examine
from private_site import make_site

RUN = 7
LACKING: dict[str, Any] = {"crp": {"absent": True}}

pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")


def plan(**absent: list[str]) -> Plan:
    settings = {"n_participants": 3, "dictionary": dictionary().model_dump(), "absent": absent}
    return Plan.load("standard").with_settings(**settings)


OTHERS = {
    "no variable": plan(south=["crp"]),
    "another one": plan(north=["age"]),
    "one more": plan(north=["crp", "age"]),
}
each_other = pytest.mark.parametrize("other", OTHERS.values(), ids=list(OTHERS))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A ward without crp."""
    rows = [line.split(",") for line in write_ward(tmp_path / "ward.csv", 1).read_text(encoding="utf-8").splitlines()]
    path = tmp_path / "without.csv"
    path.write_text("\n".join(",".join([row[0], *row[2:]]) for row in rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path, table: Path) -> Path:
    columns = tmp_path / "own.toml"
    columns.write_text(tomli_w.dumps(LACKING), encoding="utf-8")
    make_site(
        tmp_path / "north",
        table=table,
        dictionary=write_dictionary(tmp_path / "given.toml"),
        column_map=columns,
        public=True,
    )
    policy = tmp_path / "north" / "policy.toml"
    policy.write_text(policy.read_text(encoding="utf-8").replace('["dp-pgcd"]', '["pgcd"]'), encoding="utf-8")
    return tmp_path / "north"


def admit(folder: Path, plan: Plan) -> Dataset:
    with site_folder.opened(folder) as (policy, ledger):
        ledger.approvals.approve(plan.digest(), plan.name)
        site = GuardedTable(folder, policy, ledger, None)
        return site.admit(plan, RUN, site.variables)[0]


def checked(folder: Path, plan: Plan) -> Finding:
    return {one.check: one for one in examine(folder, "127.0.0.1:9", insecure=True, plan=plan)}["plan"]


def test_a_registered_table_without_a_column_joins_with_all_its_rows(folder: Path) -> None:
    for accepted in (plan(), plan(north=["crp"]), plan(north=["crp"], south=["age"])):
        used = admit(folder, accepted)
        assert used.n_samples == 200
        assert np.isnan(used.X[:, used.variables.index("crp")]).all()


@each_other
def test_a_plan_that_says_something_else_of_the_site_is_refused_before_the_table_is_opened(
    folder: Path, table: Path, other: Plan
) -> None:
    table.unlink()
    with pytest.raises(
        SchemaMismatchError, match=r"absent at north \(\[absent\]\), and .* columns.toml 'crp'"
    ) as caught:
        admit(folder, other)
    assert "Correct columns.toml" in caught.value.remedy


@each_other
def test_check_and_approve_refuse_it_too(folder: Path, tmp_path: Path, other: Plan) -> None:
    assert "columns.toml 'crp'" in checked(folder, other).text
    path = tmp_path / "other.plan.toml"
    path.write_text(other.to_toml(), encoding="utf-8")
    result = CliRunner().invoke(participant, ["approve", str(path), str(folder), "--yes"])
    assert isinstance(result.exception, SchemaMismatchError)
    with site_folder.opened(folder) as (_, ledger):
        assert not ledger.approvals.current()


def test_check_and_approve_show_who_lacks_what(folder: Path, tmp_path: Path) -> None:
    agreed = plan(north=["crp"], south=["age"])
    said = ["'crp': 2 of 3 sites have it, and not north", "'age': 2 of 3 sites have it, and not south"]
    assert "; ".join(said) in checked(folder, agreed).text
    path = tmp_path / "agreed.toml"
    path.write_text(agreed.to_toml(), encoding="utf-8")
    shown = CliRunner().invoke(participant, ["approve", str(path), str(folder), "--yes"])
    assert shown.exit_code == 0, shown.output
    assert "\n".join(said) in shown.output


def test_a_site_with_every_column_refuses_a_plan_that_says_it_lacks_one(tmp_path: Path) -> None:
    table = Dataset.read(write_ward(tmp_path / "ward.csv", 2), dictionary=dictionary(), warn=False)
    site = PublicTable("north", table)
    with pytest.raises(SchemaMismatchError, match=r"the plan calls 'crp' absent at north .* columns.toml nothing"):
        site.admit(plan(north=["crp"]), RUN, site.variables)
    assert site.admit(plan(south=["crp"]), RUN, site.variables)[0].n_samples == 200


def test_a_private_plan_takes_a_table_without_a_variable(folder: Path, table: Path) -> None:
    private = Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=1.0, delta=1e-6).with_settings(
        n_participants=3, dictionary=dictionary().model_dump()
    )
    lacking = Dataset.read(table, dictionary=dictionary(), mapping=ColumnMap.model_validate(LACKING), warn=False)
    PublicTable("north", lacking).admit(private, RUN, lacking.variables)
    assert checked(folder, private).state == "ok"
