"""A parametric bootstrap: how often a search finds an edge again when moments are drawn with all their errors.

A draw is a Wishart matrix of as many records as the moments come from, plus the noise of a private run, both made in
the space of the residuals and mapped back. Where records depend on others of their group, it is the sum of two: of
deviations within groups, and of the groups' means. It costs no privacy and no message.

The draws vary around a centre. Moments as they came have one error in them already: around them errors would count
twice, and chance dependences would be real ones. Around the fitted network alone every pair without an edge would be
truly independent given its parents, and an edge that the search has just missed would never be seen. The centre lies
between: the fitted network, and of each correlation of its residuals what stands out of its error.

Two graphs may explain moments about equally well and yet be far from each other, over graphs that are worse than
either: a search that starts at one of them hardly finds the other, and shares would be too sure. So rivals of the graph
are searched first, in draws, from the graph and from anywhere; then all of them are asked in every draw. One that fits
the moments as they came better than the graph takes its place (`rounds.moments.among_rivals`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.pag import Marks
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.inference.standard_errors import correlation_errors
from fedbnsl_server.search.class_search import ClassProblem
from fedbnsl_server.search.linear_network import Accuracy, LinearNetwork
from fedbnsl_server.search.order_search import canonical_order
from fedbnsl_server.search.progress import UNWATCHED, Progress

# The least eigenvalue of moments of standardised residuals.
_LEAST_EIGENVALUE = 0.05
# Of the searches for rivals that start at the graph.
_PATIENCE = 1
# Rivals are searched in so many draws, divided by the number of variables; in the least number at any rate.
_SEARCHED, _LEAST_SEARCHED = 2000, 20
MOST_LED = 500
"""Paths are counted for at most so many variables: a result lists every pair that has one in a draw."""


class Search(Protocol):
    """The search that found the graph, with all that it was given besides moments."""

    def on(self, moments: Matrix, accuracy: Accuracy, near: Mask, /) -> ClassProblem:
        """What it asks of (d, d) moments; NaN where they are unknown.

        Parameters
        ----------
        near
            (V, V) a graph from whose network the moments are no farther than their errors.
        """
        ...


@dataclass(frozen=True, eq=False)
class Shares:
    """How many of the best graphs of the draws have what between two variables."""

    adjacent: Index  # (V, V) symmetric: an edge, whichever way
    directed: Index  # (V, V) [i, j]: a directed edge i -> j
    # (V, V) [i, j]: a path of directed edges from i to j; (0, 0) where there are too many variables to count them
    leading: Index
    rivals: Sequence[Mask]  # DAGs of different classes that were found in any draw; first the graph itself
    draws: int  # how many there are
    pags: Sequence[Marks]  # (V, V) their partial ancestral graphs; empty where these were not looked for


def centre(network: LinearNetwork, S: Matrix, accuracy: Accuracy, seen: Matrix | None = None) -> Matrix:
    """(d, d) positive definite moments of standardised residuals that draws vary around.

    A correlation of z errors counts as sqrt(1 - 1 / z^2) of itself, and none within one error: its square less that of
    the error. What is unknown, and what belongs to one variable, is as in the network.

    Moments of a private run count as they came where their noise is little: around those that its graph says, it would
    be found in every draw, whatever the noise has done to it.

    Parameters
    ----------
    seen
        (d, d) moments as they came, where S are those that the graph says.
    """
    size = np.sqrt(network.residual_variance)
    own = network.residual_covariance / size / size[:, None]
    error = correlation_errors(network, S, accuracy)
    whole = seen is not None and network.stays_positive(accuracy)
    found = np.nan_to_num(network.of_residuals(S if seen is None or not whole else seen) / size / size[:, None])
    left = np.clip(found, -1.0, 1.0) if whole else np.sign(found) * np.sqrt(np.maximum(found**2 - error**2, 0.0))
    left[network.residual_covariance != 0.0] = 0.0
    return lifted(own + left)


def draw(
    network: LinearNetwork,
    around: Matrix,
    accuracy: Accuracy,
    rng: np.random.Generator,
    order: Index | None = None,
) -> Matrix:
    """(d, d) moments with the errors of `accuracy`, around `centre`.

    Parameters
    ----------
    order
        (d,) in which numbers are drawn for the columns; None: as they are.
    """
    size = np.sqrt(network.residual_variance)
    order = np.arange(len(around)) if order is None else order
    ordered, back = np.ix_(order, order), np.argsort(order)
    as_before = np.ix_(back, back)
    L = np.asarray(np.linalg.cholesky(around[ordered]), dtype=np.float64)
    if accuracy.dependent is None:
        S_e = _wishart(L, accuracy.n_samples, rng)[as_before]
    else:
        between = network.between_residuals(accuracy.dependent) / size / size[:, None]
        S_e = _of_groups(L, between[ordered], accuracy.n_samples, accuracy.dependent.others, rng)[as_before]
    if accuracy.widening is not None and (few := (accuracy.widening > 1.0) & np.isfinite(accuracy.widening)).any():
        # Pairs that no row has stay as they are: no search looks at them.
        S_e = lifted(around + (S_e - around) * np.where(few, accuracy.widening, 1.0))
    if accuracy.noise_std:
        share = network.units(accuracy) / size
        noise = _noise(len(S_e), rng)[as_before]
        S_e = lifted(S_e + accuracy.noise_std * share * share[:, None] * noise)
    return network.of_columns(S_e * size * size[:, None])


@dataclass(frozen=True, eq=False)
class Draws:
    """Moments drawn again and again around a graph, and the search that is asked for the best graph of each."""

    # network, S, accuracy: Of the graph, fitted to the (d, d) moments that it was found in. What is unknown there
    # is unknown to every draw.
    network: LinearNetwork
    S: Matrix
    accuracy: Accuracy
    dag: Mask  # (V, V) the graph
    search: Search  # what found it
    class_of: Callable[[Mask], Mask]  # the (V, V) marks of the class of a DAG: both ways where it is undirected
    # one for each draw: what is drawn does not depend on how many draws there are
    generators: Sequence[np.random.Generator]
    seen: Matrix | None = None  # see `centre`
    # the partial ancestral graph of a (V, V) DAG that was found in (d, d) moments; None: it is not asked for
    pag_of: Callable[[Mask, Matrix], Marks] | None = None

    def problem(self, k: int) -> ClassProblem:
        """What the search asks of draw k: another time, of the same moments, for all of them take much memory."""
        own = self.generators[k]
        state = own.bit_generator.state
        moments = draw(self.network, self._around, self.accuracy, own, self._order)
        own.bit_generator.state = state
        moments[np.isnan(self.S)] = np.nan
        return self.search.on(moments, self.accuracy, self.dag)

    def rivals(self, *, progress: Progress = UNWATCHED) -> list[Mask]:
        """DAGs of different classes that are found in some of the draws; first the graph itself."""
        progress.begin("searching for rivals")
        n_asked = min(max(_SEARCHED // len(self.dag), _LEAST_SEARCHED), len(self.generators))

        def searched(k: int) -> list[Mask]:
            if progress.is_enough:
                return []
            problem = self.problem(k)
            anywhere = self.generators[k].spawn(1)[0].permutation(len(self.dag)).tolist()
            found = [
                problem.found(patience=_PATIENCE, start=self.dag, progress=progress.step()).dag,
                problem.found(patience=0, start=anywhere, progress=progress.step()).dag,
            ]
            progress.at(k / n_asked)
            return found

        rivals = {self.class_of(self.dag).tobytes(): self.dag}
        for found in progress.each(searched, range(n_asked)):
            for one in found:
                rivals.setdefault(self.class_of(one).tobytes(), one)
        return list(rivals.values())

    def shares(self, rivals: Sequence[Mask], *, progress: Progress = UNWATCHED) -> Shares:
        """Count what the best graphs of the draws have; of fewer, once it is enough."""
        draws = len(self.generators)
        progress.begin("bootstrap")

        def marks(k: int) -> tuple[Mask, Marks | None] | None:
            if progress.is_enough:
                return None
            problem = self.problem(k)
            found = best_of(problem, rivals, progress)
            if progress.is_enough:  # perhaps before its search was at its end
                return None
            progress.at(k / draws)
            if self.pag_of is None:
                return self.class_of(found), None
            return self.class_of(found), self.pag_of(found, problem.S if problem.judged is None else problem.judged)

        return shares_of(progress.each(marks, range(draws)), len(self.dag), rivals)

    @cached_property
    def _around(self) -> Matrix:
        return centre(self.network, self.S, self.accuracy, self.seen)

    @cached_property
    def _order(self) -> Index:
        size = np.sqrt(self.S.diagonal())
        size = np.where(size > 0.0, size, 1.0)
        return canonical_order(self.S / size / size[:, None], [np.array([c]) for c in range(len(size))])


def shares_of(marks: Iterable[tuple[Mask, Marks | None] | None], n_variables: int, rivals: Sequence[Mask]) -> Shares:
    """Count what the (V, V) marks of draws have, of the class and with hidden causes; None: of one that did not end."""
    told, V = [found for found in marks if found is not None], n_variables
    adjacent, directed, leading = (np.zeros((n, n), np.int64) for n in (V, V, V * (V <= MOST_LED)))
    pags = [pag for _, pag in told if pag is not None]
    shares = Shares(adjacent, directed, leading, rivals, len(told), pags)
    for of_draw, _ in told:
        if leading.size:
            leading += arrows_lead(of_draw)
        shares.adjacent[...] += of_draw | of_draw.T
        shares.directed[...] += of_draw & ~of_draw.T
    return shares


def best_of(problem: ClassProblem, rivals: Sequence[Mask], progress: Progress) -> Mask:
    """The best graph near the best of (V, V) DAGs; once it is enough, one on the way there."""
    nearest = rivals[int(np.argmin(problem.scores(rivals)))]
    return problem.found(patience=0, start=nearest, progress=progress.step()).dag


def lifted(R: Matrix) -> Matrix:
    """(d, d) with eigenvalues of at least a twentieth; as it is if they are."""
    values, vectors = np.linalg.eigh(R)
    if values[0] >= _LEAST_EIGENVALUE:
        return R
    found = (vectors * np.maximum(values, _LEAST_EIGENVALUE)) @ vectors.T
    return np.asarray(0.5 * (found + found.T))


def _wishart(L: Matrix, n_samples: float, rng: np.random.Generator) -> Matrix:
    """(d, d) second moments of n Gaussian records with covariance L L'."""
    d = len(L)
    if n_samples < 2 * d:
        Z = rng.standard_normal((max(1, round(n_samples)), d)) @ L.T
        return np.asarray(Z.T @ Z / len(Z))
    # Bartlett: a triangle of normal numbers, and the roots of chi-squares on its diagonal.
    T = np.tril(rng.standard_normal((d, d)), k=-1)
    T[np.diag_indices(d)] = np.sqrt(rng.chisquare(n_samples - np.arange(d)))
    T = L @ T
    return np.asarray(T @ T.T / n_samples)


