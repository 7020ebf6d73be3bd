"""The tables of several sites in one folder: site-1.csv, site-2.csv, ... and perhaps truth.csv."""

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbnsl.durable import make_folder
from fedbnsl.errors import DataError, ResultError
from fedbnsl_client.data.csv_table import read_header
from fedbnsl_experiments.tables.synthetic import SyntheticFederation

_NAMES_SHOWN = 5


def site_files(folder: Path) -> dict[str, Path]:
    """The tables of a folder by site, in the order of their numbers.

    Raises
    ------
    DataError
        If the folder has none.
    """
    found = {path.stem: path for path in folder.glob("site-*.csv")}
    if not found:
        others = sorted(path.name for path in folder.glob("*.csv"))[:_NAMES_SHOWN]
        lacking = f"it holds {', '.join(others)}" if others else "" if folder.is_dir() else "there is no such folder"
        raise DataError(
            f"{folder} holds no site-*.csv{lacking and f' ({lacking})'}",
            remedy="Give a folder with one CSV file a "
            "site, named site-1.csv, site-2.csv, ...; `fedbnsl data split` and `fedbnsl data synth` make such folders.",
        )
    return dict(
        sorted(found.items(), key=lambda item: [int(x) if x.isdecimal() else x for x in re.split(r"(\d+)", item[0])])
    )


def write_federation(federation: SyntheticFederation, out: Path) -> list[Path]:
    """Write site-1.csv, ... with full precision, and truth.csv (source,target,weight).

    Raises
    ------
    ResultError
        If the folder holds tables already, or cannot be written.
    """
    new_folder(out)
    paths: list[Path] = []
    for k, X in enumerate(federation.tables):
        paths.append(out / f"site-{k + 1}.csv")
        _write_table(paths[-1], federation.variables, X.tolist())
    names = federation.variables
    pairs: list[list[int]] = np.argwhere(federation.W != 0).tolist()
    edges = [[names[i], names[j], repr(float(federation.W[i, j]))] for i, j in pairs]
    _write_table(out / "truth.csv", ("source", "target", "weight"), edges)
    return paths


def split(path: Path, n_sites: int, out: Path, *, seed: int | None) -> dict[str, int]:
    """Deal the rows of one table to several sites, cell by cell as they stand in the file; returns rows by site.

    Parameters
    ----------
    seed
        Shuffle the rows with this seed first; None deals contiguous blocks.

    Raises
    ------
    DataError
        If the file cannot be read or has too few rows.
    ResultError
        If the output folder holds tables already, or cannot be written.
    """
    read_header(path)  # only validates: the header is written to the sites unchanged
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a UTF-8 table in CSV form ({error})") from None
    ragged = sum(len(row) != len(header) for row in rows)
    if ragged:
        raise DataError(f"{path}: {ragged} row(s) without exactly {len(header)} fields")
    if len(rows) < n_sites:
        raise DataError(f"{path}: {len(rows)} rows cannot be split over {n_sites} sites")
    order = np.arange(len(rows)) if seed is None else np.random.default_rng(seed).permutation(len(rows))
    new_folder(out)
    sizes: dict[str, int] = {}
    parts: list[list[int]] = [part.tolist() for part in np.array_split(order, n_sites)]
    for k, part in enumerate(parts):
        _write_table(out / f"site-{k + 1}.csv", header, [rows[r] for r in part])
        sizes[f"site-{k + 1}"] = len(part)
    return sizes


def csv_line(names: Sequence[str]) -> str:
    """Names as one CSV line, quoted where needed."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def new_folder(out: Path) -> None:
    """Make a folder for tables.

    Raises
    ------
    ResultError
        If it holds tables already, or cannot be made.
    """
    make_folder(out)
    if any(out.glob("site-*.csv")):
        raise ResultError(f"folder {out} holds site tables already; choose another one")


def _write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str | float]]) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)
    except OSError as error:
        raise ResultError(f"{path} cannot be written: {error.strerror}") from None
