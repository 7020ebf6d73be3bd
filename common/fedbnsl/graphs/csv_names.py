"""Names in the cells of a CSV file, so that a spreadsheet takes none for a formula.

Spreadsheets run a cell that begins with `=`, `+`, `-` or `@`, and a name may come from another site. Such a name gets
an apostrophe before it, which spreadsheets read as "this is text"; so does a name that already looks like one with an
apostrophe, so that every name comes back as it was.
"""

_BEGINS_FORMULA = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")  # the wide ones count in some languages' spreadsheets


def as_cell(name: str) -> str:
    """A name as it is written."""
    return f"'{name}" if _looks_like_formula(name) else name


def from_cell(cell: str) -> str:
    """The name that `as_cell` wrote; a cell without an apostrophe is its own name."""
    return cell[1:] if cell.startswith("'") and _looks_like_formula(cell) else cell


def _looks_like_formula(text: str) -> bool:
    return text.lstrip("'").lstrip()[:1] in _BEGINS_FORMULA
