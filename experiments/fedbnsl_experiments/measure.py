"""What the benchmark figures share."""

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fedbnsl.errors import ResultError

N_SAMPLES = 5000
"""Rows of every site of generated data, as in the paper."""

Row = dict[str, Any]

_T = TypeVar("_T")


def timed(work: Callable[[], _T]) -> tuple[float, _T]:
    """Seconds that some work took, and what it gave."""
    started = time.perf_counter()
    value = work()
    return time.perf_counter() - started, value


def oracles() -> ModuleType:
    """tests/oracles.py of the checkout that this package is installed from.

    Raises
    ------
    ResultError
        Outside a checkout.
    """
    path = Path(__file__).resolve().parents[2] / "tests" / "oracles.py"
    spec = importlib.util.spec_from_file_location("oracles", path)
    if spec is None or spec.loader is None or not path.exists():
        raise ResultError("the literal solver is part of the tests: run this figure from a checkout of the project")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
