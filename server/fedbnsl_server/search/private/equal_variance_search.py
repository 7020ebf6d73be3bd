"""The DAG of equal noise variances, from everything that a private run has released.

A search in moments that are cleared of noise (`combined_releases`) finds what stands out of it. The likelihood of all
releases goes on from there: with one noise variance it has few numbers to fit, and a parent that is missing shows as
variance that nothing explains. Its moves end in local optima; so after the last round searches, in better and better
residuals, and moves take turns. If a variance for each column would be worth its price, the releases contradict equal
variances, and the search alone counts. This works on what was released: it costs no privacy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedbnsl.graphs.family_moments import parent_candidates
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.search.graph_search import FoundGraph, search
from fedbnsl_server.search.private.combined_releases import Released, combined, worth_it
from fedbnsl_server.search.private.levenberg_marquardt import CONVERGED
from fedbnsl_server.search.private.likelihood_moves import improved, pruned, with_edges_reversed
from fedbnsl_server.search.private.pooled_moments import PooledMoments, missed_neighbours, neighbours, next_scales
from fedbnsl_server.search.private.released_likelihood import Fit, Release, ReleasedLikelihood
from fedbnsl_server.search.progress import UNWATCHED, Progress
from fedbnsl_server.search.space import Space

# Up to so many variables, a search tries all pairs.
_ALL_PAIRS = 40
# So many searches after the last round, at most.
_MOST_TIMES = 3
# An edge is clear if its weight is so many times the noise of a covariance of residuals.
_CLEAR = 10.0


class Learned(NamedTuple):
    """What was found."""

    # with the weights and residual variances of the columns as they are pooled; all variances are equal, in units
    # of the columns, unless the releases contradict it
    graph: FoundGraph
    pooled: PooledMoments  # moments of the columns
    # asked, scales: (d,) scales of the residuals in which they were pooled; and those to ask for the residuals of
    # the graph with
    asked: Matrix
    scales: Matrix


@dataclass(frozen=True, eq=False)
class EqualVarianceSearch:
    """The search after a private round."""

    mask: EdgeMask  # what is known of the edges between columns
    threshold: float  # absolute weight that an edge has at least, in the tables' units
    last: bool  # whether no round follows: edges of smaller weight are dropped
    # (d,) units of the columns, in which noise variances are compared; None: the columns have no others
    size: Matrix | None = None

    def found(
        self,
        releases: Sequence[Release],
        n_samples: float,
        dag: Mask,
        scales: Matrix,
        *,
        progress: Progress = UNWATCHED,
    ) -> Learned:
        """The graph that explains all releases best, or best so far once `progress` is told that it is enough.

        Parameters
        ----------
        dag, scales
            (d, d) graph and (d,) scales that the last residuals were made with.
        """
        releases, A = worth_it(releases, n_samples), releases[-1].A
        back = np.linalg.inv(A)
        given = combined([one.unclipped(back.T @ back) for one in releases], n_samples, A)
        graph = self.searched(_pooled(given), dag, scales, progress)
        best = self._explained(
            releases,
            n_samples,
            graph,
            back.T @ back,
            clear=self.threshold > _CLEAR * given.noise_std,
            progress=progress,
        )
        if best is None:  # nor do equal variances tell what clipping did
            pooled = _pooled(combined(releases, n_samples, A))
            graph = self.searched(pooled, dag, scales, progress)
            return Learned(graph, pooled, scales, next_scales(graph.residual_variance))
        W, common = best.weights, best.covariance.diagonal()
        asked = np.sqrt(common)
        seen = combined([one.unclipped(best.moments) for one in releases], n_samples, _residuals(W, asked))
        # Residuals that are longer than the others shorten all records: none should be that noise may hide.
        longest = np.maximum(seen.moments.diagonal() + np.sqrt(seen.noise.diagonal()), 1.0)
        last = releases[-1]
        # If few records were clipped, smaller scales cost little, and there is less noise in their units; but a
        # constant, which tells the means, must stay as large as the residuals.
        unused = 1.0 if last.constant else min(1.0, len(W) / last.norm_bound**2)
        graph = FoundGraph(best.dag, W, common, best.score)
        return Learned(graph, _pooled(seen), asked, next_scales(unused * common * longest / np.median(longest)))

    def searched(self, pooled: PooledMoments, dag: Mask, scales: Matrix, progress: Progress = UNWATCHED) -> FoundGraph:
        """The DAG that explains the pooled moments best, searched again while its residuals show what it missed.

        Its weights and residual variances are those of the columns as they are pooled. Before the last round edges of
        small weight are kept: they do not make the residuals worse.

        Parameters
        ----------
        dag, scales
            (d, d) graph and (d,) scales that the residuals were made with.
        """
        mask, columns, threshold = self.mask, self.mask.columns, self.threshold
        unit = np.ones(len(dag)) if self.size is None else self.size
        moments = pooled.moments * unit * unit[:, None]
        near = ~np.eye(len(dag), dtype=bool) if len(dag) <= _ALL_PAIRS else neighbours(pooled, dag, scales, threshold)
        near = near | near.T
        while True:
            found = search(
                [moments],
                Space.of(parent_candidates(near, mask), mask),
                start=columns.joined((dag & mask.allowed) | mask.required),
                n_samples=1.0 / pooled.noise_std**2,
                penalty=pooled.edge_penalty(threshold),
                threshold=threshold if self.last else 0.0,
                size=self.size,
                progress=progress,
            )
            found = replace(
                found,
                weights=found.weights * unit[:, None] / unit,
                residual_variance=found.residual_variance / unit**2,
            )
            more = near | missed_neighbours(pooled, found.weights, found.residual_variance)
            if (more == near).all() or progress.is_enough:
                return found
            near, dag = more, columns.spread(found.dag)

    def _explained(
        self,
        releases: Sequence[Release],
        n_samples: float,
        graph: FoundGraph,
        known: Matrix,
        *,
        clear: bool,
        progress: Progress,
    ) -> Fit | None:
        """The best explanation with one noise variance that searches and moves find from this graph.

        None if the releases contradict it: a variance for each column is worth its cost. Clipping is taken back at
        first by the `known` moments of the columns, up to a factor. Where all edges that count are `clear` of the noise
        few directions are wrong: edges are reversed in the last round alone, if equal variances are contradicted.
        """
        unit = np.ones(len(graph.weights)) if self.size is None else self.size

        def from_searched(likelihood: ReleasedLikelihood, start: FoundGraph) -> Fit:
            one = likelihood.explained(start.dag, start.weights, np.diag(unit**-2.0))
            progress.begin("edges dropped and added")
            one = improved(likelihood, one, progress=progress)
            done = clear and (not self.last or not self._contradicted(one, releases, n_samples))
            if done:
                return one
            progress.begin("edges reversed")
            if self.last:
                return with_edges_reversed(likelihood, one, progress=progress)
            return with_edges_reversed(likelihood, one, among=likelihood.reversible, progress=progress)

        straight = [one.unclipped(known) for one in releases]
        likelihood = ReleasedLikelihood(straight, n_samples, self.mask, fixed=True)
        best = from_searched(likelihood, graph)
        for _ in range(_MOST_TIMES - 1 if self.last else 0):
            if progress.is_enough:
                break
            straight = [one.unclipped(best.moments) for one in releases]
            likelihood = ReleasedLikelihood(straight, n_samples, self.mask, fixed=True)
            best = likelihood.explained(best.dag, best.weights, best.covariance)
            scales = np.sqrt(best.covariance.diagonal())
            given = combined(straight, n_samples, _residuals(best.weights, scales))
            graph = self.searched(_pooled(given), best.weights != 0, scales, progress)
            other = from_searched(likelihood, graph)
            if not other.score < best.score - CONVERGED:
                break
            best = other
        if self.last:
            best = pruned(likelihood, best, self.threshold, unit)
        return None if self._contradicted(best, releases, n_samples) else best

    def _contradicted(self, best: Fit, releases: Sequence[Release], n_samples: float) -> bool:
        """Whether a variance for each column is worth its price, once clipping is taken back as this graph says."""
        straight = [one.unclipped(best.moments) for one in releases]
        equal = ReleasedLikelihood(straight, n_samples, self.mask, fixed=True)
        apart = ReleasedLikelihood(straight, n_samples, self.mask)
        best = equal.explained(best.dag, best.weights, best.covariance)
        free = apart.explained(best.dag, best.weights, best.covariance)
        further = int(np.triu(self.mask.columns.within()).sum()) - 1
        return not best.nll - free.nll <= apart.penalty * further


def _pooled(given: Released) -> PooledMoments:
    return PooledMoments(given.cleared, given.noise_std, given.correlated)


def _residuals(W: Matrix, scales: Matrix) -> Matrix:
    """(d, d) A, so that A'x are the residuals in these scales."""
    return np.asarray((np.eye(len(W)) - W) / scales)
