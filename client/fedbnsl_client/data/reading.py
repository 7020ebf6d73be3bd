"""How a site's cells become the numbers of the data dictionary: column names, units, spellings and missing values.

What differs at a site is in its `columns.toml`, which stays there:

    missing = ["*", "?"]              # in every column, beside the empty cell, NA and NaN
    [age]
    column = "Alter"                  # its name here
    factor = 12.0                     # unit here times this = the dictionary's unit
    missing = ["-9", "unknown"]       # in this column
    [sex]
    levels = { f = "weiblich", m = "maennlich" }   # spellings here; several: f = ["w", "weiblich"]
    [crp]
    absent = true                     # the table has no such column: a gap in every row
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from numbers import Real as RealNumber
from pathlib import Path
from typing import Annotated, Any, Self, cast

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedbnsl.console.shown import shown
from fedbnsl.errors import DataError
from fedbnsl.files.toml_text import in_toml_words, parse_toml
from fedbnsl.plan.dictionary import Dictionary, Entry
from fedbnsl.plan.knowledge import VariableName
from fedbnsl.plan.privacy_settings import Real
from fedbnsl.protocol.messages import composed
from fedbnsl.protocol.sparse import Matrix

MISSING = frozenset({"", "NA", "NaN", "nan"})
"""Cells, without the spaces around them, that stand for a missing value in every column."""

Spelling = Annotated[str, AfterValidator(lambda text: composed(text.strip()))]


class SiteColumn(BaseModel):
    """What a site's `columns.toml` says of one variable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    absent: bool = Field(
        default=False,
        description="true: the table does not have this variable, which counts as missing in every row; of kind group: "
        "each row here is one group",
    )
    column: str = Field(default="", description="name of the column here; empty: that of the variable")
    factor: Annotated[Real, Field(gt=0)] = Field(
        default=1.0, description="a value here times this is in the dictionary's unit"
    )
    missing: tuple[Spelling, ...] = Field(default=(), description="further cells that stand for a missing value")
    levels: dict[Spelling, Spelling | tuple[Spelling, ...]] = Field(
        default_factory=dict[str, str | tuple[str, ...]], description="the dictionary's level -> how it is written here"
    )
    format: str = Field(
        default="", description="of a time: how it is written here, as in '%d.%m.%Y'; empty: ISO 8601, or a number"
    )

    @model_validator(mode="after")
    def _nothing_of_an_absent_column(self) -> Self:
        if self.absent and self.model_copy(update={"absent": False}) != SiteColumn():
            raise ValueError(
                "absent = true stands alone: a variable that is not there has no column, unit or spellings"
            )
        return self


