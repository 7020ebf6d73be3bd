"""Effects that bend: lines through a few points, with their errors, from second moments.

The effect on a child comes from its regression on all its parents. The total effect of a number on a variable below it
comes from the regression of that variable on the number and the number's parents, as in `inference.effects`, with
hinges: the mean over all that lies between them, which may bend, too. It holds if the number and its parents act on the
variable by a sum of a function of each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead, consistent_extension, directed_at
from fedbnsl.plan.row_groups import BEFORE, PRESENT
from fedbnsl.privacy.squares import squares
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.inference.heterogeneity import chi_square_tails
from fedbnsl_server.search.hinges import HingeMoments
from fedbnsl_server.search.linear_network import inverse

# Where a curve begins and ends, in the column's scale from the site's mean.
_ENDS = (-2.5, 2.5)
# Sets of parents of one number; with more, its total effects are not told.
_MOST_PARENT_SETS = 64
_TINY = float(np.finfo(np.float64).tiny)


class Effect(NamedTuple):
    """How a variable changes with a parent, from its value at a parent at the site's mean; a line between points."""

    source: str
    target: str
    at: tuple[float, ...]  # of the source, from a site's mean
    change: tuple[float, ...]  # of the target
    error: tuple[float, ...]  # standard errors of these
    spread: float | None = None  # standard deviation of the change over all records; None: an earlier version's
    # How likely what hinges add to a straight line is, if it is one; None: not known, as under the noise of privacy
    p_straight: float | None = None


class Below(NamedTuple):
    """How a variable changes in all with a number before it."""

    target: str
    change: tuple[float, ...]  # (P,) from its value where the number is at the site's mean
    residual_variance: float


class Total(NamedTuple):
    """Total effects of a number with these parents on the variables below it; lines between points."""

    source: str
    adjusted_for: tuple[str, ...]  # variables: the parents
    at: tuple[float, ...]  # (P,) of the source, from a site's mean
    covariance: tuple[tuple[float, ...], ...]  # (P, P) of the changes at these points, for a residual variance of 1
    below: tuple[Below, ...]


class Points(NamedTuple):
    """Where lines are told."""

    at: Matrix  # (P,) values of a column, in its scale from the site's mean
    as_sent: Matrix  # (P, F) of the column there and of what bends with it, less those at 0

    @classmethod
    def of_hinges(cls, knots: Matrix) -> "Points":
        """The ends, and where hinges are: between them nothing bends."""
        z = np.array([_ENDS[0], *knots, _ENDS[1]])
        return cls(z, np.column_stack([z, np.maximum(z[:, None] - knots, 0.0) - np.maximum(-knots, 0.0)]))

    @classmethod
    def of_squares(cls) -> "Points":
        """Along a parabola."""
        z = np.linspace(*_ENDS, 11)
        return cls(z, np.column_stack([z, squares(z) - squares(np.zeros(1))]))


@dataclass(frozen=True, eq=False)
class Curves:
    """What was looked at, and what bends."""

    n_rows: int  # that were looked at: without privacy, those without a missing value
    columns: Index  # of the run, ascending, which have hinges in the graph; none: the other numbers are empty
    residual_variance: Matrix = field(default_factory=lambda: np.empty(0))  # (d,) in squared units of the tables
    effects: tuple[Effect, ...] = ()
    total: tuple[Total, ...] = ()


