"""Queries to PostgreSQL, through ADBC: the server copies its rows in binary form, and they arrive as Arrow batches.

The transaction is read-only and is rolled back. Connections beyond this machine are encrypted unless the url or
PGSSLMODE says otherwise.
"""

import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fedbnsl.errors import DataError
from fedbnsl_client.data.sources.database import Answer

# What a site may set in the url; the rest could change what a session is allowed to do.
_ALLOWED = frozenset(
    {
        *("application_name", "channel_binding", "connect_timeout", "gssencmode", "passfile", "require_auth"),
        *("sslcert", "sslcrl", "sslkey", "sslmode", "sslnegotiation", "sslrootcert", "target_session_attrs"),
    }
)
# A server that is cut off is noticed within a minute or two.
_LIVENESS = {"connect_timeout": "10", "keepalives_idle": "30", "tcp_user_timeout": "60000"}

# What libpq says of a connection, in English; the server's own words come in its language, and are not looked for.
_REFUSED = (
    ("password authentication failed", "it refused the user name or the password"),
    ("no password supplied", "it wants a password: set PGPASSWORD, or use ~/.pgpass (PGPASSFILE)"),
    ("authentication", "it refused the user name or the password"),
    ("no pg_hba.conf entry", "it lets this user not in from here (pg_hba.conf)"),
    ("Connection refused", "nothing listens there; is the server up?"),
    ("could not translate host name", "there is no host of this name"),
    ("timeout expired", "it did not answer in time"),
    ("does not support SSL", "it does not encrypt; on a network that you trust, add ?sslmode=prefer to the url"),
    ("certificate", "its certificate cannot be verified (sslrootcert, sslmode)"),
    ("No such file or directory", "there is no socket; is the server up?"),
    ("starting up", "it is still starting"),
    ("shutting down", "it is shutting down"),
    ("too many", "it has too many connections"),
    ("does not exist", "it has no such database or user"),
)

# SQLSTATE: what to say; "...": the server's words follow, which are about names in the query.
_STATES = {
    "25006": "the query would change the database, and a table is only ever read",
    "42501": "the user may not read it: ...",
    "42601": "the query has a syntax error, or is more than one statement",
    "42702": "a column name in the query is ambiguous: ...",
    "42703": "there is no such column: ...",
    "42883": "there is no such function or operator",
    "42P01": "there is no such table: ...",
    "53300": "the server has too many connections",
    "57014": "the query was cancelled, by a time limit or by the server's operator",
}


def column_names(url: str, query: str, *, folder: Path) -> Sequence[str]:
    """See `fedbnsl_client.data.sources.database.Queries`."""
    with _cursor(url) as cursor, _said_in_words():
        return list(cursor.adbc_execute_schema(query).names)


@contextmanager
def answer(url: str, query: str, *, folder: Path) -> Generator[Answer]:
    """See `fedbnsl_client.data.sources.database.Queries`."""
    with _cursor(url) as cursor:
        with _said_in_words():
            cursor.execute(query)
            reader = cursor.fetch_record_batch()
        yield Answer(reader.schema.names, _batches(reader))


def _batches(reader: Any) -> Iterator[Any]:
    n = 0
    while True:
        with _said_in_words(n):
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
        n += batch.num_rows
        yield batch


@contextmanager
def _cursor(url: str) -> Generator[Any]:
    try:
        adbc: Any = import_module("adbc_driver_postgresql.dbapi")
        import_module("pyarrow")
    except ImportError:
        raise DataError("PostgreSQL is read with ADBC and pyarrow: pip install 'fedbnsl-site[database]'") from None
    driver: Any = import_module("adbc_driver_manager")
    address = session_url(url, os.environ)
    with ExitStack() as stack:
        try:
            connection = adbc.connect(address)
        except driver.Error as error:
            raise DataError(f"no connection to PostgreSQL{_place(url)}: {_why_refused(str(error))}") from None
        stack.callback(_quietly, connection.close)
        stack.callback(_quietly, connection.rollback)
        cursor = connection.cursor()
        stack.callback(_quietly, cursor.close)
        yield cursor


def _quietly(end: Any) -> None:
    with suppress(Exception):  # the connection may be gone, which was said already
        end()


def session_url(url: str, environment: Mapping[str, str]) -> str:
    """The address of a session that can read only and notices a server that is gone.

    Raises DataError if the url has a setting that a site cannot set.
    """
    parts = urlsplit(url)
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(settings.keys() - _ALLOWED):
        # A name that is none may be a part of a password.
        named = ", ".join(name for name in unknown if re.fullmatch("[a-z_]+", name)) or "what stands after '?'"
        raise DataError(f"url: {named} cannot be set; these can: {', '.join(sorted(_ALLOWED))}")
    if (
        "sslmode" not in settings
        and "PGSSLMODE" not in environment
        and not _is_here(parts.hostname or environment.get("PGHOST", ""))
    ):
        settings["sslmode"] = "require"
    settings = {**_LIVENESS, **settings, "options": "-c default_transaction_read_only=on"}
    return urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(settings).replace("+", "%20"), ""))


def _is_here(host: str) -> bool:
    """Whether a host is this machine: loopback, or a socket in a folder, which is the default where none is named."""
    if not host or host.startswith(("/", "%2f", "%2F")) or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f" at {parts.hostname}:{parts.port or 5432}" if parts.hostname else ""


def _why_refused(text: str) -> str:
    return next((said for mark, said in _REFUSED if mark in text), "it cannot be reached, or refused the session")


@contextmanager
def _said_in_words(n_read: int | None = None) -> Generator[None]:
    """Turn errors of a query into a DataError; `n_read`: of reading its answer, of which so many rows are here."""
    driver: Any = import_module("adbc_driver_manager")
    arrow: Any = import_module("pyarrow")
    try:
        yield
    except driver.Error as error:
        raise DataError(_of_state(error.sqlstate or "", str(error))) from None
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise DataError(_of_text(str(error), n_read)) from None


def _of_state(state: str, text: str) -> str:
    said = _STATES.get(state)
    if said is None:
        return f"the database refused the query (SQLSTATE {state or 'unknown'}); try it in psql"
    if not said.endswith("..."):
        return said
    named = re.search(r"ERROR:\s+(.*)", text)
    return said.removesuffix("...") + named[1] if named else said.removesuffix(": ...")


def _of_text(text: str, n_read: int | None) -> str:
    after = "" if n_read is None else f" after {n_read} rows"
    if any(mark in text for mark in ("server closed", "terminating connection", "could not receive", "no connection")):
        return f"the database went away{after}; nothing was kept. Start again when it is back"
    return f"the database ended the query{after}, and its words may quote cells: see its log, or try it in psql"
