"""Columns of Arrow tables as codes: what Parquet files, databases and large CSV files are read through."""

from importlib import import_module
from typing import Any

import numpy as np

from fedbnsl.sparse import Mask, Matrix
from fedbnsl_client.data.reading import Reading


def codes_of(column: Any, reading: Reading) -> tuple[Matrix, Mask]:
    """(n,) codes of an Arrow array, NaN where a value is missing, and (n,) whether a cell cannot be read."""
    if holds_numbers(column.type) and not reading.codes:
        numbers: Matrix = np.array(column.cast("float64", safe=False).to_numpy(zero_copy_only=False))
        if reading.missing_numbers:
            numbers[np.isin(numbers, list(reading.missing_numbers))] = np.nan
        return numbers * reading.factor, np.zeros(len(numbers), dtype=bool)
    arrow: Any = import_module("pyarrow")
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


def holds_numbers(kind: Any) -> bool:
    """Whether an Arrow type is one of numbers, truth values among them."""
    types: Any = import_module("pyarrow.types")
    return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind) or types.is_boolean(kind))
