"""Shared by all tests: one thread for linear algebra, as the command line sets it, for the same bits everywhere."""

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

from command_line import Outcome, run_command
from heeded_signals import heed_signals

heed_signals()

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # for the processes that tests start

# Where ledgers are noted: not in the home of whoever runs the tests, and in memory, where syncing takes no time.
_STATE = tempfile.TemporaryDirectory(prefix="fedbnsl-tests-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
os.environ["XDG_STATE_HOME"] = _STATE.name


# What starts processes or containers and mostly waits for them, and what simulates whole runs or repeats studies: `make
# test-fast` leaves it out. Single tests elsewhere that take more than half a second are marked where they stand.
_LONG = {"compose", "docs", "faults", "network", "bench", "comparators", "reproduce", "report", "workbench"}
_LONG |= {f"test_cli_{what}.py" for what in ("tree", "tables", "serving", "running", "failures", "identity", "plan")}
_LONG |= {"test_startup.py"}
_LONG |= {"test_dask_table.py", "test_dask_site.py"}
_LONG |= {"test_database.py", "test_trials.py", "test_trial_threads.py", "test_ledger_crashes.py"}
_LONG |= {"test_chart_in_containers.py", "test_lowest_versions.py", "test_distributions.py", "test_python_versions.py"}
_LONG |= {"test_services.py", "test_mutations.py", "test_accounts.py"}  # the last loads other libraries, for seconds

_NEED_IMAGES = {"test_images.py", "test_federation.py", "test_services.py", "test_chart_in_containers.py"}


def _is_long(path: Path) -> bool:
    return bool(_LONG & {path.name, path.parent.name})


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even load the files of which no test is wanted."""
    left_out = "not long" in config.getoption("markexpr") and collection_path.suffix == ".py"
    return True if left_out and _is_long(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_long(item.path):
            item.add_marker("long")
    # `make test` keeps this order. Long files first, so that no process waits for the last of them in the end; among
    # them the last are those that need container images, which are made meanwhile.
    items.sort(key=lambda item: (not _is_long(item.path), item.path.name in _NEED_IMAGES))


@pytest.fixture
def anyio_backend() -> str:
    """What tests that are coroutines run on."""
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


@pytest.fixture
def fedbnsl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run a command line in this process, without colours and at the usual width."""
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    return partial(run_command, capsys)


@pytest.fixture
def sachs() -> Path:
    """The folder of the Sachs data, or a skip that says why."""
    folder = Path(os.environ.get("FEDBNSL_DATA", "")) / "sachs"
    if not (folder / "sachs.csv").exists():
        pytest.skip("needs the Sachs data: set FEDBNSL_DATA to a folder that holds sachs/sachs.csv")
    return folder
