"""Columns that carry no information of their own: a level that occurs nowhere, a reference level that is absent.

Where the first level of a nominal variable occurs in no row, the indicators of its other levels sum to 1: about their
means they are a linear function of each other, and no regression on all of them has one solution. The first of them
that occurs takes its place as the level that the others are compared with.
"""

from dataclasses import dataclass

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.search.linear_network import SINGULAR

FEW_ROWS = 10
"""Of a level: with fewer, what is told about it comes from these rows alone (Peduzzi et al. 1996)."""


@dataclass(frozen=True)
class Unused:
    """Columns of a run that its result is not about, ascending."""

    constant: tuple[int, ...] = ()  # with one value in all rows
    redundant: tuple[int, ...] = ()  # linear functions, at every site, of the later columns of their variable
    hidden: tuple[int, ...] = ()  # of a private run: the noise hides how much they vary, or levels that have few rows

    def kept(self, columns: Columns) -> Index:
        """All other columns, and the first one of a variable that would have none."""
        kept = np.ones(len(columns.names), dtype=bool)
        kept[[*self.constant, *self.redundant, *self.hidden]] = False
        for own in columns.members():
            kept[own[0]] |= not kept[own].any()
        return np.flatnonzero(kept)


NO_UNUSED = Unused()


def unused_columns(S: Matrix, columns: Columns) -> Unused:
    """Those of (d, d) second moments, of which all between the columns of one variable are known."""
    constant, redundant = np.flatnonzero(S.diagonal() <= 0.0).tolist(), list[int]()
    for own in columns.members():
        later = list[int]()
        for c in [c for c in own[::-1].tolist() if c not in constant]:
            among = np.array([*later, c])
            size = np.sqrt(S[among, among])
            R = S[np.ix_(among, among)] / size / size[:, None]
            if later and np.linalg.eigvalsh(R)[0] < SINGULAR:
                redundant.append(c)
            else:
                later.append(c)
    return Unused(tuple(constant), tuple(sorted(redundant)))