class ColumnMap(BaseModel):
    """A site's `columns.toml`; empty: nothing differs from the dictionary.

    Attributes
    ----------
    missing
        Cells that stand for a missing value in every column.
    root
        By variable, what differs.
    """

    model_config = ConfigDict(frozen=True)

    missing: tuple[Spelling, ...] = ()
    root: dict[VariableName, SiteColumn] = Field(default_factory=dict[str, SiteColumn])

    @model_validator(mode="before")
    @classmethod
    def _parts(cls, content: Any) -> Any:
        """A [table] is a variable's, also one called `missing`; a setting before the first table is of all columns."""
        if not isinstance(content, Mapping):
            return content
        plain = dict(cast(Mapping[str, Any], content))
        of_all = {} if isinstance(plain.get("missing", {}), Mapping | SiteColumn) else {"missing": plain.pop("missing")}
        return {**of_all, "root": plain}

    @classmethod
    def load(cls, path: Path) -> Self:
        """The mapping in a TOML file.

        Raises DataError if it cannot be read or used; by variable.
        """
        try:
            return cls.model_validate(parse_toml(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        except ValidationError as error:
            raise DataError("\n".join([f"{path} cannot be used:", *_in_words(error)])) from None
        except ValueError as error:
            raise DataError(f"{path} is not valid TOML: {error}") from None

    def check(self, dictionary: Dictionary) -> None:
        """Refuse what does not fit the dictionary.

        Raises DataError for an unknown variable, levels that the dictionary lacks, a factor on levels, or no column
        that orders the rows; by name.
        """
        for name, here in self.root.items():
            if name not in dictionary.root:
                known = ", ".join(list(dictionary.root)[:8])
                raise DataError(f"columns.toml: the dictionary has no variable {name!r} ({known}, ...)")
            entry = dictionary.root[name]
            unknown = [level for level in here.levels if level not in entry.levels]
            if unknown:
                levels = ", ".join(entry.levels) or "none"
                raise DataError(f"columns.toml: {name!r} has no level {unknown[0]!r} in the dictionary ({levels})")
            if entry.has_levels and here.factor != 1.0:
                raise DataError(f"columns.toml: {name!r} has levels, and so no factor")
            if entry.is_key and here.factor != 1.0:
                raise DataError(f"columns.toml: {name!r} is of kind {entry.kind}, and so has no factor")
            if here.absent and entry.kind == "time":
                raise DataError(
                    f"columns.toml: {name!r} orders the rows, and cannot be absent; unless lags = 1 needs the order, "
                    "leave it out of the data dictionary"
                )
            if here.format and entry.kind != "time":
                raise DataError(f"columns.toml: {name!r} is not of kind time, and so has no format")

    @property
    def absent(self) -> frozenset[str]:
        """The variables that the table does not have."""
        return frozenset(name for name, here in self.root.items() if here.absent)

    def column_of(self, variable: str) -> str:
        """What a variable's column is called here."""
        here = self.root.get(variable)
        return composed(here.column.strip()) if here is not None and here.column.strip() else variable


NO_DICTIONARY = Dictionary()
"""Nothing is said of the columns: all are numbers."""

SAME_NAMES = ColumnMap()
"""Nothing is different at a site."""


@dataclass(frozen=True)
class Reading:
    """How the cells of one column become codes: numbers in the dictionary's unit, or positions of levels.

    Attributes
    ----------
    missing
        Cells that stand for a missing value.
    codes
        Position of each level, by its spellings; empty: cells are numbers.
    factor
        What numbers are multiplied by.
    """

    missing: frozenset[str] = MISSING
    codes: Mapping[str, float] = field(default_factory=dict[str, float])
    factor: float = 1.0

    @property
    def unreadable(self) -> str:
        """What cells are that cannot be read."""
        return "no level of the data dictionary" if self.codes else "not numbers"

    @property
    def takes_numbers(self) -> bool:
        """Whether `of_numbers` reads cells that are numbers."""
        return not self.codes

    def code(self, cell: str) -> float:
        """The code of a cell; NaN: it is missing.

        Raises ValueError if it is neither a number nor a known level. The text must not leave the site.
        """
        cell = cell.strip()
        if cell in self.missing or _without_point_zero(cell) in self.missing:
            return math.nan
        if self.codes:
            found = self.codes.get(cell)
            if found is None:
                found = self.codes.get(_without_point_zero(cell))
            if found is None:
                raise ValueError("not a level")
            return found
        number = number_in(cell)
        if number is None:
            raise ValueError("not a number")
        return math.nan if number in self.missing_numbers else number * self.factor

    def of_numbers(self, cells: Matrix) -> Matrix:
        """(n,) codes of cells that are numbers; NaN: a cell is missing."""
        if self.missing_numbers:
            cells = np.where(np.isin(cells, list(self.missing_numbers)), np.nan, cells)
        return cells * self.factor

    def value(self, cell: object) -> float:
        """The code of a cell that is more than text: of a data frame, a Parquet file or a database.

        Raises ValueError as `code`.
        """
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return math.nan
        if isinstance(cell, str):
            return self.code(cell)
        if type(cell).__name__ in ("bool", "bool_"):  # numpy's is none of Python's
            return self._truth(bool(cell))
        if not isinstance(cell, RealNumber | Decimal):
            raise ValueError("not a number")
        number = float(cell)
        if self.codes:  # from the cell: of whole numbers beyond 2^53, several are one in floating point
            exact: Any = cell
            return self.code(str(int(exact)) if number.is_integer() and exact == int(exact) else repr(number))
        return math.nan if number in self.missing_numbers else number * self.factor

    @cached_property
    def missing_numbers(self) -> frozenset[float]:
        """Those spellings of a missing value that are numbers."""
        return frozenset(number for cell in self.missing - MISSING if (number := number_in(cell)) is not None)

    def _truth(self, cell: bool) -> float:
        if not self.codes:
            return float(cell) * self.factor
        for spelling in ("true", "True", "TRUE", "1") if cell else ("false", "False", "FALSE", "0"):
            if spelling in self.codes:
                return self.codes[spelling]
        raise ValueError("not a level")


class _Numbered(dict[str, float]):
    """Groups by their spellings, numbered from 0 as they come: what is asked for is there."""

    def __bool__(self) -> bool:
        return True

    def get(self, cell: str, default: Any = None) -> float:
        return self.setdefault(composed(_without_point_zero(cell)), float(len(self)))


@dataclass(frozen=True)
class GroupReading(Reading):
    """How the cells of a column that tells groups of rows apart become numbers: equal cells get the same one."""

    codes: Mapping[str, float] = field(default_factory=_Numbered)

    @property
    def unreadable(self) -> str:
        """See `Reading.unreadable`."""
        return "neither numbers, texts, dates nor UUIDs, by which groups are told apart"

    def value(self, cell: object) -> float:
        """See `Reading.value`."""
        # A UUID comes from a database as bytes.
        return self.code(str(cell)) if isinstance(cell, date | bytes) else super().value(cell)


@dataclass(frozen=True)
class TimeReading(Reading):
    """How the cells of a column that orders rows become numbers that grow with time.

    Attributes
    ----------
    format
        As `datetime.strptime` takes it; empty: ISO 8601, or numbers.
    forms
        Which kinds of cells there were: numbers, times with a zone, or without one. Of two kinds, no order is known.
    """

    format: str = ""
    forms: set[str] = field(default_factory=set[str], compare=False)

    @property
    def unreadable(self) -> str:
        """See `Reading.unreadable`."""
        expected = f"as '{self.format}'" if self.format else "2024-01-31, 2024-01-31T08:30, or a number"
        return f"no time ({expected}; columns.toml says how it is written here: format = '%d.%m.%Y')"

    @property
    def takes_numbers(self) -> bool:
        """See `Reading.takes_numbers`."""
        return not self.format

    def code(self, cell: str) -> float:
        """See `Reading.code`."""
        cell = cell.strip()
        if cell in self.missing or cell == "NaT":
            return math.nan
        if self.format:
            return self.value(datetime.strptime(cell, self.format))
        number = number_in(cell)
        return self.value(datetime.fromisoformat(cell)) if number is None else self.value(number)

    def of_numbers(self, cells: Matrix) -> Matrix:
        """See `Reading.of_numbers`."""
        codes = super().of_numbers(cells)
        self._note("numbers", bool(np.isfinite(codes).any()))
        return np.where(np.isinf(codes), np.nan, codes)

    def value(self, cell: object) -> float:
        """See `Reading.value`."""
        if cell is None or isinstance(cell, str) or (isinstance(cell, float) and math.isnan(cell)):
            return self.code(cell) if isinstance(cell, str) else math.nan
        if isinstance(cell, date) and not isinstance(cell, datetime):
            cell = datetime(cell.year, cell.month, cell.day)
        if isinstance(cell, datetime):
            self._note("times without a zone" if cell.tzinfo is None else "times with a zone")
            return (cell.replace(tzinfo=UTC) if cell.tzinfo is None else cell).timestamp()
        number = super().value(cell)
        if math.isinf(number) or (self.format and not math.isnan(number)):
            raise ValueError("not a time")
        self._note("numbers", not math.isnan(number))
        return number

    def _note(self, form: str, there: bool = True) -> None:
        if there:
            self.forms.add(form)


def readings(dictionary: Dictionary, mapping: ColumnMap, variables: Sequence[str]) -> list[Reading]:
    """How a site reads each of these variables.

    Raises DataError as `ColumnMap.check`, and for two levels with one spelling.
    """
    mapping.check(dictionary)
    missing = MISSING | frozenset(mapping.missing)
    return [_reading(name, dictionary.root[name], mapping.root.get(name, SiteColumn()), missing) for name in variables]


def _reading(name: str, entry: Entry, here: SiteColumn, missing: frozenset[str]) -> Reading:
    if entry.is_key:
        missing |= frozenset(here.missing)
        return GroupReading(missing) if entry.kind == "group" else TimeReading(missing, format=here.format)
    codes: dict[str, float] = {}
    for position, level in enumerate(entry.levels):
        written = here.levels.get(level, level)
        for spelling in (written,) if isinstance(written, str) else written:
            if codes.setdefault(spelling, float(position)) != position:
                raise DataError(f"columns.toml: {name!r} has two levels written {spelling!r}")
    missing |= frozenset(here.missing)
    clash = sorted(missing & codes.keys())
    if clash:
        raise DataError(
            f"columns.toml: {name!r} has a level written {clash[0]!r}, which also stands for a missing value"
        )
    return Reading(missing, codes, here.factor)


def _in_words(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"] if part != "root")
        yield f"  {shown(where, 100)}: {in_toml_words(problem['msg'])}"


def _without_point_zero(cell: str) -> str:
    """A whole number as written without decimals: tables often hold 0 and 1 as 0.0 and 1.0."""
    return cell[:-2] if cell.endswith(".0") else cell


def number_in(cell: str) -> float | None:
    """The number that a cell holds; None: it holds none."""
    try:
        return None if "_" in cell else float(cell)  # 1_000 is a number only in Python
    except ValueError:
        return None
