"""How the numbers of several sites become one: their mean, or a rule by which no single site decides.

A mean follows every one of its terms as far as that likes. A coordinate-wise median or trimmed mean stays, in every
coordinate, within what the honest sites sent, as long as the wrong ones have little weight together: less than half of
it for the median, at most the share that is cut off at each end for the trimmed mean (Yin, Chen, Ramchandran and
Bartlett 2018, "Byzantine-robust distributed learning: towards optimal statistical rates"). Both weight the sites by
rows. A site says itself how many rows it has, so that no weight exceeds the (lower) median of the row counts: of three
sites or more, none then has half of the weight. Several wrong sites may still have more weight than their number says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from fedbnsl.protocol.sparse import Matrix

TRIM_SHARE = 0.25
"""Weight that a trimmed mean leaves out at each end, as a share of all; never less than that of the heaviest site."""


@dataclass(frozen=True, eq=False)
class RobustRule:
    """The weighted coordinate-wise median or trimmed mean over certain sites."""

    weights: Matrix  # (P,) whole numbers
    trimmed: bool  # whether it is the trimmed mean; otherwise the median

    @classmethod
    def of(cls, name: Literal["median", "trimmed-mean"], n_samples: Sequence[int]) -> Self:
        """The rule of this name over three sites or more, which have so many rows."""
        rows = np.asarray(n_samples, dtype=np.float64)
        weights = np.minimum(rows, np.sort(rows)[(rows.size - 1) // 2])
        return cls(weights, trimmed=name == "trimmed-mean")

    def __call__(self, values: Matrix) -> Matrix:
        """One value a coordinate: (P, ...) to (...).

        The sites' values are laid side by side in increasing order, each as wide as its weight. The result is the mean
        over what is left when the trimmed weight is cut off at both ends; the median is where the two ends meet. All of
        the weights are whole numbers: nothing is left of what is cut off, however large it is.
        """
        order = np.argsort(values, axis=0, kind="stable")
        upper = np.cumsum(self.weights[order], axis=0)
        lower = upper - self.weights[order]
        whole = float(self.weights.sum())
        if not self.trimmed:
            kept = ((2.0 * lower <= whole) & (2.0 * upper >= whole)).astype(np.float64)
        else:
            cut = max(TRIM_SHARE * whole, float(self.weights.max()))
            kept = np.maximum(np.minimum(upper, whole - cut) - np.maximum(lower, cut), 0.0)
        kept /= kept.sum(axis=0)
        line = np.take_along_axis(values, order, axis=0)
        # What is cut off may be infinite: 0 times infinity would be no number.
        return np.asarray((kept * np.where(kept > 0.0, line, 0.0)).sum(axis=0))

    def nearest(self, distances: Matrix) -> list[int]:
        """Which sites stay where entries cannot be combined, and whole sites are left out: those of least distance.

        In place of a median just over half of them; of a trimmed mean all but a quarter, and but one at least. This is
        the idea of Multi-Krum (Blanchard, El Mhamdi, Guerraoui and Stainer 2017).

        Parameters
        ----------
        distances
            (P,) of each site from the others.
        """
        n = distances.size
        kept = n - max(1, int(TRIM_SHARE * n)) if self.trimmed else n // 2 + 1
        return sorted(np.argsort(distances, kind="stable")[:kept].tolist())

    def noise_std(self, stds: Sequence[float]) -> float:
        """Upper estimate of the result's noise, from the standard deviations of the sites' independent noise.

        A median of equal Gaussian noise has at most pi / 2 times the variance of the mean, a trimmed mean less.
        """
        shares = self.weights / self.weights.sum()
        return math.sqrt(math.pi / 2.0) * float(np.linalg.norm(shares * np.asarray(stds)))
