"""Which columns are tied by a linear relation: sums, codes of categories, other units, or nearly the same quantity.

A relation is looked for among the columns of a child and all its parents, which does not depend on which of them a
graph takes for the child: with R their correlations, every eigenvector of an eigenvalue near zero is a combination of
columns that hardly varies. An indicator is a column: a grade that is a code of a nominal variable is a combination of
its indicators.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.linear_network import IN_RELATION, SINGULAR
from fedbnsl_server.search.whitened import whitened

# Eigenvalues below this: a pair that is correlated by more than .999, where errors of measurement decide what is left.
_NEARLY = 1e-3
# What a column has at least in a relation that holds nearly; less is chance.
_IN_NEAR_RELATION = 0.1


@dataclass(frozen=True, eq=False)
class Relations:
    """Sets of columns of at least two variables, those of exact relations first."""

    members: Mask  # (R, d) the columns of each set
    exact: Mask  # (R,) whether its relation holds but for rounding


def functions(members: Mask, exact: Mask, columns: Columns) -> Mask:
    """(V, V) which variables are in one exact set, each with itself: nothing tells a direction between them.

    Parameters
    ----------
    members, exact
        As in `Relations`.
    """
    found = np.zeros((len(columns.variables), len(columns.variables)), dtype=bool)
    for one in members[exact]:
        own = np.unique(columns.variable_of[one])
        found[np.ix_(own, own)] = True
    return found


def relations(dag: Mask, S: Matrix, columns: Columns) -> Relations:
    """Those among the families of a (V, V) DAG, from (d, d) moments, known within them and without noise.

    Sets that share a column are one, and so are those of which one has all variables of the other. A set that holds
    nearly is told only where it is no part of one that holds exactly.
    """
    exact, near = list[Mask](), list[Mask]()
    for v in np.flatnonzero(dag.any(axis=0)):
        family = np.flatnonzero(np.isin(columns.variable_of, np.append(np.flatnonzero(dag[:, v]), v)))
        size = np.sqrt(np.maximum(S[family, family], np.finfo(np.float64).tiny))
        R, owners = S[np.ix_(family, family)] / size / size[:, None], columns.variable_of[family]
        exact += _sets(R, family, columns, 0.0, SINGULAR, IN_RELATION)
        # Levels of one variable may be nearly tied to each other, where that without a column is rare.
        between = whitened(R, [np.flatnonzero(owners == v) for v in np.unique(owners)])
        found = _sets(between, family, columns, SINGULAR, _NEARLY, _IN_NEAR_RELATION)
        near += [np.isin(columns.variable_of, columns.variable_of[one]) for one in found]
    told = _united(exact, columns)
    n_exact = len(told)
    variables = [_variables(one, columns) for one in told]
    told += [one for one in _united(near, columns) if not any(_variables(one, columns) <= of for of in variables)]
    return Relations(np.array(told, dtype=bool).reshape(len(told), len(S)), np.arange(len(told)) < n_exact)


def _sets(R: Matrix, family: Index, columns: Columns, low: float, high: float, least: float) -> Iterator[Mask]:
    """(d,) columns of several variables that eigenvectors of such eigenvalues of R tie together."""
    values, vectors = np.linalg.eigh(R)
    vectors = vectors[:, (np.abs(values) >= low) & (np.abs(values) < high)]
    together = np.abs(vectors @ vectors.T)
    left = np.sqrt(together.diagonal()) > least
    while left.any():
        one = np.zeros(len(family), dtype=bool)
        one[left.argmax()] = True
        while (more := left & (together[one] > least**2).any(axis=0) & ~one).any():
            one |= more
        left &= ~one
        found = np.zeros(len(columns.names), dtype=bool)
        found[family[one]] = True
        if len(_variables(found, columns)) > 1:
            yield found


def _united(sets: Sequence[Mask], columns: Columns) -> list[Mask]:
    found = list[Mask]()
    for one in sets:
        joined = one
        while joins := [
            k
            for k, other in enumerate(found)
            if (joined & other).any()
            or _variables(joined, columns) <= _variables(other, columns)
            or _variables(joined, columns) >= _variables(other, columns)
        ]:
            for k in reversed(joins):
                joined = joined | found.pop(k)
        found.append(joined)
    return found


def _variables(members: Mask, columns: Columns) -> frozenset[int]:
    return frozenset(columns.variable_of[members].tolist())
