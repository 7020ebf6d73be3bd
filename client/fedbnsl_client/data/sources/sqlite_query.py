"""Queries to SQLite files, through Python's own driver: a column may hold values of several types, which ADBC refuses.

The file is opened for reading only, and no statement but a SELECT is allowed.
"""

import re
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from fedbnsl.errors import DataError
from fedbnsl_client.data.mapped_array import rows_a_block
from fedbnsl_client.data.sources.database import Answer

_BUSY_S = 10.0
_LARGEST_CELL_BYTES = 2**20
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_ABOUT_NAMES = re.compile(r"no such (table|column|function): |ambiguous column name: ")


def column_names(url: str, query: str, *, folder: Path) -> Sequence[str]:
    """See `fedbnsl_client.data.sources.database.Queries`."""
    with answer(url, query, folder=folder) as found:
        return found.names


@contextmanager
def answer(url: str, query: str, *, folder: Path) -> Generator[Answer]:
    """See `fedbnsl_client.data.sources.database.Queries`."""
    path = _file(url, folder)
    if not path.is_file():
        raise DataError(f"{path}: there is no such SQLite file")
    try:
        arrow: Any = import_module("pyarrow")
    except ImportError:
        raise DataError("a database is read with pyarrow: pip install 'fedbnsl-site[database]'") from None
    with _said_in_words(path):
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_BUSY_S)
    with closing(connection):
        connection.text_factory = _text
        connection.set_authorizer(_only_reads)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_CELL_BYTES)
        try:
            with _said_in_words(path):
                cursor = connection.execute(query)
            names = [column[0] for column in cursor.description or ()]
            yield Answer(names, _batches(path, cursor, names, arrow))
        except _TooLargeError:
            raise DataError(f"{path.name}: {_too_large(connection, query)}") from None


def _file(url: str, folder: Path) -> Path:
    """The file of sqlite:///relative.db or sqlite:////absolute.db.

    Raises DataError if the url names a host or settings.
    """
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or not parts.path.strip("/"):
        raise DataError(
            "url: write sqlite:///file.db, relative to the folder of table.toml, or sqlite:////folder/file.db"
        )
    return folder / unquote(parts.path[1:])


def _only_reads(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")  # the driver's error would quote the cell


class _TooLargeError(Exception):
    """A cell is larger than is read; SQLite does not say in which column."""


def _too_large(connection: sqlite3.Connection, query: str) -> str:
    """Which columns hold such cells, found by asking for each by itself, and what to do."""
    inner, found = f"({query.strip().removesuffix(';')}\n)", list[str]()
    with suppress(sqlite3.Error):  # a query that cannot stand in another one, such as with a comment after its end
        # The site's own query, on a connection that can only read.
        names = [column[0] for column in connection.execute(f"select * from {inner} limit 0").description]  # noqa: S608
        for name in names:
            column = '"' + name.replace('"', '""') + '"'
            try:
                connection.execute(f"select max({column}) from {inner}")  # noqa: S608
            except sqlite3.Error:
                found.append(repr(name))
    return (
        f"{'column ' + ', '.join(found) if found else 'a column'}: cells of more than "
        f"{_LARGEST_CELL_BYTES / 2**20:.0f} MiB, which are no numbers and no levels; leave it out of the query"
    )


def _batches(path: Path, cursor: sqlite3.Cursor, names: Sequence[str], arrow: Any) -> Iterator[Any]:
    n, rows_at_a_time = 0, rows_a_block(max(len(names), 1))
    while True:
        with _said_in_words(path, n):
            rows = cursor.fetchmany(rows_at_a_time)
        if not rows:
            return
        n += len(rows)
        yield arrow.record_batch([_array(column, arrow) for column in zip(*rows, strict=True)], names=list(names))


def _array(cells: Sequence[Any], arrow: Any) -> Any:
    try:
        return arrow.array(cells)
    except (arrow.ArrowException, OverflowError):  # numbers and texts in one column
        return arrow.array([cell if cell is None or isinstance(cell, str) else repr(cell) for cell in cells])


@contextmanager
def _said_in_words(path: Path, n_read: int | None = None) -> Generator[None]:
    """Turn errors of SQLite into a DataError, whose own words it has where they are about names alone."""
    try:
        yield
    except sqlite3.Error as error:
        text, code = str(error), getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_TOOBIG:
            raise _TooLargeError from None
        if _ABOUT_NAMES.match(text):
            why = text
        elif code == sqlite3.SQLITE_AUTH:
            why = "the query would do more than read tables"
        elif "one statement" in text:
            why = "the query is more than one statement"
        elif code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            why = "it is no SQLite file, or a damaged one"
        elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            why = "another program is writing to it"
        elif n_read is not None:
            why = f"the file could not be read further after {n_read} rows; nothing was kept"
        else:
            why = f"the query failed ({getattr(error, 'sqlite_errorname', type(error).__name__)}); try it in sqlite3"
        raise DataError(f"{path.name}: {why}") from None
