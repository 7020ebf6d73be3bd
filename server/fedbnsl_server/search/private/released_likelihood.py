"""How well a DAG explains all that a private run has released: all rounds at once, by least squares.

A round releases Y = c A' S A + noise. S = B' V B with B = (I - W)^-1 are the moments of the columns under weights W
and residual covariances V, A makes the residuals that were asked for, c is unknown (clipped records tell directions,
not lengths), and the noise is Gaussian, independent, and of known variance: twice as large on the diagonal. So the
likelihood is a sum of squares, and Gauss-Newton steps find its optimum. No entry is cleared and no noise is mapped:
this judges the graphs that a search proposes from cleared moments; `likelihood_moves` improves them edge by edge.

The derivative of A' S A by a weight or a covariance is x y' + y x' with vectors x, y: rows of C = B A and of Q = S A.
All that the normal equations need are their inner products, C C', C Q' and Q Q', which follow from G = A A' by products
with B and V. A and W are sparse, so that none of these takes d^3 operations (`sparse_products`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.privacy.calibration import constant_residual
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.private.clipped_moments import Clipping, Told, clipping, clipping_of
from fedbnsl_server.search.private.levenberg_marquardt import Ends, descended, gain_left, inverse_of
from fedbnsl_server.search.private.records_of_graph import RecordsOfGraph
from fedbnsl_server.search.private.reversed_edges import ends_error, reversal_growth
from fedbnsl_server.search.score import NoisyScore
from fedbnsl_server.search.sparse_products import InnerProducts, Rows, TotalEffects

# A residual variance falls to no less than this share of itself in one step.
_LEAST_STEP = 0.2
# The least scale of a release, as a share of the largest, and the least of that.
_LEAST_SHARE, _LEAST_SCALE = 0.2, 1e-3
# Of the noise of a variance: so little can never be told.
_FAR_BELOW_NOISE = 1e-3
_LARGEST_WEIGHT = 1e12
# A step that promises less ends a fit.
_SETTLED = 1e-4
MOST_STEPS = 10
"""Of a fit, unless it is told otherwise."""

CONSIDERED = 300
"""Of the edges that might be added, so many are looked at."""

# An edge is worth reversing if the negative log-likelihood does not seem to grow by more than so many prices of an
# edge. Graphs of seeds from 100 on (20 to 100 variables) come out as well as if all edges were tried.
_MOST_PRICES = 5.0
Products = Sequence[tuple[InnerProducts, float]]
"""By release, with what the squares of its derivatives count for."""


@dataclass(frozen=True, eq=False)
class Release:
    """What one round released, over all records."""

    moments: Matrix  # (d, d) of z = A'x
    noise_std: float  # of an entry off the diagonal; sqrt(2) times that on it
    A: Matrix  # (d, d), invertible
    weight: float  # mean of the weights of clipped records over all records; NaN: not known
    # norm_bound, constant: what they were clipped to, and the constant that they have besides z, in units of z
    norm_bound: float
    constant: float
    stretch: float = 1.0  # of the noise, in what these moments tell: see `clipped_moments`
    # columns that go with nothing and whose residuals are so small that they lengthen no record
    apart: tuple[int, ...] = ()
    asked: int = 0  # residuals that a record had when it was clipped; 0: as many as there are columns

    def over(self, kept: Index, apart: Mask) -> "Release":
        """Of some of the columns, of which others are no part of any residual.

        Parameters
        ----------
        kept
            (k,) their places.
        apart
            (k,) which of them count as a residual of their own that goes with nothing.
        """
        moments, A = self.moments[np.ix_(kept, kept)], self.A[np.ix_(kept, kept)]
        own = np.eye(len(kept), dtype=bool)
        moments = np.where(apart | apart[:, None], 1.0 * own, moments)
        A = np.where((apart | apart[:, None]) & ~own, 0.0, A)
        return replace(
            self, moments=moments, A=A, apart=tuple(np.flatnonzero(apart).tolist()), asked=self.asked or len(self.A)
        )

    def unclipped(self, S: Matrix) -> "Release":
        """With moments as they would be, up to a factor, had no Gaussian record been clipped.

        Parameters
        ----------
        S
            (d, d) moments of x, up to a factor.
        """
        both = np.ix_(self._rest, self._rest)
        return self._with(clipping((self.A.T @ S @ self.A)[both], **self._told))

    def unclipped_as(self, records: RecordsOfGraph) -> "Release":
        """The same of records as a graph says that they are."""
        if not records.of_squares.size:
            return self.unclipped(records.moments)
        typical = float(np.median(records.moments.diagonal()[records.of_squares]))
        # in units of the columns, in which numbers are squared, a residual is larger than in the release's own
        unit = constant_residual(self.asked or len(self.A)) / self.constant

        def z(factor: float) -> Matrix:
            return (records.drawn(factor / typical) @ self.A)[:, self._rest] / unit

        return self._with(clipping_of(z, **self._told))

    @property
    def _rest(self) -> Index:
        return np.delete(np.arange(len(self.A)), self.apart)

    @property
    def _told(self) -> Told:
        size = float(self.moments.diagonal()[self._rest].sum())
        return {"size": size, "weight": self.weight, "norm_bound": self.norm_bound, "constant": self.constant}

    def _with(self, done: Clipping) -> "Release":
        moments = self.moments.copy()
        moments[np.ix_(self._rest, self._rest)] += done.bias
        return replace(self, moments=moments, stretch=done.stretch)


@dataclass(frozen=True, eq=False)
class Fit:
    """A DAG with its best weights for all releases."""

    dag: Mask  # (V, V) between variables
    # weights, covariance: (d, d) W and V: V is diagonal but for columns of one variable.
    weights: Matrix
    covariance: Matrix
    nll: float  # minus the log-likelihood, up to a constant
    score: float  # `nll`, and what the edges cost
    scales: Matrix  # (T,) c of every release, that of the last one is 1
    # of the weights, in the order of `Columns.spread(dag)`, the residual covariances, and the logarithms of
    # scales
    information: Matrix

    @cached_property
    def error(self) -> Matrix:
        """(K, K) inverse of `information`."""
        return inverse_of(self.information)

    @cached_property
    def moments(self) -> Matrix:
        """(d, d) of the columns, as the weights and covariances say."""
        return _moments(TotalEffects.of(self.weights), Rows.of(self.covariance))


class ReleasedLikelihood:
    """The likelihood of DAGs, given releases.

    `share` and `penalty` are as in `NoisyScore`; `prices` has what (V, V) edges between variables cost.

    Parameters
    ----------
    releases
        At least one, with moments in units of their typical size.
    n_samples
        Records: their sampling error is in all releases.
    mask
        What is known of the edges between columns.
    fixed
        Whether residual covariances are known up to a factor: they stay those that a fit starts from.
    """

    def __init__(self, releases: Sequence[Release], n_samples: float, mask: EdgeMask, *, fixed: bool = False) -> None:
        self.releases, self.mask = releases, mask
        self._asked = [_Asked.of(one.A) for one in releases]
        self._n_samples, self._fixed = n_samples, fixed
        noise = 1.0 / sum(one.noise_std**-2 for one in releases)
        self.share, self.penalty = NoisyScore.of(noise, n_samples, len(mask.of_variables.allowed))
        # What a residual variance is told from, by far: 0 would leave no information on what explains it.
        self._least = _FAR_BELOW_NOISE * np.min([one.noise_std / one.A.diagonal() ** 2 for one in releases], axis=0)
        sizes = mask.columns.sizes
        self.prices: Matrix = np.asarray(self.penalty * np.outer(sizes, sizes), dtype=np.float64)

    def explained(self, dag: Mask, W: Matrix, V: Matrix, *, steps: int = MOST_STEPS, target: float = math.inf) -> Fit:
        """The best fit of a (V, V) DAG that Levenberg-Marquardt steps reach from a start.

        A non-finite start gives an infinite score.

        Parameters
        ----------
        W, V
            (d, d) weights and residual covariances to start from; weights off the DAG do not count.
        target
            Negative log-likelihood from which on a fit is of use. Where it is out of reach, the score is infinite, too.
        """
        edges, pairs = self.fitted(dag)
        start = self._at(np.where(self.mask.columns.spread(dag), W, 0.0), V)
        if not math.isfinite(start.nll):
            return _useless(dag, start)
        now, information, is_of_use = descended(
            start,
            lambda point: self._normal_equations(point, edges, pairs),
            lambda point, step: self._at(*self._moved(point, edges, pairs, step)),
            Ends(steps, target, settled=_SETTLED, converged=0.0),
        )
        if not is_of_use:
            return _useless(dag, now)
        score = now.nll + float(self.prices[dag].sum())
        return Fit(dag, now.weights, now.covariance, now.nll, score, now.scales, information)

    def _moved(self, point: "_Point", edges: Index, pairs: Index, step: Matrix) -> tuple[Matrix, Matrix]:
        """Weights and covariances after a step; the scales follow from these."""
        W, V = point.weights.copy(), point.covariance
        W[edges[:, 0], edges[:, 1]] += step[: len(edges)]
        if len(pairs) > 0:
            V = V.copy()
            V[pairs[:, 0], pairs[:, 1]] += step[len(edges) : len(edges) + len(pairs)]
            V[pairs[:, 1], pairs[:, 0]] = V[pairs[:, 0], pairs[:, 1]]
            V = _no_less(V, point.covariance, self._least, self.mask.columns)
        return W, V

    def weight_errors(self, found: Fit) -> Matrix:
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
        K = inverse_of(information[:-1, :-1])[: len(edges)]
        variance = ((K @ noise[:-1, :-1]) * K).sum(axis=1)
        sampling = self._sampling(found, *factors_of(B, S, edges, pairs))[:-1, :-1]
        variance += ((K @ sampling) * K).sum(axis=1)
        return np.asarray(np.sqrt(np.abs(variance)))  # below 0 by rounding alone, where noise is beyond all else

    def _sampling(self, found: Fit, x: Matrix, y: Matrix) -> Matrix:
        """Covariance, by sampling errors, of the derivatives by (K, d) x and y and by the scales of the releases.

        With N = sum of c^2 G (y x' + x y') G / noise_std^2 over the releases, or c G S G / noise_std^2 for a scale, it
        is tr(S N S N') / (2 n_samples): products of x and y with G S G of two releases, or of more with a scale.
        """
        S, size = found.moments, len(x)
        G = [asked.G for asked in self._asked]
        weights = self._weights(found.scales)
        of_scale = [weight / c for weight, c in zip(weights, found.scales.tolist(), strict=True)]
        told = np.zeros((size + len(G), size + len(G)))
        around = [one @ S @ one for one in G]  # G S G
        for s, (one, w) in enumerate(zip(G, weights, strict=True)):
            for t, (other, v) in enumerate(zip(G, weights, strict=True)):
                H = one @ S @ other
                xH, yH = x @ H, y @ H
                told[:size, :size] += w * v * ((xH @ x.T) * (yH @ y.T) + (xH @ y.T) * (yH @ x.T))
                Z = one @ S @ around[t] @ S @ one
                told[:size, size + t] += w * of_scale[t] * ((x @ Z) * y).sum(axis=1)
                told[size + s, size + t] = (
                    0.5 * of_scale[s] * of_scale[t] * float(((S @ around[s]) * (around[t] @ S)).sum())
                )
        told[size:, :size] = told[:size, size:].T
        return told / (self.share**2 * self._n_samples)

    def gains(self, found: Fit) -> Matrix:
        """(V, V) about how much the negative log-likelihood would fall with one more edge (score test).

        0 for what may not be added, or where little speaks for it.
        """
        W, columns = found.weights, self.mask.columns
        edges, pairs = self.fitted(found.dag)
        point = self._at(W, found.covariance)
        _, gradient = self._unexplained(point)
        products = list(self._products(point))
        curvature = np.zeros_like(W)
        for K, weight in products:
            curvature += weight * (np.outer(K.QQ.diagonal(), K.CC.diagonal()) + K.QC**2)
        # What is left of the curvature if all other numbers follow; it takes long, and few pairs are worth it.
        between = self.mask.of_variables
        may = between.allowed & ~(found.dag | found.dag.T | np.eye(len(found.dag), dtype=bool))
        plain = np.where(columns.spread(may), gradient**2 / curvature, 0.0)
        places = np.argsort(-plain, axis=None)[:CONSIDERED]
        i, j = (np.ascontiguousarray(one) for one in np.unravel_index(places, W.shape))
        crossed = self._crossed(point, products, j, i + len(W), factor_places(len(W), edges, pairs))
        of_columns = np.zeros_like(W)
        gained = gain_left(gradient[i, j], curvature[i, j], crossed, found.error)
        of_columns[i, j] = np.where(columns.spread(may)[i, j], gained, 0.0)
        owner = np.eye(len(columns.sizes))[columns.variable_of]
        return np.asarray(owner.T @ of_columns @ owner)

    def reversible(self, found: Fit) -> Mask:
        """(V, V) the edges that may be worth reversing, where residual variances are known (`fixed`).

        Given what both ends have as parents, x -> y with y = w x + e says of moments what x = b y + e' says, if it has
        other residual variances. So the negative log-likelihood grows by what it takes to move w and both variances
        there, to second order, if all other numbers follow; b is the best one. What it gains by parents that both ends
        share is left out. Edges between columns of nominal variables are all among them.
        """
        if self.mask.columns.has_blocks:
            return found.dag
        edges, pairs = self.fitted(found.dag)
        point, own = self._at(found.weights, found.covariance), np.arange(len(found.weights))
        products = list(self._products(point))
        crossed = 0.5 * self._crossed(point, products, own, own, factor_places(len(own), edges, pairs))
        follow = crossed @ found.error
        left = -follow @ crossed.T  # information of the variances, if all others follow
        for K, weight in products:
            left += 0.5 * weight * K.CC**2
        slope = 0.5 * self._unexplained(point)[0].diagonal()
        i, j = edges.T
        at = np.arange(len(edges))
        error = ends_error(found.error.diagonal()[at], follow[i, at], follow[j, at], left[i, i], left[i, j], left[j, j])
        variance = point.covariance.diagonal()
        grown = reversal_growth(found.weights[i, j], variance[i], variance[j], error, slope[i], slope[j])
        reversible = np.zeros_like(found.dag)
        reversible[i, j] = grown <= _MOST_PRICES * self.penalty
        return reversible

    def fitted(self, dag: Mask) -> tuple[Index, Index]:
        """(E, 2) edges between columns, and (K, 2) columns with a residual covariance: what is fitted."""
        columns = self.mask.columns
        pairs = np.argwhere(np.triu(columns.within())) if not self._fixed else np.zeros((0, 2), dtype=np.int64)
        return np.argwhere(columns.spread(dag)), pairs

    def _at(self, W: Matrix, V: Matrix) -> "_Point":
        """These weights and covariances, in units in which the last release is not scaled; the other scales fitted."""
        B, spread, scales = TotalEffects.of(W), Rows.of(V), np.ones(len(self.releases))
        if not (np.abs(W) <= _LARGEST_WEIGHT).all():  # a step too far
            return _Point(W, V, scales, math.inf, (), scales, scales > 0.0, B, spread)
        with np.errstate(all="ignore"):
            S, products, sizes = _moments(B, spread), list[float](), list[float]()
            told = [asked.of_residuals(S) for asked in self._asked]
            for one, P in zip(self.releases, told, strict=True):
                sizes.append(_squared_size(P))
                products.append(float(np.nan_to_num(np.vdot(one.moments, P) / sizes[-1])))
            # A release of noise alone may point anywhere.
            least = _LEAST_SHARE * max(*products, _LEAST_SCALE)
            scales = np.maximum(products, least)
            left = tuple(one.moments - c * P for one, P, c in zip(self.releases, told, scales.tolist(), strict=True))
            squares = [_squared_size(D) / one.noise_std**2 for one, D in zip(self.releases, left, strict=True)]
            nll = 0.25 * self.share * sum(squares)
            free, explained = np.array(products) > least, scales**2 * np.array(sizes)
            last = scales.tolist()[-1]
            V, spread, scales = V * last, spread.scaled(last), scales / last
        if not self._fixed:  # that of the last release goes with the covariances
            free[-1] = False
        nll = nll if math.isfinite(nll) else math.inf
        return _Point(W, V, scales, nll, left, explained, free, B, spread)

    def _normal_equations(self, point: "_Point", edges: Index, pairs: Index) -> tuple[Matrix, Matrix]:
        """Information and gradient of the log-likelihood.

        By the weights of edges, the covariances of pairs, and the logarithms of the scales. These are fitted at every
        point, so that their gradient is zero; but steps must know what they have of the others' information: all
        weights together are nearly a scale.
        """
        x, y, half = factors = factor_places(len(point.weights), edges, pairs)
        of_pairs, of_edges = self._unexplained(point)
        numbers, size = len(x), len(x) + len(self.releases)
        information, gradient = np.zeros((size, size)), np.zeros(size)
        gradient[:numbers] = half * np.append(of_edges[edges[:, 0], edges[:, 1]], of_pairs[pairs[:, 0], pairs[:, 1]])
        products = list(self._products(point))
        for K, weight in products:
            K.add_information(*factors, weight, information)
        scales = half * self._of_scales(point, products, x, y)
        information[numbers:, :numbers], information[:numbers, numbers:] = scales, scales.T
        for k, one in enumerate(self.releases, start=numbers):
            explained = 0.5 * self.share * point.explained[k - numbers] / one.noise_std**2
            information[k, k] = explained if point.free[k - numbers] else 1.0
        return information, gradient

    def _products(self, point: "_Point") -> Iterator[tuple[InnerProducts, float]]:
        """Of every release, and what the squares of its derivatives count for."""
        for asked, weight in zip(self._asked, self._weights(point.scales), strict=True):
            yield asked.inner_products(point.effects, point.spread), weight

    def _crossed(
        self,
        point: "_Point",
        products: Products,
        u: Index,
        v: Index,
        factors: tuple[Index, Index, Matrix],
    ) -> Matrix:
        """(N, K) information of N further numbers, of factors at u and v, with all K fitted ones."""
        crossed = np.zeros((len(u), len(factors[0]) + len(products)))
        for K, weight in products:
            K.add_crossed(u, v, *factors, weight, crossed)
        crossed[:, len(factors[0]) :] = self._of_scales(point, products, u, v).T
        return crossed

    def _of_scales(self, point: "_Point", products: Products, u: Index, v: Index) -> Matrix:
        """(T, N) information of N numbers, of factors at u and v, with log scales; 0 of those that are not fitted."""
        rows = [
            weight * K.through(point.spread, u, v) if free else np.zeros(len(u))
            for (K, weight), free in zip(products, point.free, strict=True)
        ]
        return np.array(rows)

    def _weights(self, scales: Matrix) -> list[float]:
        """What the squares of the derivatives count for, by release."""
        return [self.share * c**2 / one.noise_std**2 for one, c in zip(self.releases, scales.tolist(), strict=True)]

    def _unexplained(self, point: "_Point") -> tuple[Matrix, Matrix]:
        """(d, d) sums over the releases of C D C' and of Q D C', with D what the point leaves, by its weight."""
        left = np.zeros_like(point.weights)
        for one, asked, c, D in zip(self.releases, self._asked, point.scales, point.left, strict=True):
            left += (self.share * c / one.noise_std**2) * asked.A.around(D)
        around = point.effects.around(left)
        return around, point.effects.transposed_times(point.spread.times(around))


class _Point(NamedTuple):
    """Weights and residual covariances, and how they explain the releases."""

    weights: Matrix
    covariance: Matrix
    # scales, nll: the scale of every release, and minus the log-likelihood
    scales: Matrix
    nll: float
    left: tuple[Matrix, ...]  # (d, d) D = M - c A'S A, by release
    # explained, free: (T,) squared size of c A'S A, and whether c is fitted: it is not where it is at its least,
    # nor where it goes with covariances
    explained: Matrix
    free: Mask
    # effects, spread: of the weights, and the covariances by rows
    effects: TotalEffects
    spread: Rows


def _useless(dag: Mask, point: _Point) -> Fit:
    return Fit(dag, point.weights, point.covariance, point.nll, math.inf, point.scales, np.zeros((0, 0)))


class _Asked(NamedTuple):
    """The residuals of a release: A and its transpose, and (d, d) G = A A'."""

    A: Rows
    transposed: Rows
    G: Matrix

    @classmethod
    def of(cls, A: Matrix) -> "_Asked":
        """Of the residuals A'x."""
        rows = Rows.of(A)
        return cls(rows, rows.transposed, rows.times(A.T))

    def of_residuals(self, S: Matrix) -> Matrix:
        """(d, d) A'S A."""
        return self.transposed.around(S)

    def inner_products(self, B: TotalEffects, V: Rows) -> InnerProducts:
        """Of the rows of C = B A and of Q = S A = B'V C."""
        CC = B.around(self.G)
        QC = B.transposed_times(V.times(CC))
        CQ = np.ascontiguousarray(QC.T)
        return InnerProducts(CC, CQ, QC, B.transposed_times(V.times(CQ)))


def _squared_size(D: Matrix) -> float:
    return float(np.vdot(D, D))


def _moments(B: TotalEffects, V: Rows) -> Matrix:
    """(d, d) S = B'V B."""
    return B.transposed_times(B.transposed_times(V.dense).T)


def factor_places(d: int, edges: Index, pairs: Index) -> tuple[Index, Index, Matrix]:
    """(K,) each: where the vectors x and y of `factors_of` are among the rows of C and then of Q, and factors of y."""
    half = np.where(pairs[:, 0] == pairs[:, 1], 0.5, 1.0)
    x, y = np.concatenate([edges[:, 1], pairs[:, 0]]), np.concatenate([edges[:, 0] + d, pairs[:, 1]])
    return x, y, np.concatenate([np.ones(len(edges)), half])


def total_effects(W: Matrix) -> Matrix:
    """(d, d) B = (I - W)^-1."""
    return np.asarray(np.linalg.inv(np.eye(len(W)) - W), dtype=np.float64)


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
