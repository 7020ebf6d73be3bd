"""Columns of Arrow, from Parquet or a database, as codes: numbers, booleans, decimals and texts, by a site's readings.

Texts are looked at once for each distinct value. Needs pyarrow, which the extras `parquet` and `database` install.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.sparse import Index, Mask, Matrix
from fedbnsl_client.data.checks import Places, in_one_line
from fedbnsl_client.data.csv_table import no_numbers
from fedbnsl_client.data.reading import Reading

_SPELLINGS_OF_BOOLEANS = {True: ("true", "True", "1"), False: ("false", "False", "0")}


class Codes(NamedTuple):
    """A column of a batch.

    Attributes
    ----------
    values
        (n,) numbers in the dictionary's unit, or positions of levels; NaN where missing, or not readable.
    unreadable
        Positions of values that are neither a number nor a known level.
    """

    values: Matrix
    unreadable: Index


def codes_of(array: Any, reading: Reading) -> Codes:
    """The codes of an Arrow array. A null is a missing value; so is NaN."""
    arrow: Any = import_module("pyarrow")
    kinds: Any = import_module("pyarrow.types")
    if isinstance(array, arrow.ChunkedArray):
        array = array.combine_chunks()
    extended = isinstance(array, arrow.ExtensionArray)
    if extended:  # such as PostgreSQL's numeric: digits
        array = array.storage
    kind = array.type
    if kinds.is_dictionary(kind):
        few = codes_of(array.dictionary, reading)
        return _spread(array.indices, few)
    if kinds.is_null(kind):
        return Codes(np.full(len(array), np.nan), np.empty(0, dtype=np.int64))
    if kinds.is_binary(kind) and extended:  # an enumeration of PostgreSQL
        with suppress(arrow.ArrowInvalid):
            array, kind = array.cast("string"), arrow.string()
    if kinds.is_string_view(kind):
        array, kind = array.cast("large_string"), arrow.large_string()
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _of_texts(array, reading)
    if kinds.is_floating(kind) or kinds.is_integer(kind) or kinds.is_decimal(kind) or kinds.is_boolean(kind):
        return _of_levels(array, reading) if reading.codes else _of_numbers(array, reading)
    return Codes(np.full(len(array), np.nan), np.flatnonzero(_present(array)))


def codes_of_batches(
    batches: Iterable[Any],
    header: Sequence[str],
    chosen: Sequence[int],
    readings: Sequence[Reading],
    *,
    places: Sequence[int],
) -> Iterator[Matrix]:
    """(rows, V) codes of Arrow batches.

    Parameters
    ----------
    places
        V, where the chosen columns are in a batch.

    Raises
    ------
    DataError
        After the last batch, if a value was neither a number nor a known level: by column, count and first rows.
    """
    found = {what: {k: Places() for k in chosen} for what in ("not numbers", "none of its levels")}
    n = 0
    for batch in batches:
        codes = np.empty((batch.num_rows, len(chosen)))
        for v, (k, place, reading) in enumerate(zip(chosen, places, readings, strict=True)):
            codes[:, v], unreadable = codes_of(batch.column(place), reading)
            found["none of its levels" if reading.codes else "not numbers"][k].add((n + 1 + unreadable).tolist())
        n += len(codes)
        yield codes
    if problems := no_numbers(header, found, "data row"):
        raise DataError(in_one_line(problems))


def _present(array: Any) -> Mask:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=bool)


def _of_numbers(array: Any, reading: Reading) -> Codes:
    values: Matrix = array.cast("float64", safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    missing = [number for cell in reading.missing if math.isfinite(number := _number(cell))]
    codes = np.where(np.isin(values, missing), np.nan, values) if missing else values
    return Codes(codes if reading.factor == 1.0 else codes * reading.factor, np.empty(0, dtype=np.int64))


def _of_levels(array: Any, reading: Reading) -> Codes:
    """Numbers and booleans that stand for levels."""
    encoded = array.dictionary_encode()
    return _spread(encoded.indices, _of_each(encoded.dictionary.to_pylist(), reading))


def _of_texts(array: Any, reading: Reading) -> Codes:
    arrow: Any = import_module("pyarrow")
    compute: Any = import_module("pyarrow.compute")
    if not reading.codes:  # mostly numbers in digits, of which few are equal
        trimmed = compute.utf8_trim_whitespace(array)
        missing = compute.is_in(trimmed, value_set=arrow.array(sorted(reading.missing), type=array.type))
        numbers = compute.if_else(missing, arrow.scalar(None, type=array.type), trimmed)
        try:
            values: Matrix = compute.cast(numbers, "float64").to_numpy(zero_copy_only=False).astype(np.float64)
        except arrow.ArrowInvalid:  # some are no numbers, or are written otherwise
            pass
        else:
            return Codes(values * reading.factor, np.empty(0, dtype=np.int64))
    encoded = array.dictionary_encode()
    return _spread(encoded.indices, _of_each(encoded.dictionary.to_pylist(), reading))


def _of_each(values: Sequence[Any], reading: Reading) -> Codes:
    """The codes of distinct values, none of them null."""
    codes, unreadable = np.full(len(values), np.nan), list[int]()
    for k, value in enumerate(values):
        for spelling in _spellings(value):
            try:
                codes[k] = reading.code(spelling)
                break
            except ValueError:
                continue
        else:
            unreadable.append(k)
    return Codes(codes, np.array(unreadable, dtype=np.int64))


def _spellings(value: Any) -> tuple[str, ...]:
    """How a CSV file could hold a value."""
    if isinstance(value, bool):
        return _SPELLINGS_OF_BOOLEANS[value]
    return (value,) if isinstance(value, str) else (str(value), repr(float(value)))


def _spread(indices: Any, few: Codes) -> Codes:
    """The codes of rows that refer to distinct values by position; a null is missing."""
    present = _present(indices)
    places = indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not len(few.values):
        return Codes(np.full(len(places), np.nan), np.empty(0, dtype=np.int64))
    unreadable = np.isin(places, few.unreadable) & present
    return Codes(np.where(present, few.values[places], np.nan), np.flatnonzero(unreadable))


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
