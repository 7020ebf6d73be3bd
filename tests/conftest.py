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


# What starts processes or containers and mostly waits for them, and what repeats whole studies: `make test-fast` leaves
# it out.
_LONG = {"compose", "docs", "faults", "network", "bench", "comparators", "reproduce"}
_LONG |= {"test_cli.py", "test_cli_identity.py", "test_cli_plan.py", "test_startup.py"}
_LONG |= {
    "test_database.py",
    "test_dask_table.py",
    "test_bench_load.py",
    "test_repeat.py",
    "test_report_in_browser.py",
    "test_trials.py",
}
_LONG |= {"test_trial_threads.py", "test_without_report_packages.py", "test_ledger_crashes.py", "test_services.py"}
_LONG |= {"test_chart_in_containers.py", "test_lowest_versions.py", "test_distributions.py", "test_python_versions.py"}

_AFTER_THE_IMAGES = {"test_images.py", "test_chart_in_containers.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _LONG & {item.path.name, item.path.parent.name}:
            item.add_marker("long")
    # `make test` keeps this order. Long ones first, so that no process waits for the last of them in the end; of those
    # that need the container images the first makes them, and the others come when they are there.
    items.sort(key=lambda item: (item.get_closest_marker("long") is None, item.path.name in _AFTER_THE_IMAGES))


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
