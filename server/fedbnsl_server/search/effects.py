"""Total effects of one variable on another over all DAGs of a class, from a covariance (IDA).

In a DAG, the total effect of A on B is the coefficient of A in the regression of B on A and the parents of A; it is 0
where B is no descendant of A. A class of DAGs gives a set of effects, one for each set of parents that A has in some
member (Maathuis, Kalisch and Buehlmann 2009). Knowledge is kept: parents are those of members of the class as it was
directed by knowledge (Perkovic, Kalisch and Maathuis 2017). The joint effect of several variables, in a DAG, is found
by cutting them off from their parents one after the other (Nandy, Maathuis and Richardson 2017).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.class_members import consistent_extension, descendants, directed_at
from fedbnsl.plan.columns import Columns
from fedbnsl.sparse import Index, Mask, Matrix

# Effects this near, as a share of the larger one, are one value: rounding apart, they are the same function of the
# covariance.
_SAME = 1e-9
_MOST_PARENT_SETS = 5_000


@dataclass(frozen=True)
class Precision:
    """What a covariance was computed from.

    Attributes
    ----------
    n_samples
        Records, at least 1.
    noise_std
        Standard deviation of the noise on the covariance of standardised residuals, off its diagonal; 0: no noise.
    """

    n_samples: float
    noise_std: float


@dataclass(frozen=True, eq=False)
class Effect:
    """One of the effects that the members of a class give.

    Attributes
    ----------
    value
        (a, b) effect of each column of the sources on each column of the target, in units of the target for a unit of
        the source.
    standard_error
        (a, b); None where nothing tells it, 0 where the target is no descendant.
    adjusted_for
        The sets of variables with which the covariance gives this value: for a single source its parents, for several
        the parents of each.
    """

    value: Matrix
    standard_error: Matrix | None
    adjusted_for: tuple[tuple[tuple[int, ...], ...], ...]


def implied_covariance(W: Matrix, residual_variance: Matrix) -> Matrix:
    """(d, d) covariance of x = x W + e, with (d, d) weights W of a DAG and (d,) variances of e."""
    back = np.linalg.inv((np.eye(len(W)) - W) / np.sqrt(residual_variance))
    return np.asarray(back.T @ back)


def total_effects(
    covariance: Matrix, marks: Mask, sources: Sequence[int], target: int, columns: Columns, precision: Precision | None
) -> list[Effect]:
    """The different effects of variables on another one over the members of a class, by increasing value.

    Parameters
    ----------
    covariance
        (d, d) between columns.
    marks
        (V, V) the class, between variables; closed under Meek's rules.
    sources
        Variables that are set together, at least one; none is the target.
    target
        Another variable.
    columns
        Of the variables.
    precision
        For standard errors, which the joint effects of several variables do not have; None: unknown.

    Raises
    ------
    ResultError
        If the sources can have too many sets of parents to look at all of them.
    """
    members, found = columns.members(), list[Effect]()
    for k, graph in enumerate(directed_at(marks, sources)):
        if k == _MOST_PARENT_SETS:
            raise ResultError(
                f"the graphs of the class give more than {_MOST_PARENT_SETS} sets of parents: too many edges are open",
                remedy="Knowledge in the plan, such as tiers or required edges, directs some of them.",
            )
        parents = tuple(tuple(np.flatnonzero(graph[:, source]).tolist()) for source in sources)
        # Which sources reach the target when all are set: the same in all members with these parents.
        cut = consistent_extension(graph)
        cut[:, list(sources)] = False
        reaches = np.repeat([descendants(cut, k)[target] for k in sources], [members[k].size for k in sources])
        if not reaches.any():
            nothing = np.zeros((reaches.size, members[target].size))
            effect = Effect(nothing, nothing, (parents,))
        elif len(sources) == 1:
            given = [k for parent in parents[0] for k in members[parent].tolist()]
            effect = _adjusted(covariance, members[sources[0]], members[target], given, parents, precision)
        else:
            value = _joint(covariance, [members[k] for k in sources], parents, members, members[target])
            effect = Effect(np.where(reaches[:, None], value, 0.0), None, (parents,))
        _add(found, effect)
    return sorted(found, key=lambda effect: effect.value.ravel().tolist())


def _add(found: list[Effect], effect: Effect) -> None:
    """Keep an effect, together with one of the same value and the larger standard error of both."""
    for k, other in enumerate(found):
        if np.allclose(effect.value, other.value, rtol=_SAME, atol=_SAME * float(np.abs(other.value).max())):
            errors = [one.standard_error for one in (other, effect) if one.standard_error is not None]
            larger = np.max(errors, axis=0) if len(errors) == 2 else None
            found[k] = Effect(other.value, larger, (*other.adjusted_for, *effect.adjusted_for))
            return
    found.append(effect)


def _adjusted(
    covariance: Matrix,
    source: Index,
    target: Index,
    given: list[int],
    parents: tuple[tuple[int, ...], ...],
    precision: Precision | None,
) -> Effect:
    """Coefficients of the source's columns in the regressions of the target's columns on them and the given columns."""
    regressors = np.array([*source.tolist(), *given])
    inverse = np.linalg.inv(covariance[np.ix_(regressors, regressors)])
    coefficients = inverse @ covariance[np.ix_(regressors, target)]
    error = None
    if precision is not None:
        error = np.zeros((source.size, target.size))
        for b, column in enumerate(target.tolist()):
            residual = np.zeros(len(covariance))
            residual[column] = 1.0
            residual[regressors] -= coefficients[:, b]
            residual_variance = float(residual @ covariance @ residual)
            for a in range(source.size):
                direction = np.zeros(len(covariance))
                direction[regressors] = inverse[a]
                error[a, b] = math.sqrt(
                    # Of least squares with these regressors, and of noise E on the covariance, which moves the
                    # coefficient by direction' E residual, to first order.
                    residual_variance * inverse[a, a] / precision.n_samples
                    + precision.noise_std**2 * (
                        float(direction @ covariance @ direction) * residual_variance
                        + float(direction @ covariance @ residual) ** 2
                    )
                )  # fmt: skip
    return Effect(coefficients[: source.size], error, (parents,))


def _joint(
    covariance: Matrix,
    sources: list[Index],
    parents: tuple[tuple[int, ...], ...],
    members: list[Index],
    target: Index,
) -> Matrix:
    """(a, b) effects in a DAG with these parents, when all sources are set at once."""
    for source, of_source in zip(sources, parents, strict=True):
        given = [k for parent in of_source for k in members[parent].tolist()]
        regressors = np.array([*source.tolist(), *given])
        inverse = np.linalg.inv(covariance[np.ix_(regressors, regressors)])
        theta = (inverse @ covariance[regressors])[: source.size]
        theta[:, given] = 0.0
        theta[:, source] = np.eye(source.size)
        # What the source does to the others is taken off, and given back from a source without parents that has the
        # variance that its parents had left.
        without = np.eye(len(covariance))
        without[source] -= theta
        own = np.linalg.inv(inverse[: source.size, : source.size])
        covariance = without.T @ covariance @ without + theta.T @ own @ theta
    every = np.concatenate(sources)
    coefficients: Matrix = np.linalg.inv(covariance[np.ix_(every, every)]) @ covariance[np.ix_(every, target)]
    return coefficients
