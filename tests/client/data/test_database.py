"""A table may be the answer to a query: a database is read, never written to, and no error tells a secret."""

import math
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from signal import SIGQUIT
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from command_line import Outcome
from fedbnsl.errors import DataError, LedgerError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.reading import MISSING, Reading
from fedbnsl_client.data.sources.database import DatabaseTable
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable
from fedbnsl_workbench.scoring.evaluation import read_result
from fedbnsl_workbench.simulate import simulate
from free_port import free_port
from postgresql_server import PASSWORD, READER_PASSWORD, Server, postgresql_server
from private_site import private_plan

pytest.importorskip("pyarrow")

STAGES = Reading(codes={"I": 0.0, "II": 1.0, "III": 2.0})
YES = Reading(codes={"no": 0.0, "false": 0.0, "yes": 1.0, "true": 1.0})
ROWS = [
    # age, dose, stage, alive, grade
    (61, 1.25, "I", True, 1.5),
    (None, -9.0, "III", False, 2.5),
    (47, None, None, None, None),
    (33, 1e-3, "II", True, 1000.0),
]
READINGS = [
    Reading(),
    Reading(missing=MISSING | {"-9"}, factor=1000.0),
    STAGES,
    YES,
    Reading(),
]
CODES = [
    [61.0, 1250.0, 0.0, 1.0, 1.5],
    [math.nan, math.nan, 2.0, 0.0, 2.5],
    [47.0, math.nan, math.nan, math.nan, math.nan],
    [33.0, 1.0, 1.0, 1.0, 1000.0],
]
NAMES = ["age", "dose", "stage", "alive", "grade"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip("adbc_driver_postgresql")
    with postgresql_server() as found:
        found.run(
            "create type stages as enum ('I', 'II', 'III');"
            "create table visits (age integer, dose float8, stage stages, alive boolean, grade numeric(10, 3));"
            "insert into visits values (61, 1.25, 'I', true, 1.5), (null, -9, 'III', false, 2.5),"
            "  (47, null, null, null, null), (33, 1e-3, 'II', true, 1000);"
            "create table hidden (a integer, b integer); grant select on visits to reader;"
        )
        yield found


@pytest.fixture
def reader(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("PGPASSWORD", READER_PASSWORD)
    return server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "records.db") as connection:
        connection.execute("create table visits (age integer, dose real, stage text, alive text, grade numeric)")
        rows = [(*row[:3], {True: "yes", False: "no", None: None}[row[3]], row[4]) for row in ROWS]
        connection.executemany("insert into visits values (?, ?, ?, ?, ?)", rows)
    connection.close()
    return tmp_path / "records.db"


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., DatabaseTable]:
    def made(url: str, query: str = "select * from visits", **more: str) -> DatabaseTable:
        path = tmp_path / "table.toml"
        lines = [f"{key} = '''{value}'''" for key, value in {"url": url, "query": query, **more}.items()]
        path.write_text("\n".join(["[database]", *lines, ""]), "utf-8")
        return DatabaseTable(path)

    return made


Made = Callable[..., DatabaseTable]


def codes(table: DatabaseTable, readings: list[Reading] | None = None) -> Matrix:
    header = table.header()
    chosen = list(range(len(header)))
    return np.concatenate(list(table.codes(header, chosen, readings or [Reading()] * len(chosen))))


def refusal(make: Callable[[], object]) -> str:
    """What an attempt is refused with, of which nothing may hold a password."""
    with pytest.raises(DataError) as caught:
        make()
    whole = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caught.value.remedy
    assert PASSWORD not in whole
    assert READER_PASSWORD not in whole
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


# ---- what is read --------------------------------------------------------------------------------------------------


def test_postgresql_gives_the_codes_of_numbers_levels_enumerations_and_nulls(reader: Server, table: Made) -> None:
    found = table(reader.url)
    assert found.header() == NAMES
    np.testing.assert_array_equal(codes(found, READINGS), CODES)


def test_sqlite_gives_the_same_codes(file: Path, table: Made) -> None:
    found = table(f"sqlite:///{file.name}")
    assert found.header() == NAMES
    np.testing.assert_array_equal(codes(found, READINGS), CODES)
    np.testing.assert_array_equal(codes(table(f"sqlite:///{file}"), READINGS), CODES)


