"""Levels of a column that no table has together, such as f and m at one site and 1 and 2 at the others.

They may be the same levels in two spellings: a run would then tell the sites apart, and not what the levels mean.
"""

from collections.abc import Mapping
from dataclasses import replace

from fedbnsl.console.shown import shown
from fedbnsl.console.wording import first_few
from fedbnsl_client.data.drafts.column_cells import as_number, written
from fedbnsl_client.data.drafts.guess import Guess


class LevelsOfTables:
    """Which levels each table has, of columns that are guessed to have levels."""

    def __init__(self, guesses: Mapping[str, Guess]) -> None:
        self._level_of = {
            name: {text: level for level in found.levels for text in found.spellings.get(level, (level,))}
            for name, found in guesses.items()
        }
        self._seen: dict[str, dict[str, set[str]]] = {name: {} for name in guesses}  # by column and table

    def add(self, table: str, values: Mapping[str, str | None]) -> None:
        """Take note of one row; None where a value is missing."""
        for name, level_of in self._level_of.items():
            if value := values.get(name):
                number = as_number(value)
                level = level_of.get(value) or level_of.get(value if number is None else written(number), value)
                self._seen[name].setdefault(table, set()).add(level)

    def asked(self, guesses: Mapping[str, Guess]) -> dict[str, Guess]:
        """The guesses, with a question where levels never meet; without columns that have one value in every table."""
        return {name: self._with(name, found) for name, found in guesses.items()}

    def _with(self, name: str, found: Guess) -> Guess:
        apart = _apart(self._seen.get(name, {}))
        if len(apart) < 2:
            return found
        if all(len(levels) == 1 for _, levels in apart):
            reason = "every table has one value, and not all the same: it says which site a row is of, as the tables do"
            return replace(found, left_out=found.left_out or reason)
        told = "; ".join(
            f"{first_few((shown(table, 60) for table in tables), 3)} {'has' if len(tables) == 1 else 'have'} "
            f"{first_few((shown(repr(level), 40) for level in sorted(levels)), 5)}"
            for tables, levels in apart
        )
        ask = (
            f"no table has levels of two of these groups: {told}. If they mean the same, let each site's columns.toml "
            "say how it writes the levels"
        )
        return replace(found, asks=(*found.asks, ask))


def _apart(seen: Mapping[str, set[str]]) -> list[tuple[list[str], set[str]]]:
    """Groups of tables, with their levels, that have no level in common."""
    found: list[tuple[list[str], set[str]]] = []
    for table, levels in seen.items():
        common = [group for group in found if group[1] & levels]
        found = [group for group in found if group not in common]
        tables = [one for group in common for one in group[0]]
        found.append(([*tables, table], levels.union(*(group[1] for group in common))))
    return found
