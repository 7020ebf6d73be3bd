"""Linear Gaussian networks with a known truth (paper, section 5 and appendix on synthetic data).

Erdos-Renyi graph with an expected number of edges, weights uniform on [-2, -0.5] u [0.5, 2], unit noise. The same seed
gives the same numbers.
"""

from dataclasses import dataclass

import numpy as np

from fedbnsl.graphs.graph import topological_order
from fedbnsl.protocol.sparse import Mask, Matrix

WEIGHT_RANGE = (0.5, 2.0)


@dataclass(frozen=True, eq=False)
class SyntheticFederation:
    """Tables of several sites and what they were drawn from.

    Attributes
    ----------
    variables
        d names.
    W
        (d, d) true weights, W[i, j] for i -> j.
    tables
        One (n, d) table a site.
    site_weights
        The (d, d) weights that each site's table was drawn from: W itself without heterogeneity.
    """

    variables: tuple[str, ...]
    W: Matrix
    tables: tuple[Matrix, ...]
    site_weights: tuple[Matrix, ...]


def random_weights(n_variables: int, expected_edges: float, rng: np.random.Generator, *, size: float = 1.0) -> Matrix:
    """(d, d) weights of a random DAG: Erdos-Renyi under a random order of the variables; `size` multiplies them."""
    d = n_variables
    probability = min(1.0, expected_edges / (d * (d - 1) / 2))
    order = rng.permutation(d)
    earlier = np.triu(rng.random((d, d)) < probability, k=1)
    edges = np.zeros((d, d), dtype=bool)
    edges[np.ix_(order, order)] = earlier
    return edge_weights(edges, rng, size=size)


def edge_weights(edges: Mask, rng: np.random.Generator, *, size: float = 1.0) -> Matrix:
    """(d, d) weights of a DAG's edges, uniform on both sides of zero; `size` multiplies them."""
    low, high = WEIGHT_RANGE
    return np.where(edges, size * rng.uniform(low, high, edges.shape) * rng.choice([-1.0, 1.0], edges.shape), 0.0)


def sample(W: Matrix, n_samples: int, rng: np.random.Generator, *, noise_std: Matrix | float = 1.0) -> Matrix:
    """(n, d) rows of the network with weights W and noise of these standard deviations, (d,) or one for all."""
    X = rng.standard_normal((n_samples, W.shape[0])) * noise_std
    for j in topological_order(W != 0):
        parents = np.flatnonzero(W[:, j])
        X[:, j] += X[:, parents] @ W[parents, j]
    return X


def synthesise(
    n_variables: int,
    expected_edges: float,
    n_sites: int,
    n_samples: int,
    seed: int,
    *,
    weight_variance: float = 0.0,
    noise_range: tuple[float, float] = (1.0, 1.0),
    weight_size: float = 1.0,
) -> SyntheticFederation:
    """Tables for a federation.

    Parameters
    ----------
    n_variables, expected_edges
        d, and the expected number of edges of the graph.
    n_sites, n_samples
        P, and the rows of each site.
    weight_variance
        Heterogeneity: each site's weight of an edge is drawn around the common one with this variance.
    noise_range
        Each variable's standard deviation of the noise, the same at all sites, is drawn uniformly from it.
    weight_size
        Multiplies all weights.
    """
    rng = np.random.default_rng(seed)
    W = random_weights(n_variables, expected_edges, rng, size=weight_size)
    low, high = noise_range
    noise_std = rng.uniform(low, high, n_variables) if low < high else low
    tables: list[Matrix] = []
    site_weights: list[Matrix] = []
    for _ in range(n_sites):
        W_site = W
        if weight_variance > 0:
            W_site = np.where(W != 0, W + np.sqrt(weight_variance) * rng.standard_normal(W.shape), 0.0)
        tables.append(sample(W_site, n_samples, rng, noise_std=noise_std))
        site_weights.append(W_site)
    return SyntheticFederation(variable_names(n_variables), W, tuple(tables), tuple(site_weights))


def variable_names(n_variables: int) -> tuple[str, ...]:
    """X1, X2, ..., of one width."""
    width = len(str(n_variables))
    return tuple(f"X{k + 1:0{width}d}" for k in range(n_variables))
