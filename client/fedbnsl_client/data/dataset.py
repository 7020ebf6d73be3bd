"""The private table of one site: read, checked, never sent.

Every refusal names the column and the number of rows, for the people at the site. None of it leaves the site.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import DataError
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Dictionary, Transform
from fedbnsl.plan.row_groups import LAG
from fedbnsl.protocol.messages import FindingCode, TableFinding
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.data.cell_problems import UnreadableCellsError, words_have_a_remedy
from fedbnsl_client.data.checks import (
    DataWarning,
    Oddity,
    Places,
    TableChecks,
    complete_rows,
    in_one_line,
    quoted,
    rows_with_values,
    zeros_for_gaps,
)
from fedbnsl_client.data.columns import check_names, choose, like
from fedbnsl_client.data.forgotten_groups import of_source
from fedbnsl_client.data.mapped_array import (
    RowsElsewhere,
    gathered,
    lies_in_file,
    row_blocks,
    rows_a_block,
    sum_over_rows,
)
from fedbnsl_client.data.person_rows import PersonRows, Persons
from fedbnsl_client.data.reading import (
    NO_DICTIONARY,
    SAME_NAMES,
    ColumnMap,
    GroupReading,
    Reading,
    TimeReading,
    readings,
)
from fedbnsl_client.data.repeats import copied_records, numbered_columns
from fedbnsl_client.data.row_groups import GROUP, KEYS, ROW, TIME, Belonging, person_rows, prepared_rows
from fedbnsl_client.data.sources.csv_table import said_in_words
from fedbnsl_client.data.sources.source import bytes_of, source_of, state_of
from fedbnsl_client.data.suspected_codes import columns_with_codes
from fedbnsl_client.data.watched import followed

MIN_ROWS = 20
_DAY_S = 86400.0  # of times, which are read as seconds
_ROUNDING = 1e-6  # of a count, by a factor between units or single precision
# Share of the rows whose values are outside their range, from which another unit is likelier than codes and slips.
_MOSTLY_OUTSIDE = 0.5


@dataclass(frozen=True)
class Gaps:
    """Missing values of a table, for people at the site.

    Attributes
    ----------
    rows
        How many rows have one.
    of
        How many rows there are, with and without.
    by_variable
        In how many rows each variable lacks its value; only variables that do.
    first
        How many rows are the first of their group, so that they lack the lagged variables. They are among `rows`.
    """

    rows: int = 0
    of: int = 0
    by_variable: Mapping[str, int] = field(default_factory=dict[str, int])
    first: int = 0

    def said(self, used: Literal["left out", "as zeros", "completed", "not known"] = "left out") -> str:
        """How many rows lack a value, how they are `used`, and for which variables, those with most first."""
        lacking = {name: k - (self.first if name.endswith(LAG) else 0) for name, k in self.by_variable.items()}
        most = sorted(((name, k) for name, k in lacking.items() if k > 0), key=lambda one: -one[1])
        names = first_few(f"{name!r} {count}" for name, count in most)
        if self.first:
            names = f"{self.first} as the first of their group" + (f"; {names}" if most else "")
        told = {
            "left out": "are left out, which lack a value",
            "as zeros": "count as zeros, which lack a value",
            "completed": "lack a value, and count for those that they have",
            "not known": "lack a value",
        }
        return f"{self.rows} row(s) {told[used]}: {names}"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A checked table.

    Attributes
    ----------
    variables
        d column names, without repetition; with a dictionary, those of its columns.
    X
        (n, d) values, NaN where one is missing and finite otherwise; raw scale without a dictionary, otherwise as its
        entries say. Mapped from a file if large, or `RowsElsewhere` (see `mapped_array`).
    odd
        What a person should look at.
    gaps
        The rows of X with a missing value, or those that `complete_cases` has left out.
    dictionary
        What the variables are; empty: every column is a number.
    absent
        Variables that the site does not have, as its operator says; X has no value of them.
    group_sizes
        (G,) rows of X of each group, in their order, where rows of a group stay rows; otherwise empty.
    persons
        Whose record each row of X is, where a group is one record; otherwise empty. Kept by no method that leaves out
        rows.
    rows
        Of what each record is the mean, where a group is one record; otherwise None. Kept by no method that leaves out
        records with gaps, which only runs without privacy do.
    """

    variables: tuple[str, ...]
    X: Matrix
    odd: tuple[Oddity, ...] = ()
    gaps: Gaps = Gaps()
    dictionary: Dictionary = NO_DICTIONARY
    absent: tuple[str, ...] = ()
    group_sizes: Index = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    persons: tuple[str, ...] = field(default=(), repr=False)
    rows: PersonRows | None = field(default=None, repr=False)

    @property
    def n_samples(self) -> int:
        """Rows (public)."""
        return int(self.X.shape[0])

    @property
    def columns(self) -> Columns:
        """Its columns, and the variables that they belong to."""
        return _columns(self.dictionary, self.variables)

    @property
    def whose(self) -> Persons | None:
        """Whose records these are; None: they are known by their values."""
        return Persons(self.persons, self.rows) if self.persons and self.rows is not None else None

    def remarks(self, *, intercept: bool | None = None) -> list[str]:
        """What a person at the site should look at, in words.

        `intercept`: whether regressions have one, so that means do not matter; None: not known yet.
        """
        # Who has a dictionary means to use a plan that takes means off; a run of another one says it all the same.
        unsaid = FindingCode.MEANS_FAR_FROM_ZERO if (self.dictionary if intercept is None else intercept) else None
        said = [one.text for one in self.odd if one.finding is None or one.finding.code is not unsaid]
        return [*([self.gaps.said("not known")] if self.gaps.rows else []), *said]

    @classmethod
    def read(
        cls,
        path: Path,
        *,
        columns: Sequence[str] = (),
        dictionary: Dictionary = NO_DICTIONARY,
        mapping: ColumnMap = SAME_NAMES,
        min_rows: int = MIN_ROWS,
        max_file_bytes: int | None = None,
        warn: bool = True,
        guarded: bool = False,
    ) -> Self:
        """Read a table (see `source_of`) in one pass.

        Raises DataError if the file cannot be read or its table cannot be used; the text says why, by column and count.

        Parameters
        ----------
        columns
            The columns to use, in this order; empty: all of them. With a dictionary: its variables.
        dictionary
            What the variables are; empty: every column is a number.
        mapping
            What is different here: names of columns, units, spellings.
        min_rows
            Fewer rows are refused.
        max_file_bytes
            A larger file is refused before it is read; None: any size is read.
        warn
            Issue a DataWarning for each entry of `odd`, and for missing values.
        guarded
            Refuse nothing for what its cells hold: whoever learns that a site stays away would learn of them. Cells
            and values that cannot be used are missing, and told. Rows are only refused if they cannot be put into
            their groups or order.
        """
        with said_in_words(path), words_have_a_remedy(dictionary):
            before = state_of(path)
            if max_file_bytes is not None and (size := bytes_of(path)) > max_file_bytes:
                raise DataError(
                    f"{path}: {size / 2**20:,.0f} MiB; at most {max_file_bytes / 2**20:,.0f} MiB are read "
                    "(--max-file-mib)"
                )
            source = source_of(path, named=bool(columns or dictionary))
            header = source.header()
            chosen = chosen_columns(source.origin, header, columns, dictionary, mapping)
            table = TablePass(
                source.origin, chosen.names, dictionary, min_rows=min_rows, absent=chosen.absent, guarded=guarded
            )
            codes = source.codes(header, chosen.positions, chosen.readings)
            unreadable: list[Oddity] = []
            if guarded:
                codes = _gaps_for_unreadable(codes, unreadable)
            times = times_of(chosen.readings)
            X = table.gathered(followed(f"reading {path.name}", codes, lambda: source.share), times)
            odd = (
                *unreadable,
                *table.odd(),
                *of_source(source, header, {header[k] for k in chosen.positions}, dictionary, X),
            )
            persons = table.persons(chosen.readings)
            after = state_of(path)
        if before != after:
            raise DataError(f"{path}: the file changed while it was read; wait until it is complete")
        data = replace(cls._of_pass(table, X, odd), persons=persons)
        return data._said() if warn else data

    @classmethod
    def of_values(
        cls,
        variables: Sequence[str],
        X: Matrix,
        *,
        origin: str,
        dictionary: Dictionary = NO_DICTIONARY,
        min_rows: int = MIN_ROWS,
        warn: bool = True,
        times: TimeReading | None = None,
        absent: Set[str] = frozenset(),
    ) -> Self:
        """A table that is in memory already, checked as `read` checks a file.

        Raises DataError as `read`.

        Parameters
        ----------
        variables
            V names.
        X
            (n, V) values, or with a dictionary codes of its variables, and behind them of the columns that tell which
            rows belong together; NaN where one is missing. Without columns for `absent` variables.
        origin
            What errors call the table.
        times
            What has read the column that orders the rows; None: there is none, or it held numbers.
        absent
            Variables that the site does not have.
        """
        check_names(origin, variables)
        if len(variables) < 2:
            raise DataError(f"{origin}: {len(variables)} column(s); a network needs at least two")
        if dictionary:
            _refuse_unknown(variables, dictionary)
        table = TablePass(origin, variables, dictionary, min_rows=min_rows, absent=absent)
        rows = rows_a_block(len(variables))
        values = table.gathered((X[start : start + rows] for start in range(0, len(X), rows)), times)
        data = cls._of_pass(table, values, table.odd())
        return data._said() if warn else data

    def complete_cases(self) -> Self:
        """The table without the rows that lack a value; `gaps` says how many there were."""
        gaps = self.gaps if self.gaps.of else _gaps(self.X, self.columns)
        if not gaps.rows or self.n_samples < gaps.of:
            return self
        if isinstance(self.X, RowsElsewhere):
            return replace(self, X=self.X.complete(gaps.of - gaps.rows), gaps=gaps)
        sizes = self._group_sizes_of(lambda block: np.asarray(~np.isnan(block).any(axis=1)))
        X = gathered((complete_rows(block) for block in row_blocks(self.X)), len(self.variables))
        return replace(self, X=X, gaps=gaps, group_sizes=sizes, persons=(), rows=None)

    def with_values(self) -> Self:
        """The table without the rows that have no value at all."""
        if self.gaps.of and not self.gaps.rows:
            return self
        if isinstance(self.X, RowsElsewhere):
            empty = int(sum_over_rows(self.X, lambda block: np.array([np.isnan(block).all(axis=1).sum()]))[0])
            return replace(self, X=self.X.with_values(len(self.X) - empty)) if empty else self
        sizes = self._group_sizes_of(lambda block: np.asarray(~np.isnan(block).all(axis=1)))
        X = gathered(map(rows_with_values, row_blocks(self.X)), len(self.variables))
        return replace(self, X=X, group_sizes=sizes, persons=(), rows=None)

    def of_rows(self, kept: Mask) -> Self:
        """The table with those rows alone that a mask of (n,) names."""

        def parts() -> Iterator[Matrix]:
            start = 0
            for block in row_blocks(self.X):
                yield block[kept[start : start + len(block)]]
                start += len(block)

        group = np.repeat(np.arange(len(self.group_sizes)), self.group_sizes)
        sizes = np.bincount(group[kept], minlength=len(self.group_sizes)) if len(group) else self.group_sizes
        rows = None if self.rows is None else self.rows.of_persons(kept)
        X = gathered(parts(), len(self.variables))
        return replace(self, X=X, gaps=Gaps(), group_sizes=sizes, persons=(), rows=rows)

    def with_zeros(self) -> Self:
        """The table with zeros in the rows that lack a value."""
        rows = (
            None if self.rows is None else self.rows.after(zeros_for_gaps)
        )  # a person's mean may have what a row lacks
        if self.gaps.of and not self.gaps.rows:
            return replace(self, rows=rows)
        if isinstance(self.X, RowsElsewhere):
            return replace(self, X=self.X.with_zeros())
        X = gathered(map(zeros_for_gaps, row_blocks(self.X)), len(self.variables))
        return replace(self, X=X, rows=rows)

    def reordered(self, variables: Sequence[str]) -> Self:
        """The same table with its columns in the given order.

        Raises DataError if a name is missing.
        """
        missing = [name for name in variables if name not in self.variables]
        if missing:
            raise DataError(f"the table lacks {quoted(missing)}")
        position = {name: k for k, name in enumerate(self.variables)}
        order = [position[name] for name in variables]
        is_here = not isinstance(self.X, RowsElsewhere)
        if (
            order == list(range(len(self.variables)))
            and is_here
            and (lies_in_file(self.X) or self.X.flags.c_contiguous)
        ):
            return self
        if isinstance(self.X, RowsElsewhere):
            X: Matrix = self.X.columns(order)
        elif not lies_in_file(self.X):
            X = np.take(self.X, order, axis=1)  # row by row in memory, in one pass; an index would give columns
        else:
            X = gathered((X[:, order] for X in row_blocks(self.X)), len(order))
        odd = [one if one.finding is None else replace(one, finding=one.finding.reordered(order)) for one in self.odd]
        columns = _columns(self.dictionary, variables)
        return replace(
            self,
            variables=tuple(variables),
            X=X,
            odd=tuple(one for one in odd if one.finding is None or one.finding.variables),
            gaps=replace(_gaps(X, columns), first=self.gaps.first)
            if self.gaps.rows and self.n_samples == self.gaps.of
            else self.gaps,
            dictionary=self.dictionary.over(columns.variables) if self.dictionary else self.dictionary,
            absent=tuple(name for name in self.absent if name in columns.variables),
            rows=None if self.rows is None else self.rows.columns(order),
        )

    @classmethod
    def _of_pass(cls, table: "TablePass", X: Matrix, odd: tuple[Oddity, ...]) -> Self:
        """What a pass over a table has made of it."""
        data = cls(
            table.columns, X, odd, table.gaps, table.dictionary, table.absent, table.group_sizes, rows=table.rows
        )
        return data._with_repeats()

    def _group_sizes_of(self, kept: Callable[[Matrix], Mask]) -> Index:
        """(G,) how many rows of each group are kept, by which of a block of rows are."""
        if not self.group_sizes.size:
            return self.group_sizes
        group = np.repeat(np.arange(len(self.group_sizes)), self.group_sizes)
        rows = np.concatenate([kept(block) for block in row_blocks(self.X)])
        return np.bincount(group[rows], minlength=len(self.group_sizes))

    def _with_repeats(self) -> Self:
        """With what is odd about how often its records and values occur."""
        measured: dict[int, Transform] = {
            k: self.dictionary[name].applied if self.dictionary else "none"
            for k, name in enumerate(self.variables)
            if not self.dictionary or self._is_measured(name)
        }
        numbers = [k for k, transform in measured.items() if transform == "none"]
        try:
            X, complete = self.X, self.complete_cases().X
            everything, code = tuple(range(len(self.variables))), FindingCode
            said = [Oddity(TableFinding(code.COPIED_RECORDS, everything), text) for text in copied_records(complete)]
            said += [
                Oddity(TableFinding(of, (k,)), text)
                for of, found in (
                    (code.NUMBERS_ROWS, numbered_columns(self.variables, complete, of=numbers)),
                    (code.LOOKS_LIKE_A_CODE, columns_with_codes(self.variables, X, measured)),
                )
                for k, text in found
            ]
        except DataError as no_room:
            said = [
                Oddity(None, f"copies of records, row numbers and codes such as 999 were not looked for: {no_room}")
            ]
        return replace(self, odd=(*self.odd, *said))

    def _is_measured(self, name: str) -> bool:
        """Whether a column holds numbers that were measured, and no levels or times."""
        return name in self.dictionary and not (self.dictionary[name].has_levels or self.dictionary[name].is_key)

    def _said(self) -> Self:
        """Itself, after a warning for each thing that a person should look at."""
        for text in self.remarks():
            warnings.warn(text, DataWarning, stacklevel=3)
        return self


