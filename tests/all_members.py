"""All DAGs that are equivalent to one and keep what is known, by trying every direction of every edge: an oracle."""

from collections.abc import Iterator
from itertools import combinations, product

import networkx as nx
import numpy as np

from fedbnsl.protocol.sparse import Mask


def random_dag(d: int, density: float, rng: np.random.Generator) -> Mask:
    order = rng.permutation(d)
    return np.triu(rng.random((d, d)) < density, k=1)[np.ix_(order, order)]


def v_structures(dag: Mask) -> set[tuple[int, int, int]]:
    return {
        (a, c, b)
        for c in range(len(dag))
        for a, b in combinations(np.flatnonzero(dag[:, c]).tolist(), 2)
        if not dag[a, b] and not dag[b, a]
    }


def all_members(dag: Mask, allowed: Mask, required: Mask) -> Iterator[Mask]:
    """Same adjacent pairs, same v-structures (Verma and Pearl 1990), no edge that is not allowed, all required ones."""
    pairs = np.argwhere(dag)
    wanted = v_structures(dag)
    for turned in product((False, True), repeat=len(pairs)):
        other = np.zeros_like(dag)
        for (i, j), turn in zip(pairs, turned, strict=True):
            other[(j, i) if turn else (i, j)] = True
        kept = not (other & ~allowed).any() and not (required & ~other).any()
        if (
            kept
            and v_structures(other) == wanted
            and nx.is_directed_acyclic_graph(nx.from_numpy_array(other, create_using=nx.DiGraph))
        ):
            yield other


def random_knowledge(dag: Mask, rng: np.random.Generator) -> tuple[Mask, Mask]:
    """Allowed and required edges that the DAG keeps: tiers, required edges, other edges forbidden."""
    d = len(dag)
    allowed, required = ~np.eye(d, dtype=bool), np.zeros((d, d), dtype=bool)
    if rng.random() < 0.5:
        # The tiers of a random coarse order that the DAG keeps: a node's tier is at least its parents'.
        tier = rng.integers(0, 3, size=d)
        for _ in range(d):
            for i, j in np.argwhere(dag):
                tier[j] = max(tier[i], tier[j])
        allowed &= tier[:, None] <= tier[None, :]
    if rng.random() < 0.5:
        required |= dag & (rng.random((d, d)) < 0.3)
    if rng.random() < 0.5:
        allowed &= dag | (rng.random((d, d)) < 0.7)
    return allowed, required
