"""What the families of a child with levels share: records of each level, and Newton's step of the intercepts."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedbnsl.families.regression import Sums
from fedbnsl.protocol.sparse import Index, Matrix


@dataclass(frozen=True, eq=False)
class Levels:
    """A child with levels at a site with (K,) so many records of each."""

    counts: Matrix

    @staticmethod
    def totals(y: Index, n_levels: int) -> Matrix:
        """Sums over records that tell the counts."""
        return np.bincount(y, minlength=n_levels).astype(np.float64)

    @cached_property
    def present(self) -> Index:
        """Levels that occur, ascending."""
        return np.flatnonzero(self.counts)

    @property
    def varies(self) -> bool:
        """See `Family`."""
        return len(self.present) > 1


def newton_step(sums: Sums, *, longest: float) -> Matrix:
    """Of intercepts, from the sums that concern these; shortened where one of them would go further than `longest`."""
    step = np.linalg.lstsq(sums.information, sums.gradient, rcond=None)[0]
    return np.asarray(step * min(1.0, longest / max(float(np.abs(step).max()), longest)), dtype=np.float64)
