"""Widths for the columns of a table in which no word is broken: rich narrows the widest column, whatever is in it."""

from rich.cells import cell_len
from rich.table import Table


def keep_words(table: Table, width: int) -> Table:
    """Give the columns of a table, of texts in a box, what their longest words need, and of the rest the same to all.

    If `width` has no room for that, rich breaks words.
    """
    texts = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    least = [max(cell_len(word) for text in own for word in text.split() or [""]) for own in texts]
    most = [max(cell_len(line) for text in own for line in text.splitlines() or [""]) for own in texts]
    room = width - sum(least) - (3 * len(least) + 1)  # lines, and a space at either side of a cell
    if room < 0:
        return table
    widths = list(least)
    while lacking := [k for k, own in enumerate(widths) if own < most[k]][:room]:
        for k in lacking:
            widths[k] += 1
        room -= len(lacking)
    for column, own in zip(table.columns, widths, strict=True):
        column.width = own
    return table
