"""Effects that a private run does not tell: those beyond what is possible, and those of withheld coefficients.

A coefficient is withheld where noise took it beyond what is possible (`largest_changes`). An effect rests on one if it
differs with 0 in its place.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

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


def _errors(effects: Sequence[Effect]) -> list[Matrix]:
    return [np.nan_to_num(one.standard_error) for one in effects if one.standard_error is not None]


def _agree(some: Sequence[Matrix], others: Sequence[Matrix], share: float) -> Mask:
    """(a, b) where each of some (a, b) numbers is among the others but for this share, and the other way round."""
    one, other = np.array(some)[:, None], np.array(others)[None]
    near = np.abs(one - other) <= share * np.maximum(np.abs(one), np.abs(other))
    return np.asarray(near.any(axis=1).all(axis=0) & near.any(axis=0).all(axis=0))
