"""A site's folder with a data dictionary: its table is read by it, and no run has another one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from described_tables import COLUMNS, VARIABLES, dictionary, write_column_map, write_dictionary, write_ward
from fedbnsl.errors import DataError, LedgerError, PolicyRefusal, SchemaMismatchError, SetupError
from fedbnsl.graphs.files import read_edges
from fedbnsl.plan.plan import Plan
from fedbnsl_client.cli import participant
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable, PublicTable
from fedbnsl_client.site.doctor import Finding, examine
from private_site import DATASET, make_site

RUN = 7


def plan(**settings: Any) -> Plan:
    given = {"n_participants": 2, "dictionary": dictionary().model_dump()}
    return Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=1.0, delta=1e-6).with_settings(
        **{**given, **settings}
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A guarded table with gaps, in the site's own words."""
    make_site(
        tmp_path / "north",
        table=write_ward(tmp_path / "ward.csv", 1, own_words=True),
        dictionary=write_dictionary(tmp_path / "given.toml"),
        column_map=write_column_map(tmp_path / "own.toml"),
    )
    return tmp_path / "north"


pytestmark = pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")


def admit(folder: Path, plan: Plan, **options: Any) -> Dataset:
    with site_folder.opened(folder) as (policy, ledger):
        ledger.approvals.approve(plan.digest(), plan.name)
        site = GuardedTable(folder, policy, ledger, None, **options)
        return site.admit(plan, RUN, site.variables)[0]


def checked(folder: Path, **options: Any) -> Finding:
    found = {one.check: one for one in examine(folder, "127.0.0.1:9", insecure=True, **options)}
    return found["plan" if "plan" in options else "data"]


def test_a_guarded_table_with_gaps_is_registered_and_used_with_all_its_rows(folder: Path) -> None:
    table = admit(folder, plan())
    assert table.variables == COLUMNS
    assert table.n_samples == 200
    assert 5 < np.isnan(table.X).any(axis=1).sum() == table.gaps.rows < 60
    with site_folder.opened(folder) as (policy, ledger):
        assert GuardedTable(folder, policy, ledger, None).n_samples == 200


