"""The limit of open files: raised when sites need it, said when it cannot be."""

import resource

import pytest

from fedbnsl.errors import SetupError
from fedbnsl_server.grpc_api.open_files import make_room

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch):
    """The limits of a process that only this test sees: [soft, hard]."""
    now = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: now.__setitem__(slice(None), list(both)))
    return now


def test_a_limit_that_is_large_enough_stays(limits):
    make_room(800)
    assert limits == [1024, 4096]


@pytest.mark.parametrize("hard", [4096, UNLIMITED])
def test_a_small_limit_is_raised_for_a_connection_a_site_and_files_beside(limits, hard):
    limits[1] = hard
    make_room(1000)
    assert 1000 < limits[0] <= 1200
    assert limits[1] == hard


def test_no_limit_stays_no_limit(limits):
    limits[:] = [UNLIMITED, UNLIMITED]
    make_room(10_000)
    assert limits == [UNLIMITED, UNLIMITED]


def test_more_sites_than_the_system_allows_are_refused_with_what_to_do(limits):
    with pytest.raises(SetupError, match="5000 sites need 5128 open files, and this system allows 4096; raise"):
        make_room(5000)
    assert limits == [1024, 4096]
