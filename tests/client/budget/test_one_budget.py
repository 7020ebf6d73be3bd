"""Records have one budget, under whatever id, file, header or choice of columns they are registered."""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedbnsl.errors import BudgetExhaustedError, LedgerError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.ledger_chain import canonical, first_link, next_link
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.report import ledger_as_json, ledger_lines
from fedbnsl_client.budget.spending import Cap, Spending
from fedbnsl_client.data import mapped_array
from fedbnsl_client.data.fingerprint import columns_before, file_identity, fingerprint_before, recognised
from fedbnsl_client.data.mapped_array import gathered, lies_in_file
from fedbnsl_client.site import folder as site_folder
from private_site import DATASET, NAMES, edit, make_site, rows, units_spent, write_table

TABLE = np.random.default_rng(7).normal(size=(30, 3))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "ledger.db") as made:
        made.registrations.register("a", NAMES, TABLE, file=["/data/a.csv", "1:7"])
        yield made


def pay(ledger: Ledger, dataset: str, units: int, *, cap_units: int = 100, gaussian: bool = False) -> None:
    """Gaussian releases alone may cost 10 units more."""
    request = Request(dataset, 1, units, dataset)
    ledger.payments.reserve(request, Payment(units, {}, gaussian), Cap(cap_units, cap_units + 10))


def refusal(ledger: Ledger, names: tuple[str, ...], X: Matrix, file: tuple[str, ...] = ()) -> LedgerError:
    with pytest.raises(LedgerError, match="registered as 'a', where its spending is counted") as caught:
        ledger.registrations.register("b", names, X, file=file)
    assert "--supersedes" in caught.value.remedy
    assert ledger.registrations.find("b") is None
    return caught.value


# ---- what shows that records are known -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "X"),
    [
        (NAMES, TABLE),
        (NAMES[::-1], TABLE[::-1, ::-1]),
        (("x", "y", "z"), TABLE),
        (("x", "y"), TABLE[:, [2, 0]]),
        (("new", "z"), np.column_stack([np.arange(30.0), TABLE[::-1, 1]])),
    ],
    ids=["itself", "in another order", "under another header", "some of its columns", "one column among others"],
)
def test_known_columns_under_a_new_id_are_refused(ledger: Ledger, names: tuple[str, ...], X: Matrix) -> None:
    assert "are, or were, those of columns of 'a'" in str(refusal(ledger, names, X))


@pytest.mark.parametrize("file", [("/data/a.csv", "2:9"), ("/data/moved.csv", "1:7")])
def test_a_known_file_under_a_new_id_is_refused_whatever_is_read_of_it(ledger: Ledger, file: tuple[str, ...]) -> None:
    assert "its file is, or was, that of 'a'" in str(refusal(ledger, ("x", "y"), TABLE[:, :2] + 1, file))


def test_columns_that_were_superseded_are_still_known(ledger: Ledger) -> None:
    ledger.registrations.register("a", NAMES, TABLE + 1, supersedes=True)
    refusal(ledger, ("x", "y"), TABLE[:, :2])


def test_the_columns_that_are_shared_are_named(ledger: Ledger) -> None:
    error = refusal(ledger, ("row", "z"), np.column_stack([np.arange(30.0), TABLE[:, 1]]))
    assert "the values of z are" in str(error)


def levels(*counts: int) -> Matrix:
    """A column with the values 0, 1, 2, ... so many times each."""
    return np.repeat(np.arange(float(len(counts))), counts)


@pytest.mark.parametrize(
    ("columns", "others", "alike"),
    [
        ([levels(12, 18)], [TABLE[:, 0], TABLE[:, 1]], False),
        ([levels(15, 15), levels(5, 5, 20), levels(30)], [TABLE[:, 0]], False),
        ([levels(*[3] * 10)], [TABLE[:, 0]], False),
        ([levels(*[3] * 10), levels(15, 15)], [TABLE[:, 0]], True),
        ([np.arange(30.0)], [TABLE[:, 0]], True),
        ([levels(12, 18), levels(7, 23)], [], True),
    ],
    ids=[
        "one of two values",
        "a few of few values",
        "one of ten",
        "one of ten and one of two",
        "eleven or more",
        "all",
    ],
)
def test_columns_of_few_values_count_little_unless_nothing_else_is_there(
    columns: list[Matrix], others: list[Matrix], alike: bool, tmp_path: Path
) -> None:
    """Zeros and ones of different records are often equally many; a table with another header is still the same."""
    table = np.column_stack([*columns, *others])
    second = np.column_stack([*columns, *(other + 1 for other in others)])
    names = tuple("abcdef"[: table.shape[1]])
    with Ledger.create(tmp_path / "ledger.db") as ledger:
        ledger.registrations.register("a", names, table)
        if alike:
            refusal(ledger, tuple(name.upper() for name in names), second)
        else:
            ledger.registrations.register("b", names, second)
            assert ledger.registrations.account("b") == {"b"}


