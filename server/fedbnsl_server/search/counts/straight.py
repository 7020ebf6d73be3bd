"""Whether tables describe grades better than straight effects do: two rival graphs, and one code length for both.

Counts know nothing of an order of levels. Where grades act by straight lines, they need a number for each combination
of levels, and lose edges; where grades act otherwise, straight lines give false ones. For a set S of variables of N
records let

    Q(S) as in `score`,    L(S) = l(S) - sum over v of log C(r_v, N) - k / 2 log N,

where l is the largest log-likelihood of linear-by-linear association (Haberman 1974; Agresti 2010, section 6.2)

    log p(cell) = c + sum over v of a_v(level of v) + sum over pairs s, t of b_st' (g_s x g_t),

with k numbers b in all. g is the position of a level of a binary or ordinal variable, and indicators of those of a
nominal one: each pair has one straight effect, or one for each level. Let D(S) be the larger one of Q(S) and L(S).
A graph describes the tables in

    sum over children x with parents Pa of D(Pa) - D(x and Pa)

nats. Each set has the form that suits it, and all DAGs of a class have the same sum.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from fedbnsl.graphs.contingency import VariableSet, is_too_large
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.counts.climb import BETTER, parents_of
from fedbnsl_server.search.counts.score import Gains, likelihood, log_regret
from fedbnsl_server.search.counts.tables import Choice, TableSource

# With more numbers than this, a set has its table alone: a fit would take seconds.
_MOST_NUMBERS = 200
# Weight of b^2 / 2, with g in standard deviations: where levels are separated, the likelihood has no maximum.
_RIDGE = 1e-3
# Of a level's own number, so that rounding does not matter where no cell tells it.
_ROUNDING = 1e-8
# Twice the nats that the next step would gain, and steps; any numbers b are a description, the best ones the shortest.
_SMALL, _MOST_STEPS = 1e-6, 50
_SHORTEST_STEP = 1e-6


class _Forms(NamedTuple):
    """Logarithms of what a set's table has, by each form."""

    by_cells: float  # Q
    by_lines: float  # L


_Form = Callable[[_Forms], float]


@dataclass(frozen=True, eq=False)
class Descriptions:
    """How graphs describe tables.

    Attributes
    ----------
    source
        The tables.
    levels
        (V,) of the variables.
    nominal
        (V,) variables whose levels have no order.
    """

    source: TableSource
    levels: Index
    nominal: Mask

    def choice(self, counted: Mask, moments: Mask, further: float = 0.0) -> Choice:
        """Between two (V, V) DAGs whose tables are known: that of counts, and that of moments.

        Of one class, they are the same graph; then its description by cells alone is compared with that by straight
        effects alone.

        Parameters
        ----------
        further
            Nats that edges of moments save beyond those of `known`.
        """
        first, second = self._nats(counted, max), self._nats(moments, max) - further
        if abs(first - second) < BETTER * max(abs(first), 1.0):
            first, second = self._nats(counted, lambda one: one.by_cells), self._nats(moments, lambda one: one.by_lines)
        return Choice(first / math.log(2.0), second / math.log(2.0))

    def _nats(self, dag: Mask, form: _Form) -> float:
        families = [(x, parents_of(dag, x)) for x in range(len(dag))]
        return math.fsum(
            form(self._forms(parents)) - form(self._forms(tuple(sorted((x, *parents))))) for x, parents in families
        )

    def known(self, dag: Mask) -> Mask:
        """(V, V) DAG without the parents that gain least, where a table of a family is not known, or too large."""
        found, gains = dag.copy(), Gains(self.source, self.levels)
        for x in range(len(dag)):
            parents = sorted(parents_of(dag, x), key=lambda y: gains(x, (y,)))
            while not self._has_table(tuple(sorted((x, *parents)))):
                found[parents.pop(0), x] = False
        return found

    def _has_table(self, variables: VariableSet) -> bool:
        if is_too_large(variables, self.levels) or self.source.is_withheld(variables):
            return False
        return self.source.table(variables) is not None

    @cached_property
    def _found(self) -> dict[VariableSet, _Forms]:
        return {}

    def _forms(self, variables: VariableSet) -> _Forms:
        if not variables:
            return _Forms(0.0, 0.0)
        if variables not in self._found:
            self._found[variables] = self._described(variables)
        return self._found[variables]

    def _described(self, variables: VariableSet) -> _Forms:
        table = self.source.table(variables)
        if table is None or not table.any():
            raise ValueError(f"the table of {variables} is not known")
        n, V = float(table.sum()), table.ndim
        margins = [table.sum(axis=tuple(k for k in range(V) if k != axis)) for axis in range(V)]
        occurring = [np.flatnonzero(margin) for margin in margins]
        table = table[np.ix_(*occurring)]
        by_cells = likelihood(table, n) - log_regret(table.size, round(n))
        values = [
            _values(margin[there] / n, there, nominal=bool(self.nominal[v]))
            for v, margin, there in zip(variables, margins, occurring, strict=True)
        ]
        k = sum(one.shape[1] * other.shape[1] for one, other in combinations(values, 2))
        if k + sum(table.shape) - V > _MOST_NUMBERS:
            return _Forms(by_cells, by_cells)
        regrets = sum(log_regret(len(there), round(n)) for there in occurring)
        by_lines = log_likelihood(table, values) - regrets - 0.5 * k * math.log(n)
        return _Forms(by_cells, by_lines)


