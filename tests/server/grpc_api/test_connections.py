"""The limit of open files: raised at the start, and an error when it is too low."""

import resource

import pytest

from fedbnsl.errors import SetupError
from fedbnsl_server.grpc_api.connections import make_room

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch):
    """The limits of a process that only this test sees: [soft, hard]."""
    now = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: now.__setitem__(slice(None), list(both)))
    return now


@pytest.mark.parametrize(("soft", "hard", "then"), [(1024, 4096, 4096), (4096, 4096, 4096), (1024, UNLIMITED, 1128)])
def test_the_limit_is_raised_to_what_the_system_allows_or_to_what_connections_and_files_need(limits, soft, hard, then):
    limits[:] = [soft, hard]
    make_room(1000)
    assert limits == [then, hard]


def test_no_limit_stays_no_limit(limits):
    limits[:] = [UNLIMITED, UNLIMITED]
    make_room(10_000)
    assert limits == [UNLIMITED, UNLIMITED]


def test_more_connections_than_the_system_allows_are_refused_with_what_to_do(limits):
    with pytest.raises(SetupError, match="5000 connections need 5128 open files, and this system allows 4096; raise"):
        make_room(5000)
    assert limits == [1024, 4096]