def effects_of(
    moments: HingeMoments, dag: Mask, marks: Mask, n_samples: float, scales: Matrix, points: Points
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
            beyond = own & ~first[parents]  # uncorrelated with the column itself
            others = G[np.ix_(~beyond, beyond)]
            left = G[np.ix_(beyond, beyond)] - others.T @ inverse(G[np.ix_(~beyond, ~beyond)]) @ others
            chi_square = max(float(weights[beyond] @ left @ weights[beyond]), 0.0)
            z, rows = _basis(moments, source, parents[own], points)
            squares = np.einsum("ij,jk,ik->i", rows, H[np.ix_(own, own)], rows) * variance
            yield Effect(
                moments.columns.names[source],
                moments.columns.names[target],
                tuple((z * scales[source]).tolist()),
                tuple((rows @ weights[own] * scales[target]).tolist()),
                tuple((np.sqrt(np.maximum(squares, 0.0)) * scales[target]).tolist()),
                float(np.sqrt(max(weights[own] @ G[np.ix_(own, own)] @ weights[own], 0.0)) * scales[target]),
                float(
                    chi_square_tails(np.array([chi_square / max(variance, _TINY)]), np.array([int(beyond.sum())]))[0]
                ),
            )


def totals_of(
    moments: HingeMoments, marks: Mask, bends: Mask, n_samples: float, scales: Matrix, points: Points
) -> Iterator[Total]:
    """Of every number on the variables to which a path with a curve leads from it, for each set of its parents.

    Parameters
    ----------
    moments
        Of the columns and the hinges of all numbers.
    marks
        (V, V) the class.
    bends
        (V,) which variables have hinges in it.
    n_samples, scales, points
        As of `effects_of`.
    """
    owner, base, first = moments.columns.variable_of, moments.base, moments.is_column
    alone = first & (np.bincount(owner[first]) == 1)[owner]
    slices = moments.columns.slices or (PRESENT,) * len(marks)
    for source in np.flatnonzero(alone & (np.bincount(base) > 1)[base]).tolist():
        v = int(owner[source])
        if slices[v] == BEFORE:  # what caused these lies further back
            continue
        graphs = list(islice(directed_at(marks, [v]), _MOST_PARENT_SETS + 1))
        for graph in graphs if len(graphs) <= _MOST_PARENT_SETS else ():
            reach = arrows_lead(consistent_extension(graph))
            from_here = reach | np.eye(len(reach), dtype=bool)
            below = np.asarray(reach[from_here[v] & bends].any(axis=0))
            targets = np.flatnonzero(alone & below[owner])
            if not targets.size:
                continue
            regressors = np.flatnonzero((base == source) | graph[owner, v])
            G, g = moments.S[np.ix_(regressors, regressors)], moments.S[np.ix_(regressors, targets)]
            H, own = inverse(G), base[regressors] == source
            weights = H @ g
            left = np.maximum(moments.S[targets, targets] - (g * weights).sum(axis=0), 0.0) * scales[targets] ** 2
            z, rows = (one[_seen(moments, source)] for one in _basis(moments, source, regressors[own], points))
            covariance = rows @ H[np.ix_(own, own)] @ rows.T / max(n_samples - len(regressors), 1.0)
            change = (rows @ weights[own] * scales[targets]).T
            yield Total(
                moments.columns.names[source],
                tuple(moments.columns.variables[k] for k in np.flatnonzero(graph[:, v]).tolist()),
                tuple((z * scales[source]).tolist()),
                tuple(tuple(row.tolist()) for row in covariance),
                tuple(
                    Below(moments.columns.names[t], tuple(line), variance)
                    for t, line, variance in zip(targets.tolist(), change.tolist(), left.tolist(), strict=True)
                ),
            )


def moved_along(at: Matrix, change: Matrix, covariance: Matrix, ends: tuple[float, float]) -> tuple[float, float]:
    """By how much a line through (P,) points rises from one end to the other, and the standard error of that.

    `covariance`: (P, P) of the changes.
    """
    share = np.array([np.interp(ends[1], at, one) - np.interp(ends[0], at, one) for one in np.eye(len(at))])
    return float(share @ change), float(np.sqrt(max(share @ covariance @ share, 0.0)))


def _seen(moments: HingeMoments, source: int) -> slice:
    """Of the points of `_basis`, those with rows on both sides, and one more at either end.

    A hinge that no row is below, or none above, is a function of those before it, and has no part; nor has one of which
    hardly anything is left.
    """
    hinges = np.flatnonzero(moments.sent == source)[1:]
    of_source = np.flatnonzero((moments.base == source) & ~moments.is_column)
    kept = [int(np.flatnonzero(part)[-1]) for part in moments.parts[np.ix_(of_source, hinges)]]
    return slice(min(kept), max(kept) + 3)


def _basis(moments: HingeMoments, source: int, parts: Index, points: Points) -> tuple[Matrix, Matrix]:
    """(P,) values of a column, and (P, k) of its parts there, less those at 0."""
    of_source = np.flatnonzero(moments.sent == source)
    return points.at, np.asarray(points.as_sent @ moments.parts[np.ix_(parts, of_source)].T)
