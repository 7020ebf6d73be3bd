"""A learned network that answers by itself: families with numbers, and what its columns are in a table.

    {"schema": "fedbnsl.network/1", "columns": [...], "dictionary": {...}, "families": {"age": {"family": "number"}}}

A run writes it as network.json, for whoever predicts without the rest of the run's folder, such as a site.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import ValidationError

from fedbnsl.console.wording import first_few
from fedbnsl.errors import PlanError, ResultError, SetupError
from fedbnsl.network import NETWORK
from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Family, Grade, Levels, Table, coded, positions
from fedbnsl.network.family_contents import HOW, content_of, family_of
from fedbnsl.network.own_means import with_own_mean
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Dictionary, Entry
from fedbnsl.plan.limits import LARGEST_SQUARE
from fedbnsl.protocol.sparse import Index, Matrix

SCHEMA = "fedbnsl.network/1"

_DIGITS = 3  # of a standard deviation
_LEAST_ROWS = 30  # for a mean of their own
_LARGEST_COUNT = 2.0**53


@dataclass(frozen=True, eq=False)
class FittedNetwork:
    """A network, and what its columns mean.

    Attributes
    ----------
    means, spread
        (d,) of the columns; NaN of those without families.
    levels
        By variable with levels, in the order of their positions.
    left_out
        Variables of the run that the network says nothing about, and why.
    doubts
        What says against the network, and what no interval of it counts.
    privacy
        What drawn rows promise the people in the tables, a clause.
    """

    network: BayesianNetwork
    columns: Columns
    dictionary: Dictionary
    means: Matrix
    spread: Matrix
    levels: Mapping[str, Sequence[str]]
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    doubts: Sequence[str] = ()
    privacy: str = ""

    def rough(self, names: Iterable[str]) -> list[str]:
        """What is rough about the families of these variables, a clause each."""
        grades = [
            name for name in names if isinstance(family := self.network.families[name], Grade) and family.n_levels > 3
        ]
        return [
            f"of {name!r} the run tells mean and spread: how they share out over its levels is rough" for name in grades
        ]

    def entry(self, name: str) -> Entry:
        """What the dictionary says of a variable; a plain number where it says nothing."""
        return self.dictionary[name] if name in self.dictionary else Entry()

    def members(self, name: str) -> Index:
        """The columns of a variable."""
        return self._members[name]

    @cached_property
    def _members(self) -> dict[str, Index]:
        return dict(zip(self.columns.variables, self.columns.members(), strict=True))

    def centre(self, name: str) -> float:
        """The mean of the first column of a variable."""
        return float(self.means[self.members(name)[0]])

    @property
    def variables(self) -> list[str]:
        """Those that have families, in the order of the run."""
        return [name for name in self.columns.variables if name in self.network.families]

    def require(self, name: str) -> None:
        """Raise SetupError for a name of no variable of the network."""
        if name in self.network.families:
            return
        if name in self.left_out:
            raise SetupError(f"nothing is known of {name!r}: {self.left_out[name]}")
        raise SetupError(f"{name!r} is not a variable of the network, which has {first_few(map(repr, self.variables))}")

    def coded(self, name: str, text: str) -> list[float]:
        """The values of a variable's columns, from a level or a number in the dictionary's unit.

        Raises
        ------
        SetupError
            If the network has no such variable, or the variable no such value.
        """
        self.require(name)
        entry, own = self.entry(name), self.members(name)
        if name in self.levels:
            if text not in self.levels[name]:
                has = first_few(map(repr, self.levels[name]))
                raise SetupError(f"{text!r} is no level of {name!r}, which has {has}")
            at = np.array([self.levels[name].index(text)])
            return list(map(float, coded(at, len(own), len(self.levels[name]))[0]))
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        unit = f" in {entry.unit}" if entry.unit else ""
        if not math.isfinite(number):
            raise SetupError(f"{name} = {text!r}: expected a number{unit}")
        low, high = entry.range or (-math.inf, math.inf)
        if not low <= number <= high:
            raise SetupError(f"{name} = {text}: the data dictionary has values from {low:g} to {high:g}")
        if entry.kind == "count" and (number < 0.0 or number != round(number)):
            raise SetupError(f"{name} = {text}: expected a count: 0, 1, 2, ...")
        if not number > entry.formula.least:
            raise SetupError(f"{name} = {text}: values must be {entry.formula.rule}")
        return [float(entry.formula.forth(np.array([number]))[0])]

    def cells(self, name: str, X: Matrix) -> list[Any]:
        """(n,) values of a variable as a table has them: names of levels, or numbers before the transform."""
        own, entry = self.members(name), self.entry(name)
        if name in self.levels:
            levels = self.levels[name]
            return [levels[k] for k in positions(X, own, len(levels)).tolist()]
        values = entry.formula.back(X[:, own[0]])
        low, high = (-math.inf, math.inf) if entry.range is None else entry.range
        if entry.kind == "count":
            whole: list[int] = (
                np.clip(np.rint(values), max(low, 0.0), min(high, _LARGEST_COUNT)).astype(np.int64).tolist()
            )
            return whole
        mean, spread = float(self.means[own[0]]), float(self.spread[own[0]])
        if entry.applied == "log":  # all are above 0, and differ by factors
            digits = max(_DIGITS - math.floor(math.log10(spread)), _DIGITS)
            values = np.array([float(f"{one:.{digits}g}") for one in values.tolist()])
        else:
            first, last = entry.formula.back(np.array([mean - spread, mean + spread])).tolist()
            values = np.round(values, _DIGITS - 1 - math.floor(math.log10(abs(last - first) / 2.0 or spread)))
        rounded: list[float] = np.clip(values, low, high).tolist()
        return rounded

    def with_own_means(self, X: Matrix) -> tuple[Self, list[str]]:
        """The network where (n, d) rows are from, with gaps as NaN, and variables of which too few rows tell a mean."""
        families, means, without = dict(self.network.families), self.means.copy(), list[str]()
        for name, family in self.network.families.items():
            rows = X[~np.isnan(X[:, np.append(family.columns, family.parents)]).any(axis=1)]
            if len(rows) < _LEAST_ROWS:
                without.append(name)
                continue
            families[name] = with_own_mean(family, rows)
            means[family.columns] = rows[:, family.columns].mean(axis=0)
        return replace(self, network=BayesianNetwork(self.network.n_columns, families), means=means), without

    def to_json(self) -> str:
        """The network as network.json has it."""
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "how": HOW,
            "privacy": self.privacy,
            "doubts": list(self.doubts),
            "columns": [
                {"name": name, "variable": self.columns.variables[v], "mean": mean, "spread": spread}
                for name, v, mean, spread in zip(
                    self.columns.names,
                    self.columns.variable_of.tolist(),
                    _or_none(self.means),
                    _or_none(self.spread),
                    strict=True,
                )
            ],
            "dictionary": self.dictionary.content(),
            "levels": {name: list(levels) for name, levels in self.levels.items()},
            "left_out": dict(self.left_out),
            "families": {name: content_of(family) for name, family in self.network.families.items()},
        }
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ResultError if the text is not that of a network."""
        try:
            content = json.loads(text)
            if content["schema"] != SCHEMA:
                raise ResultError(f"a network of the format {content['schema']!r}; expected {SCHEMA!r}")
            told = content["columns"]
            columns = Columns.of([one["name"] for one in told], {one["name"]: one["variable"] for one in told})
            families = {name: _family(name, one, len(told)) for name, one in content["families"].items()}
            found = cls(
                BayesianNetwork(len(told), families),
                columns,
                Dictionary.model_validate(content["dictionary"]),
                _numbers(told, "mean"),
                _numbers(told, "spread"),
                {str(name): list(map(str, levels)) for name, levels in content["levels"].items()},
                {str(name): str(why) for name, why in content["left_out"].items()},
                list(map(str, content["doubts"])),
                str(content["privacy"]),
            )
            found._require_whole()
        except (
            *(KeyError, TypeError, ValueError, IndexError, AttributeError, ValidationError, PlanError),
            *(OverflowError, RecursionError, MemoryError),  # numbers, depths and sizes that no network has
        ) as error:
            raise ResultError(f"this is not the text of a learned network as it was written{_why(error)}") from None
        return found

    def _require_whole(self) -> None:
        """Raise ValueError if a family stands before its parents, has other columns than its variable, or no draw."""
        known: set[int] = set()
        for name, family in self.network.families.items():
            if family.columns.tolist() != self.members(name).tolist():
                raise ValueError(f"{name!r} has columns of another variable")
            if not known.issuperset(family.parents.tolist()):
                raise ValueError(f"{name!r} has a parent that does not stand before it")
            known.update(family.columns.tolist())
            if len(self.levels.get(name, ())) != (family.n_levels if isinstance(family, Grade | Levels | Table) else 0):
                raise ValueError(f"levels of {name!r}")
            numbers = self.means[family.columns], self.spread[family.columns]
            if not (np.abs(numbers) <= LARGEST_SQUARE).all():
                raise ValueError(f"mean or spread of {name!r}")
        X = np.zeros((2, self.network.n_columns))
        with np.errstate(all="ignore"):
            for family in self.network.families.values():
                X[:, family.columns] = family.mean(X)
            densities = [family.log_density(X) for family in self.network.families.values()]
        if not (np.isfinite(X).all() and np.isfinite(densities).all()):
            raise ValueError("numbers of families")


