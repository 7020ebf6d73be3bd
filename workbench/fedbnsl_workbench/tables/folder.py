"""The tables of several sites in one folder: site-1.csv, site-2.csv, ... and perhaps truth.csv."""

import csv
import io
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import DataError, ResultError
from fedbnsl.files.csv_form import header_of
from fedbnsl.files.durable import make_folder
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data import forgotten_groups, plan_fit
from fedbnsl_client.data.cell_forms import FORMS_IN_WORDS, Form, form_of
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_client.data.dataset import MIN_ROWS, Dataset
from fedbnsl_client.data.drafts.column_cells import as_number
from fedbnsl_client.data.reading import MISSING, NO_DICTIONARY, SAME_NAMES, ColumnMap
from fedbnsl_client.data.site_files import DICTIONARY, column_file
from fedbnsl_client.data.sources.csv_table import read_header, rows_of, said_in_words
from fedbnsl_workbench.tables.synthetic import SyntheticFederation

_GROUP_WORDS = frozenset(
    ["site", "center", "centre", "hospital", "clinic", "institution", "ward", "cohort", "batch", "lab"]
)

# Unit noise and weights up to 2 leave most columns of a sparse network within 10.
_GENERATED = (-20.0, 20.0)


def dictionary_of(folder: Path) -> Dictionary:
    """The data dictionary of a folder of tables, in `dictionary.toml`; empty if there is none.

    Raises PlanError if it cannot be used.
    """
    path = folder / DICTIONARY
    return Dictionary.load(path) if path.exists() else NO_DICTIONARY


def described_by(plan: Plan, folder: Path, *, given: Path | None = None) -> Plan:
    """The plan with the data dictionary of a folder of tables; as it is if there is none.

    `given`: the --dictionary that the plan has been given; None: none. Raises PlanError if it cannot be used, or the
    plan has another one.
    """
    dictionary = dictionary_of(folder)
    return plan.with_dictionary(dictionary, origin=str(folder / DICTIONARY), given=given) if dictionary else plan


def ranges_of_generated(variables: Sequence[str]) -> Dictionary:
    """A data dictionary for generated tables: bounds that were chosen before any table was drawn."""
    return Dictionary.from_plain({name: {"range": _GENERATED} for name in variables}, origin="generated tables")


def read_tables(
    files: Mapping[str, Path],
    columns: Sequence[str],
    *,
    dictionary: Dictionary = NO_DICTIONARY,
    check: Callable[[Dataset], object] = lambda table: None,
    remarks: Callable[[Dataset], Iterable[str]] = Dataset.remarks,
    warn: bool = True,
    min_rows: int = MIN_ROWS,
) -> dict[str, Dataset]:
    """The tables of all sites; what is odd is a DataWarning that begins with the names of its sites.

    Raises DataError naming every table that cannot be used.

    Parameters
    ----------
    columns
        As in `Dataset.read`.
    dictionary
        What the variables are; each table is read with its own column file (`column_file`).
    check
        May refuse a table by a DataError.
    remarks
        What is odd about a table.
    warn
        False: no warnings.
    min_rows
        A table with fewer rows is refused.
    """
    tables: dict[str, Dataset] = {}
    unusable: list[DataError] = []
    odd: dict[str, list[str]] = {}
    for site, path in files.items():
        try:
            here = column_file(path) if dictionary else None
            mapping = SAME_NAMES if here is None else ColumnMap.load(here)
            tables[site] = Dataset.read(
                path, columns=columns, dictionary=dictionary, mapping=mapping, warn=False, min_rows=min_rows
            )
            _checked(tables[site], check, origin=path)
        except DataError as error:
            unusable.append(error)
            continue
        if warn:
            odd[site] = list(remarks(tables[site]))
    for text in by_site(odd):
        warnings.warn(text, DataWarning, stacklevel=2)
    if len(unusable) == 1:
        raise unusable[0]
    if unusable:
        texts = map(str, unusable)
        raise DataError(
            "\n  ".join([f"{len(unusable)} of {len(files)} tables cannot be used:", *texts]), remedy=unusable[0].remedy
        )
    return tables


