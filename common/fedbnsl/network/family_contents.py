"""Families as JSON has them: the name of the family, and its numbers by the names of their fields."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from fedbnsl.network.families import Bend, Count, Family, Grade, Levels, Number, Table
from fedbnsl.plan.limits import LARGEST_SQUARE
from fedbnsl.protocol.sparse import Index, Matrix

_Content = Mapping[str, Any]

_LARGEST_SIZE = 1e8  # of a count: what a larger one would change is lost in rounding, and Poisson's has none

HOW = {
    "columns": "families speak of columns by their places from 0: of a number its value after the dictionary's "
    "transform; of an ordinal variable the position of its level from 0; of a level of a nominal or binary variable 1 "
    "where it has it, else 0",
    "location": "intercept + weight * column over `lines` + what each of `bends` adds at its parent, a straight line "
    "between its points that goes on beyond them",
    "number": "normal with mean location and standard deviation noise_std; with a range, that distribution within low "
    "and high (truncated); null is no end",
    "count": "negative binomial with mean rate and variance rate + rate^2 / size (null: Poisson), where rate is "
    "exp(location), or without by_rates the count whose transform the location is; counts beyond low and high count "
    "there",
    "grade": "a level up to k has the probability 1 / (1 + exp((location - cuts[k]) / scale))",
    "levels": "of each level but the first, the logarithm of its odds against the first: intercept + weight * column "
    "over `parents`; without by_odds its probability, cut at 0.001 and 0.999, the first has the rest, at least 0.001, "
    "and all are divided by their sum",
    "table": "probabilities of the levels, by combinations of levels of the parents, nested in the order of of_parents "
    "(their columns, and how many levels they have)",
}
"""How to read families, for people who write a program that does."""


def content_of(family: Family) -> dict[str, Any]:
    """JSON-ready; null for a number that is infinite."""
    kind = next(name for name, (of, _) in _FAMILIES.items() if isinstance(family, of))
    return {"family": kind, **_fields(family)}


def family_of(content: _Content, n_columns: int) -> Family:
    """Raises KeyError, TypeError or ValueError if the content is not that of a family over so many columns."""
    if (kind := content["family"]) not in _FAMILIES:
        raise ValueError(f"no family {kind!r}")
    found = _FAMILIES[kind][1](content)
    for columns in (found.columns, found.parents):
        if columns.size and not 0 <= columns.min() <= columns.max() < n_columns:
            raise ValueError("a column that is not there")
    return found


def _fields(one: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(one, field.name)) for field in dataclasses.fields(one)}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Bend):
        return {name: _plain(of) for name, of in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in cast(tuple[object, ...], value)]
    return value


def _number(content: _Content) -> Number:
    low, high = _range(content)
    return Number(*_sum(content), _above_zero(content["noise_std"]), low, high, bends=_bends(content))


def _count(content: _Content) -> Count:
    size = math.inf if content["size"] is None else _above_zero(content["size"], most=_LARGEST_SIZE)
    low, high = _range(content)
    by_rates = bool(content["by_rates"])
    return Count(*_sum(content), content["transform"], by_rates, size, low, high, bends=_bends(content))


def _grade(content: _Content) -> Grade:
    cuts = _matrix(content["cuts"], 1)
    if not (np.diff(cuts) >= 0.0).all():
        raise ValueError("cuts between grades that do not ascend")
    return Grade(*_sum(content), cuts, _above_zero(content["scale"]), bends=_bends(content))


def _levels(content: _Content) -> Levels:
    columns, parents, intercepts = _index(content["columns"]), _index(content["parents"]), content["intercepts"]
    weights = _matrix(content["weights"], 2).reshape(len(parents), len(columns))
    return Levels(columns, parents, weights, _matrix(intercepts, 1), bool(content["by_odds"]))


def _table(content: _Content) -> Table:
    of_parents = tuple((_index(columns), int(n)) for columns, n in content["of_parents"])
    n_levels = int(content["n_levels"])
    table = _matrix(content["table"], len(of_parents) + 1).reshape(*(n for _, n in of_parents), n_levels)
    if not ((table >= 0.0).all() and np.allclose(table.sum(axis=-1), 1.0)):
        raise ValueError("probabilities of levels that do not add up to 1")
    return Table(_index(content["columns"]), n_levels, of_parents, table)


def _sum(content: _Content) -> tuple[int, Index, Matrix, float]:
    lines, weights = _index(content["lines"]), _matrix(content["weights"], 1)
    if len(lines) != len(weights):
        raise ValueError("as many weights as lines")
    return int(content["column"]), lines, weights, _real(content["intercept"])


def _bends(content: _Content) -> tuple[Bend, ...]:
    found = tuple(Bend(int(one["parent"]), _matrix(one["at"], 1), _matrix(one["adds"], 1)) for one in content["bends"])
    for bend in found:
        if len(bend.at) != len(bend.adds) or len(bend.at) < 2 or not (np.diff(bend.at) >= 1.0 / LARGEST_SQUARE).all():
            raise ValueError("points of a curve that do not ascend, or not a number for each")
    return found


def _range(content: _Content) -> tuple[float, float]:
    low, high = (none if content[end] is None else _real(content[end]) for end, none in _NO_ENDS.items())
    if low > high:
        raise ValueError("a range that ends before it begins")
    return low, high


_NO_ENDS = {"low": -math.inf, "high": math.inf}


def _real(number: Any) -> float:
    return float(_matrix(number, 0))


def _above_zero(number: Any, most: float = LARGEST_SQUARE) -> float:
    found = _real(number)
    if not 1.0 / LARGEST_SQUARE <= found <= most:
        raise ValueError(f"{found:g}, where a number above 0 and up to {most:g} is expected")
    return found


def _index(numbers: Any) -> Index:
    found = np.array(numbers, dtype=np.int64)
    return found.reshape(0) if not found.size else found


def _matrix(numbers: Any, n_axes: int) -> Matrix:
    found = np.array(numbers, dtype=np.float64)
    if found.size and found.ndim != n_axes:
        raise ValueError(f"{found.ndim} axes; expected {n_axes}")
    # With values of a table up to 1e15, no square and no sum over rows overflows then.
    if not (np.abs(found) <= LARGEST_SQUARE).all():
        raise ValueError(f"no number, or one beyond {LARGEST_SQUARE:g}")
    return found


_FAMILIES: Mapping[str, tuple[type[Any], Callable[[_Content], Family]]] = {
    "number": (Number, _number),
    "count": (Count, _count),
    "grade": (Grade, _grade),
    "levels": (Levels, _levels),
    "table": (Table, _table),
}
