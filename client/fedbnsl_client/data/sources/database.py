"""A table that is the answer to a query, as a site's `table.toml` names it; read in batches, nothing is exported.

    [database]
    url = "postgresql://reader@db.clinic.example/records"   # or "sqlite:///records.db", relative to this file
    query = "select age, crp, stage from visits where year = 2024"

The password is never in this file: it comes from the environment (PGPASSWORD, PGPASSFILE) or from ~/.pgpass, and user
name and host may come from there, too. The query is one SELECT (or WITH ... SELECT), and the session can read only.
Rows may come in any order: what a ledger knows of a table does not depend on it.

No text of a database is repeated in an error unless it is known to name tables and columns only: it may quote cells.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, cast
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedbnsl.console.shown import shown
from fedbnsl.errors import DataError
from fedbnsl.files.toml_text import parse_toml
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.cell_problems import CellProblems, UnreadableCellsError
from fedbnsl_client.data.checks import in_one_line
from fedbnsl_client.data.columns import read_names
from fedbnsl_client.data.reading import Reading
from fedbnsl_client.data.sources.arrow_cells import codes_of_batches

_COMMENT = re.compile(r"(\s+|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_READS = ("select", "with")
_SECRETS = ("password", "sslpassword")
_MODULES = {
    "postgresql": "fedbnsl_client.data.sources.postgresql_query",
    "postgres": "fedbnsl_client.data.sources.postgresql_query",
    "sqlite": "fedbnsl_client.data.sources.sqlite_query",
}


class Answer(NamedTuple):
    """What a query gives: the names of its columns, and its rows as Arrow batches, each read when it is asked for."""

    names: Sequence[str]
    batches: Iterator[Any]


class Queries(Protocol):
    """What a module for a kind of database offers. Its errors are DataErrors that quote no cell and no password."""

    def answer(self, url: str, query: str, *, folder: Path) -> AbstractContextManager[Answer]:
        """Start a query in a session that can read only; `folder` is that of the table.toml."""
        ...

    def column_names(self, url: str, query: str, *, folder: Path) -> Sequence[str]:
        """The names of the columns of its answer, which is not computed."""
        ...


class Database(BaseModel):
    """The settings of a `table.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str = Field(description="postgresql://user@host:port/database or sqlite:///file, without a password")
    query: str = Field(description="one SELECT, whose columns are the table's")

    @field_validator("url")
    @classmethod
    def _without_password(cls, url: str) -> str:
        # The url itself is never quoted: it may hold what it should not.
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            raise ValueError("not an address; write postgresql://user@host:port/database") from None
        if parts.scheme not in _MODULES:
            raise ValueError("only postgresql:// and sqlite:/// are read")
        if parts.password is not None or dict(parse_qsl(parts.query, keep_blank_values=True)).keys() & set(_SECRETS):
            raise ValueError(
                "it holds a password, which belongs in the environment (PGPASSWORD) or in ~/.pgpass (PGPASSFILE)"
            )
        return url

    @field_validator("query")
    @classmethod
    def _reads(cls, query: str) -> str:
        start = _COMMENT.match(query)
        words = query[start.end() if start else 0 :].replace("(", " ").split(maxsplit=1)
        if not words or words[0].lower() not in _READS:
            raise ValueError("it must be one SELECT, or WITH ... SELECT: a site's table is only ever read")
        return query

    @property
    def queries(self) -> Queries:
        """The module for this kind of database."""
        module: Any = import_module(_MODULES[urlsplit(self.url).scheme])
        return cast(Queries, module)

    @classmethod
    def load(cls, path: Path) -> Self:
        """The [database] of a TOML file.

        Raises DataError if it cannot be read or used; by setting, and without what was set.
        """
        try:
            content = parse_toml(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
        except ValueError as error:
            raise DataError(f"{path}: not valid TOML: {error}") from None
        if set(content) != {"database"} or not isinstance(content["database"], dict):
            found = ", ".join(shown(name, 40) for name in content) or "nothing"
            raise DataError(f"{path}: expected one [database] with url and query; found {found}")
        try:
            return cls.model_validate(content["database"])
        except ValidationError as error:
            problems = [
                f"{shown('.'.join(map(str, one['loc'])), 40)}: {one['msg'].removeprefix('Value error, ')}"
                for one in error.errors(include_input=False)
            ]
            raise DataError(f"{path}: [database] cannot be used: {'; '.join(problems)}") from None


class DatabaseTable:
    """The answer to a query, as a `fedbnsl_client.data.sources.source.Source`.

    Raises DataError if the file that names it cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.origin = str(path)
        self._folder = path.resolve().parent
        self._database = Database.load(path)

    @property
    def share(self) -> float | None:
        """Not known: the number of rows is not asked for."""
        return None

    def header(self) -> list[str]:
        """See `Source.header`."""
        with self._said_with_origin():
            names = self._database.queries.column_names(self._database.url, self._database.query, folder=self._folder)
        return self._checked(names)

    def codes(self, header: Sequence[str], chosen: Sequence[int], readings: Sequence[Reading]) -> Iterator[Matrix]:
        """See `Source.codes`; refuses a query, too, that fails in the middle, or gives no rows or other columns."""
        database, n, found = self._database, 0, CellProblems(header, "data row")
        with (
            self._said_with_origin(),
            database.queries.answer(database.url, database.query, folder=self._folder) as answer,
        ):
            if self._checked(answer.names) != list(header):
                raise DataError("the query gives other columns than a moment ago; start again")
            batches = (batch.select(list(chosen)) for batch in answer.batches)
            for block in codes_of_batches(batches, found, chosen, readings, quoting=False):
                n += len(block)
                yield block
            if problems := found.lines():
                raise UnreadableCellsError(in_one_line(problems))
            if not n:
                raise DataError("the query returned no rows; run it in the database's own client")

    def _checked(self, names: Sequence[str]) -> list[str]:
        if len(names) < 2:
            raise DataError(f"{self.origin}: the query gives {len(names)} column(s); a network needs at least two")
        return read_names(f"{self.origin}: the answer to the query", names)

    @contextmanager
    def _said_with_origin(self) -> Generator[None]:
        try:
            yield
        except DataError as error:
            text = str(error)
            raise type(error)(
                text if text.startswith(self.origin) else f"{self.origin}: {text}", remedy=error.remedy
            ) from None