def by_site(remarks: Mapping[str, Iterable[str]]) -> list[str]:
    """What is odd about the sites' tables, each text once, after the names of its sites."""
    sites: dict[str, list[str]] = {}
    for site, texts in remarks.items():
        for text in texts:
            sites.setdefault(text, []).append(site)
    return [
        f"{'every site' if 1 < len(names) == len(remarks) else first_few(names)}: {text}"
        for text, names in sites.items()
    ]


def tables_for(
    plan: Plan, files: Mapping[str, Path], *, warn: bool = True, min_rows: int = MIN_ROWS
) -> dict[str, Dataset]:
    """The tables of a run of the plan, read by its dictionary; see `read_tables`. A table it would refuse is named."""
    return read_tables(
        files,
        plan.variables,
        dictionary=plan.dictionary,
        check=lambda table: plan_fit.rows_for(table, plan),
        remarks=lambda table: plan_fit.remarks(table, plan),
        warn=warn,
        min_rows=min_rows,
    )


def _checked(table: Dataset, check: Callable[[Dataset], object], *, origin: Path) -> None:
    try:
        check(table)
    except DataError as error:
        raise DataError(f"{origin}: {error}", remedy=error.remedy) from None


def write_federation(federation: SyntheticFederation, out: Path) -> list[Path]:
    """Write site-1.csv, ... with full precision, and truth.csv (source,target,weight).

    Raises ResultError if the folder holds tables already, or cannot be written.
    """
    new_folder(out)
    paths: list[Path] = []
    for k, X in enumerate(federation.tables):
        paths.append(out / f"site-{k + 1}.csv")
        _write_numbers(paths[-1], federation.variables, X)
    names = federation.variables
    pairs: list[list[int]] = np.argwhere(federation.W != 0).tolist()
    edges = [[names[i], names[j], repr(float(federation.W[i, j]))] for i, j in pairs]
    write_table(out / "truth.csv", ("source", "target", "weight"), edges)
    return paths


def split(path: Path, n_sites: int, out: Path, *, seed: int | None, group: str = "") -> dict[str, int]:
    """Deal the rows of one table to several sites; returns rows by site.

    Cells are handed on as they stand in the file, but separated by commas, and numbers with decimal points. Cells that
    no run can read are a DataWarning: their columns may be left out later.

    Raises DataError if the file cannot be read, has too few rows or groups, or no such group column, or a row belongs
    to no group. Raises ResultError if the output folder holds tables already, or cannot be written.

    Parameters
    ----------
    seed
        Shuffle the rows, or groups, with this seed first; None deals contiguous blocks.
    group
        A column whose equal cells are of one patient: each site gets as many of them, with all of their rows. Empty:
        rows are dealt one by one.
    """
    names = read_header(path)
    rows = list(rows_of(path, names))
    with said_in_words(path):
        header = header_of(path)  # handed to the sites unchanged
    if len(rows) < n_sites:
        raise DataError(f"{path}: {len(rows)} rows cannot be split over {n_sites} sites")
    for text in _no_numbers(path, names, rows, out):
        warnings.warn(text, DataWarning, stacklevel=2)
    if seed is not None and (text := _hidden_groups(names, rows)):
        warnings.warn(f"{path}: {text}", DataWarning, stacklevel=2)
    if not group:
        for text in _forgotten_groups(names, rows):
            warnings.warn(f"{path}: {text}", DataWarning, stacklevel=2)
    dealt = list(_rows_by_group(path, names, rows, group).values()) if group else [[k] for k in range(len(rows))]
    if len(dealt) < n_sites:
        raise DataError(f"{path}: {len(dealt)} values of {group!r} cannot be split over {n_sites} sites")
    order = np.arange(len(dealt)) if seed is None else np.random.default_rng(seed).permutation(len(dealt))
    new_folder(out)
    sizes: dict[str, int] = {}
    parts: list[list[int]] = [part.tolist() for part in np.array_split(order, n_sites)]
    for k, part in enumerate(parts):
        own = [rows[r] for place in part for r in dealt[place]]
        write_table(out / f"site-{k + 1}.csv", header, own)
        sizes[f"site-{k + 1}"] = len(own)
    return sizes


