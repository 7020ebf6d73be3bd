"""Records as a graph with parabolas says that they are, to find out what clipping does to them.

The square of a number is no Gaussian number: it is large where the number is, so that clipping shortens the records
whose numbers are large. As Gaussian records know nothing of that, lines would come out too flat by some percent. So
numbers are drawn in the order of the graph, each from those before and their squares, and squares are computed, about
centres that are so wrong as the moments of numbers with their squares tell: sites take off noisy means.
"""

import math
from typing import NamedTuple

import numpy as np

from fedbnsl.graphs.graph import topological_order
from fedbnsl.privacy.squares import squares
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.search.private.clipped_moments import POINTS, normals

NO_SQUARES: Index = np.empty(0, dtype=np.int64)


class RecordsOfGraph(NamedTuple):
    """x = W'x + e, up to a factor."""

    weights: Matrix  # (d, d) W, of a DAG between variables
    covariance: Matrix  # (d, d) V of e, up to a factor; zero between variables
    of_squares: Index = NO_SQUARES  # (m,) the columns that the last m are squares of
    points: int = POINTS  # 2^points records are drawn

    @property
    def moments(self) -> Matrix:
        """(d, d) of x, up to a factor."""
        back = np.linalg.inv(np.eye(len(self.weights)) - self.weights)
        return np.asarray(back.T @ self.covariance @ back)

    def drawn(self, factor: float) -> Matrix:
        """(N, d) records that fill the space evenly, if the covariance is so many times as large."""
        of, W, S = self.of_squares, self.weights, factor * self.moments
        u = len(W) - len(of)
        values, vectors = np.linalg.eigh(factor * self.covariance[:u, :u])
        e = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T @ normals(u, self.points).T
        acts = W[:u, :u] != 0.0
        acts[of] |= W[u:, :u] != 0.0
        x, square_of = np.zeros((len(W), e.shape[1])), dict(zip(of.tolist(), range(u, len(W)), strict=True))
        for j in topological_order(acts):
            given = np.flatnonzero(W[:, j])
            x[j] = e[j] + W[given, j] @ x[given]
            if (k := square_of.get(j)) is not None:
                centred = x[j] - x[j].mean()
                variance = max(float(centred @ centred) / len(centred), np.finfo(np.float64).tiny)
                told = float(centred @ squares(x[j])) / len(centred)
                x[k] = squares(x[j] - (told - float(S[j, k])) / (math.sqrt(2.0) * variance))
                x[k] -= x[k].mean()
        return x.T
