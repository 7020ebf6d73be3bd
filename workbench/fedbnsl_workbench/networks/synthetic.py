"""Synthetic tables: rows drawn from a learned network, in the units and levels of the data dictionary.

Whatever is drawn follows from the network: it costs no privacy beyond what the run has spent.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedbnsl.files import durable
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.results.network_of_run import NetworkOfRun
from fedbnsl_workbench.networks.comparison import Tally

# Rows and numbers that are drawn at a time: what a seed gives does not hang on the memory.
_MOST_ROWS, _MOST_NUMBERS = 100_000, 2_000_000


def drawn(fitted: NetworkOfRun, n: int, seed: int) -> Iterator[Matrix]:
    """Blocks of (k, d) values of all columns, n rows in all; a seed gives the same rows."""
    rng = np.random.default_rng(seed)
    block = max(min(_MOST_ROWS, _MOST_NUMBERS // fitted.network.n_columns), 1)
    for first in range(0, n, block):
        yield fitted.network.sample(min(block, n - first), rng)


def write_table(fitted: NetworkOfRun, n: int, seed: int, out: Path, *, plain: bool) -> dict[str, Any]:
    """Write n rows as CSV, after a first line with # that says what they are; see `Tally.compared` for what is told.

    `plain`: without this line. See `durable.write_file` for errors.
    """
    tally = Tally.of(fitted)

    def write(binary: BinaryIO) -> None:
        nonlocal tally
        file = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        if not plain:
            file.write(f"# synthetic rows, copied from no table; seed {seed}; {fitted.privacy}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(fitted.variables)
        for X in drawn(fitted, n, seed):
            writer.writerows(zip(*(fitted.cells(name, X) for name in fitted.variables), strict=True))
            tally = tally.plus(X)
        file.flush()
        file.detach()

    durable.write_file(out, write)
    return tally.compared()
