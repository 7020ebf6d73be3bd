"""Intercepts of a site, given the coefficients of all sites; and what is left to tell of these (`regression`)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedbnsl.families.regression import Family, Sums
from fedbnsl.protocol.sparse import Matrix

_MOST_STEPS = 100
# Of the squared Newton step in standard errors: at it, intercepts are exact but for rounding.
_SMALL = 1e-20
# Of the log-likelihood: less is rounding.
_ROUNDING = 1e-12
# Of the information about a coefficient, with known intercepts: what is left beside unknown ones.
_LEFT = 1e-11


class Profile(NamedTuple):
    """Of one site, at some coefficients, with its best intercepts."""

    log_likelihood: float
    dispersion: float
    gradient: Matrix  # (q,)
    information: Matrix  # (q, q), symmetric, without negative eigenvalues but for rounding


def best_intercepts(family: Family, sums: Callable[[Matrix], Sums]) -> Matrix:
    """(a,) intercepts with the largest log-likelihood, by the family's steps, halved where they go too far.

    Parameters
    ----------
    sums
        Of all records, at some intercepts; only what concerns these.
    """
    alpha = family.intercepts
    found = sums(alpha)
    for _ in range(_MOST_STEPS):
        step = family.step(found)
        if not float(step @ found.gradient) > _SMALL:
            break
        trial = sums(alpha + step)
        while trial.log_likelihood < found.log_likelihood - _ROUNDING * abs(found.log_likelihood):
            step = step / 2.0
            trial = sums(alpha + step)
        alpha, found = alpha + step, trial
    return alpha


def profile(sums: Sums, n_intercepts: int) -> Profile:
    """What the sums at the best intercepts say of the coefficients.

    A last Newton step of the intercepts is taken in the gradient, so that what is left of theirs does not matter.
    """
    a, J, U = n_intercepts, sums.information, sums.gradient
    by = np.linalg.lstsq(J[:a, :a], J[:a, a:], rcond=None)[0]
    information, gradient = J[a:, a:] - J[a:, :a] @ by, U[a:] - by.T @ U[:a]
    # What the intercepts leave of a parent that does not vary here is rounding, of either sign.
    told = information.diagonal() > _LEFT * J[a:, a:].diagonal()
    information = np.where(told & told[:, None], information + information.T, 0.0) / 2.0
    return Profile(sums.log_likelihood, sums.dispersion, np.where(told, gradient, 0.0), information)