def test_the_order_of_rows_does_not_matter_to_the_ledger_and_a_gap_does(folder: Path, tmp_path: Path) -> None:
    header, *rows = (tmp_path / "ward.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "ward.csv").write_text("\n".join([header, *rows[::-1]]) + "\n", encoding="utf-8")
    admit(folder, plan())
    whole = next(k for k, row in enumerate(rows) if ",," not in row and row[0] not in ",-" and row[-1] != ",")
    rows[whole] = "-9" + rows[whole][rows[whole].index(",") :]
    (tmp_path / "ward.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    with pytest.raises(LedgerError, match="is not the one registered"):
        admit(folder, plan())


def test_a_run_without_privacy_uses_complete_rows_alone_or_with_em_all(folder: Path) -> None:
    policy = folder / "policy.toml"
    text = policy.read_text(encoding="utf-8").replace("allow_non_private = false", "allow_non_private = true")
    policy.write_text(text.replace('["dp-pgcd"]', '["dp-pgcd", "pgcd"]'), encoding="utf-8")
    standard = Plan.load("standard").with_settings(n_participants=2, dictionary=dictionary().model_dump())
    with pytest.raises(DataError, match=r"of 200 rows, \d+ row\(s\) are left out"):
        admit(folder, standard.with_settings(preparation=None))
    with site_folder.opened(folder) as (_, ledger):
        assert not ledger.payments.unprotected(DATASET)
    assert admit(folder, standard).n_samples == 200
    alone = standard.with_settings(preparation={"missing": "complete-cases"})
    table = admit(folder, alone)
    assert table.n_samples == 200 - table.gaps.rows
    assert np.isfinite(table.X).all()


def test_a_private_run_takes_a_table_without_a_complete_row(folder: Path, tmp_path: Path) -> None:
    """Nothing that hangs on a cell decides: a refusal would tell of it."""
    header, *rows = (tmp_path / "ward.csv").read_text(encoding="utf-8").splitlines()
    empty = "\n".join([header, *("," + row.split(",", 1)[1] for row in rows), ""])
    (tmp_path / "empty.csv").write_text(empty, encoding="utf-8")
    words, own = write_dictionary(tmp_path / "d.toml"), write_column_map(tmp_path / "c.toml")
    other = tmp_path / "other"
    make_site(other, table=tmp_path / "empty.csv", dictionary=words, column_map=own)
    admit(other, plan())


OTHERS = {
    "another range": plan(dictionary=dictionary(age={"unit": "years", "range": [0.0, 120.0]}).model_dump()),
    "levels in another order": plan(dictionary=dictionary(sex={"kind": "binary", "levels": ["m", "f"]}).model_dump()),
    "none": Plan.load("private-moments", epsilon=1.0, delta=1e-6).with_settings(n_participants=2, variables=COLUMNS),
}


@pytest.mark.parametrize("other", [one for one in OTHERS.values() if one.dictionary])
def test_a_plan_with_another_dictionary_is_refused_before_the_table_is_opened(
    folder: Path, tmp_path: Path, other: Plan
) -> None:
    (tmp_path / "ward.csv").unlink()
    own, theirs = dictionary().digest()[:8], other.dictionary.digest()[:8]
    with pytest.raises(SchemaMismatchError) as refused:
        admit(folder, other)
    assert f"{own} here, {theirs} there" in str(refused.value)
    assert "Get the consortium's dictionary.toml" in refused.value.remedy
    with pytest.raises(DataError, match=r"ward\.csv"):
        admit(folder, plan())  # what the test rests on: the missing file is noticed


def test_a_plan_without_a_dictionary_is_refused_and_check_gives_it_the_one_that_it_is_told(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(SchemaMismatchError, match="the plan has no data dictionary") as refused:
        admit(folder, OTHERS["none"])
    assert "Name the run's plan file" in refused.value.remedy
    words = str(write_dictionary(tmp_path / "d.toml"))
    said = [
        CliRunner().invoke(participant, ["check", str(folder), "--plan", "standard", *more]).output
        for more in ([], ["--dictionary", words])
    ]
    assert "the plan has no data dictionary" in said[0]
    assert "the plan has no data dictionary" not in said[1]
    assert "has the plan's variables" in said[1]


def test_a_site_without_a_dictionary_refuses_a_plan_with_one(tmp_path: Path) -> None:
    make_site(tmp_path / "north")
    ages = {name: {"range": [-9.0, 9.0]} for name in ("age", "dose", "mass")}
    with pytest.raises(SchemaMismatchError, match="none here, "):
        admit(tmp_path / "north", plan(dictionary=ages))


def test_only_the_entries_of_the_used_variables_count(folder: Path) -> None:
    wider = dictionary(height={"unit": "cm", "range": [0.0, 250.0]}).model_dump()
    few = plan(dictionary=wider, variables=["sex", "blood", "age"])
    assert admit(folder, few, columns=["age", "blood", "sex"]).variables == ("age", "blood=A", "blood=B", "sex")
    with pytest.raises(SchemaMismatchError):
        admit(folder, plan(dictionary=wider, variables=[*VARIABLES, "height"]))


def test_a_public_table_is_held_to_the_plan_s_dictionary_as_well(tmp_path: Path) -> None:
    table = Dataset.read(write_ward(tmp_path / "ward.csv", 2), dictionary=dictionary(), warn=False)
    site = PublicTable("north", table)
    standard = Plan.load("standard").with_settings(n_participants=2, dictionary=dictionary().model_dump())
    turned = COLUMNS[::-1]
    used, _ = site.admit(standard, RUN, turned)
    assert used.variables == turned
    assert np.array_equal(used.X, table.X[:, ::-1], equal_nan=True)
    with pytest.raises(SchemaMismatchError):
        site.admit(OTHERS["another range"], RUN, COLUMNS)


def test_the_folder_keeps_copies_and_a_failed_attempt_keeps_none(tmp_path: Path) -> None:
    given = {"dictionary": write_dictionary(tmp_path / "given.toml"), "column_map": write_column_map(tmp_path / "o")}
    wrong = write_ward(tmp_path / "ward.csv", 1)  # not in the words of the column map
    with pytest.raises(DataError, match=r"no column 'Alter' \(variable 'age' in columns\.toml\)"):
        make_site(tmp_path / "north", table=wrong, **given)
    assert not (tmp_path / "north" / "dictionary.toml").exists()
    make_site(tmp_path / "north", table=write_ward(tmp_path / "ward.csv", 1, own_words=True), **given)
    assert (tmp_path / "north" / "dictionary.toml").read_text() == (tmp_path / "given.toml").read_text()
    assert (tmp_path / "north" / "columns.toml").read_text() == (tmp_path / "o").read_text()
    assert "dictionary.toml" in (tmp_path / "north" / "policy.toml").read_text(encoding="utf-8")


def test_files_that_are_in_the_folder_already_are_used_and_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "north").mkdir()
    write_dictionary(tmp_path / "north" / "dictionary.toml")
    table = write_ward(tmp_path / "ward.csv", 2)
    other = write_dictionary(tmp_path / "other.toml", age={"range": [0.0, 99.0]})
    with pytest.raises(SetupError, match=r"dictionary\.toml is there already, and is not"):
        make_site(tmp_path / "north", table=table, dictionary=other)
    make_site(tmp_path / "north", table=table)
    assert admit(tmp_path / "north", plan()).variables == COLUMNS


def test_a_column_map_without_a_dictionary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="and there is none"):
        make_site(
            tmp_path / "north", table=write_ward(tmp_path / "w.csv", 1), column_map=write_column_map(tmp_path / "c")
        )


def test_policy_columns_are_variables_of_the_dictionary(tmp_path: Path) -> None:
    write_ward(tmp_path / "ward.csv", 2)
    make_site(
        tmp_path / "north",
        table=tmp_path / "ward.csv",
        dictionary=write_dictionary(tmp_path / "d.toml"),
        columns=["blood", "sex"],
    )
    with site_folder.opened(tmp_path / "north") as (policy, ledger):
        assert GuardedTable(tmp_path / "north", policy, ledger, None).variables == ("blood=A", "blood=B", "sex")
        with pytest.raises(PolicyRefusal, match="the registered table has no age"):
            GuardedTable(tmp_path / "north", policy, ledger, None, columns=["age", "sex"])


def test_check_says_what_is_missing_and_what_lies_outside(folder: Path, tmp_path: Path) -> None:
    found = checked(folder)
    assert found.state == "warning"
    assert f"{DATASET} is as it was registered" in found.text
    assert "of its 200 rows are complete" in found.text
    assert "'blood' " in found.text
    narrow = write_dictionary(tmp_path / "narrow.toml", age={"range": [0.0, 60.0]})
    tried = checked(folder, described_by=(narrow, None))
    assert "count as missing: 'age' " in tried.text
    unknown = write_dictionary(tmp_path / "unknown.toml", blood={"kind": "nominal", "levels": ["0", "A", "AB"]})
    wrong = checked(folder, described_by=(unknown, None))
    assert wrong.state == "warning"
    assert "no level of the data dictionary, such as 'B'" in wrong.text
    absent = write_dictionary(tmp_path / "absent.toml", blood={"kind": "nominal", "levels": ["0", "A", "B", "AB"]})
    assert "column 'blood=AB': the same value in all" in checked(folder, described_by=(absent, None)).text


def test_check_and_approve_refuse_a_plan_with_another_dictionary(folder: Path, tmp_path: Path) -> None:
    assert checked(folder, plan=plan()).state in ("ok", "warning")
    assert "is not that of the plan" in checked(folder, plan=OTHERS["another range"]).text
    other = tmp_path / "other.plan.toml"
    other.write_text(OTHERS["another range"].to_toml(), encoding="utf-8")
    result = CliRunner().invoke(participant, ["approve", str(other), str(folder), "--yes"])
    assert isinstance(result.exception, SchemaMismatchError)
    with site_folder.opened(folder) as (_, ledger):
        assert OTHERS["another range"].digest().hex() not in ledger.approvals.current()


def test_a_refit_is_of_all_columns_of_a_variable(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("source,target,weight\nblood,visits,1.0\nage,crp,1.0\n", encoding="utf-8")
    table, words = write_ward(tmp_path / "ward.csv", 2, rows=400), write_dictionary(tmp_path / "d.toml")
    data = Dataset.read(table, dictionary=dictionary(), warn=False)
    header, *rows = table.read_text(encoding="utf-8").splitlines()
    kept = [row for row, values in zip(rows, data.X, strict=True) if np.isfinite(values).all()]
    table.write_text("\n".join([header, *kept, ""]), encoding="utf-8")
    data = data.complete_cases()
    arguments = ["refit", edges, "--data", table, "--dictionary", words, "--out", tmp_path / "own", "--intercept"]
    result = CliRunner().invoke(participant, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    assert "refitted 2 edges" in result.output
    X = data.X - data.X.mean(axis=0)
    by_hand = np.linalg.lstsq(X[:, [3, 4]], X[:, 5], rcond=None)[0]
    said = read_edges(tmp_path / "own" / "edges.csv")
    weights = {(source, target): weight for source, target, weight, *_ in said.edges_of_class()}
    assert set(weights) == {("blood", "visits"), ("age", "crp")}
    assert weights["blood", "visits"] == pytest.approx(by_hand[np.abs(by_hand).argmax()], rel=1e-9)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["age,crp,1.0,1,0"], "refitted 1 edge on"),
        (["age,crp,1.0,1,0", "age,visits,1.0,0,1"], "refitted 1 directed edge, 1 undirected on"),
    ],
)
def test_a_refit_counts_and_keeps_the_edges_as_they_are_shown(rows: list[str], said: str, tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("\n".join(["source,target,weight,directed,undecided", *rows, ""]), encoding="utf-8")
    table, words = write_ward(tmp_path / "ward.csv", 2, rows=400), write_dictionary(tmp_path / "d.toml")
    arguments = ["refit", edges, "--data", table, "--dictionary", words, "--out", tmp_path / "own", "--intercept"]
    result = CliRunner().invoke(participant, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    assert said in result.output
    kept = (tmp_path / "own" / "edges.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [line.split(",")[3:5] for line in kept] == [row.split(",")[3:5] for row in rows]


def test_a_table_that_lacks_registered_persons_is_registered_with_a_warning_and_what_is_told_fits_any_plan(
    tmp_path: Path,
) -> None:
    """With `persons_by = "rows"` no means count, so the line about the table says none."""
    table, given = tmp_path / "table.csv", tmp_path / "given.toml"
    given.write_text('[id]\nkind = "group"\n[a]\nrange = [-9, 9]\n[b]\nrange = [-9, 9]\n', encoding="utf-8")
    values = np.random.default_rng(5).normal(size=(200, 2)).round(3)

    def write(first: int) -> None:
        lines = [f"P{k // 2},{a},{b}" for k, (a, b) in enumerate(values) if k >= first]
        table.write_text("\n".join(["id,a,b", *lines]) + "\n", encoding="utf-8")

    write(0)
    make_site(tmp_path / "north", table=table, dictionary=given)
    write(80)
    result = CliRunner().invoke(participant, ["register", str(tmp_path / "north"), "--grows"])
    assert "warning: 40 of those that were registered are not in the table" in result.output
    assert (
        "60 groups of 2 to 2 rows, median 2, 120 in all; rows with the same 'id' are one record, and" in result.output
    )
    write(0)
    result = CliRunner().invoke(participant, ["register", str(tmp_path / "north"), "--grows"])
    assert "registered" in result.output
    assert "of those that were registered" not in result.output, "they are back"
