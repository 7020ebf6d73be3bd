"""How a CSV file is written: what separates its columns, and where its header is.

The first line tells: `sep=;`, which spreadsheets write and read, or a header that outside quotes holds semicolons or
tabs alone.
"""

import csv
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

_SEPARATORS = ",;\t"
_QUOTED = re.compile(r'"[^"]*"')


class Form(NamedTuple):
    """What separates columns, and how many lines come before the header."""

    separator: str = ","
    before: int = 0


USUAL = Form()


def form_of(path: Path) -> Form:
    """The form that the first line of a file leaves no doubt of; else the usual one."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline().rstrip("\r\n")
    if first.lower().startswith("sep=") and len(first) == len("sep=,") and first[-1] in _SEPARATORS:
        return Form(first[-1], 1)
    outside = _QUOTED.sub("", first)
    found = [mark for mark in _SEPARATORS if mark in outside]
    return Form(found[0]) if len(found) == 1 else USUAL


@contextmanager
def opened(path: Path, form: Form) -> Generator[TextIO]:
    """A file from its header on."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        for _ in range(form.before):
            file.readline()
        yield file


def header_of(path: Path) -> list[str]:
    """The cells of a file's header, as they stand; empty: the file is."""
    form = form_of(path)
    with opened(path, form) as file:
        return next(csv.reader(file, delimiter=form.separator), list[str]())
