"""Numbers that look like codes of a missing value, such as 999: drafts and readings ask about them by one rule."""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

import numpy as np

from fedbnsl.plan.dictionary import TRANSFORMS, Transform
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.mapped_array import row_blocks

CODES_OF_MISSING = frozenset(
    sign * float(digit * length) for digit in "789" for length in (1, 2, 3, 4, 5) for sign in (1, -1)
) | {-1.0}
_OFTEN = 3  # times as many cells as any other number has
_MOST_DISTINCT = 2**17


def suspected_codes(values: Matrix, counts: Index) -> Iterator[tuple[float, str]]:
    """The smallest and the largest number where it looks like a code, and how: far from all others, or too frequent.

    A lone 0 far below all others is suspected, too.

    `values, counts`: (k,) distinct numbers, ascending, and how many cells hold each.
    """
    if len(values) < 3:
        return
    for value, n, rest, others in (
        (values[0], counts[0], values[1:], counts[1:]),
        (values[-1], counts[-1], values[:-1], counts[:-1]),
    ):
        gap, spread = min(abs(value - rest[0]), abs(value - rest[-1])), rest[-1] - rest[0]
        step = np.diff(rest).max()
        is_sign = value == -1.0 and rest[-1] == 1.0  # -1, 0 and 1 are less, equal and more
        is_code = value in CODES_OF_MISSING and (gap > max(spread / 2, step) or (value < 0 <= rest[0] and not is_sign))
        if is_code or (value == 0.0 < rest[0] and gap > max(spread / 5, step)):
            yield float(value), f"{n:,} cell(s) are {value:g}, far from all others"
        elif value in CODES_OF_MISSING and abs(value) > 9 and n > _OFTEN * others.max():
            yield float(value), f"{n:,} cell(s) are {value:g}, far more than any other number"


def columns_with_codes(
    names: Sequence[str], X: Matrix, transforms: Mapping[int, Transform]
) -> Iterator[tuple[int, str]]:
    """Ask of the columns of numbers whether some stand for a missing value; with each question its column.

    Parameters
    ----------
    names
        d names.
    X
        (n, d) values, NaN where one is missing.
    transforms
        By position, how the numbers of a column became its values.
    """
    if not len(X):
        return
    low = reduce(np.fmin, (np.fmin.reduce(block, axis=0) for block in row_blocks(X)))
    high = reduce(np.fmax, (np.fmax.reduce(block, axis=0) for block in row_blocks(X)))
    for k, transform in transforms.items():
        ends = _as_written(np.array([low[k], high[k]]), transform)
        if ends[0] != 0.0 and CODES_OF_MISSING.isdisjoint(ends.tolist()):
            continue
        values, counts = np.empty(0), np.empty(0, dtype=np.int64)
        for block in row_blocks(X):
            more, times = np.unique(_as_written(_present(block[:, k]), transform), return_counts=True)
            values, place = np.unique(np.concatenate([values, more]), return_inverse=True)
            counts = np.bincount(place, weights=np.concatenate([counts, times])).astype(np.int64)
            if len(values) > _MOST_DISTINCT:
                break
        else:
            for _, said in suspected_codes(values, counts):
                # The code book decides, not the values: under privacy, a choice made by values would be a release.
                text = f"column {names[k]!r}: {said}: does the code book say that it stands for a missing value?"
                yield k, f"{text} Then write missing = [...] in columns.toml"


def _present(column: Matrix) -> Matrix:
    return column[~np.isnan(column)]


def _as_written(values: Matrix, transform: Transform) -> Matrix:
    """Numbers before a transform, without the rounding of going there and back."""
    return values if transform == "none" else np.round(TRANSFORMS[transform].back(values), 6)