class ChosenColumns(NamedTuple):
    """Which columns of a table are read, and how.

    Attributes
    ----------
    names
        V names of the variables to use.
    positions
        Of the columns in the header: those of the variables that are not absent, and behind them those that tell which
        rows belong together.
    readings
        How the cells of each become codes.
    absent
        The variables that the table does not have.
    """

    names: tuple[str, ...]
    positions: Sequence[int]
    readings: Sequence[Reading]
    absent: frozenset[str] = frozenset()


def chosen_columns(
    origin: str, header: Sequence[str], columns: Sequence[str], dictionary: Dictionary, mapping: ColumnMap
) -> ChosenColumns:
    """The columns to use, see `Dataset.read`.

    Raises DataError if the table lacks one that is not said to be absent, or has one that is.
    """
    if not dictionary:
        chosen = choose(origin, header, columns)
        return ChosenColumns(tuple(header[k] for k in chosen), chosen, [Reading()] * len(chosen))
    _refuse_unknown(columns, dictionary)
    names = dictionary.of_run(columns)
    present = [name for name in dictionary.present(names) if name not in mapping.absent]
    here = [name for name in dictionary.read(names) if name not in mapping.absent]
    read = readings(dictionary, mapping, here)
    if there := [name for name in mapping.absent if name in header]:
        raise DataError(
            f"{origin}: columns.toml calls {quoted(sorted(there))} absent, and the table has such a column",
            remedy="Take out absent = true to use it, or leave the column out of the table.",
        )
    if not present:
        raise DataError(f"{origin}: columns.toml calls every variable absent, and nothing is left to learn from")
    positions = choose(origin, header, here, {name: mapping.column_of(name) for name in here})
    return ChosenColumns(names, positions, read, mapping.absent)


