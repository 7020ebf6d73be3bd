"""Effects between categories, by the tables of a graph that was found by counts: risk differences, and probabilities.

The effect of a level of A on a level of B is P(B | do(A = level)) less that with A at its reference level. Of ordinal
variables it is the change of the mean grade of B, and that between the first and the last grade of A for each step.
Errors are
those of draws of the tables, given the graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.class_members import consistent_extension, descendants, directed_at
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.inference.effects import Effect
from fedbnsl_server.inference.interventions import Family, drawn, set_to, shares_of
from fedbnsl_server.results.learned_network import LearnedNetwork

DRAWS = 200
"""Of the tables, for errors."""

_MOST_PARENT_SETS = 64
# Probability of combinations of levels that no record has: with more, an effect is not known.
LEFT_OUT = 0.01
_SAME = 1e-9


@dataclass(frozen=True, eq=False)
class TableEffect:
    """What setting a variable does to another one, in the members of the class that give the same."""

    effect: Effect  # risk differences; NaN for levels of which too little is known
    probabilities: Matrix  # (r, k) of each level of the target, by the level that is set; NaN likewise
    intervals: Matrix  # (2, r, k) their 95 % intervals; NaN also without a path
    left_out: Matrix  # (r,) probability of combinations of levels that no record has


def effects_by_tables(network: LearnedNetwork, source: int, target: int) -> list[TableEffect]:
    """By increasing value.

    Raises
    ------
    ResultError
        If the source can have too many sets of parents, or a table would be too large.
    """
    graphs = list(islice(directed_at(network.marks, [source]), _MOST_PARENT_SETS + 1))
    if len(graphs) > _MOST_PARENT_SETS:
        raise ResultError(
            f"the graphs of the class give more than {_MOST_PARENT_SETS} sets of parents: too many edges are open",
            remedy="Knowledge in the plan, such as tiers or required edges, directs some of them.",
        )
    draws = [drawn(network.tables, rng) for rng in np.random.default_rng(0).spawn(DRAWS)]
    found: list[TableEffect] = []
    for graph in graphs:
        parents = tuple(np.flatnonzero(graph[:, source]).tolist())
        reaches = bool(descendants(consistent_extension(graph), source)[target])
        one = _effect(network, draws, (source, target), parents, reaches=reaches)
        for k, other in enumerate(found):
            if np.allclose(other.effect.value, one.effect.value, rtol=0.0, atol=_SAME, equal_nan=True):
                both = (*other.effect.adjusted_for, *one.effect.adjusted_for)
                found[k] = replace(other, effect=replace(other.effect, adjusted_for=both))
                break
        else:
            found.append(one)
    return sorted(found, key=lambda one: np.nan_to_num(one.effect.value).ravel().tolist())


def _effect(
    network: LearnedNetwork,
    draws: list[dict[str, Family]],
    ends: tuple[int, int],
    parents: tuple[int, ...],
    *,
    reaches: bool,
) -> TableEffect:
    names = network.columns.variables
    source, target = (names[v] for v in ends)
    given = [names[p] for p in parents]

    def after(families: Mapping[str, Family]) -> Matrix:
        told = set_to(families, source, given, target) if reaches else shares_of(families, target)
        if told is None:
            raise ResultError(f"a table of {source!r}, {target!r} and what lies between them would be too large")
        return told if reaches else np.tile(told, (network.tables[source].counts.shape[-1], 1))

    told = after(network.tables)
    left_out = np.maximum(1.0 - told.sum(axis=1), 0.0)

    def known(p: Matrix) -> Matrix:
        rows = p.sum(axis=1, keepdims=True)
        return np.where(left_out[:, None] <= LEFT_OUT, p / np.where(rows > 0.0, rows, 1.0), np.nan)

    several = np.array([known(after(one)) for one in draws])
    high, low, steps = _compared(network, ends[0])
    of_target = _told_of(network, ends[1])

    def differences(p: Matrix) -> Matrix:
        return np.asarray((p[..., high, :] - p[..., low, :]) / steps[:, None] @ of_target)

    value, error = differences(known(told)), differences(several).std(axis=0, ddof=1)
    intervals = np.quantile(several, (0.025, 0.975), axis=0)
    if not reaches:  # nothing is estimated
        value, error, intervals = np.zeros_like(value), np.zeros_like(error), np.full_like(intervals, np.nan)
    return TableEffect(Effect(value, error, (((*parents,),),)), known(told), intervals, left_out)


def _compared(network: LearnedNetwork, variable: int) -> tuple[list[int], list[int], Matrix]:
    """Of each column of a variable that is set, the levels that are compared, and how many grades lie between them."""
    name = network.columns.variables[variable]
    last = len(network.table_levels[name]) - 1
    if has_grades(network, variable):
        return [last], [0], np.array([float(last)])
    of_columns = _level_of_columns(network, variable)
    return of_columns, [_reference(network, variable)] * len(of_columns), np.ones(len(of_columns))


def _told_of(network: LearnedNetwork, variable: int) -> Matrix:
    """(levels, columns) what is told of probabilities: that of each column's level, or the mean grade."""
    levels = network.table_levels[network.columns.variables[variable]]
    if has_grades(network, variable):
        return np.arange(float(len(levels)))[:, None]
    return np.eye(len(levels))[:, _level_of_columns(network, variable)]


def has_grades(network: LearnedNetwork, variable: int) -> bool:
    """Whether its own column holds more than two levels, in their order."""
    name = network.columns.variables[variable]
    return name in network.columns.names and len(network.table_levels[name]) > 2


def _level_of_columns(network: LearnedNetwork, variable: int) -> list[int]:
    """Which level each column of a variable stands for."""
    name, columns = network.columns.variables[variable], network.columns
    levels = network.table_levels[name]
    places: list[int] = columns.members()[variable].tolist()
    own = [columns.names[k] for k in places]
    return [levels.index(column.removeprefix(f"{name}=")) if column != name else 1 for column in own]


def _reference(network: LearnedNetwork, variable: int) -> int:
    """The level that the columns of a variable are compared with."""
    name = network.columns.variables[variable]
    return network.table_levels[name].index(network.references[name]) if name in network.references else 0
