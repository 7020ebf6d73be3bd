"""Where the tables of several sites lie in one folder: site-1.csv, site-2.csv, ..., and what describes them."""

import re
from pathlib import Path

from fedbnsl.errors import DataError

DICTIONARY = "dictionary.toml"
_NAMES_SHOWN = 5


def site_files(folder: Path) -> dict[str, Path]:
    """The tables of a folder by site, in the order of their numbers.

    Raises DataError if the folder has none.
    """
    found = {path.stem: path for path in folder.glob("site-*.csv")}
    if not found:
        others = sorted(path.name for path in folder.glob("*.csv"))[:_NAMES_SHOWN]
        no_folder = "it is a file, not a folder" if folder.is_file() else "there is no such folder"
        lacking = f"it holds {', '.join(others)}" if others else "" if folder.is_dir() else no_folder
        raise DataError(
            f"{folder} holds no site-*.csv{lacking and f' ({lacking})'}",
            remedy="Give a folder with one CSV file for each site: site-1.csv, site-2.csv, ...; `fedbnsl data split` "
            "and `fedbnsl data synth` make such folders.",
        )
    return dict(
        sorted(found.items(), key=lambda item: [int(x) if x.isdecimal() else x for x in re.split(r"(\d+)", item[0])])
    )


def column_map_of(table: Path) -> Path:
    """Where the column map of a table lies: `site-1.columns.toml` beside `site-1.csv`."""
    return table.with_name(f"{table.stem}.columns.toml")


def column_file(table: Path) -> Path | None:
    """The column map of a table, if there is one."""
    path = column_map_of(table)
    return path if path.exists() else None
