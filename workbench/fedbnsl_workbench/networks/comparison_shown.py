"""How near drawn rows come to their network, as tables for a terminal: what is furthest off, and how much is nearer."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

_MOST_COLUMNS, _MOST_LEVELS, _MOST_PAIRS = 12, 12, 5


def tables_of(told: Mapping[str, Any]) -> list[Table]:
    """Of what `Tally.compared` tells: columns that are no levels, levels, and correlations."""
    of_levels = {
        column
        for column in told["columns"]
        if any(column == name or column.startswith(f"{name}=") for name in told["levels"])
    }
    columns = [
        (
            abs(of["drawn_mean"] - of["mean"]) / (of["spread"] or 1.0),
            [name, of["mean"], of["drawn_mean"], of["spread"], of["drawn_spread"]],
        )
        for name, of in told["columns"].items()
        if name not in of_levels
    ]
    levels = [
        (
            abs(of["drawn"] - (of["drawn"] if of["share"] is None else of["share"])),
            [f"{name}: {level}", of["share"], of["drawn"]],
        )
        for name, own in told["levels"].items()
        for level, of in own.items()
    ]
    pairs = [(0.0, [f"{one['one']}, {one['other']}", one["of_network"], one["drawn"]]) for one in told["correlations"]]
    found = [
        _table(
            "drawn rows beside what the run tells",
            ("column", "mean", "drawn", "spread", "drawn"),
            columns,
            _MOST_COLUMNS,
            4,
        ),
        _table("shares of levels", ("level", "told", "drawn"), levels, _MOST_LEVELS, 3),
        _table("correlations that are furthest off", ("columns", "network", "drawn"), pairs, _MOST_PAIRS, 2),
    ]
    return [one for one in found if one.row_count]


def _table(title: str, heads: Sequence[str], rows: Sequence[tuple[float, list[Any]]], most: int, digits: int) -> Table:
    """Rows with how far each is off: all in their order, or the furthest."""
    table = Table(title=Text(title, style="table.title"), title_justify="left")
    for k, head in enumerate(heads):
        table.add_column(head, justify="right" if k else "left", overflow="fold")
    shown = rows if len(rows) <= most else sorted(rows, key=lambda row: -row[0])[:most]
    for _, (name, *numbers) in shown:
        table.add_row(Text(name), *("not told" if one is None else _number(one, digits) for one in numbers))
    if len(rows) > most:
        table.add_row(f"... {len(rows) - most:,} nearer", *[""] * (len(heads) - 1))
    return table


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}g}" if digits > 3 else f"{value:.{digits}f}"
