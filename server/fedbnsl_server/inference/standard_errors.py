"""Standard errors of the coefficients of a graph's regressions, from second moments.

Let beta be the coefficients of a column on its parents' columns g, S the moments and r the vector with r'x the
residual. An error E of the moments changes coefficient k, to first order, by u'E r, where u is row k of the inverse of
S_gg. The variance has two parts:

- sampling: with n Gaussian records (u'S u r'S r + (u'S r)^2) / n, which is v [S_gg^-1]_kk / n, v the residual variance.
  Where rows depend on others of their group, it has a factor for that (`dependent_rows`).
  Sites that weigh otherwise than as their rows each have a part of their own (the sandwich). Where gaps leave fewer
  rows to some pairs, each entry of u counts as many times as the error of its parent's moment with r is wider;
- noise of a private run: E = back' N back with N independent of standard deviation s on the moments of the residuals.
  Parents have no residual of the child in them, so the variance is s^2 |back u|^2, in units of the child's scale.

A coefficient on a parent that is a function of the other parents is not identified: its error is NaN.
"""

from collections.abc import Sequence

import numpy as np

from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.search.linear_network import (
    Accuracy,
    LinearNetwork,
    SiteMoments,
    edges_of,
    families,
    in_relation,
    inverse,
)

# Of the variance of a product of residuals: where the parents of one stand for the other, rounding is left.
_LEAST_SHARE = 1e-3


def standard_errors(
    network: LinearNetwork,
    S: Matrix,
    accuracy: Accuracy,
    *,
    sites: Sequence[SiteMoments] = (),
    weights: Sequence[float] = (),
) -> Matrix:
    """(E,) of the coefficients on the edges between columns, given the graph; NaN where one is not identified.

    Parameters
    ----------
    S
        (d, d) moments that the network was fitted to.
    sites, weights
        Whose weighted mean these moments are. With them sampling errors are a sandwich over sites; without them they
        are those of `accuracy.n_samples` records.
    """
    variance = np.zeros(network.dag.shape)
    shares = np.array(weights, dtype=np.float64) / sum(weights)
    for c, given in families(network.dag):
        inverted = inverse(S[np.ix_(given, given)])
        if sites:
            parts = [_sampling(network, one, c, given, inverted) for one in sites]
            sampling = shares**2 @ np.stack(parts)
        else:
            free = max(accuracy.n_samples - len(given), 1.0)
            sampling = network.residual_variance[c] * inverted.diagonal() / free
            sampling = sampling * _dependence(network, accuracy, S, c, given, inverted)
        if accuracy.widening is not None:
            sampling = sampling * widened(inverted, S[np.ix_(given, given)], accuracy.widening[given, c])
        found = sampling + _noise(network, accuracy, c, given, inverted)
        variance[given, c] = np.where(in_relation(S[np.ix_(given, given)]), np.nan, found)
    i, j = edges_of(network.dag).T
    return np.asarray(np.sqrt(variance[i, j]))


def log_variance_errors(network: LinearNetwork, accuracy: Accuracy) -> Matrix:
    """(d,) standard errors of the logarithms of the residual variances.

    Sampling alone gives sqrt(2 / n) where rows are independent, noise sqrt(2) times its standard deviation in units of
    the residual.
    """
    free = np.maximum(accuracy.n_samples - network.dag.sum(axis=0), 1.0)
    share = network.units(accuracy) ** 2 / network.residual_variance
    factors = network.dependence(accuracy.dependent).diagonal()
    return np.asarray(np.sqrt(2.0 * factors / free + 2.0 * (accuracy.noise_std * share) ** 2))