def columns_of(X: Matrix, key: bytes = bytes(32)) -> list[str]:
    return recognised(key, [f"x{k}" for k in range(X.shape[1])], X).columns


@given(
    hnp.arrays(np.float64, (8, 2), elements=st.sampled_from([0.0, -0.0, 1.0, 5e-324, -1e100])),
    st.permutations(range(8)),
)
@settings(max_examples=100, deadline=None)
def test_a_column_is_known_by_its_values_alone(X: Matrix, order: list[int]) -> None:
    first, second = columns_of(X)
    assert columns_of(X[order][:, ::-1]) == [second, first]
    assert (first == second) == (sorted(X[:, 0]) == sorted(X[:, 1]))
    assert first.partition(":")[0] == str(len({*X[:, 0].tolist()}))
    assert first.partition(":")[2] != columns_of(X, b"k" * 32)[0].partition(":")[2]


def test_a_table_in_a_file_has_the_columns_of_one_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_array, "BLOCK_BYTES", 1)
    monkeypatch.setattr(mapped_array, "MAPPED_BYTES", 1000)
    X = np.random.default_rng(3).integers(-300, 300, (1003, 4)) / 8
    in_file = gathered(np.array_split(X, 7), 4)
    assert lies_in_file(in_file)
    assert columns_of(in_file) == columns_of(X)


def test_a_file_is_the_same_by_path_link_and_number(tmp_path: Path) -> None:
    table = write_table(tmp_path / "x" / "t.csv", rows())
    (tmp_path / "y").symlink_to("x")
    (tmp_path / "hard.csv").hardlink_to(table)
    one = file_identity(table)
    assert file_identity(tmp_path / "y" / ".." / "x" / "t.csv") == file_identity(tmp_path / "y" / "t.csv") == one
    assert set(file_identity(tmp_path / "hard.csv")) & set(one)
    shutil.copy(table, tmp_path / "copy.csv")
    assert not set(file_identity(tmp_path / "copy.csv")) & set(one)
    assert file_identity(tmp_path / "none.csv") == (os.path.realpath(tmp_path / "none.csv"),)


# ---- one budget ----------------------------------------------------------------------------------------------------


def test_datasets_of_the_same_records_have_one_budget_and_cannot_spend_it_twice(ledger: Ledger) -> None:
    pay(ledger, "a", 60)
    ledger.registrations.register("b", ("x", "y"), TABLE[:, :2], supersedes=True)
    assert units_spent(ledger, "b") == 60, "what was spent stays spent"
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, "b", 41)
    pay(ledger, "b", 40)
    assert units_spent(ledger, "a") == units_spent(ledger, "b") == units_spent(ledger, "a", 1) == 100
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, "a", 1)


def test_a_release_that_is_not_gaussian_counts_for_every_id_of_the_records(ledger: Ledger) -> None:
    pay(ledger, "a", 95, gaussian=True)
    ledger.registrations.register("b", NAMES, TABLE, supersedes=True)
    with pytest.raises(BudgetExhaustedError):
        pay(ledger, "b", 6)
    pay(ledger, "b", 5)
    for dataset in ("a", "b"):
        assert ledger.payments.spending(dataset) == Spending(100, gaussian=False)
        with pytest.raises(BudgetExhaustedError):
            pay(ledger, dataset, 1, gaussian=True)


def test_a_budget_is_shared_with_all_that_are_linked_in_whatever_order(ledger: Ledger) -> None:
    ledger.registrations.register("b", NAMES, TABLE + 1)
    ledger.registrations.register("d", NAMES, TABLE + 2)
    pay(ledger, "b", 10)
    ledger.registrations.register("c", ("x", "y"), np.column_stack([TABLE[:, 0], TABLE[:, 1] + 1]), supersedes=True)
    assert all(ledger.registrations.account(dataset) == {"a", "b", "c"} for dataset in "abc")
    assert [units_spent(ledger, dataset) for dataset in "abcd"] == [10, 10, 10, 0]