def _gaps_for_unreadable(codes: Iterator[Matrix], told: list[Oddity]) -> Iterator[Matrix]:
    """The blocks of a source, in which cells that cannot be read are missing; what they are is told."""
    try:
        yield from codes
    except UnreadableCellsError as error:  # after the last block
        told.append(Oddity(None, f"{error}; they count as missing"))


def times_of(readings: Sequence[Reading]) -> TimeReading | None:
    """What reads the column that orders the rows, if there is one."""
    return next((one for one in readings if isinstance(one, TimeReading)), None)


class TablePass:
    """One pass over the codes of a table: they become the columns of the run, are counted and checked.

    Where rows belong together, records are made of them first (`row_groups`): ranges and transforms hold of rows, and
    all else of the records.

    Parameters
    ----------
    origin
        What errors call the table.
    names
        V names of variables.
    absent
        Those of which there are no codes: all their values are missing.
    guarded
        See `Dataset.read`.
    """

    def __init__(
        self,
        origin: str,
        names: Sequence[str],
        dictionary: Dictionary,
        *,
        min_rows: int,
        absent: Set[str] = frozenset(),
        guarded: bool = False,
    ) -> None:
        self._origin, self._names, self._min_rows, self._guarded = origin, names, min_rows, guarded
        self.columns = tuple(column.name for column in dictionary.columns(names)) if dictionary else tuple(names)
        self._rows = dictionary.rows
        self._in_table = dictionary.present(names) if dictionary else tuple(names)
        self._read = [name for name in self._in_table if name not in absent]
        codes = [name for name in (dictionary.read(names) if dictionary else names) if name not in absent]
        self._keys = {
            place: codes.index(name)  # among the codes of a row
            for place, name in ((GROUP, self._rows.group), (TIME, self._rows.time))
            if name in codes
        }
        self.absent = tuple(name for name in names if absent & {*(dictionary.present([name]) or [name])})
        self.belonging: Belonging | None = None
        self.rows: PersonRows | None = None
        self.dictionary = dictionary.over(names) if dictionary else dictionary
        position = {name: k for k, name in enumerate(self.columns)}
        self._before = {
            name: [
                (position[own], position[before])
                for own, before in zip(self._columns_of(name), self._columns_of(name + LAG), strict=True)
            ]
            for name in (names if self._rows.lags else ())
            if name + LAG in names
        }
        pairs = [pair for of in self._before.values() for pair in of]
        owned = [self._columns_of(name) if dictionary else [name] for name in self.absent]
        lacking = [position[own] for columns in owned for own in columns]
        self._checks = TableChecks(
            origin, self.columns, described=bool(dictionary), guarded=guarded, pairs=pairs, absent=lacking
        )
        self._missing = np.zeros(len(names), dtype=np.int64)
        self._outside = np.zeros(len(self._in_table), dtype=np.int64)
        self._wrong, self._broken = ({name: Places() for name in names} for _ in range(2))
        layout = _columns(self.dictionary, self.columns)
        members = dict(zip(layout.variables, layout.members(), strict=True))
        self._indicators = {name: own for name, own in members.items() if own.size > 1}
        self._first_level = dict.fromkeys(self._indicators, 0)  # in so many rows
        self._first_columns = [own[0] for own in layout.members()]
        self._n = self._n_gaps = self._n_first = self._n_read = 0

    def gathered(self, blocks: Iterable[Matrix], times: TimeReading | None = None) -> Matrix:
        """(n, d) values of the columns, from blocks of (rows, V) codes, or of the records that are made of them.

        `times`: what reads the column that orders the rows. Raises DataError if it cannot order them.
        """
        if not self._rows:
            return gathered(map(self.counted, blocks), len(self.columns))
        names = self._own_columns
        X = gathered(map(self._with_keys, blocks), KEYS + len(names))
        if times is not None and len(times.forms) > 1:
            raise DataError(
                f"{self._origin}: column {self._rows.time!r} holds {' and '.join(sorted(times.forms))}, whose order is "
                "not known: write all of them in one way"
            )
        if times is not None and self._rows.time in self._in_table:
            self._refuse_another_time(times)
        lags = {
            own: before
            for name in self._in_table
            if name + LAG in self.dictionary
            for own, before in zip(self._columns_of(name), self._columns_of(name + LAG), strict=True)
        }
        lagged = [k for k, name in enumerate(names) if name in lags]
        made, self.belonging = prepared_rows(X, self._rows, lagged, self._origin)
        if self._rows.averages:
            self.rows = person_rows(X, self.belonging)  # without lags: no other columns than the table's own
        del X
        place = {name: k for k, name in enumerate([*names, *(lags[names[k]] for k in lagged)])}
        order = [place[name] for name in self.columns]
        self._n_read, self._n = self._n, 0
        self._n_first = len(self.belonging.sizes) if self._rows.lags else 0
        unit = np.ones(len(order))
        if self._rows.time in place and times is not None and "numbers" not in times.forms:
            unit[order.index(place[self._rows.time])] = _DAY_S
        return gathered((self._noted(block[:, order] / unit) for block in row_blocks(made)), len(order))

    def _refuse_another_time(self, times: TimeReading) -> None:
        """Raise DataError if a time with a trend is a number here and a date at other sites, or the other way round."""
        name, unit = self._rows.time, self.dictionary[self._rows.time].unit
        if times.forms and ("numbers" in times.forms) != bool(unit):
            here, there = ("dates or times", f"numbers ({unit})") if unit else ("numbers", "dates or times")
            raise DataError(
                f"{self._origin}: column {name!r} holds {here}; by the data dictionary, a time with trend and "
                f"{'a' if unit else 'no'} unit, all sites have {there}",
                remedy="Write them so, or let all sites agree on the other way: with numbers the dictionary has a unit "
                "for them, with dates none. Nothing of the table was sent.",
            )

    @property
    def _own_columns(self) -> list[str]:
        """The columns of the table's own rows."""
        return [column for name in self._in_table for column in self._columns_of(name)]

    def _columns_of(self, variable: str) -> list[str]:
        return [column.name for column in self.dictionary[variable].columns(variable)]

    def counted(self, codes: Matrix) -> Matrix:
        """(rows, d) values of the columns, from a block of (rows, V) codes, counted."""
        return self._noted(self.values(codes))

    def _with_keys(self, codes: Matrix) -> Matrix:
        """(rows, KEYS + d) values of the table's own columns behind what tells which rows belong together."""
        keys = np.zeros((len(codes), KEYS))
        keys[:, ROW] = np.arange(self._n, self._n + len(codes))
        if self._rows.group:
            keys[:, GROUP] = keys[:, ROW]  # where the group is absent
        for place, k in self._keys.items():
            keys[:, place] = codes[:, k]
        X = np.hstack([keys, self.values(codes[:, : len(self._read)])])
        self._n += len(codes)
        return X

    def _noted(self, X: Matrix) -> Matrix:
        """Count a block of (rows, d) records; as they are used."""
        X = self._checks.count(X)
        lacking = np.isnan(X)
        self._missing += lacking[:, self._first_columns].sum(axis=0)
        self._n_gaps += int(lacking.any(axis=1).sum())
        self._n += len(X)
        for name, own in self._indicators.items():
            self._first_level[name] += int((X[:, own].sum(axis=1) < 1.0 - _ROUNDING).sum())
        return X

    def values(self, codes: Matrix) -> Matrix:
        """(rows, d) values of the columns, from a block of (rows, V) codes."""
        if not self.dictionary:
            there = [name not in self.absent for name in self.columns]
            if all(there):
                return codes
            X = np.full((len(codes), len(there)), np.nan)
            X[:, there] = codes
            return X
        columns: list[Matrix] = []
        codes_of: dict[str, Matrix] = dict(zip(self._read, codes.T, strict=True))
        nothing: Matrix = np.full(len(codes), np.nan)
        for k, name in enumerate(self._in_table):
            entry, cells = self.dictionary[name], codes_of.get(name, nothing)
            outside = entry.outside(cells)
            if entry.range is not None:
                self._outside[k] += int(outside.sum())
                wrong = np.zeros(len(cells), dtype=bool)
            else:
                wrong = np.isinf(cells) | (cells <= entry.formula.least)
            self._wrong[name].add((self._n + 1 + np.flatnonzero(wrong)).tolist())
            if entry.kind == "count":
                with np.errstate(invalid="ignore"):
                    broken = (np.abs(cells - np.round(cells)) > _ROUNDING) | (cells < 0.0)
                broken &= ~outside & ~wrong
                self._broken[name].add((self._n + 1 + np.flatnonzero(broken)).tolist())
                if self._guarded:
                    wrong |= broken
            columns.append(entry.values(np.where(wrong, np.nan, cells)))
        return np.column_stack(columns)

    def join(self, later: Self) -> None:
        """Count the rows that another pass has counted, as those that come after these."""
        for name, places in self._wrong.items():
            places.join(later._wrong[name], self._n)
            self._broken[name].join(later._broken[name], self._n)
        for name, rows in later._first_level.items():
            self._first_level[name] += rows
        self._missing += later._missing
        self._outside += later._outside
        self._n += later._n
        self._n_gaps += later._n_gaps
        self._checks.join(later._checks)

    def odd(self) -> tuple[Oddity, ...]:
        """What is odd about the whole table.

        Raises DataError if it cannot be used.
        """
        wrong = [
            f"column {name!r}: {places.count} row(s) are infinite, or not {self.dictionary[name].formula.rule} as "
            f"{self.dictionary[name].applied} needs {places.said('data row')}"
            for name, places in self._wrong.items()
            if places.count
        ]
        wrong += [
            f"column {name!r}: {places.count} row(s) are no whole numbers from 0 on, as counts are "
            f"{places.said('data row')}: correct the cells, or call the variable continuous in the data dictionary"
            for name, places in self._broken.items()
            if places.count
        ]
        if wrong and not self._guarded:
            raise DataError(
                f"{self._origin}: " + in_one_line(wrong),
                remedy="Give the variable a range in the data dictionary, outside which values count as missing, or "
                "say in columns.toml which cells stand for a missing value. Nothing of the table was sent.",
            )
        shares = {name: k / (self._n_read or self._n) for name, k in self._outside_of().items()}
        outside = [f"{name!r} {k} ({shares[name]:.1%})" for name, k in self._outside_of().items()]
        text = f"value(s) outside the range of the data dictionary count as missing: {first_few(outside)}"
        if units := [name for name, share in shares.items() if share >= _MOSTLY_OUTSIDE]:
            text += f"; is {first_few(map(repr, units))} in another unit here? Then say so in columns.toml (`factor`)"
        try:
            odd = self._checks.require(self._min_rows)
        except DataError as refusal:
            if not outside:
                raise
            raise DataError(f"{refusal}; {text}", remedy=refusal.remedy) from None  # perhaps in another unit
        unseen = [
            f"variable {name!r}: its first level, {self.dictionary[name].levels[0]!r}, which the others are compared "
            "with, is in no row here. If no site has it, put another one first in the data dictionary"
            for name, rows in self._first_level.items()
            if not rows and name not in self.absent
        ]
        unusable = [f"{one}; they count as missing" for one in wrong]
        told = (Oddity(None, one) for one in [*unusable, *([text] if outside else []), *unseen])
        return (*odd, *told, *self._of_belonging())

    @property
    def group_sizes(self) -> Index:
        """See `Dataset.group_sizes`."""
        if self.belonging is None or not self._rows.keeps_rows:
            return np.empty(0, dtype=np.int64)
        return self.belonging.sizes

    def _of_belonging(self) -> Iterator[Oddity]:
        """What there is to say of rows that belong together.

        Raises DataError for a variable that is the same as one row before.
        """
        if self.belonging is None:
            return
        still = [name for name, pairs in self._before.items() if all(self._checks.are_equal(j, k) for j, k in pairs)]
        if still:
            text = (
                f"{quoted(still)}: the same in every row as in the one before, so that the two cannot be told apart; "
                "if it is known before the first row and stays, such as the sex of a patient, say so in the data "
                "dictionary: fixed = true"
            )
            if not self._guarded:
                raise DataError(
                    f"{self._origin}: {text}", remedy="Otherwise leave it out. Nothing of the table was sent."
                )
            yield Oddity(None, text)
        n, rows = len(self.belonging.sizes), self._rows
        if rows.keeps_rows and self.belonging.sizes.max() > 1:
            yield Oddity(
                TableFinding(FindingCode.ROWS_OF_GROUPS, tuple(range(len(self.columns))), n),
                f"rows of {n} groups count as independent records, as the data dictionary says: intervals are too "
                "narrow, and edges and arrows may be false",
            )
        if rows.group and GROUP not in self._keys:
            yield Oddity(None, f"this table does not have {rows.group!r}: no two rows belong together")
        else:
            yield from (Oddity(None, text) for text in self.belonging.said(rows, self._own_columns))

    def persons(self, readings: Sequence[Reading]) -> tuple[str, ...]:
        """See `Dataset.persons`; `readings` have read the columns of the table."""
        groups = [one for one in readings if isinstance(one, GroupReading)]
        return tuple(groups[0].codes) if groups and self._rows.averages and not self._rows.lags else ()

    @property
    def gaps(self) -> Gaps:
        """Missing values of the whole table."""
        missing = {name: k for name, k in zip(self._names, self._missing.tolist(), strict=True) if k}
        return Gaps(self._n_gaps, self._n, missing, self._n_first)

    def _outside_of(self) -> dict[str, int]:
        return {name: k for name, k in zip(self._in_table, self._outside.tolist(), strict=True) if k}