def correlation_errors(network: LinearNetwork, S: Matrix, accuracy: Accuracy) -> Matrix:
    """(d, d) standard errors of the correlations of residuals of columns without an edge, under the right graph.

    Let i not descend from j. The regression of j takes from their product what its parents say of residual i. With a
    the part of residual i that they do not say, as weights of all residuals, the variance of the product is
    a'Va v_j / n plus, with noise of standard deviation s, s^2 |a|^2 in units of the residuals' scales: 1 / n and s^2
    at most in units of the residuals, and far less where the parents of j stand for i. Where rows depend on each other,
    the first part has the factor of `dependent_rows`, for a and residual j.
    """
    V, v = network.residual_covariance, network.residual_variance
    units = network.units(accuracy)
    rows, between = accuracy.dependent, np.empty((0, 0))
    sampling = np.outer(v, v) / accuracy.n_samples
    if rows is not None:
        sampling, between = sampling * network.dependence(rows), network.between_residuals(rows)
    variance = sampling + (accuracy.noise_std * np.outer(units, units)) ** 2
    least = _LEAST_SHARE * variance
    for j, given in families(network.dag):
        B = network.back[:, given]
        C = V @ B
        G = C @ inverse(S[np.ix_(given, given)])
        left = v - (G * C).sum(axis=1)
        scaled = units[:, None] * B
        lengths = units**2 - 2.0 * units**2 * (B * G).sum(axis=1) + (G @ (scaled.T @ scaled) * G).sum(axis=1)
        of_j = left * v[j] / accuracy.n_samples + (accuracy.noise_std * units[j]) ** 2 * lengths
        if rows is not None:
            P = between @ B
            of_a = between.diagonal() - 2.0 * (G * P).sum(axis=1) + (G @ (B.T @ P) * G).sum(axis=1)
            with_j = between[:, j] - G @ P[j]
            of_j *= rows.factors((of_a, between[j, j], with_j), (left, v[j], np.zeros(len(v))))
        earlier = network.back[j] == 0.0
        variance[earlier, j] = variance[j, earlier] = np.maximum(of_j, least[:, j])[earlier]
    found = np.sqrt(variance / np.outer(v, v))
    return np.asarray(found if accuracy.widening is None else found * accuracy.widening)


def _sampling(network: LinearNetwork, site: SiteMoments, c: int, given: Index, inverted: Matrix) -> Matrix:
    """(k,) variances of u'E r where E is the error of one site's moments."""
    S, b, free = site.moments, network.weights[given, c], max(site.accuracy.n_samples - len(given), 1.0)
    if site.accuracy.noise_std:  # one site's noise may leave nothing positive: take the common moments for its own
        return np.asarray(network.residual_variance[c] * inverted.diagonal() / free)
    S_gg, left = S[np.ix_(given, given)], S[c, c] - 2.0 * S[given, c] @ b + b @ S[np.ix_(given, given)] @ b
    along = inverted @ (S[given, c] - S_gg @ b)  # zero where the site has the common coefficients
    spread = np.einsum("ki,ij,kj->k", inverted, S_gg, inverted)
    found = (spread * max(float(left), 0.0) + along**2) / free
    return np.asarray(found * _dependence(network, site.accuracy, S, c, given, inverted))


def _dependence(
    network: LinearNetwork, accuracy: Accuracy, S: Matrix, c: int, given: Index, inverted: Matrix
) -> Matrix | float:
    """(k,) by what the variances of u'E r grow where rows depend on each other."""
    if accuracy.dependent is None:
        return 1.0
    family = np.append(given, c)
    u = np.column_stack([inverted, np.zeros(len(given))])
    r = np.append(-network.weights[given, c], 1.0)
    return accuracy.dependent.along(u, r, S[np.ix_(family, family)], family)


def widened(u: Matrix, S: Matrix, factors: Matrix) -> Matrix:
    """(k,) how many times u'Su grows when each entry of u is multiplied by its factor; 1 where it is zero.

    Parameters
    ----------
    u, S, factors
        (k, m) one vector a row, (m, m), and (m,).
    """
    before, after = (np.einsum("ki,ij,kj->k", one, S, one) for one in (u, u * factors))
    return np.asarray(np.where(before > 0.0, after, 1.0) / np.where(before > 0.0, before, 1.0))


def _noise(network: LinearNetwork, accuracy: Accuracy, c: int, given: Index, inverted: Matrix) -> Matrix:
    """(k,) variances of u'E r where E is the noise of a private run."""
    if not accuracy.noise_std:
        return np.zeros(len(given))
    units = network.units(accuracy)
    back_u = units[:, None] * (network.back[:, given] @ inverted)
    return np.asarray((accuracy.noise_std * units[c]) ** 2 * (back_u**2).sum(axis=0))