def test_a_budget_is_shared_along_a_chain_from_its_first_to_its_last_dataset(ledger: Ledger) -> None:
    """Each table has a column of the one before, and none of any other."""
    fresh = np.random.default_rng(8).normal(size=(30, 4))
    before = TABLE[:, 0]
    for dataset, column in zip("bcde", fresh.T, strict=True):
        ledger.registrations.register(dataset, ("x", "y"), np.column_stack([before, column]), supersedes=True)
        before = column
    for one in "abcde":
        assert ledger.registrations.account(one) == set("abcde")
    pay(ledger, "a", 60)
    pay(ledger, "e", 40)
    assert [units_spent(ledger, one) for one in "abcde"] == [100] * 5
    for one in "abcde":
        with pytest.raises(BudgetExhaustedError):
            pay(ledger, one, 1)


def test_a_dataset_that_takes_over_records_of_another_one_says_so(ledger: Ledger) -> None:
    ledger.registrations.register("b", NAMES, TABLE + 1)
    with pytest.raises(LedgerError, match="not the one registered"):
        ledger.registrations.register("b", NAMES, TABLE)
    ledger.registrations.register("b", NAMES, TABLE, supersedes=True)
    assert ledger.registrations.account("b") == {"a", "b"}
    n_entries = ledger.mark.n_entries
    ledger.registrations.register("b", NAMES, TABLE)
    assert ledger.mark.n_entries == n_entries, "once is enough"


def test_where_one_was_used_without_privacy_no_guarantee_is_left_for_the_other(ledger: Ledger) -> None:
    ledger.payments.note_unprotected("a", 1, bytes(32))
    ledger.registrations.register("b", ("x", "y"), TABLE[:, :2], supersedes=True)
    assert ledger.payments.unprotected("b")


@pytest.mark.parametrize("way", ["path", "hard link", "renamed header", "other columns", "moved away and copied"])
def test_no_way_of_writing_a_table_gives_it_a_second_budget(way: str, tmp_path: Path) -> None:
    folder = tmp_path / "north"
    make_site(folder, columns=NAMES[:2])
    table, second = folder / "table.csv", folder / "second.csv"
    path, columns = "second.csv", 'columns = ["age", "dose"]'
    if way == "path":
        path = "./../north/table.csv"
    elif way == "hard link":
        second.hardlink_to(table)
        columns = 'columns = ["dose", "mass"]'
    elif way == "renamed header":
        write_table(second, rows(), ("x", "y", "z"))
        columns = "columns = []"
    elif way == "other columns":
        path, columns = "table.csv", 'columns = ["dose", "mass"]'
    else:
        shutil.copy(table, second)
        table.unlink()
    edit(folder / "policy.toml", f'id = "{DATASET}"', 'id = "second"')
    edit(folder / "policy.toml", 'path = "table.csv"', f'path = "{path}"')
    edit(folder / "policy.toml", 'columns = [\n    "age",\n    "dose",\n]', columns)
    with site_folder.opened(folder) as (policy, ledger):
        read = site_folder.read_table(folder, policy, "second")
        with pytest.raises(LedgerError, match="registered as 'ward-7'"):
            site_folder.register(folder, policy, ledger, "second", read)
        site_folder.register(folder, policy, ledger, "second", read, supersedes=True)
        pay(ledger, "second", 7)
        assert units_spent(ledger, DATASET) == 7
        assert ledger_as_json(policy, ledger)["datasets"][0]["one_budget_with"] == [DATASET]
        assert f"dataset second: one budget with {DATASET}" in "\n".join(ledger_lines(policy, ledger))


# ---- ledgers of an older fedbnsl -----------------------------------------------------------------------------------


def as_before(path: Path, tables: Mapping[str, Matrix], *, first_format: bool = True) -> None:
    """Make of a ledger with nothing but registrations what the format 1 held, or the one that knew sorted tables."""
    with closing(sqlite3.connect(path)) as raw, raw:
        triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            raw.execute(f"DROP TRIGGER {name}")
        origin = raw.execute("SELECT ledger_id, key, seed FROM origin").fetchone()
        link, key = first_link(*origin), origin[1]
        for number, written in raw.execute("SELECT number, content FROM entries ORDER BY number").fetchall():
            content = json.loads(written)
            X = tables[content["dataset"]]
            content["fingerprint"] = fingerprint_before(key, NAMES, X)
            content["column_fingerprints"] = columns_before(key, X)
            for new in ("column_fingerprints", "file", "same_budget") if first_format else ():
                del content[new]
            text = canonical(content)
            link = next_link(link, number, text.encode())
            raw.execute("UPDATE entries SET content = ?, link = ? WHERE number = ?", (text, link, number))
        for _, sql in triggers:
            raw.execute(sql)
        if first_format:
            raw.execute("PRAGMA user_version = 1")


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "ledger.db") as made:
        made.registrations.register("a", NAMES, TABLE)
    as_before(tmp_path / "ledger.db", {"a": TABLE})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # no older fedbnsl noted anything there
    with Ledger.open(tmp_path / "ledger.db", accept_newest=True) as opened:
        yield opened


