"""What setting one category does to the levels of another, in a network of conditional probability tables.

With parents Z of A in a DAG of the class, P(B = b | do(A = a)) = sum over z of P(z) P(b | a, z) (Pearl 2009, theorem
3.2.2). The joint probabilities come from the tables of one DAG by variable elimination: tables of the same records give
all DAGs of a class the same joint distribution. Where no record has a combination of levels of the parents, a table has
no row, and what rests on it is left out: then the probabilities of all levels add up to less than 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedbnsl.protocol.sparse import Matrix

_MOST_CELLS = 2_000_000
_MOST_AXES = 30  # numpy has 32


@dataclass(frozen=True, eq=False)
class Family:
    """A variable given its parents."""

    parents: tuple[str, ...]
    counts: Matrix  # records, by levels: an axis for each parent, and one for the variable


class _Factor(NamedTuple):
    of: tuple[str, ...]
    table: Matrix


def drawn(families: Mapping[str, Family], rng: np.random.Generator) -> dict[str, Family]:
    """With the errors of sampling: each row is drawn from the Dirichlet distribution of its counts (Rubin 1981)."""
    return {
        name: Family(one.parents, _shares(rng.standard_gamma(one.counts)) * one.counts.sum(axis=-1, keepdims=True))
        for name, one in families.items()
    }


def set_to(families: Mapping[str, Family], source: str, given: Sequence[str], target: str) -> Matrix | None:
    """(a, b) probability of each level of the target where the source is set to each of its levels.

    A row that adds up to less than 1 lacks what no record tells. None: a table would be too large.

    Parameters
    ----------
    families
        Of all variables, in one DAG of a class.
    given
        The parents of the source in any DAG of the class, without the target.
    """
    z = tuple(given)
    joint, of_source, of_given = (_marginal(families, of) for of in ((source, target, *z), (source, *z), z))
    if joint is None or of_source is None or of_given is None:
        return None
    p = np.divide(of_given, of_source, out=np.zeros_like(of_source), where=of_source > 0.0)
    return np.asarray((joint * p[:, None]).sum(axis=tuple(range(2, joint.ndim))))


def shares_of(families: Mapping[str, Family], target: str) -> Matrix | None:
    """(b,) probability of each level of a variable where none is set."""
    return _marginal(families, (target,))


def _marginal(families: Mapping[str, Family], kept: tuple[str, ...]) -> Matrix | None:
    """The probabilities of all combinations of levels of some variables; None: too many at once."""
    needed, waiting = set[str](), list(kept)
    while waiting:
        if (name := waiting.pop()) not in needed:
            needed.add(name)
            waiting += families[name].parents
    factors = [_Factor((*families[x].parents, x), _shares(families[x].counts)) for x in families if x in needed]
    sizes = {name: families[name].counts.shape[-1] for name in needed}

    def size_without(name: str) -> int:
        return int(np.prod([sizes[v] for v in {v for f in factors if name in f.of for v in f.of}], dtype=np.float64))

    left = needed - set(kept)
    while left:
        name = min(sorted(left), key=size_without)
        touched = [one for one in factors if name in one.of]
        product = _product(touched, tuple(dict.fromkeys(v for one in touched for v in one.of if v != name)), sizes)
        if product is None:
            return None
        factors = [one for one in factors if name not in one.of] + [product]
        left.remove(name)
    found = _product(factors, kept, sizes)
    return None if found is None else found.table


def _product(factors: Sequence[_Factor], kept: tuple[str, ...], sizes: Mapping[str, int]) -> _Factor | None:
    """The product of factors, summed over all variables that are not kept."""
    every = list(dict.fromkeys((*kept, *(v for one in factors for v in one.of))))
    if len(every) > _MOST_AXES or np.prod([float(sizes[v]) for v in every]) > _MOST_CELLS:
        return None
    place = {name: k for k, name in enumerate(every)}
    # By broadcasting: each factor's axes in the order of all variables, and 1 where it has none.
    found = np.ones([sizes[v] for v in every])
    for one in factors:
        order = sorted(range(len(one.of)), key=lambda axis: place[one.of[axis]])
        shape = [sizes[v] if v in one.of else 1 for v in every]
        found = found * one.table.transpose(order).reshape(shape)
    table: Matrix = np.asarray(found.sum(axis=tuple(range(len(kept), len(every)))), dtype=np.float64)
    return _Factor(kept, table)


def _shares(counts: Matrix) -> Matrix:
    rows = counts.sum(axis=-1, keepdims=True)
    return np.asarray(np.divide(counts, rows, out=np.zeros_like(counts), where=rows > 0.0))
