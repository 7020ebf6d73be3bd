"""Columns that are functions of each other, as far as rows tell: a code beside its name, a city and its region."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST_VALUES = 50
LEAST_ROWS_OF_OTHERS = 20  # so many rows must have another value than the most frequent one: chance does not make them


@dataclass
class ColumnFunctions:
    """Fed row by row; a pair is dropped at the first row that contradicts it.

    `names`: of columns with few values.
    """

    names: Sequence[str]
    _maps: dict[tuple[int, int], dict[str, str]] = field(init=False)
    _counts: list[Counter[str]] = field(init=False)
    _n: int = 0

    def __post_init__(self) -> None:
        places = range(len(self.names))
        self._maps = {(a, b): {} for a in places for b in places if a != b}
        self._counts = [Counter() for _ in places]

    def add(self, cells: Sequence[str | None]) -> None:
        """Count one row; None: the value is missing."""
        self._n += 1
        for counts, cell in zip(self._counts, cells, strict=True):
            if cell is not None:
                counts[cell] += 1
        broken = [
            pair
            for pair, known in self._maps.items()
            if (a := cells[pair[0]]) is not None and (b := cells[pair[1]]) is not None and known.setdefault(a, b) != b
        ]
        for pair in broken:
            del self._maps[pair]

    def functions(self) -> list[tuple[str, str]]:
        """Pairs of names (a, b) where a tells b."""
        return [(self.names[a], self.names[b]) for a, b in self._maps if self._is_no_chance(a, b)]

    def _is_no_chance(self, a: int, b: int) -> bool:
        of_a, of_b = self._counts[a], self._counts[b]
        if len(of_b) < 2 or 5 * len(of_a) > self._n:
            return False
        others = of_b.total() - max(of_b.values())
        repeated = sum(n - 1 for n in of_a.values())  # rows that could have contradicted it
        return others >= LEAST_ROWS_OF_OTHERS and 2 * repeated > self._n