def test_an_old_ledger_is_taken_over_and_not_opened_by_an_older_fedbnsl_again(old: Ledger, tmp_path: Path) -> None:
    old.registrations.check_table("a", NAMES, TABLE)
    pay(old, "a", 5)
    old.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (2,)
    Ledger.open(tmp_path / "ledger.db").close()


def test_beside_a_dataset_whose_columns_are_not_known_no_other_is_registered_until_they_are(old: Ledger) -> None:
    with pytest.raises(
        LedgerError, match="an older fedbnsl registered 'a' without its columns; register that one again"
    ):
        old.registrations.register("b", NAMES, TABLE + 1)
    old.registrations.register("a", NAMES, TABLE)
    old.registrations.register("b", NAMES, TABLE + 1)
    with pytest.raises(LedgerError, match="those of columns of 'a'"):
        old.registrations.register("c", ("x", "y"), TABLE[:, :2])


def test_a_table_that_an_older_fedbnsl_knew_is_known_though_another_one_took_its_place(old: Ledger) -> None:
    old.registrations.register("a", NAMES, TABLE + 1, supersedes=True)
    with pytest.raises(LedgerError, match="it is, or was, the table of 'a'"):
        old.registrations.register("b", NAMES, TABLE)
    old.registrations.register("b", NAMES, TABLE + 2)


def test_where_an_old_table_is_gone_the_new_one_takes_over_its_budget(old: Ledger) -> None:
    pay(old, "a", 5)
    old.registrations.register("b", NAMES, TABLE + 1, supersedes=True)
    assert units_spent(old, "b") == 5


def test_an_old_ledger_with_two_datasets_keeps_their_budgets_apart_and_takes_both_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    tables = {"a": TABLE, "b": TABLE + 1}
    with Ledger.create(path) as made:
        for dataset, X in tables.items():
            made.registrations.register(dataset, NAMES, X)
    as_before(path, tables)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Ledger.open(path, accept_newest=True) as old:
        for dataset, units in (("a", 5), ("b", 7)):
            pay(old, dataset, units)
            assert (old.registrations.account(dataset), units_spent(old, dataset)) == ({dataset}, units)
        for dataset, X in tables.items():  # neither waits for the columns of the other
            with pytest.raises(LedgerError, match=f"registered {dataset!r} without its columns"):
                old.registrations.register("c", NAMES, TABLE + 2)
            old.registrations.register(dataset, NAMES, X)
        old.registrations.register("c", NAMES, TABLE + 2)
        assert [old.registrations.account(dataset) for dataset in "abc"] == [{"a"}, {"b"}, {"c"}]
        assert [units_spent(old, dataset) for dataset in "abc"] == [5, 7, 0]


@pytest.fixture
def of_sorted_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A ledger that knows tables by their sorted rows and columns, as fedbnsl did before it knew them by tags."""
    with Ledger.create(tmp_path / "ledger.db") as made:
        made.registrations.register("a", NAMES, TABLE)
    as_before(tmp_path / "ledger.db", {"a": TABLE}, first_format=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Ledger.open(tmp_path / "ledger.db", accept_newest=True) as opened:
        yield opened


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after it was registered again"])
def test_a_table_that_was_known_by_its_sorted_rows_is_known_by_its_tags(of_sorted_tables: Ledger, again: bool) -> None:
    ledger = of_sorted_tables.registrations
    pay(of_sorted_tables, "a", 5)
    if again:
        ledger.register("a", NAMES, TABLE[::-1])
    ledger.check_table("a", NAMES, TABLE)
    with pytest.raises(LedgerError, match="is not the one registered"):
        ledger.check_table("a", NAMES, TABLE + 1)
    with pytest.raises(LedgerError, match="is not the one registered"):
        ledger.register("a", NAMES, TABLE + 1)
    with pytest.raises(LedgerError, match="those of columns of 'a'"):
        ledger.register("b", ("x", "y"), TABLE[:, :2])
    ledger.register("a", NAMES, np.vstack([TABLE, TABLE[:5] + 3.0]), grows=True)
    found = ledger.find("a")
    assert found is not None
    assert [(one.number, one.n_samples) for one in found.blocks] == [(1, len(TABLE)), (2, 5)]
    spent = [of_sorted_tables.payments.spending("a", blocks=[block]).units for block in (1, 2)]
    assert spent == [5, 0]
