"""The rows of persons where a person is one record: what private plans with `privacy.persons_by` = "rows" look at."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.data.mapped_array import forget, gathered, row_blocks, rows_a_block

_ROWS = 1024  # of a block, unless a person has more: so few stay in the cache


@dataclass(frozen=True, eq=False)
class PersonRows:
    """Rows of a table in the order of its persons.

    Attributes
    ----------
    X
        (n, d) values, those of a person after each other; NaN where one is missing.
    sizes
        (G,) rows of each person, at least 1.
    """

    X: Matrix
    sizes: Index

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def shape(self) -> tuple[int, int]:
        """Persons and columns, as of a table with one record a person."""
        return len(self.sizes), self.X.shape[1]

    def blocks(self, n_rows: int = _ROWS) -> Iterator[tuple[Matrix, Index]]:
        """All rows, and how many each person has, in blocks of whole persons; the rows of one person fit in memory."""
        ends = np.cumsum(self.sizes)
        first = begin = 0
        while first < len(ends):
            last = max(int(np.searchsorted(ends, begin + n_rows, side="right")), first + 1)
            end = int(ends[last - 1])
            yield self.X[begin:end], self.sizes[first:last]
            forget(self.X)
            first, begin = last, end

    def means(self, told: Callable[[Matrix], Matrix]) -> Iterator[Matrix]:
        """(g, k) means over the rows of each person of what (n, k) is told of rows, in blocks."""
        for rows, sizes in self.blocks():
            yield np.asarray(np.add.reduceat(told(rows), np.cumsum(sizes) - sizes) / sizes[:, None])

    def parts(self) -> Iterator["PersonRows"]:
        """Persons that follow each other, as many as are in memory at a time."""
        for rows, sizes in self.blocks(rows_a_block(self.X.shape[1])):
            yield PersonRows(rows, sizes)

    def columns(self, order: Sequence[int]) -> "PersonRows":
        """Some of the columns, in this order."""
        if list(order) == list(range(self.X.shape[1])):
            return self
        return replace(self, X=gathered((X[:, order] for X in row_blocks(self.X)), len(order)))

    def of_persons(self, kept: Mask) -> "PersonRows":
        """Those alone of the persons that a mask of (G,) names."""

        def parts() -> Iterator[Matrix]:
            first = 0
            for part in self.parts():
                yield part.X[np.repeat(kept[first : first + len(part)], part.sizes)]
                first += len(part)

        return PersonRows(gathered(parts(), self.X.shape[1]), self.sizes[kept])

    def after(self, step: Callable[[Matrix], Matrix]) -> "PersonRows":
        """The same persons with what this makes of blocks of rows, as many rows and columns as before."""
        return replace(self, X=gathered(map(step, row_blocks(self.X)), self.X.shape[1]))


@dataclass(frozen=True, eq=False)
class Persons:
    """Whose records those of a table are, where each is another person's.

    Attributes
    ----------
    names
        (n,) in the order of the records.
    rows
        Of what each record is the mean.
    """

    names: Sequence[str]
    rows: PersonRows


Table = Matrix | PersonRows
"""(n, d) records; or the rows of n persons, each of which counts as one record."""
