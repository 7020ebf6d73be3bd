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

import numpy as np

from fedbnsl.graphs.family_moments import needed_moments
from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import EdgePenalty
from fedbnsl.sparse import Index, Mask, Matrix
from fedbnsl_server.search.families import Families
from fedbnsl_server.search.fitted_network import Accuracy
from fedbnsl_server.search.graph_search import FoundGraph, without_small
from fedbnsl_server.search.order_search import best_dag, bic_penalty, extended_penalty

# With fewer rows than this for each column, the penalty is chosen by sites that are left out.
_MANY_ROWS = 100
# More sites are left out in groups of about equal rows.
_MOST_GROUPS = 10
# The penalties between which they choose: shares of the way from BIC's to that of the extended BIC, which is gamma of
# Foygel and Drton from 0 to 1/2.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def search_class(
    S: Matrix,
    *,
    candidates: Mask,
    mask: EdgeMask,
    penalty: float,
    threshold: float,
    seed: int,
    patience: int | None = None,
    start: Sequence[int] | None = None,
    ridge: float = 1e-9,
) -> FoundGraph:
    """A DAG of the class of least score, and its weights, in units of the columns.

    Parameters
    ----------
    S
        (d, d) second moments of prepared columns over all rows; read only where `needed_moments` of the candidates is
        True.
    candidates
        (V, V) edges between variables, all of them allowed, the required ones among them.
    mask
        What is known of the edges.
    penalty
        What an edge adds to the score, per row.
    threshold
        Edges whose weight is absolutely no more than this are dropped in the end, unless they are required.
    seed, patience, start
        See `best_dag`.
    ridge
        Added to the moments' diagonal, as a share of it.
    """
    columns, required = mask.columns, mask.of_variables.required
    known = needed_moments(candidates, columns)
    S = np.where(known | known.T, S, np.nan) + ridge * np.diag(S.diagonal())
    dag = best_dag(
        S,
        penalty=penalty,
        candidates=candidates,
        required=required,
        members=columns.members(),
        seed=seed,
        patience=patience,
        start=start,
    )
    families = Families(S[None], dag, ridge=0.0, members=columns.members())
    score = float(np.log(families.residual_variances(dag)[0]) @ columns.sizes) / 2
    score += penalty * int(columns.sizes @ dag @ columns.sizes)
    dag, weights = without_small(families, dag, required, columns, threshold=threshold, share=1.0)
    return FoundGraph(dag, weights, families.column_variances(dag)[0], score)


@dataclass(frozen=True, eq=False)
class ClassSearch:
    """`search_class` with all that it takes besides moments, to be run again on others.

    Attributes
    ----------
    candidates, mask, penalty, threshold, seed
        As in `search_class`.
    n_samples
        Records that the moments have, in which an edge costs this penalty.
    """

    candidates: Mask
    mask: EdgeMask
    n_samples: float
    penalty: float
    threshold: float
    seed: int

    def found(
        self, S: Matrix, *, n_samples: float = 0.0, patience: int | None = None, start: Sequence[int] | None = None
    ) -> FoundGraph:
        """The best graph for (d, d) moments of so many rows; 0: of `self.n_samples`."""
        return search_class(
            S,
            candidates=self.candidates,
            mask=self.mask,
            penalty=self.penalty * self.n_samples / (n_samples or self.n_samples),
            threshold=self.threshold,
            seed=self.seed,
            patience=patience,
            start=start,
        )

    def __call__(self, moments: Matrix, accuracy: Accuracy, start: Mask, /) -> Mask:
        """The best DAG, from the order of one that is probably near."""
        found = self.found(moments, n_samples=accuracy.n_samples, patience=0, start=topological_order(start))
        return found.dag


def edge_penalty(
    setting: EdgePenalty,
    moments: Sequence[Matrix],
    rows: Sequence[float],
    *,
    candidates: Mask,
    mask: EdgeMask,
    seed: int,
) -> float:
    """What an edge costs, per row.

    Parameters
    ----------
    moments, rows
        (d, d) of each site, about its own means, and its rows.
    candidates, mask, seed
        As in `search_class`.
    """
    n, V = float(sum(rows)), len(candidates)
    bic, extended = bic_penalty(n), extended_penalty(n, V)
    if setting == "bic":
        return bic
    if setting == "extended-bic" or len(moments) < 2 or n > _MANY_ROWS * len(moments[0]):
        return extended
    left_out = {bic + share * (extended - bic): 0.0 for share in _SHARES}
    for group in _groups(rows):
        others = [k for k in range(len(rows)) if k not in group]
        rest = sum(rows[k] for k in others)
        S = sum((rows[k] * moments[k] for k in others), np.zeros_like(moments[0])) / rest
        there = sum((rows[k] * moments[k] for k in group), np.zeros_like(S))
        for penalty in left_out:
            found = search_class(
                S, candidates=candidates, mask=mask, penalty=penalty * n / rest, threshold=0.0, seed=seed, patience=1
            )
            left_out[penalty] += _misfit(there, sum(rows[k] for k in group), found, mask.columns)
    return min(left_out, key=lambda penalty: left_out[penalty])


def _groups(rows: Sequence[float]) -> list[list[int]]:
    """Sites that are left out together: each by itself, or, where they are many, in groups with about equal rows."""
    groups: list[list[int]] = [[] for _ in range(min(len(rows), _MOST_GROUPS))]
    sizes = [0.0] * len(groups)
    for k in sorted(range(len(rows)), key=lambda k: (-rows[k], k)):
        least = sizes.index(min(sizes))
        groups[least].append(k)
        sizes[least] += rows[k]
    return groups


def _misfit(total: Matrix, rows: float, found: FoundGraph, columns: Columns) -> float:
    """Minus the log-likelihood of rows with these sums of products, up to a constant; blocks by their columns."""
    misfit = 0.0
    for j in range(len(total)):
        parents = np.flatnonzero(found.weights[:, j])
        family: Index = np.append(parents, j)
        r = np.append(-found.weights[parents, j], 1.0)
        v = float(found.residual_variance[j])
        misfit += 0.5 * (rows * math.log(v) + float(r @ total[np.ix_(family, family)] @ r) / v)
    return misfit
