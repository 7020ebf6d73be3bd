"""The Markov equivalence class of least BIC, searched from pooled moments without an assumption on noise variances.

The search over orders finds one DAG of the class; every DAG of the class has the same score and fits the moments as
well. Its weights are least-squares weights.

An edge costs what BIC asks, or what the extended BIC asks, which also pays for choosing an edge among many. Where rows
are many, the extended BIC is right. Where they are few it may leave out faint edges: then the sites choose a penalty
between the two, each by how well the graph of all the others predicts it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedbnsl.graphs.family_moments import needed_moments
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.graph_search import RIDGE, FoundGraph, without_small
from fedbnsl_server.search.linear_network import Accuracy, LinearNetwork, fitted, inverse, pooled
from fedbnsl_server.search.order_search import best_dag
from fedbnsl_server.search.progress import UNWATCHED, Progress
from fedbnsl_server.search.score import Score, bic_penalty, extended_penalty
from fedbnsl_server.search.space import Space

if TYPE_CHECKING:
    from fedbnsl_server.search.gaussian_families import GaussianFamilies

# With fewer rows than this for each column, the penalty is chosen by sites that are left out.
_MANY_ROWS = 100
# More sites are left out in groups of about equal rows.
_MOST_GROUPS = 10
# Rows for each column of a variable's parents, at least: with fewer, chance alone explains much of a child, a graph of
# many edges fits best, and the search for it takes very long.
_ROWS_A_PARENT = 5.0
# The penalties between which they choose: shares of the way from BIC's to that of the extended BIC, which is gamma of
# Foygel and Drton from 0 to 1/2.
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
# Of the variance over all rows that others than a group have at least of each level, if they are to predict the group.
_LEAST_SEEN = 1e-3
# After so many that predict worse than the best, smaller ones are not tried: graphs of many false edges take long.
_WORSE = 2


@dataclass(frozen=True, eq=False)
class ClassProblem:
    """Moments, and what a graph may be and costs: everything that its score depends on."""

    # (d, d) second moments of prepared columns over all rows; read only where `needed_moments` of the candidates
    # is True
    S: Matrix
    candidates: Mask  # (V, V) edges between variables, all of them allowed, the required ones among them
    mask: EdgeMask  # what is known of the edges
    penalty: float  # what an edge adds to the score, per row
    # edges whose weight is absolutely no more than this are dropped in the end, unless they are required
    threshold: float
    seed: int  # of the search
    judged: Matrix | None = None  # (d, d) moments in which `scores` compares graphs; None: S.
    n_samples: float = math.inf  # rows that the moments come from: few rows allow few parents
    # (d,) columns that an edge must explain at one of its ends; the others say how a variable bends. None: all of them
    lines: Mask | None = None
    explained: Mask | None = None  # (d,) columns that parents explain; the others only explain. None: all of them

    def found(
        self,
        *,
        patience: int | None = None,
        start: Mask | Sequence[int] | None = None,
        progress: Progress = UNWATCHED,
    ) -> FoundGraph:
        """A DAG of the class of least score, and its weights, in units of the columns; for settings see `best_dag`."""
        space = Space.of(self.candidates, self.mask)
        dag = best_dag(
            self._moments,
            space,
            penalty=self.penalty,
            seed=self.seed,
            patience=patience,
            start=start,
            most_parents=int(min(max(self.n_samples / _ROWS_A_PARENT, 1.0), len(self.S))),
            explained=self.explained,
            progress=progress,
        )
        families = self._families(dag)
        score = self._score(families, dag)
        dag = self._explaining(dag, space)
        dag, weights = without_small(families, dag, space, threshold=self.threshold, share=1.0)
        return FoundGraph(dag, weights, families.column_variances(dag)[0], score)

    def scores(self, dags: Sequence[Mask]) -> Matrix:
        """(K,) of several (V, V) DAGs of candidates."""
        families = self._families(np.logical_or.reduce(dags), self.judged)
        return np.array([self._score(families, dag) for dag in dags])

    def _explaining(self, dag: Mask, space: Space) -> Mask:
        """Without edges, the least first, that only tell how one end bends by how the other does.

        What a curve has made skewed bends in its other neighbours, too: then its causes say more of how these bend, and
        nothing of themselves.
        """
        if self.lines is None or self.lines.all():
            return dag
        bends = np.bincount(space.columns.variable_of[~self.lines], minlength=len(dag)) > 0
        dag = dag.copy()
        while True:
            asked = np.argwhere(dag & ~space.required & (bends[:, None] | bends)).tolist()
            gains = [self._gain_of_lines(a, c, dag, space.columns) for a, c in asked]
            if not gains or min(gains) > 0.0:
                return dag
            dag[tuple(asked[int(np.argmin(gains))])] = False

    def _gain_of_lines(self, a: int, c: int, dag: Mask, columns: Columns) -> float:
        """What an edge adds to the log-likelihood of the lines at one of its ends, or the other, beyond its penalty."""
        members, lines = columns.members(), np.ones(len(self.S), dtype=bool) if self.lines is None else self.lines
        others = np.isin(columns.variable_of, np.flatnonzero(dag[:, c] & (np.arange(len(dag)) != a)))
        gains: list[float] = []
        for source, target in ((a, c), (c, a)):
            own = members[target][lines[members[target]]]
            less, more = np.flatnonzero(others), np.union1d(np.flatnonzero(others), members[source])
            gained = max(self._log_left(own, less) - self._log_left(own, more), 0.0)
            gains.append(0.5 * gained - self.penalty * len(own) * len(members[source]))
        return max(gains)

    def _log_left(self, asked: Index, given: Index) -> float:
        """Logarithm of the determinant of what others leave of some columns, in units of these."""
        S = self._moments
        cross, size = S[np.ix_(given, asked)], np.sqrt(S.diagonal()[asked])
        left = S[np.ix_(asked, asked)] - cross.T @ inverse(S[np.ix_(given, given)]) @ cross
        unit = np.where(size > 0.0, size, 1.0)
        return float(np.log(np.maximum(np.linalg.eigvalsh(left / unit / unit[:, None]), RIDGE)).sum())

    def _score(self, families: "GaussianFamilies", dag: Mask) -> float:
        return Score.bic(self.penalty).of_dag(dag, families.residual_variances(dag), families.sizes, families.explained)

    @cached_property
    def _moments(self) -> Matrix:
        known = needed_moments(self.candidates, self.mask.columns)
        return np.where(known | known.T, self.S, np.nan) + RIDGE * np.diag(self.S.diagonal())

    def _families(self, candidates: Mask, S: Matrix | None = None) -> "GaussianFamilies":
        from fedbnsl_server.search.gaussian_families import GaussianFamilies  # here: it loads a compiler

        S = self._moments if S is None else S
        return GaussianFamilies(
            S[None], Space(candidates, columns=self.mask.columns), ridge=0.0, explained=self.explained
        )


@dataclass(frozen=True, eq=False)
class ClassSearch:
    """The search of a run, to be done again in other moments."""

    # candidates, mask, penalty, threshold, seed: as in `ClassProblem`
    candidates: Mask
    mask: EdgeMask
    n_samples: float  # records that count, in which an edge costs this penalty
    penalty: float
    threshold: float
    seed: int
    lines: Mask | None = None  # as in `ClassProblem`

    def found(self, S: Matrix, *, progress: Progress = UNWATCHED) -> FoundGraph:
        """The best graph for the (d, d) moments of the run."""
        progress.begin("searching for the graph")
        return self.on(S, Accuracy(self.n_samples)).found(progress=progress)

    def on(self, moments: Matrix, accuracy: Accuracy, near: Mask | None = None, /) -> ClassProblem:
        """The same question to other moments, with a penalty for as many records as they have; see `Search`."""
        counted = accuracy.counted
        penalty = self.penalty * self.n_samples / counted
        return ClassProblem(
            moments,
            self.candidates,
            self.mask,
            penalty,
            self.threshold,
            self.seed,
            n_samples=counted,
            lines=self.lines,
        )


def edge_penalty(
    moments: Sequence[Matrix],
    rows: Sequence[float],
    *,
    candidates: Mask,
    mask: EdgeMask,
    seed: int,
    progress: Progress = UNWATCHED,
) -> float:
    """What an edge costs, per row; as the sites choose that were left out; what it costs by itself once it is enough.

    Parameters
    ----------
    moments, rows
        (d, d) of each site, about its own means, and its rows.
    candidates, mask, seed
        As in `ClassProblem`.
    """
    n, V = float(sum(rows)), len(candidates)
    bic, extended = bic_penalty(n), extended_penalty(n, V)
    if len(moments) < 2 or n > _MANY_ROWS * len(moments[0]):
        return extended
    groups = [group for group in _groups(rows) if _is_predicted(group, moments, rows, mask.columns)]
    if not groups:
        return extended
    progress.begin("choosing the penalty of an edge")
    best, least, worse = extended, math.inf, 0
    for step, share in enumerate(_SHARES):
        penalty, nll = bic + share * (extended - bic), 0.0
        for done, group in enumerate(groups):
            progress.at((step + done / len(groups)) / len(_SHARES))
            others = [k for k in range(len(rows)) if k not in group]
            rest = sum(rows[k] for k in others)
            S = pooled([moments[k] for k in others], [rows[k] for k in others])
            there = sum((rows[k] * moments[k] for k in group), np.zeros_like(S))
            problem = ClassProblem(S, candidates, mask, penalty * n / rest, threshold=0.0, seed=seed, n_samples=rest)
            found = problem.found(patience=1, progress=progress.step())
            if progress.is_enough:
                return extended
            nll += _nll(there, n - rest, fitted(found.dag, S, mask.columns), mask.columns)
        if nll <= least:  # the same graph predicts as well
            best, least, worse = penalty, nll, 0
        else:
            worse += 1
        if worse == _WORSE:
            break
    return best


def _groups(rows: Sequence[float]) -> list[list[int]]:
    """Sites that are left out together: each by itself, or, where they are many, in groups with about equal rows."""
    groups: list[list[int]] = [[] for _ in range(min(len(rows), _MOST_GROUPS))]
    sizes = [0.0] * len(groups)
    for k in sorted(range(len(rows)), key=lambda k: (-rows[k], k)):
        least = sizes.index(min(sizes))
        groups[least].append(k)
        sizes[least] += rows[k]
    return groups


def _is_predicted(group: list[int], moments: Sequence[Matrix], rows: Sequence[float], columns: Columns) -> bool:
    """Whether the other sites have all that varies: they cannot tell how probable a level is that none of them has."""
    others = [k for k in range(len(rows)) if k not in group]
    S, everywhere = pooled([moments[k] for k in others], [rows[k] for k in others]), pooled(moments, rows)
    blocks = [np.ix_(own, own) for own in columns.members() if everywhere[own, own].all()]  # not of a constant
    shares = [np.linalg.eigvals(inverse(everywhere[block]) @ S[block]).real for block in blocks]
    return all(float(share.min()) > _LEAST_SEEN for share in shares)


def _nll(there: Matrix, rows: float, network: LinearNetwork, columns: Columns) -> float:
    """Minus the log-likelihood of rows with these (d, d) sums of products, up to a constant.

    Columns of one variable have a joint density: the same, up to a constant, whichever of its levels has no column.
    """
    left, nll = network.of_residuals(there), 0.0
    for own in columns.members():
        V, squares = network.residual_covariance[np.ix_(own, own)], left[np.ix_(own, own)]
        nll += 0.5 * float(rows * np.linalg.slogdet(V)[1] + np.trace(np.linalg.solve(V, squares)))
    return nll
