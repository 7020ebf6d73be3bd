"""The search again in records that the learned network draws: a parametric bootstrap of graphs between categories.

A draw has as many records as the tables, each drawn from the conditional probabilities that the pooled tables give the
families of the graph; a combination of parents' levels without records has the child's own shares. All tables of a draw
are counted in the same records, so that they fit each other. The climb starts at the graph, over pairs within two
steps in it. In the draws, pairs without an edge are independent given their parents: an edge that the search has just
missed is in few of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedbnsl.graphs.contingency import VariableSet, cells_of, shape_of
from fedbnsl.graphs.family_moments import within_two_steps
from fedbnsl.graphs.graph import topological_order
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.counts.climb import Moves, climb, parents_of
from fedbnsl_server.search.counts.score import Gains
from fedbnsl_server.search.counts.tables import TableSource
from fedbnsl_server.search.progress import Progress

# Moves without a better graph after which a climb ends.
_PATIENCE = 5


@dataclass(frozen=True, eq=False)
class Records:
    """Drawn records, one (n,) array of levels a variable; a `TableSource`."""

    of: Sequence[Index]
    levels: Index

    @property
    def n_samples(self) -> float:
        """See `TableSource`."""
        return float(len(self.of[0]))

    def is_withheld(self, variables: VariableSet) -> bool:
        """See `TableSource.is_withheld`."""
        return False

    def table(self, variables: VariableSet) -> Matrix:
        """See `TableSource.table`."""
        cell = self.of[variables[0]]
        for v in variables[1:]:
            cell = cell * int(self.levels[v]) + self.of[v]
        found = np.bincount(cell, minlength=cells_of(variables, self.levels))
        return found.astype(np.float64).reshape(shape_of(variables, self.levels))


@dataclass(frozen=True, eq=False)
class Redrawn:
    """The network of a (V, V) DAG whose tables are known, and what a search may do."""

    source: TableSource
    levels: Index
    dag: Mask
    allowed: Mask
    required: Mask

    def records(self, rng: np.random.Generator) -> Records:
        """As many records as the tables have."""
        n = round(self.source.n_samples)
        found: dict[int, Index] = {}
        for x in topological_order(self.dag):
            row = np.zeros(n, dtype=np.int64)
            for p in parents_of(self.dag, x):
                row = row * int(self.levels[p]) + found[p]
            levels, probabilities = self._probabilities[x]
            below = np.cumsum(probabilities, axis=1)[:, :-1]
            found[x] = levels[(rng.random(n)[:, None] >= below[row]).sum(axis=1)]
        return Records([found[x] for x in range(len(self.dag))], self.levels)

    def best(self, rng: np.random.Generator, progress: Progress) -> Mask:
        """(V, V) the best DAG near this one in a draw."""
        gains = Gains(self.records(rng), self.levels)
        near = (self.allowed & within_two_steps(self.dag)) | self.dag
        moves = Moves(gains, near, self.required)
        return climb(moves, self.dag, patience=_PATIENCE, enough=lambda: progress.is_enough)[0]

    @cached_property
    def _probabilities(self) -> list[tuple[Index, Matrix]]:
        """The levels of each variable, and their probabilities for each combination of its parents' levels.

        Levels are in an order that the counts give, so that draws do not depend on theirs: by their records, then by
        those together with other variables of a family, whose levels are in order if they were before.
        """
        found: list[tuple[Index, Matrix]] = []
        for x in range(len(self.dag)):
            joined = np.flatnonzero(self.dag[x] | self.dag[:, x]).tolist()
            pairs = {v: counts_given(self.source, v, (x,)) for v in joined}
            beside = [np.sort(pair, axis=1) for pair in pairs.values()]
            beside += [pair[:, found[v][0]] for v, pair in pairs.items() if v < x]
            records, probabilities = conditional(self.source, x, parents_of(self.dag, x))
            totals = np.rint(records @ probabilities).tolist()
            keys = [(total, *(table[k].tolist() for table in beside)) for k, total in enumerate(totals)]
            levels = np.array(sorted(range(len(keys)), key=lambda k: keys[k]), dtype=np.int64)
            found.append((levels, probabilities[:, levels]))
        return found


def counts_given(source: TableSource, x: int, parents: VariableSet) -> Matrix:
    """(rows, levels) records of each level of x, for each combination of the parents' levels, the last fastest.

    Raises
    ------
    ValueError
        If the table is not known.
    """
    family = tuple(sorted((x, *parents)))
    table = source.table(family)
    if table is None:
        raise ValueError(f"the table of {family} is not known")
    return np.moveaxis(table, family.index(x), -1).reshape(-1, table.shape[family.index(x)])


def conditional(source: TableSource, x: int, parents: VariableSet) -> tuple[Matrix, Matrix]:
    """(rows,) records, and (rows, levels) probabilities: see `counts_given`."""
    counts = counts_given(source, x, parents)
    records = np.asarray(counts.sum(axis=1), dtype=np.float64)
    own = counts.sum(axis=0) / max(float(records.sum()), 1.0)
    shares = counts / np.where(records > 0.0, records, 1.0)[:, None]
    return records, np.asarray(np.where(records[:, None] > 0.0, shares, own))