def test_columns_are_chosen_by_position_and_may_come_twice(reader: Server, file: Path, table: Made) -> None:
    for url in (reader.url, f"sqlite:///{file}"):
        block = next(table(url).codes(NAMES, [4, 0, 0], [Reading(), Reading(), Reading(factor=2.0)]))
        np.testing.assert_array_equal(block[0], [1.5, 61.0, 122.0])


def test_a_query_may_begin_with_a_comment_or_with(reader: Server, file: Path, table: Made) -> None:
    query = "-- of this year\n/* all\n of it */ WITH kept AS (SELECT age, dose FROM visits) SELECT * FROM kept;"
    for url in (reader.url, f"sqlite:///{file}"):
        assert codes(table(url, query)).shape == (4, 2)


def test_a_column_of_sqlite_that_mixes_types_is_read_cell_by_cell(file: Path, table: Made) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("create table mixed (a, b)")
        connection.executemany("insert into mixed values (?, ?)", [(None, 1), (1.5, 2), ("2", 3), (7, 4)])
    connection.close()
    np.testing.assert_array_equal(
        codes(table(f"sqlite:///{file}", "select * from mixed")), [[math.nan, 1], [1.5, 2], [2, 3], [7, 4]]
    )


def test_cells_that_fit_no_level_are_refused_by_column_and_count(reader: Server, file: Path, table: Made) -> None:
    for url in (reader.url, f"sqlite:///{file}"):
        found = table(url, "select age, stage from visits")
        text = refusal(lambda found=found: codes(found, [Reading(), YES]))  # type: ignore[misc]
        assert "column 'stage': 3 row(s)" in text
        assert str(found.origin) in text


# ---- what a ledger knows of it -----------------------------------------------------------------------------------


PLAN = private_plan()


def records(n: int = 120) -> list[tuple[float, ...]]:
    return [tuple(row) for row in np.random.default_rng(4).standard_normal((n, 3)).tolist()]


def store(server: Server | None, file: Path, statements: str) -> None:
    """Run statements in both kinds of database alike."""
    if server is not None:
        server.run(statements)
        return
    with sqlite3.connect(file) as connection:
        connection.executescript(statements)
    connection.close()


def inserted(rows: list[tuple[float, ...]]) -> str:
    return f"insert into people values {', '.join(f'({a!r}, {b!r}, {c!r})' for a, b, c in rows)};"


VISITS = Dictionary.model_validate({"who": {"kind": "group"}, "day": {"kind": "time", "lags": 1}, "a": {}, "b": {}})


