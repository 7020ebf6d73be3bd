"""The protein-signalling data of Sachs et al. (Science 308:523, 2005): table, reference graphs, split over sites.

The folder is not part of the project: FEDBNSL_DATA names a folder that holds sachs/, with sachs.csv (a header, then one
cell a row on the raw scale) and edges-*.csv (source,target), one file for each published edge list.
"""

import csv
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_workbench.scoring.reference import read_full_reference

N_SITES = 3
"""Participants of the paper (appendix "Real Data")."""

_REMEDY = (
    "Set FEDBNSL_DATA to a folder that holds sachs/ with sachs.csv (a header and 7466 rows of 11 columns) and at least "
    "one edges-*.csv (source,target)."
)


@dataclass(frozen=True, eq=False)
class SachsData:
    """What the folder holds.

    Attributes
    ----------
    variables
        d names.
    X
        (n, d) table, raw scale, in the order of the file: condition after condition.
    references
        (d, d) graphs by the name of their file without edges-, in the order of the names. One of them has a cycle.
    """

    variables: tuple[str, ...]
    X: Matrix
    references: Mapping[str, Mask]


def sachs_folder() -> Path:
    """FEDBNSL_DATA/sachs.

    Raises
    ------
    ResultError
        If the variable is not set, or there is no table in that folder.
    """
    root = os.environ.get("FEDBNSL_DATA", "")
    if not root:
        raise ResultError("the Sachs data are needed, but FEDBNSL_DATA is not set", remedy=_REMEDY)
    folder = Path(root) / "sachs"
    if not (folder / "sachs.csv").is_file():
        raise ResultError(f"FEDBNSL_DATA is {root}, but there is no {folder / 'sachs.csv'}", remedy=_REMEDY)
    return folder


def read_sachs() -> SachsData:
    """The data of `sachs_folder`.

    Raises
    ------
    ResultError
        If there is no folder or no edge list, a file cannot be read, or the table is not one of finite numbers.
    """
    folder = sachs_folder()
    path = folder / "sachs.csv"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row]
        X = np.array([[float(cell) for cell in row] for row in rows])
    except (OSError, ValueError, csv.Error) as error:
        raise ResultError(f"{path} cannot be read as a table of numbers: {error}", remedy=_REMEDY) from None
    if X.ndim != 2 or X.shape[1] != len(header) or not np.isfinite(X).all():
        raise ResultError(f"{path} is not a table of finite numbers under {len(header)} names", remedy=_REMEDY)
    variables = tuple(header)
    lists = _edge_lists(folder)
    if not lists:
        raise ResultError(f"{folder} holds no edges-*.csv to score against", remedy=_REMEDY)
    references = {each.stem.removeprefix("edges-"): read_full_reference(each, variables) for each in lists}
    return SachsData(variables, X, references)


def sachs_digest() -> str:
    """16 hexadecimal digits of what the table and the edge lists of `sachs_folder` hold.

    Raises
    ------
    ResultError
        If there is no folder, or a file cannot be read.
    """
    folder = sachs_folder()
    whole = hashlib.sha256()
    for path in (folder / "sachs.csv", *_edge_lists(folder)):
        try:
            whole.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        except OSError as error:
            raise ResultError(f"{path} cannot be read: {error.strerror}", remedy=_REMEDY) from None
    return whole.hexdigest()[:16]


def _edge_lists(folder: Path) -> list[Path]:
    return sorted(folder.glob("edges-*.csv"))


@dataclass(frozen=True, eq=False)
class SachsFederation:
    """The (n, d) tables of the sites, over the same d variables."""

    variables: tuple[str, ...]
    tables: tuple[Matrix, ...]


def federate(data: SachsData, *, seed: int | None, transform: str = "raw", n_sites: int = N_SITES) -> SachsFederation:
    """The sites' tables: rows dealt by `deal`, then each site's own `transformed`."""
    tables = tuple(transformed(X, transform) for X in deal(data.X, n_sites, seed=seed))
    return SachsFederation(data.variables, tables)


def deal(X: Matrix, n_sites: int, *, seed: int | None) -> tuple[Matrix, ...]:
    """The rows over sites of equal size, (n // P, d) each; up to P - 1 rows are left out, as in the paper.

    Parameters
    ----------
    seed
        Shuffle the rows with this seed first; None deals contiguous blocks, and leaves out the last rows.
    """
    order = np.arange(len(X)) if seed is None else np.random.default_rng(seed).permutation(len(X))
    return tuple(X[part] for part in np.split(order[: len(X) // n_sites * n_sites], n_sites))


def transformed(X: Matrix, how: str) -> Matrix:
    """One site's (n, d) table on another scale; needs nothing of the other sites.

    Parameters
    ----------
    how
        raw: as it is; centred: without its column means; standardised: centred, in units of its column standard
        deviations; log: logarithms, centred.
    """
    if how == "raw":
        return X
    if how == "log":
        X = np.log(X)
    X = X - X.mean(axis=0)
    return X / X.std(axis=0) if how == "standardised" else X
