"""Check the column names of a table, and choose the columns to use."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from fedbnsl.console.wording import first_few
from fedbnsl.errors import DataError
from fedbnsl.protocol.messages import LONGEST_NAME, composed, is_variable_name
from fedbnsl_client.data.checks import quoted

_NAMES_SHOWN = 20
_NAME_OR_MAP = (
    'Say in columns.toml what the column is called here: [variable] column = "name"; or, if this site does not have '
    "the variable: [variable] absent = true. Nothing of the table was sent."
)


def read_names(origin: Path | str, header: Sequence[str]) -> list[str]:
    """The names of a header as they are used: without spaces around them, composed (NFC), and checked.

    Raises DataError as `check_names`, and for names that differ only in how their accents are stored.
    """
    stripped = [name.strip() for name in header]
    names = [composed(name) for name in stripped]
    spellings: dict[str, set[str]] = {}
    for name, written in zip(names, stripped, strict=True):
        spellings.setdefault(name, set()).add(written)
    alike = [name for name, written in spellings.items() if len(written) > 1]
    if alike:
        raise DataError(
            f"{origin}: the header holds {quoted(alike)} more than once, with accents stored in different ways "
            "(Unicode NFC and NFD), which is one name: rename one of the columns"
        )
    check_names(origin, names)
    return names


def check_names(origin: Path | str, header: Sequence[str]) -> None:
    """Refuse names that are empty, repeated or that the graph files cannot hold.

    Raises DataError by name.
    """
    if "" in header:
        k = header.index("") + 1
        numbers = "; if it holds row numbers, save the table without them" if k == 1 else ""
        raise DataError(f"{origin}: column {k} of {len(header)} has no name{numbers}")
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(f"{origin}: {quoted(repeated)} occur(s) more than once in the header")
    unusable = [name for name in header if not is_variable_name(name)]
    if unusable:
        raise DataError(
            f"{origin}: column {quoted([_begin(name) for name in unusable])}: a name must not be '(Intercept)', hold "
            f"control or bidirectional characters, or have more than {LONGEST_NAME} characters: graph files and pages "
            "cannot hold them"
        )


def _begin(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:40]}..."


def choose(
    origin: Path | str, header: Sequence[str], columns: Sequence[str], called: Mapping[str, str] | None = None
) -> list[int]:
    """Positions in the header of the columns to use; all if none is named.

    `called`: what columns are called in the header, by variable, if not like that. Raises DataError if one is missing
    or named twice, or there is only one.
    """
    called, columns = called or {}, [composed(name) for name in columns]
    here = [called.get(name, name) for name in columns]
    missing = [
        repr(column) if column == name else f"{column!r} (variable {name!r} in columns.toml)"
        for name, column in zip(columns, here, strict=True)
        if column not in header
    ]
    if missing:
        alike = first_few(repr(one) for name in here if name not in header for one in like(name, header))
        meant = f" (did you mean {alike}?)" if alike else ""
        there = quoted(header[:_NAMES_SHOWN]) + (", ..." if len(header) > _NAMES_SHOWN else "")
        raise DataError(
            f"{origin}: no column {', '.join(missing)} among the {len(header)} of the header{meant}: {there}",
            remedy=_NAME_OR_MAP if called else None,
        )
    repeated = sorted({name for name in here if here.count(name) > 1})
    if repeated:
        raise DataError(f"{origin}: {quoted(repeated)} chosen more than once")
    chosen = [header.index(name) for name in here] or list(range(len(header)))
    if len(chosen) < 2:
        raise DataError(f"{origin}: one column; a network needs at least two")
    return chosen


def unlike(there: Sequence[str], names: Sequence[str]) -> str:
    """Which of `names` a table lacks and which it has beside them, in words; empty: it has these alone."""
    lacking = [repr(name) for name in names if name not in there]
    surplus = [repr(name) for name in there if name not in names]
    said = (f"{word} {first_few(which)}" for word, which in (("lacks", lacking), ("has", surplus)) if which)
    return " and ".join(said)


def letters_of(name: str) -> str:
    """A name without case, spaces and signs, in which spellings of one differ."""
    return re.sub(r"[\W_]+", "", name.casefold())


def like(name: str, names: Sequence[str]) -> list[str]:
    """At most two of these names that a name may stand for: the same but for case, otherwise close ones."""
    same = [one for one in names if one.casefold() == name.casefold()]
    return same[:2] or get_close_matches(name, names, n=2, cutoff=0.8)
