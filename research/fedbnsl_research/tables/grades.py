"""Generated networks of grades, whose effects are straight, or are tables without any order."""

from statistics import NormalDist

import numpy as np

from fedbnsl.graphs.graph import topological_order
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_research.tables.discrete import DiscreteNetwork

_VARIABLES, _DEGREE, _MOST_PARENTS = 15, 3.0, 5
_BINARY = 0.3  # share of the variables; others have 3 to 5 grades
_LEAST_EFFECT, _LARGEST_EFFECT = 0.3, 0.9
_OF_CUTS, _OF_TABLES = 5.0, 0.6  # of Dirichlet distributions


def graded_network(share_of_tables: float, rng: np.random.Generator) -> DiscreteNetwork:
    """A random network of grades.

    A straight child is cut out of a sum of parents' grades, in standard deviations of equally frequent ones, times 0.3
    to 0.9 with either sign, and normal noise of variance 1. Other children have Dirichlet probabilities in each
    combination of at most three parents' grades.

    Parameters
    ----------
    share_of_tables
        Of the variables, on average.
    """
    V, order = _VARIABLES, rng.permutation(_VARIABLES)
    graph = np.zeros((V, V), dtype=bool)
    graph[np.ix_(order, order)] = np.triu(rng.random((V, V)) < _DEGREE / (V - 1), 1)
    sizes = np.where(rng.random(V) < _BINARY, 2, rng.integers(3, 6, V)).tolist()
    is_table = rng.random(V) < share_of_tables
    parents: dict[int, tuple[int, ...]] = {}
    probabilities: dict[int, Matrix] = {}
    for x in topological_order(graph):
        of_x = np.flatnonzero(graph[:, x]).tolist()
        parents[x] = own = tuple(of_x[: 3 if is_table[x] else _MOST_PARENTS])
        grades = np.indices([sizes[p] for p in own]).reshape(len(own), -1) if own else np.zeros((0, 1))
        if own and is_table[x]:
            probabilities[x] = rng.dirichlet(np.full(sizes[x], _OF_TABLES), grades.shape[1])
            continue
        effects = rng.uniform(_LEAST_EFFECT, _LARGEST_EFFECT, len(own)) * rng.choice([-1.0, 1.0], len(own))
        middle = np.array([(sizes[p] - 1) / 2.0 for p in own])
        spread = np.array([np.sqrt((sizes[p] ** 2 - 1) / 12.0) for p in own])
        mean = effects @ ((grades - middle[:, None]) / spread[:, None])
        marginal = NormalDist(0.0, float(np.sqrt(1.0 + effects @ effects)))
        below = np.cumsum(rng.dirichlet(np.full(sizes[x], _OF_CUTS)))[:-1]
        cuts = np.array([marginal.inv_cdf(share) for share in below.tolist()])
        up_to: Matrix = np.vectorize(NormalDist().cdf)(cuts - mean[:, None])
        probabilities[x] = np.diff(up_to, axis=1, prepend=0.0, append=1.0)
    return DiscreteNetwork(
        tuple(f"v{x}" for x in range(V)),
        tuple(tuple(map(str, range(size))) for size in sizes),
        tuple(parents[x] for x in range(V)),
        tuple(probabilities[x] for x in range(V)),
    )
