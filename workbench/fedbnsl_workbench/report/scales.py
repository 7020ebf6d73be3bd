"""Means and variances of the columns over the tables of all sites."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.reading import NO_DICTIONARY, SAME_NAMES, ColumnMap
from fedbnsl_client.data.site_files import column_file, site_files

# The default remedy of the error is for a site about to join a run.
_REMEDY = "Give --data the folder with the tables of this very run, or leave it out: a report needs no tables."


@dataclass(frozen=True)
class Scales:
    """Every column over the complete rows of all tables."""

    # (d,) in units and squared units of the columns.
    mean: Matrix
    variance: Matrix
    # What they were computed from.
    n_rows: int
    n_tables: int


def read_scales(
    folder: Path, variables: Sequence[str], *, columns: Sequence[str], dictionary: Dictionary = NO_DICTIONARY
) -> Scales:
    """Means and variances of the tables in a folder, pooled.

    Parameters
    ----------
    columns
        d names of the columns that the variables become.
    dictionary
        What the variables are; each table is read with its own column file.

    Raises
    ------
    DataError
        If the folder has no table, or one that cannot be used.
    """
    if not any(folder.glob("site-*.csv")):
        raise DataError(f"{folder} holds no site-*.csv to report on", remedy=_REMEDY)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # the page itself says what the tables are like
            tables = [
                _read(path, variables, dictionary).complete_cases().reordered(columns).X
                for path in site_files(folder).values()
            ]
    except DataError as error:
        raise DataError(str(error), remedy=_REMEDY) from None
    n = sum(len(X) for X in tables)
    mean = np.sum([X.sum(axis=0) for X in tables], axis=0) / n
    variance = np.sum([((X - mean) ** 2).sum(axis=0) for X in tables], axis=0) / n
    return Scales(mean, variance, n, len(tables))


def _read(path: Path, variables: Sequence[str], dictionary: Dictionary) -> Dataset:
    here = column_file(path) if dictionary else None
    mapping = SAME_NAMES if here is None else ColumnMap.load(here)
    return Dataset.read(path, columns=variables, dictionary=dictionary, mapping=mapping, min_rows=1)
