"""Quotient normalised maximum likelihood: what a variable gains by its parents, from contingency tables.

For a set S of variables with counts n_c in r_S cells, of N records in all,

    Q(S) = sum over c of n_c log(n_c / N) - log C(r_S, N),

where C is the regret of a multinomial distribution: the sum of the maximised likelihood over all tables of N records.
A child x with parents Pa gains Q(x and Pa) - Q(Pa) - Q(x), and the graph with the largest sum of gains is the best. The
sum is the same for all DAGs of a Markov equivalence class, and nothing has to be chosen (Silander et al. 2018).

C(1, N) = 1, C(2, N) is a sum over N + 1 terms, and C(r + 2, N) = C(r + 1, N) + N / r C(r, N) (Kontkanen and Myllymaki
2007). For more than a thousand records C(2, N) is Szpankowski's approximation, whose error is below 1e-6.

r_S is the product of the numbers of levels that occur: a level without records does not make a table larger.
"""

import math
from functools import lru_cache

import numpy as np

from fedbnsl.graphs.contingency import MOST_CELLS, VariableSet, is_too_large
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.search.counts.tables import TableSource

_EXACT = 1000  # records up to which C(2, N) is summed up


def log_regret(cells: int, n_samples: int) -> float:
    """Logarithm of C(cells, n_samples), for 1 to `MOST_CELLS` cells."""
    return float(_log_regrets(n_samples)[cells])


@lru_cache(maxsize=256)
def _log_regrets(n: int) -> Matrix:
    """(MOST_CELLS + 1,) by the number of cells."""
    found = np.zeros(MOST_CELLS + 1)
    found[2] = _log_regret_of_two(n)
    for r in range(1, MOST_CELLS - 1 if n else 0):
        # log(a + b) with a above b, as the regret grows with the number of cells
        found[r + 2] = found[r + 1] + math.log1p(n / r * math.exp(found[r] - found[r + 1]))
    return found


def _log_regret_of_two(n: int) -> float:
    if n > _EXACT:
        a = n * math.pi
        return 0.5 * math.log(a / 2.0) + math.sqrt(8.0 / (9.0 * a)) + (3.0 * math.pi - 16.0) / (36.0 * a)
    terms = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + _n_log(k, n) + _n_log(n - k, n)
        for k in range(n + 1)
    ]
    return math.log(math.fsum(map(math.exp, terms)))


def _n_log(k: int, n: int) -> float:
    return k * math.log(k / n) if k else 0.0


class Gains:
    """What variables gain by their parents.

    Numbers depend on the counts alone, bit for bit: not on the order of variables, of levels or of sites.
    """

    def __init__(self, source: TableSource, levels: Index) -> None:
        self.source = source
        self.levels = levels
        self._known: dict[tuple[int, VariableSet], float] = {}

    def __call__(self, child: int, parents: VariableSet) -> float:
        """Of a child by its parents, ascending: NaN where the table is not known, -inf where there can be none."""
        if not parents:
            return 0.0
        found = self._known.get((child, parents))
        if found is None:
            found = self._known[child, parents] = self._gain(child, parents)
        return found

    def _gain(self, child: int, parents: VariableSet) -> float:
        family = tuple(sorted((child, *parents)))
        if is_too_large(family, self.levels) or self.source.is_withheld(family):
            return -math.inf
        table = self.source.table(family)
        if table is None:
            return math.nan
        total = float(np.sort(table, axis=None).sum())
        n = round(total)
        if not n:
            return -math.inf
        axis = family.index(child)
        others = tuple(k for k in range(len(family)) if k != axis)
        occurring = [_occurring(table, k) for k in range(len(family))]
        r_parents = math.prod(occurring[k] for k in others)
        return (
            likelihood(table, total)
            - likelihood(table.sum(axis=axis), total)
            - likelihood(table.sum(axis=others), total)
            - log_regret(r_parents * occurring[axis], n)
            + log_regret(r_parents, n)
            + log_regret(occurring[axis], n)
        )

    def entropy(self, variable: int) -> float:
        """Of a variable alone, in nats; infinite where no table has it."""
        table = self.source.table((variable,))
        return math.inf if table is None or not table.any() else -likelihood(table, float(table.sum())) / table.sum()


def _occurring(table: Matrix, axis: int) -> int:
    return int(np.count_nonzero(table.sum(axis=tuple(k for k in range(table.ndim) if k != axis))))


def likelihood(table: Matrix, total: float) -> float:
    """Of counts, maximised, as a logarithm; summed in an order that depends on the counts alone."""
    n = np.sort(table[table > 0.0])
    return float((n * np.log(n / total)).sum())
