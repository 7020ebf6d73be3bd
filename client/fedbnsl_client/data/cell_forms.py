"""What a cell that is no number looks like: a mark of a missing value, a date, a number in another notation, or words.

By the cell alone, from fixed lists: what is said of one record depends on no other.
"""

import re
from typing import Literal

Form = Literal["mark", "date", "decimal comma", "limit", "number and text", "word"]

FORMS_IN_WORDS: dict[Form, str] = {
    "mark": "marks of a missing value",
    "date": "dates or times",
    "decimal comma": "numbers with a decimal comma",
    "limit": "limits, such as <0.1",
    "number and text": "numbers with text",
    "word": "words or codes",
}

BELOW_A_LIMIT = "A value below a limit is not missing at random: see docs/how-to/limits-of-detection.md"

_MARKS_ALONE = (
    "? * . .. ... - -- --- n/a na n.a. n.a #n/a nan <na> null #null! (null) \\n none nil nd n.d. #value! #div/0! "
    "#num! #name? #ref! k.a."
)
_NOT_KNOWN = frozenset(
    [
        "unk",
        "unknown",
        "not known",
        "missing",
        "(missing)",
        "no data",
        "not available",
        "not recorded",
        "not done",
        "not measured",
        "unbekannt",
        "keine angabe",
        "inconnu",
        "desconocido",
    ]
)
_MARKS = frozenset(_MARKS_ALONE.split()) | _NOT_KNOWN

_ALSO_LEVELS = frozenset({"-", "--", "---", "none", "nil", "nd", "n.d."})
"""Marks among numbers, but perhaps a result among words: negative, no treatment."""

_DATE = re.compile(
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{2}(\d{2})?|\d{1,2}[- ]?[A-Za-z]{3}[- ]?\d{2}(\d{2})?)"
    r"([T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*(Z|[AaPp][Mm]|[+-]\d{2}:?\d{2})?)?|\d{1,2}:\d{2}(:\d{2})?"
)
_DECIMAL_COMMA = re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+")
_LIMIT = re.compile(r"[<>\u2264\u2265]=?\s*[+-]?\d.*")
_BEGINS_AS_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?\s*[^\d\s.,:/-]{1,12}")


def form_of(cell: str) -> Form:
    """What a cell without the spaces around it looks like, given that it is no number and not empty."""
    if cell.casefold() in _MARKS:
        return "mark"
    if _DATE.fullmatch(cell):
        return "date"
    if _DECIMAL_COMMA.fullmatch(cell):
        return "decimal comma"
    if _LIMIT.fullmatch(cell):
        return "limit"
    return "number and text" if _BEGINS_AS_NUMBER.fullmatch(cell) else "word"


def is_mark(cell: str, *, among_words: bool) -> bool:
    """Whether a cell stands for a missing value; `among_words`: in a column of levels, where some marks may be one."""
    lower = cell.casefold()
    return lower in _MARKS and not (among_words and lower in _ALSO_LEVELS)


def says_not_known(cell: str) -> bool:
    """Whether a cell that stands for a missing value says so in words, such as unknown, so that it may be a level."""
    return cell.casefold() in _NOT_KNOWN


def is_compact_date(number: float) -> bool:
    """Whether a whole number can be read as yyyymmdd."""
    year, month, day = int(number // 10_000), int(number // 100) % 100, int(number) % 100
    return 1880 <= year <= 2100 and 1 <= month <= 12 and 1 <= day <= 31
