"""Names on a command line: separated by commas, or the header of a table."""

import csv
import os
from pathlib import Path

from fedbnsl.errors import SetupError
from fedbnsl.files.csv_form import header_of

# Of files, and of no variable: a mistyped path is not taken for the name of a variable.
_ENDINGS = (".csv", ".tsv", ".txt", ".toml", ".parquet")


def variables_in(given: str) -> list[str]:
    """The names in the value of --variables, or in the header of the file that it is the path of.

    Raises
    ------
    SetupError
        If there is no such file, or it cannot be read.
    """
    path = Path(given)
    if not path.is_file():
        names = names_in(given)
        for name in names:
            # A slash may be part of a name, such as HDL/LDL; a single name is none that a run could do with.
            if name.lower().endswith(_ENDINGS) or (len(names) == 1 and os.sep in name):
                raise SetupError(
                    f"--variables {given}: no such file: {name}",
                    remedy="Name one file whose first line names the variables, or the variables themselves: a,b,c.",
                )
        return names
    try:
        return [name.strip() for name in header_of(path)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SetupError(f"--variables {given}: cannot be read: {error}") from None


def names_in(line: str) -> list[str]:
    """Names separated by commas; one that holds a comma is in quotation marks, as in a CSV file."""
    return [name.strip() for name in next(csv.reader([line], skipinitialspace=True), list[str]())]
