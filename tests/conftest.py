"""Shared by all tests: one thread for linear algebra, as the command line sets it, for the same bits everywhere."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # for the processes that tests start


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


@pytest.fixture
def sachs() -> Path:
    """The folder of the Sachs data, or a skip that says why."""
    folder = Path(os.environ.get("FEDBNSL_DATA", "")) / "sachs"
    if not (folder / "sachs.csv").exists():
        pytest.skip("needs the Sachs data: set FEDBNSL_DATA to a folder that holds sachs/sachs.csv")
    return folder
