"""A PostgreSQL server of the tests' own, or a skip that says what is missing."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import pytest

from fedbnsl.errors import ResultError
from fedbnsl_research.bench import postgresql_server as own
from fedbnsl_research.bench.postgresql_server import Server


@contextmanager
def postgresql_server() -> Generator[Server]:
    """See `fedbnsl_research.bench.postgresql_server`."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(own.postgresql_server())
        except ResultError as error:
            if "initdb and postgres are not there" not in str(error):
                raise
            pytest.skip(str(error))
        yield server
