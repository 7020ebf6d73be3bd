"""Total effects of one variable on another over all DAGs of a class, from a covariance (IDA).

In a DAG, the total effect of A on B is the coefficient of A in the regression of B on A and the parents of A; it is 0
where B is no descendant of A. A class of DAGs gives a set of effects, one for each set of parents that A has in some
member (Maathuis, Kalisch and Buehlmann 2009). Knowledge is kept: parents are those of members of the class as it was
directed by knowledge (Perkovic, Kalisch and Maathuis 2017). The joint effect of several variables, in a DAG, is found
by cutting them off from their parents one after the other (Nandy, Maathuis and Richardson 2017).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.class_members import consistent_extension, descendants, directed_at
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.search.linear_network import SINGULAR, LinearNetwork, fitted, in_relation, inverse

# Effects this near, as a share of the larger one, are one value: rounding apart, they are the same function of the
# covariance.
_SAME = 1e-9
_MOST_PARENT_SETS = 5_000
# Undecided arrows at a source, each of which doubles its sets of parents; with more, all effects count as moved.
_MOST_TURNED = 6


@dataclass(frozen=True)
class Precision:
    """What a covariance was computed from."""

    n_samples: float  # records, at least 1
    # standard deviation of the noise on the covariance of standardised residuals, off its diagonal; 0: no noise
    noise_std: float
    # (d, d) factors of the sampling errors of pairs of columns, at least 1; see `Accuracy`. None: they are alike
    widening: Matrix | None = None
    # others, residual_icc: how many other rows a row's group has on average, and (d,) how much residuals depend on
    # those of these; 0 and empty: rows are independent
    others: float = 0.0
    residual_icc: Matrix = field(default_factory=lambda: np.empty(0))
    # (d, d) by how much larger the errors of coefficients between two columns are than those that follow from the
    # rest; None: they are those
    factors: Matrix | None = None

    def with_errors_of(self, errors: Matrix, covariance: Matrix, dag: Mask, columns: Columns) -> "Precision":
        """With coefficients that err as was found of those of a (V, V) DAG, also where the arrow is turned.

        So a coefficient has one error, wherever it is told. Those that were found know more: the noise of each
        residual, and how sites are weighed.

        Parameters
        ----------
        errors
            (d, d) standard errors of the coefficients; NaN where none was found.
        covariance
            (d, d) between columns.
        """
        network, plain, typical = (
            fitted(dag, covariance, columns),
            replace(self, factors=None),
            np.full_like(errors, np.nan),
        )
        exact = network.residual_variance < SINGULAR * covariance.diagonal()  # functions of their parents
        for J, Z in _families(dag, columns):
            variance = _of_family((J, Z), np.eye(Z.size), np.eye(J.size), covariance, network, plain)
            told = ~in_relation(covariance[np.ix_(Z, Z)])[:, None] & ~exact[J]
            typical[np.ix_(Z, J)] = np.sqrt(np.where(told, variance, np.nan))
        found = errors / typical
        return replace(self, factors=np.where(np.isnan(found), np.where(np.isnan(found.T), 1.0, found.T), found))


@dataclass(frozen=True, eq=False)
class Effect:
    """One of the effects that the members of a class give."""

    # (a, b) effect of each column of the sources on each column of the target, in units of the target for a unit
    # of the source
    value: Matrix
    # (a, b); None where nothing tells it, NaN where the effect is not identified, 0 where the target is no
    # descendant
    standard_error: Matrix | None
    # the sets of variables with which the covariance gives this value: for a single source its parents, for
    # several the parents of each
    adjusted_for: tuple[tuple[tuple[int, ...], ...], ...]


def implied_covariance(W: Matrix, residual_variance: Matrix, residual_correlation: Matrix | None = None) -> Matrix:
    """(d, d) covariance of x = x W + e, with (d, d) weights W of a DAG and (d,) variances of e.

    Parameters
    ----------
    residual_correlation
        (d, d) of e, which only columns of one variable have; None: there are no such columns.
    """
    back = np.linalg.inv((np.eye(len(W)) - W) / np.sqrt(residual_variance))
    return np.asarray(back.T @ back if residual_correlation is None else back.T @ residual_correlation @ back)


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
        dag = consistent_extension(graph)
        cut = dag.copy()
        cut[:, list(sources)] = False
        reaches = np.repeat([descendants(cut, k)[target] for k in sources], [members[k].size for k in sources])
        if len(sources) == 1:
            variance = _variances(covariance, dag, sources[0], columns, precision)
            effect = _single(covariance, columns, sources[0], target, parents, variance, reaches=bool(reaches.any()))
        elif not reaches.any():
            nothing = np.zeros((reaches.size, members[target].size))
            effect = Effect(nothing, nothing, (parents,))
        else:
            value = _joint(covariance, [members[k] for k in sources], parents, members, members[target])
            effect = Effect(np.where(reaches[:, None], value, 0.0), None, (parents,))
        _add(found, effect)
    return sorted(found, key=_values)


def effects_on_all(
    covariance: Matrix, marks: Mask, source: int, columns: Columns, precision: Precision | None, *, most: int
) -> dict[int, list[Effect]] | None:
    """What `total_effects` gives for one source and every target that it reaches in some member of the class.

    The graphs are directed once for all targets. None if the source has more than `most` sets of parents.
    """
    graphs = list(islice(directed_at(marks, [source]), most + 1))
    if len(graphs) > most:
        return None
    dags = [consistent_extension(graph) for graph in graphs]
    reached = [descendants(dag, source) for dag in dags]
    variances = [_variances(covariance, dag, source, columns, precision) for dag in dags]
    found: dict[int, list[Effect]] = {}
    for target in np.flatnonzero(np.any(reached, axis=0)).tolist():
        of_target: list[Effect] = []
        for graph, reaches, variance in zip(graphs, reached, variances, strict=True):
            parents = (tuple(np.flatnonzero(graph[:, source]).tolist()),)
            _add(of_target, _single(covariance, columns, source, target, parents, variance, reaches=reaches[target]))
        found[target] = sorted(of_target, key=_values)
    return found


def adjusted(
    covariance: Matrix,
    sources: Sequence[int],
    target: int,
    given: Sequence[int],
    columns: Columns,
    precision: Precision | None,
) -> Effect:
    """The joint effect of variables by a regression of another one on them and on the variables of `given`.

    Its errors are those of a network that has all edges among these and no more.
    """
    values, errors = list[Matrix](), list[Matrix]()
    for source in sources:
        regressors = (*given, *(k for k in sources if k != source))
        order, dag = [*regressors, source, target], np.zeros((len(columns.variables),) * 2, dtype=bool)
        dag[np.ix_(order, order)] = np.triu(np.ones((len(order),) * 2, dtype=bool), k=1)
        variance = _variances(covariance, dag, source, columns, precision)
        one = _single(covariance, columns, source, target, (regressors,), variance, reaches=True)
        values.append(one.value)
        errors += [] if one.standard_error is None else [one.standard_error]
    return Effect(np.vstack(values), np.vstack(errors) if errors else None, ((tuple(given),) * len(sources),))


def certainty(values: Sequence[float]) -> str:
    """How far a class tells one effect by all its values: identified, range (of one sign) or not identified."""
    low, high = min(values), max(values)
    if high - low <= _SAME * max(abs(low), abs(high)):
        return "identified"
    return "range" if low > 0.0 or high < 0.0 else "not identified"


def rests_on(marks: Mask, undecided: Mask, sources: Sequence[int], target: int, moved: Mask) -> Mask:
    """(V, V) the undecided arrows that an effect of the sources on the target rests on.

    Turned around, one on a way from a source to the target opens or closes a path, which matters unless another path of
    arrows is there anyway. One at a source gives this another set of parents, and with it another effect, if `moved`
    says so. Where the target comes before the sources, or no way leads to it, the effect is 0 in any case.

    Parameters
    ----------
    marks
        (V, V) the class.
    undecided
        (V, V) arrows of it whose direction the draws of a bootstrap do not agree on.
    moved
        (V,) effects of which targets are others with other sets of parents, as `moved_by_turning` has it of one source.
    """
    shown, firm = marks | undecided.T, marks & ~marks.T & ~undecided
    earlier = [k for k in sources if not descendants(firm, target)[k]]
    onward = shown.copy()  # ways from a source to the target neither come back nor go on
    onward[target] = onward[:, list(sources)] = False
    before, after = descendants(onward.T, target), np.zeros(len(marks), dtype=bool)
    before[target] = True
    for source in earlier:
        after |= descendants(onward, source)
        after[source] = True
    between, at_source = before & after, np.zeros(len(marks), dtype=bool)
    at_source[earlier] = between[earlier] & moved[target]
    found = undecided & (at_source[:, None] | at_source)
    if not between[earlier].any() or (len(sources) == 1 and descendants(firm, sources[0])[target]):
        return found
    return found | (undecided & between[:, None] & between)


def moved_by_turning(covariance: Matrix, marks: Mask, undecided: Mask, source: int, columns: Columns) -> Mask:
    """(V,) on which variables a source has another effect, by the covariance, if undecided arrows at it are turned."""
    turned = np.flatnonzero(undecided[source] | undecided[:, source])
    moved, members, spread = np.zeros(len(marks), dtype=bool), columns.members(), np.sqrt(covariance.diagonal())
    if turned.size > _MOST_TURNED:
        return ~moved
    for graph in islice(directed_at(marks, [source]), _MOST_PARENT_SETS if turned.size else 0):
        first: Matrix | None = None
        for subset in product((False, True), repeat=turned.size):
            parents = graph[:, source].copy()
            parents[turned] ^= np.array(subset)
            regressors = np.concatenate([members[source], *(members[k] for k in np.flatnonzero(parents))])
            within = covariance[np.ix_(regressors, regressors)]
            try:
                solved: Matrix = np.asarray(np.linalg.solve(within, covariance[regressors]), dtype=np.float64)
            except np.linalg.LinAlgError:  # functions of each other, between which nothing tells a direction
                return np.ones_like(moved)
            effects: Matrix = solved[: members[source].size]
            first = effects if first is None else first
            far = np.abs(effects - first) * spread[members[source]][:, None] > _SAME * spread
            moved[columns.variable_of[far.any(axis=0)]] = True
    return moved


def _values(effect: Effect) -> list[float]:
    values: list[float] = effect.value.ravel().tolist()
    return values


def _single(
    covariance: Matrix,
    columns: Columns,
    source: int,
    target: int,
    parents: tuple[tuple[int, ...], ...],
    variance: Matrix | None,
    *,
    reaches: bool,
) -> Effect:
    """The effect of one source in a graph in which it has these parents; `variance` as of `_variances`."""
    members = columns.members()
    of_source, of_target = members[source], members[target]
    if not reaches:
        nothing = np.zeros((of_source.size, of_target.size))
        return Effect(nothing, nothing, (parents,))
    regressors = np.array([*of_source.tolist(), *(k for parent in parents[0] for k in members[parent].tolist())])
    coefficients: Matrix = np.asarray(
        np.linalg.solve(covariance[np.ix_(regressors, regressors)], covariance[np.ix_(regressors, of_target)]),
        dtype=np.float64,
    )
    if variance is None:
        return Effect(coefficients[: of_source.size], None, (parents,))
    error = np.sqrt(np.maximum(variance[:, of_target], 0.0))
    # Where a column of the source is a function of the parents, any effect of it fits as well.
    error[in_relation(covariance[np.ix_(regressors, regressors)])[: of_source.size]] = np.nan
    return Effect(coefficients[: of_source.size], error, (parents,))


def _variances(
    covariance: Matrix, dag: Mask, source: int, columns: Columns, precision: Precision | None
) -> Matrix | None:
    """(a, d) variances of the effects of a source's columns on all columns, given the graph; None if nothing tells.

    The effect is the (a, b) entry of T = (I - W)^-1, with columns J of W the coefficients of a variable's columns on
    its parents Z. To first order it moves by T_aZ dW_ZJ T_Jb for each variable. With u = S_ZZ^-1 T_aZ', sampling gives
    this the variance u'S_ZZ u T_Jb' V_JJ T_Jb / n_samples, V the covariance of residuals. Independent noise on the
    covariance of standardised residuals gives it the same with noise_std^2 in place of 1 / n_samples, and with S and V
    as they would be if all residuals were uncorrelated. Where gaps leave few rows to a parent with its child, its entry
    of u counts as many times as that error is wider; all columns of J are in the same rows.

    Where rows depend on others of their group, the variance grows by `Precision.others` times the same with those parts
    of S and V that residuals share between rows, as in `dependent_rows`; residuals of different variables share none.

    Errors of coefficients are as many times larger than that as `Precision.factors` says.
    """
    if precision is None:
        return None
    network, own = fitted(dag, covariance, columns), columns.members()[source]
    found = np.zeros((own.size, len(covariance)))
    for J, Z in _families(dag, columns):
        moved = network.back[np.ix_(own, Z)]
        if moved.any():
            found += _of_family((J, Z), moved, network.back[J], covariance, network, precision)
    return found


def _families(dag: Mask, columns: Columns) -> Iterator[tuple[Index, Index]]:
    """The columns of each variable that has parents, and those of its parents."""
    members = columns.members()
    for J, parents in zip(members, dag.T, strict=True):
        if parents.any():
            yield J, np.concatenate([members[k] for k in np.flatnonzero(parents)])


def _of_family(
    family: tuple[Index, Index],
    moved: Matrix,
    moves: Matrix,
    covariance: Matrix,
    network: LinearNetwork,
    precision: Precision,
) -> Matrix:
    """(a, b) what errors of the coefficients of one variable's columns J on parents Z add to variances of effects.

    Parameters
    ----------
    moved, moves
        (a, |Z|) and (|J|, b): to first order an effect moves by moved dW_ZJ moves.
    """
    (J, Z), V, T = family, network.residual_covariance, network.back
    v, within, S_ZZ = V.diagonal(), V[np.ix_(J, J)], covariance[np.ix_(Z, Z)]
    factors = np.ones((Z.size, J.size)) if precision.factors is None else precision.factors[np.ix_(Z, J)]
    u: Matrix = np.asarray(inverse(S_ZZ) @ (factors.T[:, :, None] * moved.T), dtype=np.float64).swapaxes(1, 2)
    wider = u if precision.widening is None else u * precision.widening[Z, J[0]]

    def grown(u: Matrix, of_parents: Matrix, of_residuals: Matrix) -> Matrix:
        """(a, b) sums over j and k in J of u_j'P u_k R_jk, with (|J|, a, |Z|) u."""
        products = np.einsum("jaz,kaz->ajk", u @ of_parents, u) * of_residuals
        return np.asarray(np.einsum("ajk,jb,kb->ab", products, moves, moves))

    sampling = grown(wider, S_ZZ, within)
    if precision.others:
        size = np.sqrt(precision.residual_icc)
        depend = size[:, None] * V * size
        sampling += precision.others * grown(wider, T[:, Z].T @ depend @ T[:, Z], depend[np.ix_(J, J)])
    noise = grown(u, T[:, Z].T @ (v[:, None] * T[:, Z]), np.diag(v[J]))
    return np.asarray(sampling / precision.n_samples + precision.noise_std**2 * noise)


def _add(found: list[Effect], effect: Effect) -> None:
    """Keep an effect, together with one of the same value and the larger standard error of both."""
    for k, other in enumerate(found):
        if np.allclose(effect.value, other.value, rtol=_SAME, atol=_SAME * float(np.abs(other.value).max())):
            errors = [one.standard_error for one in (other, effect) if one.standard_error is not None]
            larger = np.max(errors, axis=0) if len(errors) == 2 else None
            found[k] = Effect(other.value, larger, (*other.adjusted_for, *effect.adjusted_for))
            return
    found.append(effect)


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