@pytest.mark.parametrize(
    ("who", "day"), [("integer", "date"), ("text", "timestamp"), ("uuid", "timestamptz"), ("date", "date")]
)
def test_groups_and_times_of_postgresql_order_the_rows_as_those_of_a_csv_file_do(
    who: str, day: str, reader: Server, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    name = {
        "integer": "{}",
        "text": "P{}",
        "uuid": "00000000-0000-4000-8000-0000000000{:02d}",
        "date": "1990-02-{:02d}",
    }
    rows = [
        (
            name[who].format(p),
            f"2024-03-{t:02d}",
            *(repr(x) if rng.random() > 0.2 else "" for x in rng.standard_normal(2).tolist()),
        )
        for p, t in rng.permutation([(p, t) for p in range(1, 25) for t in range(1, 4)]).tolist()
    ]
    lines = [",".join(row) for row in [("who", "day", "a", "b"), *rows]]
    (tmp_path / "t.csv").write_text("\n".join([*lines, ""]), "utf-8")
    told = ", ".join(f"('{p}', '{t}', {a or 'null'}, {b or 'null'})" for p, t, a, b in rows)
    reader.run(
        f"drop table if exists stays; create table stays (who {who}, day {day}, a float8, b float8);"
        f"insert into stays values {told}; grant select on stays to reader;"
    )
    (tmp_path / "table.toml").write_text(f"[database]\nurl = '{reader.url}'\nquery = 'select * from stays'\n", "utf-8")
    plain, found = (
        Dataset.read(tmp_path / name, dictionary=VISITS, warn=False, min_rows=2) for name in ("t.csv", "table.toml")
    )
    assert found.variables == plain.variables
    np.testing.assert_array_equal(found.X, plain.X)
    assert found.gaps == plain.gaps


def test_rows_with_gaps_are_completed_in_databases_as_in_csv_files(reader: Server, file: Path, tmp_path: Path) -> None:
    rng, plain, stored = np.random.default_rng(6), dict[str, Path](), dict[str, Path]()
    reader.run("drop table if exists gappy; create table gappy (site text, a float8, b float8, c float8)")
    store(None, file, "create table gappy (site text, a real, b real, c real)")
    for site in "xyz":
        X = rng.standard_normal((200, 3)) @ [[1.0, 0.9, 0.0], [0.0, 1.0, 0.8], [0.0, 0.0, 1.0]]
        X[rng.random(X.shape) < 0.2] = np.nan
        cells = [["" if math.isnan(x) else repr(x) for x in row] for row in X.tolist()]
        (tmp_path / site).mkdir()
        plain[site], stored[site] = tmp_path / f"{site}.csv", tmp_path / site / "table.toml"
        plain[site].write_text("\n".join(["a,b,c", *map(",".join, cells), ""]), "utf-8")
        told = ", ".join(f"('{site}', {', '.join(x or 'null' for x in row)})" for row in cells)
        url = f"sqlite:///{file}" if site == "z" else reader.url
        store(None if site == "z" else reader, file, f"insert into gappy values {told}")
        query = f"select a, b, c from gappy where site = '{site}'"
        stored[site].write_text(f'[database]\nurl = "{url}"\nquery = "{query}"\n', "utf-8")
    reader.run("grant select on gappy to reader")
    plan = Plan.load("standard").with_settings(n_participants=3, bootstrap=0)
    results = list[dict[str, Any]]()
    for name, paths in (("plain", plain), ("stored", stored)):
        tables = {site: Dataset.read(path, warn=False) for site, path in paths.items()}
        simulate(plan, tables, tmp_path / name)
        results.append(read_result(tmp_path / name))
    one, other = results
    assert one["gaps"]["iterations"] > 2
    for key in ("edges", "fit", "gaps"):
        assert one[key] == other[key], key


@pytest.mark.parametrize("cell", ["zeroblob(900000000)", "photo"])
def test_a_cell_too_large_to_be_a_level_is_refused_by_its_column(file: Path, table: Made, cell: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("create table photos as select age, zeroblob(1100000) as photo from visits")
    connection.close()
    text = refusal(lambda: codes(table(f"sqlite:///{file}", f"select age, {cell} as scan from photos;")))
    assert "column 'scan': cells of more than 1 MiB" in text
    assert "leave it out of the query" in text


@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_a_registered_query_is_admitted_with_the_same_rows_in_any_order_and_refused_with_others(
    kind: str, request: pytest.FixtureRequest, fedbnsl: Callable[..., Outcome], file: Path, tmp_path: Path
) -> None:
    server = request.getfixturevalue("reader") if kind == "postgresql" else None
    rows = records()
    create = "create table people (age double precision, dose double precision, mass double precision);"
    store(server, file, "drop table if exists people;" + create + inserted(rows))
    if server is not None:
        server.run("grant select on people to reader")
    site = tmp_path / "site"
    site.mkdir()
    url = f"sqlite:///{file}" if server is None else server.url
    (site / "table.toml").write_text(f"[database]\nurl = '{url}'\nquery = 'select * from people'\n", "utf-8")
    made = fedbnsl("participant", "init", site, "--site", "a", "--data", site / "table.toml", "--dataset", "people")
    assert made.code == 0, made.err

    def admitted() -> Dataset:
        with site_folder.opened(site) as (policy, ledger):
            ledger.approvals.approve(PLAN.digest(), "test")
            return GuardedTable(site, policy, ledger, None).admit(PLAN, 1, ("dose", "mass", "age"))[0]

    assert sorted(map(tuple, admitted().X.tolist())) == sorted((b, c, a) for a, b, c in rows)
    store(server, file, "delete from people;" + inserted(rows[::-1]))
    assert admitted().n_samples == len(rows)
    store(server, file, inserted([(0.5, 0.25, 0.125)]))
    with pytest.raises(LedgerError, match="register"):
        admitted()
    store(server, file, "delete from people;" + inserted([(0.5, *rows[0][1:]), *rows[1:]]))
    with pytest.raises(LedgerError, match="register"):
        admitted()


# ---- what a file may say -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://reader:{READER_PASSWORD}@127.0.0.1/postgres",
        f"postgresql://127.0.0.1/postgres?user=reader&password={READER_PASSWORD}",
        f"postgresql://127.0.0.1/postgres?sslpassword={READER_PASSWORD}",
        f"sqlite://reader:{READER_PASSWORD}@/records.db",
    ],
)
def test_a_password_in_the_file_is_refused_with_the_way_on(table: Made, url: str) -> None:
    assert "it holds a password, which belongs in the environment (PGPASSWORD)" in refusal(lambda: table(url))