def _refuse_unknown(names: Sequence[str], dictionary: Dictionary) -> None:
    unknown = [name for name in names if name not in dictionary]
    if unknown:
        alike = first_few(repr(one) for name in unknown for one in like(name, dictionary.variables))
        meant = f" (did you mean {alike}?)" if alike else ""
        raise DataError(
            f"the data dictionary has no variable {quoted(unknown)}{meant}; it has {first_few(dictionary.variables)}",
            remedy="With a dictionary, --columns (and `columns` in policy.toml) names its variables, not the file's "
            "columns. Nothing of the table was sent.",
        )


def _columns(dictionary: Dictionary, names: Sequence[str]) -> Columns:
    return Columns.of(names, {column.name: column.variable for column in dictionary.columns()})


def _gaps(X: Matrix, columns: Columns) -> Gaps:
    def lacking(block: Matrix) -> Index:
        missing = np.isnan(block)
        return np.array([missing.any(axis=1).sum(), *missing.sum(axis=0)], dtype=np.int64)

    counts: list[int] = sum_over_rows(X, lacking).tolist()
    owners: list[int] = columns.variable_of.tolist()
    by_variable = {columns.variables[v]: k for v, k in zip(owners, counts[1:], strict=True) if k}
    return Gaps(counts[0], len(X), by_variable)
