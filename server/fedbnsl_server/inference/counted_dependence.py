"""Tests of independence between categories by tables of counts: likelihood ratios (G tests)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl_server.inference.heterogeneity import chi_square_tails
from fedbnsl_server.inference.hidden_causes import POWER, power
from fedbnsl_server.search.counts.tables import TableSource

_RECORDS_A_CELL = 5.0
"""With fewer on average the distribution of the likelihood ratio is not known."""


@dataclass(frozen=True, eq=False)
class CountedDependence:
    """Tests by the tables that are known."""

    source: TableSource

    def p_value(self, x: int, y: int, given: Sequence[int]) -> float | None:
        """None where the table is not known, or has few records."""
        tested = self._tested(x, y, given)
        return None if tested is None else float(chi_square_tails(np.array(tested[:1]), np.array(tested[1:]))[0])

    def shows(self, x: int, y: int, others: Sequence[int], given: Sequence[int]) -> bool:
        """By the power of the test given the others alone: the likelihood ratio beyond its degrees is the effect."""
        tested = self._tested(x, y, others)
        return tested is not None and power(max(tested[0] - tested[1], 0.0), tested[1]) >= POWER

    def _tested(self, x: int, y: int, given: Sequence[int]) -> tuple[float, int] | None:
        """Twice the log likelihood ratio, and its degrees of freedom: of levels that occur with those of the others."""
        family = tuple(sorted((x, y, *given)))
        table = self.source.table(family)
        if table is None or table.sum() < _RECORDS_A_CELL * table.size:
            return None
        ends = family.index(x), family.index(y)
        n = np.moveaxis(table, ends, (-2, -1)).reshape(-1, *(table.shape[k] for k in ends))
        of_x, of_y, of_all = (n.sum(axis=axis, keepdims=True) for axis in (2, 1, (1, 2)))
        expected = of_x * of_y / np.where(of_all > 0.0, of_all, 1.0)
        some = n > 0.0
        ratio = 2.0 * float((n[some] * np.log(n[some] / expected[some])).sum())
        degrees = ((of_x > 0.0).sum(axis=1) - 1) * ((of_y > 0.0).sum(axis=2) - 1)
        left = int(degrees[of_all[:, :, 0] > 0.0].sum())
        return (max(ratio, 0.0), left) if left else None
