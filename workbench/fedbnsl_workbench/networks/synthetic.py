"""Synthetic tables: rows drawn from a learned network, in the units and levels of the data dictionary.

Whatever is drawn follows from the network: it costs no privacy beyond what the run has spent.
"""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedbnsl.files import durable
from fedbnsl.network.families import positions
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_workbench.networks.fitted import FittedNetwork

_DIGITS = 3  # of a standard deviation
# Rows and numbers that are drawn at a time: what a seed gives does not hang on the memory.
_MOST_ROWS, _MOST_NUMBERS = 100_000, 2_000_000
_LARGEST_COUNT = 2.0**53
_LEAST_SHARE = 1e-9  # of a variance: less is rounding


def drawn(fitted: FittedNetwork, n: int, seed: int) -> Iterator[Matrix]:
    """Blocks of (k, d) values of all columns, n rows in all; a seed gives the same rows."""
    rng = np.random.default_rng(seed)
    block = max(min(_MOST_ROWS, _MOST_NUMBERS // fitted.network.n_columns), 1)
    for first in range(0, n, block):
        yield fitted.network.sample(min(block, n - first), rng)


def cells(fitted: FittedNetwork, name: str, X: Matrix) -> list[Any]:
    """(n,) values of a variable as a table has them: names of levels, or numbers before the dictionary's transform."""
    own, entry = fitted.members(name), fitted.entry(name)
    if name in fitted.levels:
        levels = fitted.levels[name]
        return [levels[k] for k in positions(X, own, len(levels)).tolist()]
    values = entry.formula.back(X[:, own[0]])
    low, high = (-math.inf, math.inf) if entry.range is None else entry.range
    if entry.kind == "count":
        whole: list[int] = np.clip(np.rint(values), max(low, 0.0), min(high, _LARGEST_COUNT)).astype(np.int64).tolist()
        return whole
    mean, spread = float(fitted.means[own[0]]), float(fitted.learned.spread[own[0]])
    if entry.applied == "log":  # all are above 0, and differ by factors
        digits = max(_DIGITS - math.floor(math.log10(spread)), _DIGITS)
        values = np.array([float(f"{one:.{digits}g}") for one in values.tolist()])
    else:
        first, last = entry.formula.back(np.array([mean - spread, mean + spread])).tolist()
        values = np.round(values, _DIGITS - 1 - math.floor(math.log10(abs(last - first) / 2.0 or spread)))
    rounded: list[float] = np.clip(values, low, high).tolist()
    return rounded


def privacy_of(fitted: FittedNetwork) -> str:
    """What synthetic rows of this run promise the people in its tables, a clause in one line."""
    return " ".join(_promised(fitted).split())


def _promised(fitted: FittedNetwork) -> str:
    if (told := fitted.result["privacy"]) is None:
        return "no privacy is promised: the run had no private plan"
    if told["guarantee"]:
        return f"{told['guarantee'].rstrip('.')}; drawing rows costs nothing more"
    return f"no privacy is promised: {'; '.join(told['no_guarantee_because'])}"


def write_table(fitted: FittedNetwork, n: int, seed: int, out: Path, *, plain: bool) -> dict[str, Any]:
    """Write n rows as CSV, after a first line with # that says what they are, and tell how near the rows are.

    `plain`: without this line. See `durable.write_file` for errors.
    """
    sums, squares, rows = np.zeros(fitted.network.n_columns), np.zeros((fitted.network.n_columns,) * 2), 0

    def write(binary: BinaryIO) -> None:
        nonlocal sums, squares, rows
        file = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        if not plain:
            file.write(f"# synthetic rows, copied from no table; seed {seed}; {privacy_of(fitted)}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(fitted.variables)
        for X in drawn(fitted, n, seed):
            writer.writerows(zip(*(cells(fitted, name, X) for name in fitted.variables), strict=True))
            deviations = X - fitted.means
            sums, squares, rows = sums + deviations.sum(axis=0), squares + deviations.T @ deviations, rows + len(X)
        file.flush()
        file.detach()

    durable.write_file(out, write)
    return compared(fitted, sums / rows, squares / rows)


def compared(fitted: FittedNetwork, shift: Matrix, moments: Matrix) -> dict[str, Any]:
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