@pytest.mark.parametrize("url", ["mysql://host/db", f"nonsense {PASSWORD}", "postgresql://host:port/db", ""])
def test_an_address_of_another_kind_is_refused_without_being_quoted(table: Made, url: str) -> None:
    text = refusal(lambda: table(url))
    assert "url: " in text
    assert "nonsense" not in text


def test_other_settings_of_the_file_are_refused_by_name_alone(table: Made, tmp_path: Path) -> None:
    assert "password" in refusal(lambda: table("sqlite:///a.db", password=PASSWORD))
    for text, said in (
        (f"[other]\nurl = '{PASSWORD}'", "expected one [database] with url and query; found other"),
        (f"database = '{PASSWORD}'", "expected one [database]"),
        (f"[database]\nurl = {PASSWORD}", "not valid TOML"),
        ("x = " + "[" * 5_000 + "]" * 5_000, "not valid TOML: it is nested too deeply"),
        ("[database]\nurl = 'sqlite:///a.db'", "query: Field required"),
    ):
        (tmp_path / "table.toml").write_text(text, "utf-8")
        assert said in refusal(lambda: DatabaseTable(tmp_path / "table.toml"))


def test_settings_of_a_url_that_would_change_the_session_are_refused(reader: Server, table: Made) -> None:
    text = refusal(table(reader.url + "?options=-c%20default_transaction_read_only%3Doff").header)
    assert "options cannot be set" in text


def test_a_connection_beyond_this_machine_is_encrypted_unless_the_site_says_otherwise() -> None:
    from fedbnsl_client.data.sources.postgresql_query import session_url

    def sslmode(url: str, **environment: str) -> list[str] | None:
        return parse_qs(urlsplit(session_url(url, environment)).query).get("sslmode")

    assert sslmode("postgresql://db.example/records") == ["require"]
    assert sslmode("postgresql://db.example/records?sslmode=prefer") == ["prefer"]
    assert sslmode("postgresql://db.example/records", PGSSLMODE="verify-full") is None
    assert sslmode("postgresql://localhost/records") is None
    assert sslmode("postgresql:///records") is None
    assert sslmode("postgresql:///records", PGHOST="db.example") == ["require"]
    assert sslmode("postgresql:///records", PGHOST="/run/postgresql") is None
    assert sslmode("postgresql://[::1]:5433/records") is None


# ---- a table is only read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "delete from visits",
        "",
        "  ",
        "insert into visits select * from visits",
        "drop table visits",
        "explain select 1",
    ],
)
def test_only_a_select_is_accepted(table: Made, query: str) -> None:
    assert "query: it must be one SELECT, or WITH ... SELECT" in refusal(lambda: table("sqlite:///a.db", query))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("with gone as (delete from visits returning *) select * from gone", "would change the database"),
        ("with made as (insert into visits values (1) returning *) select * from made", "would change the database"),
        ("select age, dose into copied from visits", "the query gives 0 column(s)"),
        ("select age, dose from visits; delete from visits", "more than one statement"),
    ],
)
def test_no_query_changes_a_postgresql_database(reader: Server, table: Made, query: str, said: str) -> None:
    reader.run("grant all on visits to reader")
    assert said in refusal(lambda: codes(table(reader.url, query)))
    escape = "select set_config('transaction_read_only', 'off', false), age from visits"
    refusal(lambda: codes(table(reader.url, escape)))
    assert reader.run("select count(*) from visits") == "4\n"
    assert reader.run("select count(*) from pg_class where relname = 'copied'") == "0\n"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("with n as (select 1) delete from visits", "would do more than read"),
        ("select age, dose from visits; delete from visits", "more than one statement"),
    ],
)
def test_no_query_changes_a_sqlite_file(file: Path, table: Made, query: str, said: str) -> None:
    before = file.read_bytes()
    assert said in refusal(lambda: codes(table(f"sqlite:///{file}", query)))
    assert file.read_bytes() == before


