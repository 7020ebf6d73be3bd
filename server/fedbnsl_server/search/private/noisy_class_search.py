"""The class of least BIC from a private run's noisy moments of residuals.

The class is searched in moments that are cleared of noise (`combined_releases`). That proposes graphs: at two prices of
an edge, since one that is wrong leads to others. Which of them is best, the likelihood of all that was released says
(`released_likelihood`); it also drops and adds edges, and gives the weights. With them, all releases are mapped to
better residuals, combined and cleared again there, and searched again, until nothing gets better. This works on what
was released: it costs no privacy.

Where noise is small, squares of numbers are columns, too. A search by straight lines says first whether any number
bends. If one does, the graph is searched with all squares, which explain and are not explained: children of the same
parents share products, which the squares of the children tell and those of the parents do not.

Noise takes the place of sampling error in the penalty: an edge that is none gains as much as among 1 / s^2 records, if
s is the standard deviation of a correlation of residuals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.class_search import ClassProblem
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.hinges import HingeMoments
from fedbnsl_server.search.linear_network import Accuracy, fitted
from fedbnsl_server.search.private.combined_releases import Released, combined, worth_it
from fedbnsl_server.search.private.likelihood_moves import improved, pruned
from fedbnsl_server.search.private.records_of_graph import NO_SQUARES, RecordsOfGraph
from fedbnsl_server.search.private.released_likelihood import Fit, Release, ReleasedLikelihood
from fedbnsl_server.search.progress import UNWATCHED, Progress
from fedbnsl_server.search.score import extended_penalty

# The least residual variance, as a share of the median one.
_LEAST_VARIANCE = 1e-6
# What an edge costs where graphs are proposed, in units of the extended BIC's penalty; and where draws are searched.
_PRICES, _PRICE_OF_DRAWS = (1.0, 2.0), 1.5
# Of each of these searches but the first: in rough moments, where it would take longest, it would tell least.
_PATIENCE, _MOST_TIMES = 2, 3
# With fewer points, what is drawn would err by a quarter of the sampling error of 40,000 rows.
_POINTS_AT_LAST = 15
# A residual variance can be told from so many standard deviations of the noise on.
_TELLABLE = 3.0


class Learned(NamedTuple):
    """The graph that explains all releases best."""

    graph: FoundGraph  # its score is that of the likelihood, or, with squares, that of the search
    moments: Matrix  # (d, d) of the columns, up to a factor, as the graph says
    accuracy: Accuracy  # of these moments, in residuals of the graph
    # (E,) standard errors of its weights, in the order of `Columns.spread`; None: those that the accuracy gives
    weight_error: Matrix | None
    searched: Index  # (k,) the columns that it was searched in: without squares where no number bends
    seen: Released  # all releases as moments of its residuals

    def without(self, edges: Mask, columns: Columns) -> "Learned":
        """The same without some (V, V) edges: what is left is regressed again in the moments that the whole graph says.

        The releases themselves would have to explain these edges by variances that are wrong. Errors of weights stay,
        and the noise of residuals is that of the sums of residuals of the whole graph that they are.
        """
        before, accuracy = self.graph, self.accuracy
        dag = before.dag & ~edges
        network = fitted(dag, self.moments, columns)
        kept = columns.spread(dag)[columns.spread(before.dag)]
        graph = FoundGraph(dag, network.weights, network.residual_variance, before.score)
        unit = np.eye(len(self.moments))
        sums = np.linalg.solve(unit - before.weights, unit - network.weights)
        scales = np.linalg.norm(cast(Matrix, accuracy.scales)[:, None] * sums, axis=0)
        errors = None if self.weight_error is None else self.weight_error[kept]
        return self._replace(graph=graph, accuracy=replace(accuracy, scales=scales), weight_error=errors)


@dataclass(frozen=True, eq=False)
class NoisyClassSearch:
    """The search between two private rounds, and after the last one."""

    mask: EdgeMask  # what is known of the edges between columns
    # threshold, seed: see `ClassProblem`
    threshold: float
    seed: int
    of_squares: Index = field(default_factory=lambda: NO_SQUARES)  # (m,) the columns that the last m are squares of
    curved: Mask | None = None  # (d,) columns of numbers that bend at any rate; None: none is known to
    explained: Mask | None = None  # (d,) see `ClassProblem`

    def found(self, releases: Sequence[Release], n_samples: float, *, progress: Progress = UNWATCHED) -> Learned:
        """The graph that explains all releases best, without edges whose weights do not exceed the threshold.

        Once `progress` is told that it is enough, the best so far.

        What clipping does to moments is taken back by what is known of them: at first from the graph whose residuals
        were asked for last, then from the best one.
        """
        releases = worth_it(releases, n_samples)
        if self.of_squares.size:
            return self._found_with_squares(releases, n_samples, progress)
        A = releases[-1].A
        known, best = _asked(A), None
        for k in range(_MOST_TIMES):
            progress.begin("search")
            progress.at(k / _MOST_TIMES)
            likelihood, straight = self._likelihood(releases, n_samples, known)
            given = combined(straight, n_samples, A)
            before = None if best is None else likelihood.explained(best.dag, best.weights, best.covariance)
            best = self._best_proposed(likelihood, given, before, progress)
            known = RecordsOfGraph(best.weights, best.covariance)
            A = _residuals_of(known)
            if best is before or progress.is_enough:
                break
        likelihood, straight = self._likelihood(releases, n_samples, known)
        best = pruned(likelihood, cast(Fit, best), self.threshold)
        graph = FoundGraph(best.dag, best.weights, best.covariance.diagonal(), best.score)
        seen, everything = combined(straight, n_samples, A), np.arange(len(A))
        return _learned(graph, best.moments, straight, seen, everything, likelihood.weight_errors(best))

    def _found_with_squares(self, releases: Sequence[Release], n_samples: float, progress: Progress) -> Learned:
        """The same where the noise is small: weights are those of regressions in the moments as they came."""
        A, dag, searched, score = releases[-1].A, None, NO_SQUARES, 0.0
        known = _asked(A)._replace(of_squares=self.of_squares)
        for k in range(_MOST_TIMES):
            progress.begin("search")
            progress.at(k / _MOST_TIMES)
            straight, before = [one.unclipped_as(known) for one in releases], dag
            given = combined(straight, n_samples, A)
            dag, searched, score = self._graph_with_squares(straight, given, dag, progress)
            known = self._records(dag, searched, given)
            A = _residuals_of(known)
            if progress.is_enough or (before is not None and (dag == before).all()):
                break
        known = known._replace(points=_POINTS_AT_LAST)
        straight = [one.unclipped_as(known) for one in releases]
        seen = combined(straight, n_samples, A)
        records = self._records(cast(Mask, dag), searched, seen)
        graph = FoundGraph(cast(Mask, dag), records.weights, records.covariance.diagonal(), score)
        return _learned(graph, records.moments, straight, seen, searched, None)

    def _graph_with_squares(
        self, releases: Sequence[Release], given: Released, before: Mask | None, progress: Progress
    ) -> tuple[Mask, Index, float]:
        """The best graph by straight lines, or, if a number bends, with squares; the columns that it is by; its score.

        Parameters
        ----------
        releases, given
            As if no record had been clipped; in their residuals, and all together in those of the best graph so far.
        before
            (V, V) that graph; None: these are the residuals that were asked for last.
        """
        S, columns, known = given.cleared, self.mask.columns, self.mask.of_variables.allowed
        numbers = np.arange(len(S) - len(self.of_squares))
        near = columns.joined(given.A != 0.0) & ~np.eye(len(known), dtype=bool) if before is None else before
        lines, A, both = self.over(numbers), np.eye(len(S)), np.ix_(numbers, numbers)
        network = fitted(near, S[both], lines.mask.columns)
        A[both] = (np.eye(len(numbers)) - network.weights) / np.sqrt(network.residual_variance)
        straight = combined(releases, given.n_samples, A).over(numbers)
        likelihood = ReleasedLikelihood([straight.release], given.n_samples, lines.mask)
        start = None if before is None else likelihood.explained(near, network.weights, network.residual_covariance)
        best = pruned(likelihood, lines._best_proposed(likelihood, straight, start, progress), self.threshold)
        hinges = HingeMoments.of(S, columns, np.append(numbers, self.of_squares))
        said = np.zeros(len(numbers), dtype=bool) if self.curved is None else self.curved[numbers]
        if not hinges.bent(best.dag, said, known | known.T, given.error**-2, targets=numbers).any():
            return best.dag, numbers, best.score
        everything = np.arange(len(S))
        problem, step = self.over(everything)._problem(given, 1.0), progress.step()
        found = problem.found(patience=_PATIENCE, start=best.dag if before is None else before, progress=step)
        return found.dag, everything, found.score

    def _records(self, dag: Mask, searched: Index, given: Released) -> RecordsOfGraph:
        """What a graph says of records with squares: these say nothing of numbers where it was searched without."""
        columns = self.mask.columns
        S = given.positive(columns)
        network, numbers = fitted(dag, S, columns), np.arange(len(S) - len(self.of_squares))
        W, V = network.weights, network.residual_covariance
        if len(searched) == len(numbers):
            both = np.ix_(numbers, numbers)
            lines = fitted(dag, S[both], columns.over(numbers))
            W, V = W.copy(), V.copy()
            W[:, numbers] = 0.0
            W[both], V[both] = lines.weights, lines.residual_covariance
        return RecordsOfGraph(W, V, self.of_squares)

    def _likelihood(
        self, releases: Sequence[Release], n_samples: float, known: RecordsOfGraph
    ) -> tuple[ReleasedLikelihood, list[Release]]:
        straight = [one.unclipped_as(known) for one in releases]
        return ReleasedLikelihood(straight, n_samples, self.mask), straight

    def _best_proposed(
        self,
        likelihood: ReleasedLikelihood,
        given: Released,
        best: Fit | None,
        progress: Progress,
    ) -> Fit:
        """What explains all releases best: the best so far, or a graph found in `given` and improved."""
        start = None if best is None else best.dag
        step = progress.step()
        for price in _PRICES:
            patience = 0 if start is None else _PATIENCE
            found = self._problem(given, price).found(patience=patience, start=start, progress=step)
            one = likelihood.explained(found.dag, found.weights, np.diag(found.residual_variance))
            one = improved(likelihood, one, progress=step)
            if best is None or one.score < best.score:
                best = one
        return cast(Fit, best)

    def over(self, kept: Index) -> "NoisyClassSearch":
        """Between some columns, ascending, of which squares only explain."""
        numbers = kept < len(self.mask.allowed) - len(self.of_squares)
        explained = None if numbers.all() else numbers
        return replace(self, mask=self.mask.over(kept), of_squares=NO_SQUARES, curved=None, explained=explained)

    def on(self, moments: Matrix, accuracy: Accuracy, near: Mask, /) -> ClassProblem:
        """The same question to drawn moments with the same noise; see `Search`.

        Moments of little noise are searched as they came: cleared ones are those of `near` but for what stands out.
        """
        network = fitted(near, moments, self.mask.columns)
        d = len(moments)
        size = np.sqrt(network.residual_variance)
        A, share = (np.eye(d) - network.weights) / size, (network.units(accuracy) / size) ** 2
        noise = accuracy.noise_std**2 * np.outer(share, share) * (1.0 + np.eye(d))
        given = Released(A.T @ moments @ A, noise, A, accuracy.n_samples)
        if network.stays_positive(accuracy):
            return self._problem_in(moments, given.error, _PRICE_OF_DRAWS)
        return self._problem(given, _PRICE_OF_DRAWS, moments)

    def _problem(self, given: Released, price: float, judged: Matrix | None = None) -> ClassProblem:
        return self._problem_in(given.cleared, given.error, price, judged)

    def _problem_in(self, S: Matrix, error: float, price: float, judged: Matrix | None = None) -> ClassProblem:
        between = self.mask.of_variables
        penalty = price * extended_penalty(1.0 / error**2, len(between.allowed))
        everything = ~np.eye(len(between.allowed), dtype=bool)
        return ClassProblem(
            S,
            everything & between.allowed,
            self.mask,
            penalty,
            self.threshold,
            self.seed,
            judged=judged,
            explained=self.explained,
        )


def next_residuals(dag: Mask, moments: Matrix, last: Release, columns: Columns) -> tuple[Matrix, Matrix]:
    """(d, d) weights W and (d,) scales of the residuals x - W'x to ask for next.

    They are as uncorrelated as is known: noise of a release is then small in all directions, also in those along which
    the columns hardly vary. Columns of one variable are regressed on those before them, too, for their levels exclude
    each other. The noise of the last release counts as variance of the columns: where parents nearly determine each
    other, noise alone would make weights, and so residuals, large, and their records would be clipped.

    Parameters
    ----------
    dag, moments
        (V, V) graph and (d, d) moments of the columns as all releases tell them.
    """
    back = np.linalg.inv(last.A)
    network = fitted(dag, moments + _TELLABLE * last.noise_std * (back.T @ back), columns)
    unit, size = np.eye(len(moments)), np.sqrt(network.residual_variance)
    factor = np.linalg.cholesky(network.residual_covariance / size / size[:, None])
    scales = size * factor.diagonal()
    apart = np.triu(np.linalg.inv(size[:, None] * factor / scales).T, 1) + unit
    W = unit - (unit - network.weights) @ apart
    np.fill_diagonal(W, 0.0)  # but for rounding, it is
    return W, np.asarray(scales, dtype=np.float64)


def _learned(
    found: FoundGraph,
    moments: Matrix,
    releases: Sequence[Release],
    seen: Released,
    searched: Index,
    weight_error: Matrix | None,
) -> Learned:
    """With how exact all is by the noise of the releases, which are as if no record had been clipped."""
    precision = [one.noise_std**-2 for one in releases]
    stretch = math.sqrt(np.average([one.stretch**2 for one in releases], weights=precision))
    # What explains noise best may be no variance at all; noise hides what is below it.
    variance = np.maximum(found.residual_variance, math.sqrt(2.0) * stretch * seen.noise_std * seen.units**2)
    # In units of the residuals' own spread, but for columns whose noise is of another size.
    units = seen.units / np.sqrt(variance)
    unit = float(np.median(units))
    accuracy = Accuracy(seen.n_samples, stretch * seen.noise_std * unit**2, seen.units / unit)
    graph = FoundGraph(found.dag, found.weights, variance, found.score)
    return Learned(graph, moments, accuracy, weight_error, searched, seen)


def _asked(A: Matrix) -> RecordsOfGraph:
    """Records whose residuals A'x are what was asked for: uncorrelated, and all of one size."""
    scales = 1.0 / A.diagonal()
    W = -A * scales
    np.fill_diagonal(W, 0.0)
    return RecordsOfGraph(W, np.diag(scales**2))


def _residuals_of(records: RecordsOfGraph) -> Matrix:
    variance = records.covariance.diagonal()
    least = _LEAST_VARIANCE * float(np.median(variance))
    return np.asarray((np.eye(len(variance)) - records.weights) / np.sqrt(np.maximum(variance, least)))