def _values(shares: Matrix, levels: Index, *, nominal: bool) -> Matrix:
    """(r, m) g of the levels that occur, in standard deviations from the mean; none of a constant."""
    found = np.eye(len(levels))[:, 1:] if nominal else levels[:, None].astype(np.float64)
    found = found - shares @ found
    size = np.sqrt(shares @ found**2)
    return np.asarray(found[:, size > 0.0] / size[size > 0.0])


def log_likelihood(table: Matrix, values: list[Matrix]) -> float:
    """The largest one of linear-by-linear association, by Newton's method from independence.

    Parameters
    ----------
    table
        Records, one axis a variable, without levels that do not occur.
    values
        (r, m) g of the levels of each variable.
    """
    V, n = table.ndim, float(table.sum())
    at = np.indices(table.shape).reshape(V, -1)
    own = [np.eye(r)[of][:, 1:] for r, of in zip(table.shape, at, strict=True)]
    of_cells = [g[of] for g, of in zip(values, at, strict=True)]
    pairs = [(one[:, :, None] * other[:, None, :]).reshape(table.size, -1) for one, other in combinations(of_cells, 2)]
    F, counts = np.hstack([*own, *pairs]), table.ravel()
    ridge = np.full(F.shape[1], _RIDGE)
    ridge[: sum(one.shape[1] for one in own)] = _ROUNDING
    shares = [table.sum(axis=tuple(k for k in range(V) if k != axis)) / n for axis in range(V)]
    independent = np.sum([np.log(share[of]) for share, of in zip(shares, at, strict=True)], axis=0)

    def fitted(theta: Matrix) -> tuple[float, Matrix]:
        """The penalised log-likelihood, and the logarithms of the cells' probabilities."""
        eta = independent + F @ theta
        log_p = eta - np.logaddexp.reduce(eta)
        return float(counts @ log_p - 0.5 * ridge @ theta**2), log_p

    theta = np.zeros(F.shape[1])
    value, log_p = fitted(theta)
    for _ in range(_MOST_STEPS):
        p = np.exp(log_p)
        mean = F.T @ p
        information = n * ((F * p[:, None]).T @ F - np.outer(mean, mean)) + np.diag(ridge)
        gradient = F.T @ counts - n * mean - ridge * theta
        step = np.linalg.solve(information, gradient)
        gain, share = float(gradient @ step), 1.0
        if not gain > _SMALL:
            break
        trial = fitted(theta + step)
        while trial[0] < value and share > _SHORTEST_STEP:
            share /= 2.0
            trial = fitted(theta + share * step)
        if trial[0] < value:
            break
        theta, (value, log_p) = theta + share * step, trial
    return float(counts @ log_p)
