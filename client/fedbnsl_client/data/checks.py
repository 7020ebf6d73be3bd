"""Find what is wrong or odd about a table's values, by column and count, in one pass over blocks of its rows."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.plan.limits import LARGEST_VALUE, LEAST_SPREAD
from fedbnsl.protocol.messages import FindingCode, TableFinding
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.mapped_array import sum_over_rows

_CATEGORICAL_LEVELS = 10

_ROUNDING = 1e-5  # of values written with six digits; by chance, one column in 100,000 has so small a mean


_ROWS_NAMED = 3
_FEW_ROWS = (
    "Bring more rows (of one table, `fedbnsl data split` makes fewer and larger sites). --min-rows lets fewer pass, "
    "but hardly anything that so few rows show can be trusted. Nothing of the table was sent."
)
LEAVE_OUT = (
    "Leave such a column out (--columns names those to use), or correct the table. Nothing of the table was sent."
)
_OTHER_UNIT = (
    "If such a value is a code for a missing one, say so: missing = [...] in columns.toml, or a range in the data "
    "dictionary. Otherwise give the column in another unit: factor = ... in columns.toml, which goes with a data "
    "dictionary. Nothing of the table was sent."
)


class DataWarning(UserWarning):
    """Something odd about a table, which does not stop a run."""


@dataclass(frozen=True)
class Oddity:
    """Something about a table that a person should look at.

    Attributes
    ----------
    finding
        The only part that may leave the site, and only in a run without privacy; None: nothing leaves.
    text
        In words, with counts, for the people at the site.
    """

    finding: TableFinding | None
    text: str


@dataclass
class Places:
    """How many rows something was found in, and the first few of them."""

    count: int = 0
    first: list[int] = field(default_factory=list[int])

    def add(self, rows: Sequence[int]) -> None:
        """Take note of rows by their numbers, in their order."""
        self.count += len(rows)
        self.first += rows[: _ROWS_NAMED - len(self.first)]

    def join(self, later: "Places", offset: int) -> None:
        """Take note of what was found in the rows after so many others, with numbers that begin there."""
        self.count += later.count
        self.first = [*self.first, *(offset + row for row in later.first)][:_ROWS_NAMED]

    def said(self, unit: str) -> str:
        """The first few in brackets; `unit` says what the numbers count, such as "line"."""
        more = ", ..." if self.count > len(self.first) else ""
        return f"({unit}{'s' * (self.count > 1)} {', '.join(map(str, self.first))}{more})"


class TableChecks:
    """Counts over the rows of a table that have passed. What is odd counts over the values that are there.

    Parameters
    ----------
    origin
        What errors call the table.
    variables
        d column names.
    described
        Whether a data dictionary says what the columns are. Then one that holds a single value here, such as a level
        that does not occur at this site, is odd and not refused, and whole values are as they should be.
    guarded
        Whether nothing is refused for its values, as whoever sees a site stay away would learn of them: all is odd.
    pairs
        Positions of two columns each, of which `are_equal` can tell.
    absent
        Positions of columns that are known to have no value.
    """

    def __init__(
        self,
        origin: Path | str,
        variables: Sequence[str],
        *,
        described: bool = False,
        guarded: bool = False,
        pairs: Sequence[tuple[int, int]] = (),
        absent: Collection[int] = (),
    ) -> None:
        d = len(variables)
        self._origin, self._variables, self._described, self._absent = origin, variables, described, absent
        self._guarded = guarded
        self._n_all = 0
        self._n = np.zeros(d, dtype=np.int64)  # values of each column
        self._infinite, self._huge = ([Places() for _ in range(d)] for _ in range(2))
        # Of differences from the first value: squares of large values would hide a small spread.
        self._sum, self._square_sum = np.zeros(d), np.zeros(d)
        self._first = np.full(d, np.nan)
        self._constant = np.ones(d, dtype=bool)
        # Columns that may still be twins, and the levels of those that may still be categories.
        self._content = dict.fromkeys(range(d), b"")
        # Pairs of a variable and what it was one row before, which are compared where both have a value.
        self._still = dict.fromkeys(pairs, True)
        self._levels = {k: np.empty(0) for k in range(d)}

    def count(self, block: Matrix) -> Matrix:
        """Count a block of (n, d) values, NaN where one is missing; the block as it is used.

        Of a guarded table, values that no run takes are missing.
        """
        if not len(block):
            return block
        with np.errstate(invalid="ignore"):
            if not (block.max() <= LARGEST_VALUE and block.min() >= -LARGEST_VALUE):  # or a NaN
                infinite = np.isinf(block)
                for places, bad in (
                    (self._infinite, infinite),
                    (self._huge, (np.abs(block) > LARGEST_VALUE) & ~infinite),
                ):
                    for k in np.flatnonzero(bad.any(axis=0)).tolist():
                        places[k].add((self._n_all + 1 + np.flatnonzero(bad[:, k])).tolist())
                if self._guarded:
                    block = without_huge(block)
        self._n_all += len(block)
        self._count_values(block)
        return block

    def _count_values(self, block: Matrix) -> None:
        there = ~np.isnan(block)
        first = block[there.argmax(axis=0), np.arange(len(self._first))]  # NaN where there is none
        self._first = np.where(self._n > 0, self._first, first)
        self._n += there.sum(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):  # a table that overflows is refused
            shifted = np.where(there, block - self._first, 0.0)
            self._sum += shifted.sum(axis=0)
            self._square_sum += np.einsum("ij,ij->j", shifted, shifted)
        for k in np.flatnonzero(self._constant).tolist():
            self._constant[k] = (block[there[:, k], k] == self._first[k]).all()
        self._compare_columns(block)
        for j, k in [pair for pair, equal in self._still.items() if equal]:
            both = there[:, j] & there[:, k]
            self._still[j, k] = bool((block[both, j] == block[both, k]).all())
        for k in list(self._levels):
            self._look_for_categories(k, block[there[:, k], k])

    def _compare_columns(self, block: Matrix) -> None:
        # + 0.0: -0.0 equals 0.0; and all NaN get the same bits
        self._keep_twins({k: _digest(told, _same_nan(block[:, k] + 0.0)) for k, told in self._content.items()})

    def _keep_twins(self, content: Mapping[int, bytes]) -> None:
        shared = Counter(content.values())
        self._content = {k: told for k, told in content.items() if shared[told] > 1}

    def _look_for_categories(self, k: int, column: Matrix) -> None:
        few = np.unique(column[: 50 * _CATEGORICAL_LEVELS]).size <= _CATEGORICAL_LEVELS
        if few and (column == np.round(column)).all():
            levels = np.unique(np.concatenate([self._levels[k], column]))
            if levels.size <= _CATEGORICAL_LEVELS:
                self._levels[k] = levels
                return
        del self._levels[k]

    def join(self, later: Self) -> None:
        """Count the rows that another has counted, as those that come after these."""
        for mine, others in ((self._infinite, later._infinite), (self._huge, later._huge)):
            for places, other in zip(mine, others, strict=True):
                places.join(other, self._n_all)
        self._n_all += later._n_all
        if not later._n_all:
            return
        both_have = (self._n > 0) & (later._n > 0)
        self._first = np.where(self._n > 0, self._first, later._first)
        with np.errstate(over="ignore", invalid="ignore"):
            shift = np.where(both_have, later._first - self._first, 0.0)
            self._square_sum += later._square_sum + shift * (2.0 * later._sum + later._n * shift)
            self._sum += later._sum + later._n * shift
        self._constant &= later._constant & ((self._first == later._first) | ~both_have)
        self._n += later._n
        self._still = {pair: equal and later._still[pair] for pair, equal in self._still.items()}
        both = self._content.keys() & later._content.keys()
        self._keep_twins({k: _digest(self._content[k], later._content[k]) for k in sorted(both)})
        levels = {
            k: np.unique(np.concatenate([self._levels[k], later._levels[k]]))
            for k in self._levels
            if k in later._levels
        }
        self._levels = {k: few for k, few in levels.items() if few.size <= _CATEGORICAL_LEVELS}

    def are_equal(self, j: int, k: int) -> bool:
        """Whether two columns of a pair were equal wherever both have a value, and not constant."""
        return self._still[j, k] and not (self._constant[j] or self._constant[k])

    def require(self, min_rows: int) -> tuple[Oddity, ...]:
        """Refuse what cannot be used, and return what is odd.

        Raises DataError by column and count.
        """
        if self._n_all < (needed := max(min_rows, 1)) or not (self._n.any() or self._guarded):
            told = "" if self._n.any() or not self._n_all else " without any value"
            raise DataError(f"{self._origin}: {self._n_all} rows{told}; at least {needed} are needed", remedy=_FEW_ROWS)
        if self._guarded:
            left_out = (f"{line}; they count as missing" for line in self._beyond_limits())
            as_they_are = (*left_out, *self._small_columns(), *self._constant_columns(), *self._identical_columns())
            return (*self._odd(), *(Oddity(None, line) for line in (*self._empty_columns(), *as_they_are)))
        beyond = [*self._beyond_limits(), *self._small_columns()]
        problems = [*beyond, *(() if self._described else self._constant_columns())]
        if not self._described:
            problems = problems or list(self._identical_columns())
        if problems:
            raise DataError(f"{self._origin}: " + in_one_line(problems), remedy=_OTHER_UNIT if beyond else LEAVE_OUT)
        described = (*self._constant_columns(), *self._identical_columns()) if self._described else ()
        return (*self._odd(), *(Oddity(None, text) for text in (*self._empty_columns(), *described)))

    def _odd(self) -> tuple[Oddity, ...]:
        means = np.nan_to_num(self._first) + self._sum / np.maximum(self._n, 1)
        # beyond rounding: parts of a table join to other last bits than the whole table has
        far = np.flatnonzero(np.abs(means) > (1.0 + _ROUNDING) * self._spread()).tolist()
        odd: list[Oddity] = []
        if far:
            names = quoted([self._variables[k] for k in far])
            text = (
                f"column(s) {names}: means further from zero than the standard deviation, and regressions have no "
                "intercept: directions and weights come out wrong. Subtract numbers near the means that are public "
                "knowledge; the means themselves only where no privacy is asked for (see docs/explanation/privacy.md, "
                "Centring)"
            )
            odd.append(Oddity(TableFinding(FindingCode.MEANS_FAR_FROM_ZERO, tuple(far)), text))
        for k, levels in () if self._described else self._levels.items():
            if not levels.size:
                continue
            text = (
                f"column {self._variables[k]!r}: {levels.size} whole values in {self._n[k]} rows look like categories; "
                "weights take them as quantities"
            )
            odd.append(Oddity(TableFinding(FindingCode.LOOKS_CATEGORICAL, (k,)), text))
        return tuple(odd)

    def _spread(self) -> Matrix:
        """(d,) standard deviations."""
        with np.errstate(over="ignore", invalid="ignore"):
            n = np.maximum(self._n, 1)
            variances = self._square_sum / n - (self._sum / n) ** 2
        return np.asarray(np.sqrt(np.maximum(variances, 0.0)))

    def _beyond_limits(self) -> Iterator[str]:
        for k, name in enumerate(self._variables):
            for places, what in (
                (self._huge[k], f"beyond {LARGEST_VALUE:g}, the largest number that a run takes"),
                (self._infinite[k], "are infinite"),
            ):
                if places.count:  # "data rows": those after the header, counted from 1
                    yield f"column {name!r}: {places.count} row(s) {what} {places.said('data row')}"

    def _small_columns(self) -> Iterator[str]:
        small = (self._spread() < LEAST_SPREAD) & ~self._constant & (not self._described)
        for k in np.flatnonzero(small).tolist():
            least = f"{LEAST_SPREAD:g}, the least that a run takes"
            yield f"column {self._variables[k]!r}: its standard deviation is below {least}"

    def _empty_columns(self) -> Iterator[str]:
        for k, name in enumerate(self._variables):
            if not self._n[k] and k not in self._absent:
                yield f"column {name!r}: no value in any row"

    def _constant_columns(self) -> Iterator[str]:
        for k, name in enumerate(self._variables):
            if self._constant[k] and self._n[k] and not self._infinite[k].count:
                gaps = "" if self._n[k] == self._n_all else " that have one"
                yield f"column {name!r}: the same value in all {self._n[k]} rows{gaps}"

    def _identical_columns(self) -> Iterator[str]:
        first: dict[bytes, str] = {}
        for k, content in self._content.items():
            if (self._described and self._constant[k]) or not self._n[k]:
                continue
            name = self._variables[k]
            twin = first.setdefault(content, name)
            if twin != name:
                drop = "" if self._described else "; leave one out"
                yield f"columns {twin!r} and {name!r}: equal in all {self._n_all} rows{drop}"


def _same_nan(column: Matrix) -> bytes:
    return np.where(np.isnan(column), np.nan, column).tobytes()


def _digest(*parts: bytes) -> bytes:
    code = hashlib.blake2b()
    for part in parts:
        code.update(part)
    return code.digest()


def without_huge(block: Matrix) -> Matrix:
    """An (n, d) block in which values that no run takes are missing."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(block) > LARGEST_VALUE, np.nan, block)


