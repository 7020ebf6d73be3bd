"""Columns that are functions of each other, as far as rows tell: a code beside its name, a city and its region."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_VALUES = 50
LEAST_ROWS_OF_OTHERS = (
    20  # so many rows with both values must have another value than the most frequent one: chance does not make them
)


@dataclass
class ColumnFunctions:
    """Fed row by row; a pair is dropped at the first row that contradicts it.

    `names`: of columns with few values.
    """

    names: Sequence[str]
    _maps: dict[tuple[int, int], dict[str, str]] = field(init=False)
    _rows: dict[tuple[int, int], Counter[str]] = field(init=False)  # with both values, by the first one

    def __post_init__(self) -> None:
        places = range(len(self.names))
        self._maps = {(a, b): {} for a in places for b in places if a != b}
        self._rows = {pair: Counter() for pair in self._maps}

    def add(self, cells: Sequence[str | None]) -> None:
        """Count one row; None: the value is missing."""
        for pair, known in list(self._maps.items()):
            a, b = cells[pair[0]], cells[pair[1]]
            if a is None or b is None:
                continue
            if known.setdefault(a, b) == b:
                self._rows[pair][a] += 1
            else:
                del self._maps[pair]

    def functions(self) -> list[tuple[str, str]]:
        """Pairs of names (a, b) where a tells b."""
        return [(self.names[a], self.names[b]) for a, b in self._maps if self._is_no_chance((a, b))]

    def _is_no_chance(self, pair: tuple[int, int]) -> bool:
        """Whether the rows that have both values are enough."""
        of_a, of_b = self._rows[pair], Counter[str]()
        for a, b in self._maps[pair].items():
            of_b[b] += of_a[a]
        n = of_a.total()
        if len(of_b) < 2 or 5 * len(of_a) > n:
            return False
        others = n - max(of_b.values())
        repeated = n - len(of_a)  # rows that could have contradicted it
        return others >= LEAST_ROWS_OF_OTHERS and 2 * repeated > n