def _family(name: str, content: Mapping[str, Any], n_columns: int) -> Family:
    try:
        return family_of(content, n_columns)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"family of {name!r}{_why(error)}") from None


def _why(error: Exception) -> str:
    """What is wrong with a text, as the end of a sentence; empty if the error does not say it in words."""
    if isinstance(error, ValidationError):  # of the dictionary
        first = error.errors()[0]
        return f": dictionary.{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, KeyError):
        return f": {error} is not there"
    return f": {error}" if isinstance(error, ValueError | PlanError) else ""


def _or_none(numbers: Matrix) -> list[float | None]:
    found: list[float] = numbers.tolist()
    return [one if math.isfinite(one) else None for one in found]


def _numbers(columns: Sequence[Mapping[str, Any]], key: str) -> Matrix:
    return np.array([math.nan if one[key] is None else float(one[key]) for one in columns], dtype=np.float64)


def read_fitted_network(path: Path) -> FittedNetwork:
    """The network of a file, or of the folder that has one as network.json.

    Raises
    ------
    ResultError
        If there is none, or it is damaged.
    """
    path = path / NETWORK if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultError(
            f"{path} cannot be read: {error}",
            remedy=f"{NETWORK} lies in the folder of a run that tells the means of its columns (tell_means): copy it "
            "from there.",
        ) from None
    try:
        return FittedNetwork.from_json(text)
    except ResultError as error:
        raise ResultError(f"{path}: {error}", remedy="Copy it again from the folder of the run.") from None
