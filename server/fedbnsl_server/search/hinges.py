"""Which numbers have effects that bend, from second moments of columns and of their hinges.

A number bends if its hinges explain more of what parents and a straight line leave of another variable than the
extended BIC asks for, and LEAST_SHARE of it. Then they are in one block with it: see `search.score`. Hinges of all
numbers would cost tables of straight lines false edges.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.linear_network import inverse
from fedbnsl_server.search.score import extended_penalty

LEAST_SHARE = 0.01
"""Of what a straight line leaves of a variable; with less, hinges stay out."""
# Against the graph, where a variable acts on the number: a U shows from its own end alone, wherever straight lines have
# put it. With skewed noise a line bends, too, seen from its other end, but no ten times as much as it is straight.
_LEAST_SHARE_AGAINST = 0.15
_TIMES_THE_LINE = 10.0
# Of a hinge's variance, what lines and hinges before it leave: less is that of columns of few values, and the rounding
# of moments that were sent in single precision would be a large part of it.
_OWN = 5e-4
# Of a variance: less is rounding.
_NOTHING = 1e-5


@dataclass(frozen=True, eq=False)
class HingeMoments:
    """Second moments of u columns and of parts of their hinges, less those that are a function of the parts before.

    Parts of a column are uncorrelated with it and with each other over all records: the score of a block is the same.
    """

    S: Matrix  # (D, D)
    columns: Columns  # D, the u first
    base: Index  # (D,) the column that each belongs to, itself for the u first
    parts: Matrix  # (D, F) of the F columns and hinges as they were sent
    sent: Index  # (F,) the column that each of these belongs to

    @classmethod
    def of(cls, S: Matrix, columns: Columns, base: Index) -> "HingeMoments":
        """From (F, F) moments, of the columns first and then of their hinges, column by column; `base`: (F,)."""
        u = int((base == np.arange(len(base))).sum())
        parts = list(np.eye(len(S))[:u])
        kept = list(range(u))
        for c in np.unique(base[u:]).tolist():
            own = [parts[c]] if S[c, c] > 0.0 else []
            for h in (u + np.flatnonzero(base[u:] == c)).tolist():
                part = np.eye(len(S))[h]
                for one in own:
                    part = part - one * (one @ S @ part) / (one @ S @ one)
                if (square := part @ S @ part) > _OWN * S[h, h]:
                    own.append(part / math.sqrt(square))
                    parts.append(own[-1])
                    kept.append(h)
        T = np.array(parts)
        places = np.array(kept)
        return cls(T @ S @ T.T, columns.over(places), base[places], T, base)

    @property
    def is_column(self) -> Mask:
        """(D,) which are columns, not parts of hinges."""
        return np.asarray(self.base == np.arange(len(self.base)))

    def of_site(self, S: Matrix) -> Matrix:
        """(D, D) moments of the same parts, from one site's (F, F)."""
        return np.asarray(self.parts @ S @ self.parts.T)

    def with_hinges_of(self, bent: Mask) -> Index:
        """The columns, and the parts of those hinges whose (u,) column is bent, ascending."""
        return np.flatnonzero(self.is_column | bent[self.base])

    def bent(self, dag: Mask, before: Mask, possible: Mask, n_samples: float, *, targets: Index | None = None) -> Mask:
        """(u,) columns that bend: those of before, and those whose hinges explain a variable with a DAG's parents.

        Against the DAG, only those that explain far more than a line.

        Parameters
        ----------
        dag
            (V, V), found with the hinges of `before`.
        possible
            (V, V) symmetric: pairs that may have an edge.
        n_samples
            Records that count.
        targets
            Columns that hinges may explain; None: those that have hinges.
        """
        V, u = len(dag), len(before)
        first, owner = self.is_column, self.columns.variable_of
        members = [np.flatnonzero((owner == v) & (first | before[self.base])) for v in range(V)]
        hinges = {c: np.flatnonzero(~first & (self.base == c)) for c in range(u)}
        ends = np.array([c for c in range(u) if hinges[c].size], dtype=np.int64)
        price, found, below = extended_penalty(n_samples, V), before.copy(), arrows_lead(dag)
        for target in (ends if targets is None else targets).tolist():
            c = int(owner[target])
            for column in ends[~found[ends]].tolist():
                a = int(owner[column])
                if a == c or not possible[a, c]:
                    continue
                given = np.concatenate([members[v] for v in np.flatnonzero(dag[:, c] | (np.arange(V) == a))])
                share = self.share(hinges[column], target, given)
                least = LEAST_SHARE
                if below[c, a]:
                    others = np.concatenate([ends[:0], *(members[v] for v in np.flatnonzero(dag[:, c]))])
                    by_line = self.share(np.array([column]), target, others)
                    least = max(_LEAST_SHARE_AGAINST, _TIMES_THE_LINE * by_line)
                found[column] = share > max(least, -math.expm1(-2.0 * price * hinges[column].size))
        return found

    def share(self, parts: Index, target: int, given: Index) -> float:
        """Of what some columns leave of a target, how much parts explain."""
        asked = np.append(parts, target)
        G = self.S[np.ix_(given, given)]
        cross = self.S[np.ix_(given, asked)]
        left = self.S[np.ix_(asked, asked)] - cross.T @ inverse(G) @ cross
        G, g, v = left[:-1, :-1], left[:-1, -1], left[-1, -1]
        if v <= _NOTHING * self.S[target, target]:
            return 0.0
        values, vectors = np.linalg.eigh(G)
        large = values > _NOTHING  # of parts of variance 1
        return float(np.clip((vectors[:, large].T @ g) ** 2 @ (1.0 / values[large]) / v, 0.0, 1.0))

    def over(self, kept: Index) -> "HingeMoments":
        """Of some columns and parts, the u columns among them."""
        return replace(
            self,
            S=self.S[np.ix_(kept, kept)],
            columns=self.columns.over(kept),
            base=self.base[kept],
            parts=self.parts[kept],
        )
