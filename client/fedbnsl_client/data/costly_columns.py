"""Which columns to leave out so that enough rows are without a missing value."""

import math

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.data.mapped_array import row_blocks

_MOST_LEFT_OUT = 8  # beyond, a list of variables to leave out is no advice


def costly_columns(lacking: Mask, counts: Index, needed: float) -> list[int]:
    """Positions of few columns without which at least `needed` rows are complete, the costliest first.

    Found greedily, so that there may be fewer: the column that most incomplete rows lack goes first, and one that turns
    out not to be needed comes back.

    Parameters
    ----------
    lacking
        (p, V) which values are missing, one row for each pattern that occurs.
    counts
        (p,) how many rows of the table have each pattern.
    """
    kept, out = np.ones(lacking.shape[1], dtype=bool), list[int]()

    def complete() -> int:
        return int(counts[~lacking[:, kept].any(axis=1)].sum())

    while complete() < needed:
        costs = np.where(kept, counts @ lacking, 0)
        if not costs.any():
            break
        out.append(int(costs.argmax()))
        kept[out[-1]] = False
    for k in out.copy():
        before = complete()
        kept[k] = True
        if complete() < min(needed, before):
            kept[k] = False
        else:
            out.remove(k)
    return out


def patterns(lacking: Mask) -> tuple[Mask, Index]:
    """The (p, V) distinct rows of (n, V) flags, and how often each occurs."""
    packed = np.packbits(lacking, axis=1)
    found, counts = np.unique(packed, axis=0, return_counts=True)
    flags = np.unpackbits(found, axis=1, count=lacking.shape[1]).astype(bool)
    return flags, np.asarray(counts, dtype=np.int64)


def advice(X: Matrix, columns: Columns, needed: float) -> str:
    """In words, which variables of an (n, d) table to leave out so that at least `needed` rows are complete."""
    missing = np.concatenate([np.isnan(block) for block in row_blocks(X)])
    of_variable = [missing[:, columns.variable_of == v].any(axis=1) for v in range(len(columns.variables))]
    lacking, counts = patterns(np.column_stack(of_variable))
    out = costly_columns(lacking, counts, needed)
    kept = np.ones(len(of_variable), dtype=bool)
    kept[out] = False
    complete, by_variable = int(counts[~lacking[:, kept].any(axis=1)].sum()), counts @ lacking
    names = first_few(f"{columns.variables[k]!r} (missing in {int(by_variable[k])})" for k in out)
    if len(out) > _MOST_LEFT_OUT:
        return (
            f"missing values are spread over many variables: {len(out)} of the {len(of_variable)} variables would have "
            f"to be left out for {math.ceil(needed)} rows to be complete, first {names}. Choose the variables that the "
            "question needs, the same at all sites"
        )
    return f"without {names}, {complete} rows are complete: leave them out, at all sites"