def complete_rows(block: Matrix) -> Matrix:
    """The rows of an (n, d) block without a NaN; the block itself if that is all of them."""
    whole = ~np.isnan(block).any(axis=1)
    return block if whole.all() else block[whole]


def rows_with_values(block: Matrix) -> Matrix:
    """The rows of an (n, d) block that have a value; the block itself if that is all of them."""
    some = ~np.isnan(block).all(axis=1)
    return block if some.all() else block[some]


def zeros_for_gaps(block: Matrix) -> Matrix:
    """An (n, d) block with zeros in the rows that hold a NaN."""
    return np.where(np.isnan(block).any(axis=1, keepdims=True), 0.0, block)


def columns_without_mean(variables: Sequence[str], X: Matrix) -> list[str]:
    """The columns of an (n, d) table whose mean is zero up to rounding, except columns of whole numbers.

    A column's mean is that of its values, without the NaN that stand for missing ones.

    The sum of n independent values about zero is about as large as the root of their sum of squares. If the column's
    own mean was subtracted, the sum is only rounding error.
    """

    def sums(rows: Matrix) -> Matrix:
        broken = (rows != np.round(rows)) & ~np.isnan(rows)
        return np.stack([np.nansum(rows, axis=0), np.nansum(rows * rows, axis=0), broken.sum(axis=0)])

    total, squares, broken = sum_over_rows(X, sums)
    size = np.sqrt(squares)
    zero = (np.abs(total) <= _ROUNDING * size) & (broken > 0)
    return [name for name, is_zero in zip(variables, zero.tolist(), strict=True) if is_zero]


def quoted(names: Sequence[str]) -> str:
    """Names in quotes, for a message."""
    return ", ".join(repr(name) for name in names)


def in_one_line(problems: Sequence[str], shown: int = 8) -> str:
    """The first problems in one line, and how many more there are."""
    more = [f"... and {len(problems) - shown} more"] if len(problems) > shown else []
    return "; ".join([*problems[:shown], *more])
