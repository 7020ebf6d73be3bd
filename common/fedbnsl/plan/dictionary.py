"""The data dictionary: what each variable of a run is, in public terms that all sites share.

The consortium writes it once, in `dictionary.toml`, from public knowledge and never from the data. It is part of the
plan. A variable becomes one column of numbers, except a nominal one with K levels: K - 1 columns of zeros and ones,
one for each level but the first.

    [crp]
    kind = "continuous"
    unit = "mg/l"
    range = [0, 500]
    transform = "log1p"
    [blood_group]
    kind = "nominal"
    levels = ["0", "A", "B", "AB"]

Columns of kind "group" and "time" say which rows belong together (`plan.row_groups`), and are no variables; but a time
with `trend` is one, too, which nothing causes.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    StringConstraints,
    ValidationError,
    model_validator,
)

from fedbnsl.console.shown import shown, steers_terminal
from fedbnsl.errors import PlanError
from fedbnsl.files.toml_text import parse_toml
from fedbnsl.plan.knowledge import VariableName, usable_name
from fedbnsl.plan.limits import LARGEST_VALUE, LEAST_SPREAD
from fedbnsl.plan.privacy_settings import Real
from fedbnsl.plan.refusals import explain
from fedbnsl.plan.row_groups import BEFORE, FIXED, LAG, PRESENT, TREND, RowGroups, Within
from fedbnsl.protocol.messages import VARIABLE_NAME_RULE, is_variable_name
from fedbnsl.protocol.sparse import Mask, Matrix

Kind = Literal["continuous", "count", "binary", "ordinal", "nominal", "group", "time"]
Transform = Literal["none", "log", "log1p", "sqrt"]
Level = Annotated[str, StringConstraints(strip_whitespace=True), AfterValidator(usable_name)]


class Formula(NamedTuple):
    """What a transform computes, and what takes it back."""

    forth: Callable[[Matrix], Matrix]
    back: Callable[[Matrix], Matrix]
    least: float = -math.inf
    """What values must be above."""
    rule: str = "of any size"
    """The same in words."""


def _same(x: Matrix) -> Matrix:
    return x


TRANSFORMS: Mapping[Transform, Formula] = {
    "none": Formula(_same, _same),
    "log": Formula(np.log, np.exp, 0.0, "above 0"),
    "log1p": Formula(np.log1p, np.expm1, -1.0, "above -1"),
    "sqrt": Formula(np.sqrt, np.square, -math.ulp(0.0), "at least 0"),
}

# Settings that came later, see `Dictionary.content`.
_LATER = ("within", "lags", "fixed", "trend", "shape", "tier")

# Share of a range that a value may lie beyond it and count as its edge: factors between units, and single precision,
# round.
_ROUNDING = 1e-6


def _printable(text: str) -> str:
    if any(map(steers_terminal, text)):
        raise ValueError("a unit must not hold control or bidirectional characters")
    return text


class Column(NamedTuple):
    """One column of a table as a run uses it."""

    name: str
    """That of the variable; of a nominal one "variable=level"."""
    variable: str
    low: float
    """Least value after the transform; infinite where the dictionary has no range, as is `high`."""
    high: float


class Entry(BaseModel):
    """What the dictionary says of one variable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = Field(
        default="continuous",
        description="continuous, count, binary, ordinal or nominal; group and time are no variables: which rows "
        "belong together, and their order",
    )
    unit: Annotated[str, AfterValidator(_printable)] = Field(
        default="", max_length=100, description="unit that all sites use, shown to people"
    )
    range: tuple[Real, Real] | None = Field(
        default=None,
        description="smallest and largest possible value, from public knowledge; what is outside counts as missing",
    )
    transform: Transform | None = Field(
        default=None, description="applied after the range: none, log, log1p or sqrt; by default log1p for counts"
    )
    shape: Literal["auto", "linear", "curved"] = Field(
        default="auto",
        description="of continuous and count variables, where a plan looks for curves: whether effects from and to it "
        "are curves; auto: where the tables show some",
    )
    levels: tuple[Level, ...] = Field(
        default=(), description="of binary, ordinal (ascending) and nominal variables; the first is the reference"
    )
    tier: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        default=None,
        description="1: nothing in the table acts on it but others of tier 1, such as age, sex, place of birth; 2, 3, "
        "...: no variable of a later tier acts on it",
    )

    within: Within | None = Field(
        default=None,
        description="of a group: what its rows become: between (one record, the mean of each column; the default), "
        "within (deviations from the group's means), rows (as they are; the default with lags)",
    )
    lags: Annotated[int, Field(strict=True, ge=0, le=1)] = Field(
        default=0, description="of a time: 1 puts each variable one row before beside it, as a variable NAME@-1"
    )
    trend: bool = Field(
        default=False,
        description="of a time: it is a variable, too, which nothing causes, for what all groups do alike as time goes "
        "by; with a unit it is a number, without one a date or time, which counts in days",
    )
    fixed: bool = Field(
        default=False, description="the same in all rows of a group and known before the first: it has no lag"
    )

    @model_validator(mode="after")
    def _belongs(self) -> Self:
        if self.within is not None and self.kind != "group":
            raise ValueError(f"within: a {self.kind} column has none; it belongs to the one of kind 'group'")
        if self.lags and self.kind != "time":
            raise ValueError(f"lags: a {self.kind} column has none; they belong to the one of kind 'time'")
        if self.trend and self.kind != "time":
            raise ValueError(f"trend: a {self.kind} column has none; it belongs to the one of kind 'time'")
        if self.trend and (self.range or self.transform or self.levels or self.fixed or self.tier):
            raise ValueError("a time with a trend has no range, transform, levels, fixed or tier")
        if self.is_key and self.shape != "auto":
            raise ValueError(f"shape: a {self.kind} column has none")
        only = (self.unit, self.range, self.transform, self.levels, self.fixed, self.tier)
        if not self.is_variable and any(only):
            raise ValueError(
                f"a {self.kind} column is no variable, and has no unit, range, transform, levels, fixed or tier"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.is_key:
            return self
        measured, least = self.kind in ("continuous", "count"), {"nominal": 3}.get(self.kind, 2)
        if not measured and self.shape != "auto":
            raise ValueError(f"shape: a {self.kind} variable has none")
        if measured and self.levels:
            raise ValueError(f"levels: a {self.kind} variable has none")
        if not measured and (self.range is not None or self.transform is not None):
            raise ValueError(f"range and transform: a {self.kind} variable has levels instead")
        if not measured and (len(self.levels) < least or (self.kind == "binary" and len(self.levels) > 2)):
            wanted = "exactly 2" if self.kind == "binary" else f"at least {least}"
            raise ValueError(f"levels = {list(self.levels)}: a {self.kind} variable has {wanted}")
        if len(set(self.levels)) < len(self.levels):
            raise ValueError(f"levels = {list(self.levels)}: one is there twice")
        if self.range is not None:
            low, high = self.range
            if not low < high:
                raise ValueError(f"range = {list(self.range)}: the first number must be below the second")
            if self.kind == "count" and low < 0:
                raise ValueError(f"range = {list(self.range)}: counts are not below 0")
            if not low > self.formula.least:
                rule = self.formula.rule
                raise ValueError(f"range = {list(self.range)}: transform = '{self.applied}' needs values {rule}")
            first, last = self.formula.forth(np.array(self.range, dtype=np.float64)).tolist()
            if max(-first, last) > LARGEST_VALUE or last - first < LEAST_SPREAD:
                raise ValueError(
                    f"range = {list(self.range)}: a run takes numbers up to {LARGEST_VALUE:g}, and ranges from "
                    f"{LEAST_SPREAD:g} on; choose another unit, or the range that is possible"
                )
        return self

    @property
    def is_variable(self) -> bool:
        """Whether it is one of the run; otherwise its column only prepares the table, and never leaves the site."""
        return self.trend or not self.is_key

    @property
    def is_key(self) -> bool:
        """Whether its column tells which rows belong together, or orders them."""
        return self.kind in ("group", "time")

    @property
    def applied(self) -> Transform:
        """The transform, with the default of its kind."""
        return self.transform or ("log1p" if self.kind == "count" else "none")

    @property
    def measure(self) -> str:
        """What its column is measured in, such as `mg/l` or `log mg/l`; empty: the dictionary does not say."""
        return self.unit if self.applied == "none" else f"{self.applied} {self.unit}".rstrip()

    @property
    def formula(self) -> Formula:
        """What the transform computes, and of which values."""
        return TRANSFORMS[self.applied]

    @property
    def has_levels(self) -> bool:
        """Whether its cells are levels; otherwise numbers."""
        return bool(self.levels)

    @property
    def is_indicator(self) -> bool:
        """Whether its columns hold zeros and ones."""
        return self.kind in ("binary", "nominal")

    @property
    def n_columns(self) -> int:
        """How many columns it becomes."""
        return len(self.levels) - 1 if self.kind == "nominal" else 1

    def columns(self, name: str) -> tuple[Column, ...]:
        """Its columns, under the name of the variable."""
        if self.kind == "nominal":
            return tuple(Column(f"{name}={level}", name, 0.0, 1.0) for level in self.levels[1:])
        if self.levels:
            return (Column(name, name, 0.0, len(self.levels) - 1.0),)
        if self.range is None:
            return (Column(name, name, -math.inf, math.inf),)
        low, high = self.formula.forth(np.array(self.range, dtype=np.float64)).tolist()
        return (Column(name, name, low, high),)

    def outside(self, codes: Matrix) -> Mask:
        """(n,) which numbers are not in the range; a missing one is in none."""
        if self.range is None:
            return np.zeros(codes.shape, dtype=bool)
        low, high = self.range
        rounding = _ROUNDING * (high - low)
        return np.asarray((codes < low - rounding) | (codes > high + rounding))

    def values(self, codes: Matrix) -> Matrix:
        """(n, n_columns) values of the columns, from (n,) numbers in the dictionary's unit, or positions of levels.

        NaN where a value is missing or outside the range: what cannot be is not known. Moved to the edge, a few codes
        such as 999 would be the largest values of a table, and a row of them could make edges between all columns.
        """
        if self.kind == "nominal":
            indicators: Matrix = (codes[:, None] == np.arange(1, len(self.levels))).astype(np.float64)
            indicators[np.isnan(codes)] = np.nan
            return indicators
        if self.levels:
            return codes[:, None]
        if self.range is not None:
            codes = np.clip(np.where(self.outside(codes), np.nan, codes), *self.range)
        return self.formula.forth(codes)[:, None]


class Dictionary(RootModel[dict[VariableName, Entry]]):
    """What each variable is, by its name and in their order; empty: nothing is said, every column is a number.

    With lags, variables that are not fixed are there once more, one row before: `x@-1`.

    Examples
    --------
    >>> from fedbnsl import Dictionary
    >>> levels = {"kind": "nominal", "levels": ["A", "B", "0"]}
    >>> described = Dictionary.model_validate({"age": {"range": [0, 110], "unit": "years"}, "blood": levels})
    >>> [column.name for column in described.columns()]
    ['age', 'blood=B', 'blood=0']
    """

    model_config = ConfigDict(frozen=True)

    root: dict[VariableName, Entry] = Field(default_factory=dict[str, Entry])

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [column.name for column in self.columns()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if self.rows.lags:
            twice += [name + LAG for name in self.root if name + LAG in self.root]
        if twice:
            raise ValueError(f"two columns would be called {twice[0]!r}: rename a variable or a level")
        for name in names:
            if not is_variable_name(name):
                raise ValueError(f"{shown(name, 100)!r}: {VARIABLE_NAME_RULE}")
        for name in self.root:
            if name != name.strip():
                raise ValueError(f"{name!r}: a name must not begin or end with a space, which headers are read without")
        return self

    @model_validator(mode="after")
    def _rows_that_belong_together(self) -> Self:
        for kind in ("group", "time"):
            found = [name for name, entry in self.root.items() if entry.kind == kind]
            if len(found) > 1:
                raise ValueError(f"{found[0]!r} and {found[1]!r} are both of kind {kind!r}: a table has at most one")
        rows = self.rows
        given = self.root[rows.group].within if rows.group else None
        if rows.lags and given not in (None, "rows"):
            raise ValueError(
                f"{rows.group}.within = {given!r} does not go with lags: means and deviations have no row before; "
                "leave within out"
            )
        fixed = [name for name, entry in self.root.items() if entry.fixed]
        if rows.within == "within" and fixed:
            raise ValueError(
                f"{fixed[0]}.fixed: what is the same in all rows of a group has no deviations from its mean; with "
                "within = 'within', leave the variable out"
            )
        return self

    def __bool__(self) -> bool:
        return bool(self.root)

    def __hash__(self) -> int:
        return hash(self.digest())

    def __len__(self) -> int:
        return len(self._variables)

    def __getitem__(self, name: str) -> Entry:
        return self._variables[name]

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    @cached_property
    def _variables(self) -> dict[str, Entry]:
        """All variables of a run, those of the row before after the others."""
        present = {name: entry for name, entry in self.root.items() if entry.is_variable}
        if not self.rows.lags:
            return present
        return present | {name + LAG: entry for name, entry in present.items() if not (entry.fixed or entry.trend)}

    @cached_property
    def rows(self) -> RowGroups:
        """Which rows belong together, and what is made of them."""
        by_kind = {entry.kind: name for name, entry in self.root.items() if entry.is_key}
        group, time = by_kind.get("group", ""), by_kind.get("time", "")
        lags = self.root[time].lags if time else 0
        default: Within = "between" if group and not lags else "rows"
        return RowGroups(group, time, (self.root[group].within if group else None) or default, lags)

    @property
    def has_blocks(self) -> bool:
        """Whether a variable has more than one column."""
        return any(entry.n_columns > 1 for entry in self._variables.values())

    @property
    def variables(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self._variables)

    def items(self) -> Iterable[tuple[str, Entry]]:
        """Names and entries."""
        return self._variables.items()

    def of_run(self, variables: Sequence[str] = ()) -> tuple[str, ...]:
        """The variables of a run that names these, by default all: those of the row before come with them."""
        lagged = (name + LAG for name in variables)
        return tuple(dict.fromkeys([*variables, *(name for name in lagged if name in self)])) or self.variables

    def present(self, variables: Iterable[str]) -> tuple[str, ...]:
        """What these variables are called in the table: one of the row before as itself."""
        known = (name if name in self.root else name.removesuffix(LAG) for name in variables)
        return tuple(dict.fromkeys(name for name in known if name in self.root and self.root[name].is_variable))

    def slice_of(self, variable: str) -> int:
        """TREND, FIXED, BEFORE or PRESENT; the same for all but time without lags."""
        if variable in self and self[variable].trend:
            return TREND
        if not self.rows.lags or variable not in self:
            return PRESENT
        return FIXED if self[variable].fixed else PRESENT if variable in self.root else BEFORE

    @cached_property
    def tiers(self) -> Mapping[str, int]:
        """Of the variables that have one."""
        return {name: entry.tier for name, entry in self.items() if entry.tier is not None}

    def tier_of(self, variable: str) -> int:
        """Its tier; 0: none."""
        return self.tiers.get(variable, 0)

    def read(self, variables: Iterable[str]) -> tuple[str, ...]:
        """What is read of a table for these variables: they, as the table calls them, then keys that are none."""
        return tuple(dict.fromkeys((*self.present(variables), *self.rows.keys)))

    @property
    def has_slices(self) -> bool:
        """Whether variables belong to different slices of time."""
        return bool(self.rows.lags) or any(entry.trend for entry in self.root.values())

    def columns(self, variables: Sequence[str] = ()) -> tuple[Column, ...]:
        """The columns of a run of these variables, in their order; see `of_run`. PlanError if it lacks one of them."""
        unknown = [name for name in variables if name not in self]
        if unknown:
            raise PlanError(f"the data dictionary has no {', '.join(map(repr, unknown))}")
        return tuple(column for name in self.of_run(variables) for column in self[name].columns(name))

    def levels(self, variables: Iterable[str]) -> dict[str, list[str]]:
        """The levels of those of these variables that are one column of their positions: 0 for the first, then 1."""
        entries = {name: self[name] for name in variables if name in self}
        return {name: list(entry.levels) for name, entry in entries.items() if entry.levels and entry.n_columns == 1}

    def references(self, variables: Iterable[str]) -> dict[str, str]:
        """Of those of these variables that are nominal, the level that the others are compared with."""
        entries = {name: self.root[name] for name in variables if name in self.root}
        return {name: entry.levels[0] for name, entry in entries.items() if entry.kind == "nominal"}

    def without_range(self, variables: Sequence[str] = ()) -> list[str]:
        """Variables whose values have no public bounds."""
        return [column.variable for column in self.columns(variables) if not math.isfinite(column.low)]

    def over(self, variables: Sequence[str]) -> Self:
        """The dictionary of these variables alone, in their order; which rows belong together stays."""
        present, read = self.present(variables), self.read(variables)
        keys = {name: self.root[name].model_copy(update={"trend": False}) for name in read if name not in present}
        return type(self)({name: self.root[name] for name in present} | keys)

    def digest(self) -> str:
        """SHA-256 of its content in hexadecimal digits, the same for every order of its variables."""
        canonical = json.dumps(self.content(), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def content(self) -> dict[str, dict[str, Any]]:
        """What digests are made of: all settings but later ones at their defaults.

        Approvals and checkpoints of earlier versions hold digests without these.
        """
        defaults = {key: Entry.model_fields[key].default for key in _LATER}
        return {
            name: {key: value for key, value in entry.items() if key not in defaults or value != defaults[key]}
            for name, entry in self.model_dump(mode="json").items()
        }

    @classmethod
    def load(cls, path: Path) -> Self:
        """The dictionary in a TOML file; PlanError if it cannot be read or used, by variable."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        return cls.parse(text, origin=str(path))

    @classmethod
    def parse(cls, text: str, *, origin: str) -> Self:
        """A dictionary from TOML text; see `load`."""
        try:
            content = parse_toml(text)
        except ValueError as error:
            raise PlanError(f"{origin} is not valid TOML: {error}") from None
        return cls.from_plain(content, origin=origin)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any], *, origin: str) -> Self:
        """A dictionary from plain values, by variable; see `load`."""
        try:
            found = cls.model_validate(content)
        except ValidationError as error:
            raise PlanError(
                "\n".join([f"{origin} cannot be used:", *explain(error, Entry)]),
                remedy="Correct the named entry of the data dictionary and start again.",
            ) from None
        if len(found) < 2:
            raise PlanError(f"{origin}: {len(found)} variable(s); a network needs at least two, each with a [table]")
        return found
