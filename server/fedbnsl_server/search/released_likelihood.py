"""How well a DAG explains all that a private run has released: all rounds at once, by least squares.

A round releases Y = c A' S A + noise. S = B' V B with B = (I - W)^-1 are the moments of the columns under weights W
and residual covariances V, A makes the residuals that were asked for, c is unknown (shortened records tell directions,
not lengths), and the noise is Gaussian, independent, and of known variance: twice as large on the diagonal. So the
likelihood is a sum of squares, and Gauss-Newton steps find its optimum. No entry is cleared and no noise is mapped:
this judges the graphs that a search proposes from cleared moments; `likelihood_moves` improves them edge by edge.

The derivative of A' S A by a weight or a covariance is x y' + y x' with vectors x, y; all that the normal equations
need follows from their products.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.sparse import Index, Mask, Matrix
from fedbnsl_server.search.order_search import extended_penalty
from fedbnsl_server.search.shortened_moments import shortening

# A residual variance falls to no less than this share of itself in one step.
_LEAST_STEP = 0.2
# The least scale of a release, as a share of the largest, and the least of that.
_LEAST_SHARE, _LEAST_SCALE = 0.2, 1e-3
# Of the noise of a variance: so little can never be told.
_FAR_BELOW_NOISE = 1e-3
_LARGEST_WEIGHT = 1e12
_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-4, 1e-6, 1e6
CONVERGED = 1e-3
"""A step that gains less ends a fit; a move between graphs must gain more."""

_MOST_STEPS = 10
# Of the extended BIC. An edge that is none costs more than itself: it directs others.
_GAMMA = 1.0
# Of the edges that might be added, so many are looked at.
_CONSIDERED = 300
# The least share of a curvature that is left if other numbers follow.
_LEAST_LEFT = 1e-3
# A curvature that says nothing.
_NO_CURVATURE = 1e-100
# What keeps an information from being singular.
_RIDGE = 1e-10


@dataclass(frozen=True, eq=False)
class Release:
    """What one round released, over all records.

    Attributes
    ----------
    moments
        (d, d) of z = A'x.
    noise_std
        Of an entry off the diagonal; sqrt(2) times that on it.
    A
        (d, d), invertible.
    weight
        Mean of the weights of shortened records over all records; NaN: not known.
    norm_bound, constant
        What they were shortened to, and the constant that they have besides z, in units of z.
    stretch
        Of the noise, in what these moments tell: see `shortened_moments`.
    """

    moments: Matrix
    noise_std: float
    A: Matrix
    weight: float
    norm_bound: float
    constant: float
    stretch: float = 1.0

    def unshortened(self, S: Matrix) -> "Release":
        """With moments as they would be, up to a factor, had no record been shortened.

        Parameters
        ----------
        S
            (d, d) moments of x, up to a factor.
        """
        bias, stretch = shortening(
            self.A.T @ S @ self.A,
            size=float(self.moments.trace()),
            weight=self.weight,
            norm_bound=self.norm_bound,
            constant=self.constant,
        )
        return replace(self, moments=self.moments + bias, stretch=stretch)


@dataclass(frozen=True, eq=False)
class Explanation:
    """A DAG with its best weights for all releases.

    Attributes
    ----------
    dag
        (V, V) between variables.
    weights, covariance
        (d, d) W and V: V is diagonal but for columns of one variable.
    misfit
        Minus the log-likelihood, up to a constant.
    score
        `misfit`, and what the edges cost.
    scales
        (T,) c of every release, that of the last one is 1.
    information
        Of the weights, in the order of `Columns.spread(dag)`, and the residual covariances.
    """

    dag: Mask
    weights: Matrix
    covariance: Matrix
    misfit: float
    score: float
    scales: Matrix
    information: Matrix

    @property
    def moments(self) -> Matrix:
        """(d, d) of the columns, as the weights and covariances say."""
        B = total_effects(self.weights)
        return np.asarray(B.T @ self.covariance @ B)


class ReleasedLikelihood:
    """The likelihood of DAGs, given releases.

    Parameters
    ----------
    releases
        At least one, with moments in units of their typical size.
    n_samples
        Records. Their sampling error is in all releases, so that all of them together count for less where it is not
        small against their noise.
    mask
        What is known of the edges between columns.
    fixed
        Whether residual covariances are known up to a factor: they stay those that an explanation starts from.

    Attributes
    ----------
    share
        What the log-likelihood counts for: 1 if sampling error is small against the noise.
    penalty, prices
        What an edge between two columns costs, and (V, V) one between variables.
    """

    def __init__(self, releases: Sequence[Release], n_samples: float, mask: EdgeMask, *, fixed: bool = False) -> None:
        self.releases, self.mask = releases, mask
        self._n_samples, self._fixed = n_samples, fixed
        noise = 1.0 / sum(one.noise_std**-2 for one in releases)
        squared = noise + 1.0 / n_samples
        self.share = noise / squared
        self.penalty = extended_penalty(1.0 / squared, len(mask.of_variables.allowed), _GAMMA) / squared
        # What a residual variance is told from, by far: 0 would leave no information on what explains it.
        self._least = _FAR_BELOW_NOISE * np.min([one.noise_std / one.A.diagonal() ** 2 for one in releases], axis=0)
        sizes = mask.columns.sizes
        self.prices: Matrix = np.asarray(self.penalty * np.outer(sizes, sizes), dtype=np.float64)

    def explained(self, dag: Mask, W: Matrix, V: Matrix, *, steps: int = _MOST_STEPS) -> Explanation:
        """The best explanation by a (V, V) DAG that Gauss-Newton steps (Levenberg-Marquardt) reach from a start.

        From one whose numbers are beyond use, none is made: its score is infinite.

        Parameters
        ----------
        W, V
            (d, d) weights and residual covariances to start from; weights off the DAG do not count.
        """
        columns = self.mask.columns
        edges, pairs = self.fitted(dag)
        now, damping = self._at(np.where(columns.spread(dag), W, 0.0), V), _DAMPING
        for _ in range(steps if math.isfinite(now.misfit) else 0):
            information, gradient = self._normal_equations(now, edges, pairs)
            before = now
            while now is before and damping <= _MOST_DAMPING:
                step = inverse_of(information, damping) @ gradient
                other_W, other_V = now.weights.copy(), now.covariance.copy()
                other_W[edges[:, 0], edges[:, 1]] += step[: len(edges)]
                other_V[pairs[:, 0], pairs[:, 1]] += step[len(edges) :]
                other_V[pairs[:, 1], pairs[:, 0]] = other_V[pairs[:, 0], pairs[:, 1]]
                other = self._at(other_W, _no_less(other_V, now.covariance, self._least, columns))
                if other.misfit < now.misfit:
                    now, damping = other, max(damping / 10.0, _LEAST_DAMPING)
                else:
                    damping *= 10.0
            if before.misfit - now.misfit < CONVERGED:
                break
        information, _ = self._normal_equations(now, edges, pairs)
        price = float(self.prices[dag].sum())
        return Explanation(dag, now.weights, now.covariance, now.misfit, now.misfit + price, now.scales, information)

    def weight_errors(self, found: Explanation) -> Matrix:
        """(E,) standard errors of the weights, in the order of `Columns.spread(dag)`.

        To first order, errors N of the releases change the numbers by K g, with K the inverse of the information and
        g_k = sum of c x_k' N y_k / noise_std^2 over the releases, whose scales are numbers as well. Without `stretch`,
        K is the variance by noise. Sampling errors E of S are in all releases, N = c A'E A, and tr(M E) has the
        variance 2 tr(S M S M) / n_samples for Gaussian records.
        """
        edges, pairs = self.fitted(found.dag)
        fitted, fixed = len(edges) + len(pairs), len(self.releases) - 1  # the last scale
        information, noise = np.zeros((2, fitted + fixed + 1, fitted + fixed + 1))
        B, S = total_effects(found.weights), found.moments
        for k, (one, c) in enumerate(zip(self.releases, found.scales, strict=True), start=fitted):
            C, Q, P = products_of(one.A, B, found.covariance)
            x, y = factors_of(C, Q, edges, pairs)
            told = np.zeros_like(information)
            told[:fitted, :fitted] = c**2 * _squared(x, y)
            told[:fitted, k] = told[k, :fitted] = c * ((x @ P) * y).sum(axis=1)
            told[k, k] = 0.5 * np.square(P).sum()
            information += told / one.noise_std**2
            noise += told * (one.stretch / one.noise_std) ** 2
        K = inverse_of(information[:-1, :-1], 0.0)[: len(edges)]
        variance = ((K @ noise[:-1, :-1]) * K).sum(axis=1)
        root = B.T @ _root(found.covariance)
        along = [one.A @ (one.A.T @ root) for one in self.releases]
        x, y = factors_of(B, S, edges, pairs)
        for k, changes in enumerate(K):
            F, M = y.T @ (changes[:fitted, None] * x), np.zeros_like(S)
            for t, (one, c) in enumerate(zip(self.releases, found.scales, strict=True)):
                by_scale = 0.0 if t == fixed else 0.5 * changes[fitted + t]
                M += along[t].T @ (c**2 * F + c * by_scale * S) @ along[t] / one.noise_std**2
            variance[k] += 0.5 * np.square(M + M.T).sum() / self._n_samples
        return np.asarray(np.sqrt(variance))

    def gains(self, found: Explanation) -> Matrix:
        """(V, V) about how much the misfit would fall with one more edge (score test).

        0 for what may not be added, or where little speaks for it.
        """
        W, V, columns = found.weights, found.covariance, self.mask.columns
        edges, pairs = self.fitted(found.dag)
        B = total_effects(W)
        gradient, curvature = np.zeros_like(W), np.zeros_like(W)
        for one, c in zip(self.releases, found.scales, strict=True):
            C, Q, P = products_of(one.A, B, V)
            weight = self.share * c / one.noise_std**2
            gradient += weight * (Q @ (one.moments - c * P) @ C.T)
            squares = np.outer(np.square(Q).sum(axis=1), np.square(C).sum(axis=1))
            curvature += weight * c * (squares + (Q @ C.T) ** 2)
        # What is left of the curvature if all other numbers follow; it takes long, and few pairs are worth it.
        between = self.mask.of_variables
        may = between.allowed & ~(found.dag | found.dag.T | np.eye(len(found.dag), dtype=bool))
        plain = np.where(columns.spread(may), gradient**2 / curvature, 0.0)
        places = np.argsort(-plain, axis=None)[:_CONSIDERED]
        i, j = np.unravel_index(places, W.shape)
        crossed = np.zeros((len(places), len(edges) + len(pairs)))
        for one, c in zip(self.releases, found.scales, strict=True):
            C, Q, _ = products_of(one.A, B, V)
            x, y = factors_of(C, Q, edges, pairs)
            weight = self.share * c**2 / one.noise_std**2
            crossed += weight * ((C @ x.T)[j] * (Q @ y.T)[i] + (C @ y.T)[j] * (Q @ x.T)[i])
        of_columns = np.zeros_like(W)
        gained = gain_left(gradient[i, j], curvature[i, j], crossed, found.information)
        of_columns[i, j] = np.where(columns.spread(may)[i, j], gained, 0.0)
        owner = np.eye(len(columns.sizes))[columns.variable_of]
        return np.asarray(owner.T @ of_columns @ owner)

    def fitted(self, dag: Mask) -> tuple[Index, Index]:
        """(E, 2) edges between columns, and (K, 2) columns with a residual covariance: what is fitted."""
        columns = self.mask.columns
        pairs = np.zeros_like(columns.within()) if self._fixed else np.triu(columns.within())
        return np.argwhere(columns.spread(dag)), np.argwhere(pairs)

    def _at(self, W: Matrix, V: Matrix) -> "_Point":
        """These weights and covariances, in units in which the last release is not scaled; the other scales fitted."""
        if not (np.abs(W) <= _LARGEST_WEIGHT).all():  # a step too far
            return _Point(W, V, np.ones(len(self.releases)), math.inf)
        B, products = total_effects(W), list[float]()
        with np.errstate(all="ignore"):
            for one in self.releases:
                _, _, P = products_of(one.A, B, V)
                products.append(float(np.nan_to_num((one.moments * P).sum() / np.square(P).sum())))
            # A release of noise alone may point anywhere.
            scales = np.maximum(products, _LEAST_SHARE * max(*products, _LEAST_SCALE))
            V, scales = V * scales[-1], scales / scales[-1]
            misfit = 0.0
            for one, c in zip(self.releases, scales, strict=True):
                _, _, P = products_of(one.A, B, V)
                misfit += self.share * float(np.square(one.moments - c * P).sum()) / (4.0 * one.noise_std**2)
        return _Point(W, V, scales, misfit if math.isfinite(misfit) else math.inf)

    def _normal_equations(self, point: "_Point", edges: Index, pairs: Index) -> tuple[Matrix, Matrix]:
        """Information and gradient of the log-likelihood, by the weights of edges and the covariances of pairs."""
        B, V = total_effects(point.weights), point.covariance
        size = len(edges) + len(pairs)
        information, gradient = np.zeros((size, size)), np.zeros(size)
        for one, c in zip(self.releases, point.scales, strict=True):
            C, Q, P = products_of(one.A, B, V)
            x, y = factors_of(C, Q, edges, pairs)
            weight = self.share * c / one.noise_std**2
            gradient += weight * ((x @ (one.moments - c * P)) * y).sum(axis=1)
            information += weight * c * _squared(x, y)
        return information, gradient


class _Point(NamedTuple):
    """Weights and residual covariances, the scale of every release, and minus the log-likelihood."""

    weights: Matrix
    covariance: Matrix
    scales: Matrix
    misfit: float


def total_effects(W: Matrix) -> Matrix:
    """(d, d) B = (I - W)^-1."""
    return np.asarray(np.linalg.inv(np.eye(len(W)) - W), dtype=np.float64)


def _root(V: Matrix) -> Matrix:
    """(d, d) R with R R' = V."""
    values, vectors = np.linalg.eigh(V)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def products_of(A: Matrix, B: Matrix, V: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """(d, d) each: B A, S A and A' S A with S = B' V B."""
    C = B @ A
    VC = V @ C
    return C, np.asarray(B.T @ VC), np.asarray(C.T @ VC)


def factors_of(C: Matrix, Q: Matrix, edges: Index, pairs: Index) -> tuple[Matrix, Matrix]:
    """(K, d) each: the vectors x and y of the derivatives by the weights of edges and the covariances of pairs."""
    half = np.where(pairs[:, 0] == pairs[:, 1], 0.5, 1.0)[:, None]
    return np.concatenate([C[edges[:, 1]], C[pairs[:, 0]]]), np.concatenate([Q[edges[:, 0]], half * C[pairs[:, 1]]])


def _squared(x: Matrix, y: Matrix) -> Matrix:
    """(K, K) half the inner products of the derivatives x y' + y x'."""
    xy = x @ y.T
    return np.asarray((x @ x.T) * (y @ y.T) + xy * xy.T)


def inverse_of(information: Matrix, damping: float) -> Matrix:
    """Of (1 + damping) times the diagonal; in units of the diagonal, so that nothing is singular by its size alone."""
    size = np.sqrt(np.maximum(information.diagonal(), np.finfo(np.float64).tiny))
    relative = information / size / size[:, None] + (damping + _RIDGE) * np.eye(len(size))
    return np.asarray(np.linalg.inv(relative) / size / size[:, None])


def gain_left(gradient: Matrix, curvature: Matrix, crossed: Matrix, information: Matrix) -> Matrix:
    """(N,) what a misfit loses by each of N further numbers, to second order, if all K fitted ones follow.

    Parameters
    ----------
    gradient, curvature, crossed, information
        (N,), (N,), (N, K) and (K, K) derivatives of the log-likelihood.
    """
    followed = ((crossed @ inverse_of(information, 0.0)) * crossed).sum(axis=1)
    left = np.maximum(curvature - followed, _LEAST_LEFT * curvature)
    some = left > _NO_CURVATURE
    return np.asarray(np.divide(0.5 * gradient**2, left, out=np.zeros_like(left), where=some))


def _no_less(V: Matrix, before: Matrix, least: Matrix, columns: Columns) -> Matrix:
    """V with no variance far below what it was, or below the least; of a block of columns, no eigenvalue."""
    if not columns.has_blocks:
        return np.diag(np.maximum(V.diagonal(), np.maximum(_LEAST_STEP * before.diagonal(), least)))
    V = V.copy()
    for own in columns.members():
        block = np.ix_(own, own)
        values, vectors = np.linalg.eigh(V[block])
        smallest = max(_LEAST_STEP * float(np.linalg.eigvalsh(before[block])[0]), float(least[own].min()))
        V[block] = (vectors * np.maximum(values, smallest)) @ vectors.T
    return V
