"""The effect of a number that bends: a line through a few points, with its errors, from second moments."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.fitted_network import inverse
from fedbnsl_server.search.hinges import HingeMoments

# Where a curve begins and ends, in the column's scale from the site's mean.
_ENDS = (-2.5, 2.5)


class Effect(NamedTuple):
    """How a variable changes with a parent, from its value at a parent at the site's mean; a line between points."""

    source: str
    target: str
    at: tuple[float, ...]  # of the source, from a site's mean
    change: tuple[float, ...]  # of the target
    error: tuple[float, ...]  # standard errors of these


@dataclass(frozen=True, eq=False)
class Curves:
    """What was looked at, and what bends."""

    n_rows: int  # in all, without a missing value
    columns: Index  # of the run, ascending, which have hinges in the graph; none: the other numbers are empty
    residual_variance: Matrix = field(default_factory=lambda: np.empty(0))  # (d,) in squared units of the tables
    effects: tuple[Effect, ...] = ()


def effects_of(
    moments: HingeMoments, dag: Mask, marks: Mask, n_samples: float, scales: Matrix, knots: Matrix
) -> Iterator[Effect]:
    """Of every parent that bends, by regressions on all parents of a child; along an open edge from the end that does.

    Parameters
    ----------
    moments
        Of the columns and the hinges that the graph was found with.
    dag, marks
        (V, V) the graph, and its class.
    n_samples
        Records.
    scales
        (u,) units of the columns, in those of the tables.
    knots
        (k,) where the hinges are.
    """
    owner, base, first = moments.columns.variable_of, moments.base, moments.is_column
    bends, alone = np.bincount(base) > 1, np.bincount(owner[first]) == 1
    for target in np.flatnonzero(first & alone[owner]).tolist():
        c = int(owner[target])
        for source in np.flatnonzero(first & bends[base] & marks[owner, c]).tolist():
            parents = np.flatnonzero(dag[owner, c] | (base == source))
            G, g = moments.S[np.ix_(parents, parents)], moments.S[parents, target]
            H = inverse(G)
            weights, own = H @ g, base[parents] == source
            variance = max(float(moments.S[target, target] - g @ weights), 0.0) / n_samples
            z, rows = _basis(moments, source, parents[own], knots)
            squares = np.einsum("ij,jk,ik->i", rows, H[np.ix_(own, own)], rows) * variance
            yield Effect(
                moments.columns.names[source],
                moments.columns.names[target],
                tuple((z * scales[source]).tolist()),
                tuple((rows @ weights[own] * scales[target]).tolist()),
                tuple((np.sqrt(np.maximum(squares, 0.0)) * scales[target]).tolist()),
            )


def _basis(moments: HingeMoments, source: int, parts: Index, knots: Matrix) -> tuple[Matrix, Matrix]:
    """(P,) values of a column, and (P, k) of its parts there, less those at 0."""
    z = np.array([_ENDS[0], *knots, _ENDS[1]])
    as_sent = np.column_stack([z, np.maximum(z[:, None] - knots, 0.0) - np.maximum(-knots, 0.0)])
    of_source = np.flatnonzero(moments.sent == source)
    return z, np.asarray(as_sent @ moments.parts[np.ix_(parts, of_source)].T)
