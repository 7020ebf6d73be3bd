"""Tags of records: what they cost, and how well they tell whether two tables hold the same records.

Pairs of tables are drawn from one random network; their columns are numbers, or are cut into levels. Disjoint ones have
other records of the same kind, so that whatever is found in them is a false alarm.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.record_tags import TAG_BYTES, overlap, record_tags
from fedbnsl_research.bench.worker_tables import tables_of_workers
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.tables.synthetic import synthesise

_ROWS = 10**6
_COLUMNS = 20
_TURNS = 3
_PAIRS = 200
_OF_TABLE = 1000
_KEY = bytes(32)

_KINDS: dict[str, tuple[int, int]] = {  # columns, and levels of each; 0: numbers
    "20 numbers": (20, 0),
    "20 columns of 3 levels": (20, 3),
    "10 columns of 2 levels": (10, 2),
    "4 columns of 2 levels": (4, 2),
}
_OTHERS: dict[str, Callable[[Matrix, Matrix], Matrix]] = {
    "other records (false alarms)": lambda mine, other: other,
    "100 records more": lambda mine, other: np.vstack([other[:100], mine]),
    "one record less": lambda mine, other: mine[1:],
    "a half": lambda mine, other: mine[::2],
    "a tenth, among others": lambda mine, other: np.vstack([mine[:100], other[100:]]),
}


def registration() -> Iterator[Row]:
    """Cost of the tags of a million records, pairs of tables told to share records, and a table that workers read."""
    X = np.random.default_rng(0).normal(size=(_ROWS, _COLUMNS))
    names = [f"x{k}" for k in range(_COLUMNS)]
    seconds: list[float] = []
    for _ in range(_TURNS):
        begun = time.perf_counter()
        record_tags(_KEY, names, X)
        seconds.append(time.perf_counter() - begun)
    yield {
        "figure": f"{_ROWS:,} records of {_COLUMNS} columns",
        "seconds": round(min(seconds), 2),
        "bytes kept in the ledger": _ROWS * TAG_BYTES,
    }
    for kind, (d, levels) in _KINDS.items():
        row: Row = {"figure": f"{kind}, {_OF_TABLE} records, {_PAIRS} pairs"}
        pairs = [_pair(d, levels, seed) for seed in range(_PAIRS)]
        for what, other_of in _OTHERS.items():
            found = sum(_share_records(mine, other_of(mine, other)) for mine, other in pairs)
            row[f"said to share records: {what}"] = found
        yield row
    yield from tables_of_workers()


def _pair(d: int, levels: int, seed: int) -> tuple[Matrix, Matrix]:
    tables = synthesise(d, float(d), 2, _OF_TABLE, seed).tables
    if not levels:
        return tables[0], tables[1]
    cuts = np.quantile(tables[0], np.arange(1, levels) / levels, axis=0)
    mine, other = (np.sum(X[None] > cuts[:, None], axis=0).astype(float) for X in tables)
    return mine, other


def _share_records(mine: Matrix, other: Matrix) -> bool:
    names = [f"x{k}" for k in range(mine.shape[1])]
    tags, theirs = record_tags(_KEY, names, mine), record_tags(_KEY, names, other)
    return max(overlap(tags, theirs), overlap(theirs, tags)) > 0.0
