"""What a network says of a variable, in closed form: of levels by variable elimination, of lines by the normal law.

Zhang and Poole (1994): factors of the variables that the question hangs on are multiplied and summed over one variable
after another, the one first that makes the smallest factor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.network.bayesian_network import BayesianNetwork, never_occurs
from fedbnsl.network.families import Grade, Levels, Number, Table, coded, positions
from fedbnsl.protocol.sparse import Index, Matrix

_MOST_CELLS = 2**22  # of a factor

Values = Mapping[str, Sequence[float]]


@dataclass(frozen=True, eq=False)
class _Factor:
    names: tuple[str, ...]
    table: Matrix  # an axis for each


def probabilities(network: BayesianNetwork, target: str, known: Values, set_to: Values) -> Matrix | None:
    """(K,) of the target's levels, given values of the columns of some variables, or where they are set.

    None: a variable that it hangs on is a number, or factors would have more than four million cells.

    Raises
    ------
    SetupError
        If the known values never occur together.
    """
    needed = network.needed(network.families[target].columns, known, set_to)
    families = {name: one for name in needed if isinstance(one := network.families[name], Grade | Levels | Table)}
    if len(families) < len(needed):
        return None
    owner = {int(k): name for name, family in families.items() for k in family.columns}
    n_levels = {name: family.n_levels for name, family in families.items()}
    fixed = {
        name: int(positions(_row(network, families[name].columns, values), families[name].columns, n_levels[name])[0])
        for name, values in {**known, **set_to}.items()
        if name in families
    }
    factors = list[_Factor]()
    for name, family in families.items():
        if name not in set_to:
            parents = sorted({owner[k] for k in family.parents.tolist()})
            if math.prod(n_levels[one] for one in (*parents, name) if one not in fixed) > _MOST_CELLS:
                return None
            factors.append(_factor(network, families, n_levels, name, parents, fixed))
    left = {name for factor in factors for name in factor.names} - {target}
    while left:
        sizes = {name: math.prod(n_levels[one] for one in _about(name, factors)) for name in sorted(left)}
        name = min(sizes, key=sizes.__getitem__)
        if sizes[name] > _MOST_CELLS:
            return None
        left.remove(name)
        touched = [factor for factor in factors if name in factor.names]
        factors = [factor for factor in factors if name not in factor.names] + [_product(touched, name)]
    found = _product(factors, "").table
    if not found.sum() > 0.0:
        raise never_occurs(known)
    return np.asarray(found / found.sum())


def moments(network: BayesianNetwork, target: str, known: Values, set_to: Values) -> tuple[float, float] | None:
    """Mean and standard deviation of the target's column, a number; None: not all are lines without a range."""
    names = network.needed(network.families[target].columns, known, set_to)
    place = {int(network.families[name].columns[0]): i for i, name in enumerate(names)}
    n = len(names)
    A, noise, base = np.eye(n), np.zeros(n), np.zeros(n)
    for i, name in enumerate(names):
        family = network.families[name]
        if not isinstance(family, Number) or family.bends or math.isfinite(family.low) or math.isfinite(family.high):
            return None
        if name in set_to:
            base[i] = set_to[name][0]
            continue
        base[i], noise[i] = family.intercept, family.noise_std**2
        A[i, [place[k] for k in family.lines.tolist()]] -= family.weights
    means, root = np.linalg.solve(A, base), np.linalg.inv(A)
    S = (root * noise) @ root.T
    t = names.index(target)
    at = np.array([i for i, name in enumerate(names) if name in known], dtype=np.int64)
    gap = np.array([known[names[i]][0] for i in at.tolist()]) - means[at]
    weights = np.asarray(np.linalg.lstsq(S[np.ix_(at, at)], S[at, t], rcond=None)[0], dtype=np.float64)
    return float(means[t] + weights @ gap), math.sqrt(max(float(S[t, t] - weights @ S[at, t]), 0.0))


def _row(network: BayesianNetwork, columns: Index, values: Sequence[float]) -> Matrix:
    X = np.zeros((1, network.n_columns))
    X[0, columns] = values
    return X


def _factor(
    network: BayesianNetwork,
    families: Mapping[str, Grade | Levels | Table],
    n_levels: Mapping[str, int],
    name: str,
    parents: Sequence[str],
    fixed: Mapping[str, int],
) -> _Factor:
    """Of a variable given its parents, those that are fixed at their levels."""
    free = [one for one in parents if one not in fixed]
    shape = tuple(n_levels[one] for one in free)
    X = np.zeros((math.prod(shape), network.n_columns))
    at = dict(zip(free, np.indices(shape).reshape(len(free), len(X)), strict=True))
    for one in parents:
        places, own = at.get(one, np.full(len(X), fixed.get(one, 0))), families[one].columns
        X[:, own] = coded(places, len(own), n_levels[one])
    family = families[name]
    table = family.probabilities(X).reshape(*shape, n_levels[name])
    if name in fixed:
        return _Factor(tuple(free), table[..., fixed[name]])
    return _Factor((*free, name), table)


def _about(name: str, factors: Sequence[_Factor]) -> set[str]:
    return {one for factor in factors if name in factor.names for one in factor.names}


def _product(factors: Sequence[_Factor], without: str) -> _Factor:
    """Their product, summed over one variable; its largest number is 1, as only their ratios count."""
    names = tuple(dict.fromkeys(one for factor in factors for one in factor.names))
    found = np.ones(())
    for factor in factors:
        order = sorted(range(len(factor.names)), key=lambda k: names.index(factor.names[k]))
        lengths = dict(zip(factor.names, factor.table.shape, strict=True))
        found = found * factor.table.transpose(order).reshape([lengths.get(name, 1) for name in names])
    if without in names:
        found = found.sum(axis=names.index(without))
    return _Factor(tuple(name for name in names if name != without), np.asarray(found / (found.max() or 1.0)))