# ---- what can go wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select * from nowhere", 'there is no such table: relation "nowhere" does not exist'),
        ("select age, size from visits", 'there is no such column: column "size" does not exist'),
        ("select a, b from hidden", "the user may not read it: permission denied for table hidden"),
        ("select age dose from visits where", "syntax error"),
        ("select age from visits", "the query gives 1 column(s); a network needs at least two"),
        ("select age, dose, age from visits", "'age' occur(s) more than once"),
        ("select age, dose from visits where false", "the query returned no rows"),
        ("select age / 0 as a, dose from visits", "the database ended the query after 0 rows"),
        ("select ('secret' || age)::int as a, dose from visits", "its words may quote cells"),
    ],
)
def test_a_query_that_fails_says_why_and_quotes_no_cell(reader: Server, table: Made, query: str, said: str) -> None:
    text = refusal(lambda: codes(table(reader.url, query)))
    assert said in text
    assert "secret61" not in text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select * from nowhere", "no such table: nowhere"),
        ("select age, size from visits", "no such column: size"),
        ("select age dose from visits where", "the query failed (SQLITE_ERROR)"),
        ("select age from visits", "the query gives 1 column(s); a network needs at least two"),
        ("select age, dose, age from visits", "'age' occur(s) more than once"),
        ("select age, dose from visits where 0", "the query returned no rows"),
    ],
)
def test_a_query_to_sqlite_that_fails_says_why(file: Path, table: Made, query: str, said: str) -> None:
    assert said in refusal(lambda: codes(table(f"sqlite:///{file}", query)))


def test_a_sqlite_file_that_is_absent_or_damaged_is_refused_and_not_made(tmp_path: Path, table: Made) -> None:
    assert "there is no such SQLite file" in refusal(table("sqlite:///absent.db").header)
    assert not (tmp_path / "absent.db").exists()
    (tmp_path / "bad.db").write_text("not a database" * 100)
    assert "no SQLite file" in refusal(table("sqlite:///bad.db").header)
    assert "write sqlite:///file.db" in refusal(table("sqlite://host/bad.db").header)


def test_a_text_of_sqlite_that_is_not_utf8_is_not_quoted(file: Path, table: Made) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("insert into visits values (1, 2, cast(x'736563726574ff' as text), 3, 4)")
    connection.close()
    text = refusal(lambda: codes(table(f"sqlite:///{file}", "select age, stage from visits"), [Reading(), STAGES]))
    assert "column 'stage': 1 row(s)" in text


def test_a_wrong_or_absent_password_is_said_without_a_name(
    reader: Server, table: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    text = refusal(table(reader.url).header)
    assert f"no connection to PostgreSQL at 127.0.0.1:{reader.port}: it refused the user name or the password" in text
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "absent"))
    assert "set PGPASSWORD, or use ~/.pgpass (PGPASSFILE)" in refusal(table(reader.url).header)


def test_the_password_may_be_in_the_drivers_own_file(
    server: Server, table: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"127.0.0.1:*:*:reader:{READER_PASSWORD}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    assert table(server.url).header() == NAMES


def test_a_server_that_is_down_is_said_to_be(table: Made) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    text = refusal(table(f"postgresql://reader@127.0.0.1:{free_port()}/postgres").header)
    assert "nothing listens there; is the server up?" in text


def test_a_server_that_goes_away_while_it_is_read_is_said_to_with_the_rows_so_far(
    table: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    monkeypatch.setenv("PGPASSWORD", READER_PASSWORD)
    with postgresql_server() as server:
        query = "select g::float8 as a, g + 0.5::float8 as b from generate_series(1, 6000000) as g"
        blocks = table(server.url, query).codes(["a", "b"], [0, 1], [Reading(), Reading()])
        first = next(blocks)
        assert 0 < len(first) < 6_000_000
        server.stop(SIGQUIT)
        text = refusal(lambda: list(chain(blocks)))
    assert "the database went away after " in text
    assert "nothing was kept" in text


@pytest.mark.parametrize("module", ["adbc_driver_postgresql.dbapi", "pyarrow"])
def test_without_the_drivers_the_extra_is_named(
    table: Made, file: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert "pip install 'fedbnsl-site[database]'" in refusal(table("postgresql://127.0.0.1:1/db").header)
    if module == "pyarrow":
        assert "pip install 'fedbnsl-site[database]'" in refusal(table(f"sqlite:///{file}").header)