def _rows_by_group(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]], group: str) -> dict[str, list[int]]:
    """The places of the rows by their cell of a column, in the order in which these occur."""
    if group not in names:
        raise DataError(f"{path}: no column is called {group!r}; it has {first_few(map(repr, names))}")
    column, found = names.index(group), dict[str, list[int]]()
    for k, row in enumerate(rows):
        found.setdefault(row[column].strip(), []).append(k)
    if without := [len(found[cell]) for cell in found if cell in MISSING]:
        raise DataError(f"{path}: column {group!r}: {sum(without)} row(s) lack a value, and belong to no group")
    return found


def _forgotten_groups(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Ask about columns that seem to tell which rows belong together."""
    perhaps = forgotten_groups.unused_identifiers(names, (), NO_DICTIONARY)
    if not perhaps:
        return []
    cells = {name: np.array([row[k].strip() for row in rows]) for k, name in enumerate(names)}
    codes = {name: np.unique(cells[name], return_inverse=True)[1].astype(np.float64) for name in perhaps}
    for name, places in codes.items():
        places[np.isin(cells[name], list(MISSING))] = np.nan
    others = [[as_number(cell) for cell in of] for name, of in cells.items() if name not in perhaps]
    X = np.array(others, dtype=np.float64).reshape(len(others), len(rows)).T
    return [
        f"{one.text}. --group COLUMN keeps the rows of a patient at one site"
        for one in forgotten_groups.asked(codes, X)
    ]


def _no_numbers(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]], out: Path) -> Iterator[str]:
    """Columns with cells that are no numbers, grouped by what these are."""
    columns: dict[Form, dict[str, int]] = {}
    for k, name in enumerate(names):
        for row in rows:
            cell = row[k].strip()
            if cell not in MISSING and as_number(cell) is None:
                found = columns.setdefault(form_of(cell), {})
                found[name] = found.get(name, 0) + 1
    if not columns:
        return
    groups = [
        f"{FORMS_IN_WORDS[form]} in {len(found)} ({first_few(f'{name!r} {n:,} rows' for name, n in found.items())})"
        for form, found in columns.items()
    ]
    n = len({name for found in columns.values() for name in found})
    yield (
        f"{path}: {n} of {len(names)} columns hold cells that are no numbers: {'; '.join(groups)}. The parts are "
        f"written as they stand, and a run reads them by a data dictionary: `fedbnsl data dictionary {out} "
        f"--public-data` drafts one if anybody may see the table. Without one, leave the "
        "columns out (--columns)"
    )


def _hidden_groups(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A column that may say where a row is from: a shift between those groups becomes a hidden cause when mixed."""
    for k, name in enumerate(names):
        if not _GROUP_WORDS.isdisjoint(re.split(r"[^a-z]+", name.casefold())):
            places = {row[k].strip() for row in rows}.difference(MISSING)
            if 2 <= len(places) <= len(rows) / 5:
                return (
                    f"column {name!r} looks like the group that a row is from ({len(places)} groups). Mixed anew, "
                    "shifts between groups are no longer taken off, and join columns that they move: to take them off, "
                    "write one site-N.csv for each group"
                )
    return ""


def csv_line(names: Sequence[str]) -> str:
    """Names as one CSV line, quoted where needed."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def new_folder(out: Path) -> None:
    """Make a folder for tables.

    Raises ResultError if it holds tables already, or cannot be made.
    """
    make_folder(out)
    if any(out.glob("site-*.csv")):
        raise ResultError(f"folder {out} holds site tables already; choose another one")


def _write_numbers(path: Path, header: Sequence[str], X: Matrix) -> None:
    """As `write_table` would, in half the time: no number needs a quote."""
    with _new_file(path) as file:
        file.write(csv_line(header) + "\n")
        file.writelines(",".join(map(repr, row)) + "\n" for row in X.tolist())


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a CSV table. Raises ResultError if it cannot be written."""
    with _new_file(path) as file:
        # A name alone may hold a semicolon, which would seem to separate two.
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL if len(header) == 1 else csv.QUOTE_MINIMAL)
        writer.writerow(header)
        writer.writerows(rows)


@contextmanager
def _new_file(path: Path) -> Generator[TextIO]:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise ResultError(f"{path} cannot be written: {error.strerror}") from None
