"""fedCI: tests of independence over sites whose columns differ (Hahn, Zajak, Heider, Ribeiro 2026, arXiv 2603.05149).

The tests are those of the package python-fedci, with its own settings. A pair counts as adjacent unless one of its
tests, given any set of other variables that some site has with both, finds it independent: the first step of IOD.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations
from typing import Any

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix


def fedci_installed() -> bool:
    """Whether python-fedci is there."""
    return find_spec("fedci") is not None


def fedci_adjacent(tables: Sequence[Matrix], *, alpha: float = 0.05) -> Mask:
    """(d, d) adjacent pairs from one (n, d) table a site, where a column of NaN is one that the site does not have."""
    fedci: Any = import_module("fedci")
    polars: Any = import_module("polars")
    d = tables[0].shape[1]
    sets = [frozenset(np.flatnonzero(~np.isnan(X).all(axis=0)).tolist()) for X in tables]
    frames = [polars.DataFrame({str(k): X[:, k] for k in sorted(there)}) for X, there in zip(tables, sets, strict=True)]
    server = fedci.Server([fedci.Client(str(number), frame) for number, frame in enumerate(frames)])
    found = np.zeros((d, d), dtype=bool)
    for i, j in combinations(range(d), 2):
        found[i, j] = found[j, i] = not any(
            server.test(str(i), str(j), [str(k) for k in given]).p_value > alpha
            for size in range(d - 1)
            for given in combinations([k for k in range(d) if k not in (i, j)], size)
            if any({i, j, *given} <= there for there in sets)
        )
    return found
