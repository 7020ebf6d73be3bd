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

# Rows and numbers that are drawn at a time: what a seed gives does not hang on the memory.
_MOST_ROWS, _MOST_NUMBERS = 100_000, 2_000_000
_LEAST_SHARE = 1e-9  # of a variance: less is rounding


def drawn(fitted: NetworkOfRun, n: int, seed: int) -> Iterator[Matrix]:
    """Blocks of (k, d) values of all columns, n rows in all; a seed gives the same rows."""
    rng = np.random.default_rng(seed)
    block = max(min(_MOST_ROWS, _MOST_NUMBERS // fitted.network.n_columns), 1)
    for first in range(0, n, block):
        yield fitted.network.sample(min(block, n - first), rng)


def write_table(fitted: NetworkOfRun, n: int, seed: int, out: Path, *, plain: bool) -> dict[str, Any]:
    """Write n rows as CSV, after a first line with # that says what they are, and tell how near the rows are.

    `plain`: without this line. See `durable.write_file` for errors.
    """
    sums, squares, rows = np.zeros(fitted.network.n_columns), np.zeros((fitted.network.n_columns,) * 2), 0

    def write(binary: BinaryIO) -> None:
        nonlocal sums, squares, rows
        file = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        if not plain:
            file.write(f"# synthetic rows, copied from no table; seed {seed}; {fitted.privacy}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(fitted.variables)
        for X in drawn(fitted, n, seed):
            writer.writerows(zip(*(fitted.cells(name, X) for name in fitted.variables), strict=True))
            deviations = X - fitted.means
            sums, squares, rows = sums + deviations.sum(axis=0), squares + deviations.T @ deviations, rows + len(X)
        file.flush()
        file.detach()

    durable.write_file(out, write)
    return compared(fitted, sums / rows, squares / rows)


def compared(fitted: NetworkOfRun, shift: Matrix, moments: Matrix) -> dict[str, Any]:
    """Means, spreads and correlations of drawn rows beside those of the network, by column and pair of columns.

    `shift`: (d,) means of the rows, less those that the sites told; `moments`: (d, d) about the latter.
    """
    own = np.concatenate([fitted.members(name) for name in fitted.variables])
    places: list[int] = own.tolist()
    names = [fitted.columns.names[k] for k in places]
    told = fitted.learned.covariance[np.ix_(own, own)]
    found = (moments - np.outer(shift, shift))[np.ix_(own, own)]
    means = fitted.means[own]
    varies = found.diagonal() > _LEAST_SHARE * told.diagonal()  # too few rows may all have one value
    gap = np.abs(np.tril(_correlations(found) - _correlations(told), k=-1)) * np.outer(varies, varies)
    i, j = divmod(int(gap.argmax()), len(own))
    by_column = {
        name: {"mean": m, "drawn_mean": m + s, "spread": a, "drawn_spread": b}
        for name, m, s, a, b in zip(
            names,
            means.tolist(),
            shift[own].tolist(),
            np.sqrt(told.diagonal()).tolist(),
            np.sqrt(np.maximum(found.diagonal(), 0.0)).tolist(),
            strict=True,
        )
    }
    if varies.sum() < 2:
        return {"columns": by_column, "furthest_correlation": None}
    furthest = {"one": names[j], "other": names[i], "of_network": float(_correlations(told)[i, j])}
    return {"columns": by_column, "furthest_correlation": furthest | {"drawn": float(_correlations(found)[i, j])}}


def _correlations(S: Matrix) -> Matrix:
    size = np.sqrt(np.maximum(S.diagonal(), 1e-300))
    return np.asarray(S / np.outer(size, size))
