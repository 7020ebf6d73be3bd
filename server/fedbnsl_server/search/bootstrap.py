"""A parametric bootstrap: how often a search finds an edge again when the moments are drawn anew with all their errors.

A draw is a Wishart matrix of as many records as the moments come from, plus the noise of a private run, both made in
the space of the residuals and mapped back. It costs no privacy and no message.

The draws vary around a centre. Moments as they came have one error in them already: around them errors would count
twice, and chance dependences would be real ones. Around the fitted network alone every pair without an edge would be
truly independent given its parents, and an edge that the search has just missed would never be seen. The centre lies
between: the fitted network, and of each correlation of its residuals what stands out of its error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedbnsl.sparse import Index, Mask, Matrix
from fedbnsl_server.search.fitted_network import Accuracy, FittedNetwork
from fedbnsl_server.search.standard_errors import correlation_errors

# The least eigenvalue of moments of standardised residuals.
_LEAST_EIGENVALUE = 0.05


class Search(Protocol):
    """The search that found the graph, with all that it was given besides moments."""

    def __call__(self, moments: Matrix, accuracy: Accuracy, start: Mask, /) -> Mask:
        """The best (V, V) DAG for (d, d) moments; NaN where they are unknown.

        Parameters
        ----------
        start
            (V, V) a graph that is probably near.
        """
        ...


@dataclass(frozen=True, eq=False)
class Shares:
    """How many of the graphs have what between two variables.

    Attributes
    ----------
    adjacent
        (V, V) symmetric: an edge, whichever way.
    directed
        (V, V) [i, j]: a directed edge i -> j.
    """

    adjacent: Index
    directed: Index


def centre(network: FittedNetwork, S: Matrix, accuracy: Accuracy) -> Matrix:
    """(d, d) positive definite moments of standardised residuals that draws vary around.

    A correlation of z errors counts as sqrt(1 - 1 / z^2) of itself, and none within one error: its square less that of
    the error. What is unknown, and what belongs to one variable, is as in the network.
    """
    size = np.sqrt(network.residual_variance)
    own = network.residual_covariance / size / size[:, None]
    error = correlation_errors(network, S, accuracy)
    found = np.nan_to_num(network.of_residuals(S) / size / size[:, None])
    left = np.sign(found) * np.sqrt(np.maximum(found**2 - error**2, 0.0))
    left[network.residual_covariance != 0.0] = 0.0
    return lifted(own + left)


def draw(network: FittedNetwork, around: Matrix, accuracy: Accuracy, rng: np.random.Generator) -> Matrix:
    """(d, d) moments with the errors of `accuracy`, around `centre`."""
    size = np.sqrt(network.residual_variance)
    S_e = _wishart(np.asarray(np.linalg.cholesky(around), dtype=np.float64), accuracy.n_samples, rng)
    if accuracy.noise_std:
        share = network.units(accuracy) / size
        S_e = lifted(S_e + accuracy.noise_std * share * share[:, None] * _noise(len(S_e), rng))
    return network.of_columns(S_e * size * size[:, None])


def bootstrap(
    network: FittedNetwork,
    S: Matrix,
    accuracy: Accuracy,
    *,
    dag: Mask,
    search: Search,
    class_of: Callable[[Mask], Mask],
    draws: int,
    rng: np.random.Generator,
) -> Shares:
    """Count what the graphs of so many draws have.

    Parameters
    ----------
    S
        (d, d) moments that the graph was found in; moments that are unknown there are unknown to every draw.
    dag
        (V, V) the graph.
    class_of
        The (V, V) marks of the class of a DAG: both ways where it is undirected.
    rng
        Every draw has a generator of its own from it: draws do not depend on each other.
    """
    adjacent, directed = np.zeros(dag.shape, dtype=np.int64), np.zeros(dag.shape, dtype=np.int64)
    around, unknown = centre(network, S, accuracy), np.isnan(S)
    for own in rng.spawn(draws):
        moments = draw(network, around, accuracy, own)
        moments[unknown] = np.nan
        marks = class_of(search(moments, accuracy, dag))
        adjacent += marks | marks.T
        directed += marks & ~marks.T
    return Shares(adjacent, directed)


def lifted(R: Matrix) -> Matrix:
    """(d, d) with eigenvalues of at least a twentieth; as it is if they are."""
    values, vectors = np.linalg.eigh(R)
    if values[0] >= _LEAST_EIGENVALUE:
        return R
    found = (vectors * np.maximum(values, _LEAST_EIGENVALUE)) @ vectors.T
    return np.asarray(0.5 * (found + found.T))


def _wishart(L: Matrix, n_samples: float, rng: np.random.Generator) -> Matrix:
    """(d, d) second moments of n Gaussian records with covariance L L'."""
    d = len(L)
    if n_samples < 2 * d:
        Z = rng.standard_normal((max(1, round(n_samples)), d)) @ L.T
        return np.asarray(Z.T @ Z / len(Z))
    # Bartlett: a triangle of normal numbers, and the roots of chi-squares on its diagonal.
    T = np.tril(rng.standard_normal((d, d)), k=-1)
    T[np.diag_indices(d)] = np.sqrt(rng.chisquare(n_samples - np.arange(d)))
    T = L @ T
    return np.asarray(T @ T.T / n_samples)


def _noise(d: int, rng: np.random.Generator) -> Matrix:
    """(d, d) symmetric: standard normal numbers, times sqrt(2) on the diagonal."""
    N = rng.standard_normal((d, d))
    return np.asarray((N + N.T) / np.sqrt(2.0))
