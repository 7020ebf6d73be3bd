"""Widths for the columns of a table in which no word is broken: rich narrows the widest column, whatever is in it."""

from collections.abc import Callable

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text


def keep_words(table: Table, width: int, *, fewest: int = 2) -> Table:
    """Give the columns of a table, of texts in a box, what their longest words need, and of the rest the same to all.

    If `width` has no room for that, the last columns are left out, and their heads are named below. If the `fewest`
    first ones have none, all stay, and rich breaks words.
    """
    least = _longest(table, str.split)
    fitting = [k for k in range(fewest, len(least) + 1) if sum(least[:k]) + 3 * k + 1 <= width]
    if not fitting:
        return table
    if left_out := [" ".join(str(column.header).split()) for column in table.columns[fitting[-1] :]]:
        table.caption, table.caption_justify = Text(f"for a wider terminal: {', '.join(left_out)}"), "left"
    del table.columns[fitting[-1] :]
    least = least[: fitting[-1]]
    room = width - sum(least) - (3 * len(least) + 1)  # lines, and a space at either side of a cell
    widths, most = list(least), _longest(table, str.splitlines)
    while lacking := [k for k, own in enumerate(widths) if own < most[k]][:room]:
        for k in lacking:
            widths[k] += 1
        room -= len(lacking)
    for column, own in zip(table.columns, widths, strict=True):
        column.width = own
    return table


def _longest(table: Table, parts: Callable[[str], list[str]]) -> list[int]:
    """By column, the width of the longest part of its texts."""
    texts = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    return [max(cell_len(part) for text in own for part in parts(text) or [""]) for own in texts]