def _of_groups(L: Matrix, between: Matrix, n_samples: float, others: float, rng: np.random.Generator) -> Matrix:
    """(d, d) second moments of n Gaussian records with covariance S = L L', in groups of m = 1 + `others` rows.

    With B between two rows of a group, the sums of products within groups are Wishart with n - n / m degrees of freedom
    and the covariance S - B, those of the groups' means with n / m and S + (m - 1) B, and independent of these.
    """
    m = 1.0 + others
    whitened = np.linalg.solve(L, np.linalg.solve(L, between).T)
    values, vectors = np.linalg.eigh(0.5 * (whitened + whitened.T))
    values, n_groups = np.clip(values, 0.0, 1.0), n_samples / m  # beyond is sampling error
    across = L @ (vectors * np.sqrt(1.0 + others * values))
    found = _wishart(across, n_groups, rng) / m
    if others > 0.0:
        inside = L @ (vectors * np.sqrt(1.0 - values))
        found = found + _wishart(inside, n_samples - n_groups, rng) * (others / m)
    return np.asarray(found)


def _noise(d: int, rng: np.random.Generator) -> Matrix:
    """(d, d) symmetric: standard normal numbers, times sqrt(2) on the diagonal."""
    N = rng.standard_normal((d, d))
    return np.asarray((N + N.T) / np.sqrt(2.0))
