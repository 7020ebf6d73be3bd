"""Effects that are not told: beyond what is possible, of withheld coefficients, unseen pairs, and missing edges.

A coefficient is withheld where noise took it beyond what is possible (`largest_changes`). An effect rests on one if it
differs with 0 in its place.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedbnsl.graphs.class_members import descendants
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_server.inference.effects import Effect
from fedbnsl_server.results.learned_network import LearnedNetwork

# Shares by which values, and standard errors, may differ: rounding, and what a reader would not mind.
_SAME, _SAME_ERROR = 1e-6, 0.1


def told_effects(
    network: LearnedNetwork,
    effects: Sequence[Effect],
    others: Sequence[Effect] | None,
    of_sources: Index,
    of_target: Index,
) -> list[Effect]:
    """The effects with NaN for each value and standard error that is not told.

    `effects` are of the network's covariance, `others` of the one without what is withheld (None: nothing is).
    """
    known = known_error = np.ones((len(of_sources), len(of_target)), dtype=bool)
    if others is not None:
        known = _agree([one.value for one in effects], [one.value for one in others], _SAME)
        if (errors := _errors(effects)) and (of_others := _errors(others)):
            known_error = _agree(errors, of_others, _SAME_ERROR)
    if network.largest is not None:
        size = np.max([np.abs(one.value) for one in effects], axis=0)
        known = known & (size <= network.largest[np.ix_(of_sources, of_target)])
    return [
        replace(
            one,
            value=np.where(known, one.value, np.nan),
            standard_error=None
            if one.standard_error is None
            else np.where(known & known_error, one.standard_error, np.nan),
        )
        for one in effects
    ]


def unseen_pairs(
    network: LearnedNetwork, sources: Sequence[int], target: int, effects: Sequence[Effect]
) -> list[tuple[str, str]]:
    """By name: pairs of variables that no row has both of and these effects rest on.

    An effect rests on all pairs of its variables and of those that it is adjusted for. That no path leads from a source
    to the target rests also on pairs between which an edge would make one.
    """
    if network.unseen is None:
        return []
    adjusted = {k for one in effects for parents in one.adjusted_for for of_source in parents for k in of_source}
    used = np.isin(np.arange(len(network.marks)), [*sources, target, *adjusted])
    found = network.unseen & used & used[:, None]
    if _has_no_path(effects, len(sources)):
        found = found | _that_would_lead(network.marks, network.unseen, sources, target)
    return _named(network, found)


def missing_edges(
    network: LearnedNetwork,
    sources: Sequence[int],
    target: int,
    effects: Sequence[Effect],
    onward: Mask,
    linked: Mask,
) -> list[tuple[str, str]]:
    """By name: pairs without an edge that depend on each other all the same, where this turns the effects.

    An edge would make one more directed path from a source to the target. Or, where there is one, it would join a
    source to what leads to the target past all that is adjusted for: a confounder.

    Parameters
    ----------
    onward, linked
        (V, V) steps that a directed path may take in the graph, and its edges, symmetric.
    """
    pairs = contradicted(network) & ~linked
    if not pairs.any():
        return []
    found = _that_would_lead(onward, pairs, sources, target)
    if any(one.value.any() for one in effects):
        shut = np.ones(len(pairs), dtype=bool)  # adjusted for in every one of the effects
        for parents in (parents for one in effects for parents in one.adjusted_for):
            shut &= np.isin(np.arange(len(pairs)), [k for of_source in parents for k in of_source])
        shut[list(sources)] = True
        ancestors = np.any([descendants((onward | pairs).T, k) for k in (*sources, target)], axis=0)
        ancestors[target] = True
        open_ = (linked | pairs) & (ancestors & ~shut) & (ancestors & ~shut)[:, None]
        leads = descendants(open_, target)
        leads[target] = True
        of_source = np.isin(np.arange(len(pairs)), list(sources))[:, None] & leads & pairs
        found = found | of_source | of_source.T
    return _named(network, found)


def all_missing_edges(network: LearnedNetwork) -> list[tuple[str, str]]:
    """By name: all pairs that have no edge in the class and depend on each other all the same."""
    return _named(network, contradicted(network) & ~(network.marks | network.marks.T))


def contradicted(network: LearnedNetwork) -> Mask:
    """(V, V) pairs that depend on each other along no line, or with correlated residuals; symmetric."""
    place, owner = network.columns.names.index, network.columns.variable_of
    found = np.zeros_like(network.marks)
    for one, other in network.not_described:
        found[owner[place(one)], owner[place(other)]] = True
    for one, other in network.unexplained:
        found[network.columns.variables.index(one), network.columns.variables.index(other)] = True
    return np.asarray(found | found.T)


def _has_no_path(effects: Sequence[Effect], n_sources: int) -> bool:
    """Whether no effect of some source on the target is other than 0."""
    if n_sources > 1:  # each may have several columns: one without an effect is enough
        return any(not row.any() for row in np.abs([one.value for one in effects]).max(axis=0))
    return not any(one.value.any() for one in effects)


def _that_would_lead(steps: Mask, pairs: Mask, sources: Sequence[int], target: int) -> Mask:
    """(V, V) those of symmetric `pairs` between which an edge would make a path from a source to the target."""
    onward = steps | pairs
    onward[target] = onward[:, list(sources)] = False  # ways neither come back nor go on
    after = np.any([descendants(onward, k) for k in sources], axis=0)
    before = descendants(onward.T, target)
    after[list(sources)] = before[target] = True
    after[target] = before[list(sources)] = False
    between = pairs & before & after[:, None]
    return np.asarray(between | between.T)


def _named(network: LearnedNetwork, pairs: Mask) -> list[tuple[str, str]]:
    names = network.columns.variables
    return [(names[i], names[j]) for i, j in np.argwhere(np.triu(pairs)).tolist()]


def _errors(effects: Sequence[Effect]) -> list[Matrix]:
    return [np.nan_to_num(one.standard_error) for one in effects if one.standard_error is not None]


def _agree(some: Sequence[Matrix], others: Sequence[Matrix], share: float) -> Mask:
    """(a, b) where each of some (a, b) numbers is among the others but for this share, and the other way round."""
    one, other = np.array(some)[:, None], np.array(others)[None]
    near = np.abs(one - other) <= share * np.maximum(np.abs(one), np.abs(other))
    return np.asarray(near.any(axis=1).all(axis=0) & near.any(axis=0).all(axis=0))
