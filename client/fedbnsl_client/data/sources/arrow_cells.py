"""Columns of Arrow tables as codes: what Parquet files and databases are read through.

Texts are looked at once for each distinct one, unless they are numbers in digits, as PostgreSQL's numeric is.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.cell_problems import CellProblems
from fedbnsl_client.data.reading import Reading


def codes_of(column: Any, reading: Reading) -> tuple[Matrix, Mask]:
    """(n,) codes of an Arrow array, NaN where a value is missing, and (n,) whether a cell cannot be read."""
    arrow: Any = import_module("pyarrow")
    column = _plain(column)
    if reading.takes_numbers:
        if holds_numbers(column.type):
            return _of_numbers(column, reading)
        if arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type):
            with suppress(arrow.ArrowInvalid):  # some are no numbers, or are written in another way
                return _of_numbers(_digits(column, reading), reading)
    missing: Mask = column.is_null().to_numpy(zero_copy_only=False)
    try:
        encoded = column if isinstance(column, arrow.DictionaryArray) else column.dictionary_encode()
    except arrow.ArrowException:  # lists and the like
        return np.full(len(missing), np.nan), ~missing
    codes, known = np.full(len(encoded.dictionary) + 1, np.nan), np.ones(len(encoded.dictionary) + 1, dtype=bool)
    for place, cell in enumerate(encoded.dictionary.to_pylist()):
        try:
            codes[place] = reading.value(cell)
        except ValueError:
            known[place] = False
    # The last place is that of a missing value.
    places = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes[places], ~known[places]


def codes_of_batches(
    batches: Iterable[Any],
    found: CellProblems,
    chosen: Sequence[int],
    readings: Sequence[Reading],
    *,
    quoting: bool = True,
) -> Iterator[Matrix]:
    """(rows, V) codes of Arrow batches.

    Parameters
    ----------
    batches
        Each with the V columns in their order.
    found
        Takes note of cells that cannot be read; the caller looks at it after the last batch.
    chosen
        V positions in the header.
    quoting
        Whether cells that are no level may be quoted.
    """
    n = 0
    for batch in batches:
        codes = np.empty((batch.num_rows, len(chosen)))
        for place, (k, reading) in enumerate(zip(chosen, readings, strict=True)):
            column = batch.column(place)
            codes[:, place], bad = codes_of(column, reading)
            if bad.any():
                where = np.flatnonzero(bad)
                cells = column.take(where).to_pylist() if quoting else ()
                found.add(k, reading, (n + 1 + where).tolist(), cells)
        n += len(codes)
        yield codes


def holds_numbers(kind: Any) -> bool:
    """Whether an Arrow type is one of numbers, truth values among them."""
    types: Any = import_module("pyarrow.types")
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind) or types.is_boolean(kind))


def _plain(column: Any) -> Any:
    """The same cells in one array of a type that Arrow can calculate with."""
    arrow: Any = import_module("pyarrow")
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, arrow.ExtensionArray):
        column = column.storage  # of PostgreSQL's numeric: digits; of an enumeration: the bytes of its text
        if arrow.types.is_binary(column.type):
            with suppress(arrow.ArrowInvalid):
                column = column.cast("string")
    return column.cast("large_string") if arrow.types.is_string_view(column.type) else column


def _of_numbers(column: Any, reading: Reading) -> tuple[Matrix, Mask]:
    numbers: Matrix = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
    return reading.of_numbers(numbers), np.zeros(len(numbers), dtype=bool)


def _digits(column: Any, reading: Reading) -> Any:
    """Texts without the spaces around them; null where they stand for a missing value."""
    arrow: Any = import_module("pyarrow")
    compute: Any = import_module("pyarrow.compute")
    trimmed = compute.utf8_trim_whitespace(column)
    missing = compute.is_in(trimmed, value_set=arrow.array(sorted(reading.missing), type=column.type))
    return compute.if_else(missing, arrow.scalar(None, type=column.type), trimmed)
