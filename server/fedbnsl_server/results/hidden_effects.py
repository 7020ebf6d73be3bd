"""How far a total effect is told if common causes may be hidden: by adjustment, where the marks identify it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from fedbnsl.graphs.class_members import descendants
from fedbnsl.graphs.pag import ARROW, NONE, Marks
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.inference.effects import Effect, adjusted
from fedbnsl_server.inference.hidden_adjustment import Adjustment, Adjustments
from fedbnsl_server.results.learned_network import LearnedNetwork
from fedbnsl_server.results.withheld_effects import contradicted, missing_edges, told_effects, unseen_pairs

SURE = 0.9
"""Least share of the draws whose marks allow the same adjustment.

`fedbnsl bench hidden` counts how many of these effects are right.
"""


@dataclass(frozen=True)
class IfHidden:
    """The verdict on an effect, what is adjusted for, and in which share of the draws that may be; None: not counted.

    `because`: why it is not identified, or not known.
    """

    verdict: Literal["identified", "not identified", "no path", "not known"]
    given: tuple[int, ...] = ()
    share: float | None = None
    because: Literal["", "draws", "functions", "illegal", "unseen", "missing_edges", "open", "invisible", "no_set"] = ""
    edge: tuple[int, int] | None = None  # of a source, where that is why


class EffectsIfHidden:
    """Effects in a network whose result has a partial ancestral graph."""

    def __init__(self, network: LearnedNetwork, pag: Marks) -> None:
        self._network, self._pag = network, pag

    def of(self, sources: Sequence[int], target: int) -> IfHidden:
        """How far the joint effect of some variables on another one is told."""
        network = self._network
        if not network.pag_is_legal:
            return IfHidden("not known", because="illegal")
        found = self._adjustments.of(sources, target)
        if network.function(sources, target) or self._are_determined(sources, found.given):
            return IfHidden("not identified", because="functions")
        if found.verdict == "not identified":
            return IfHidden(found.verdict, because=found.because, edge=found.edge)
        if self._rests_on_unseen(sources, target, found):
            return IfHidden("not known", found.given, because="unseen")
        if self._lacks_edges(sources, target, found):
            return IfHidden("not known", because="missing_edges")
        if found.verdict == "no path":
            share = None if network.adjustable is None else min(network.no_path.get((k, target), 1.0) for k in sources)
            if share is not None and share < SURE:
                return IfHidden("not identified", share=share, because="draws")
            return IfHidden("no path", share=share)
        (first, *more), drawn = sources, network.adjustable
        share = None if more or drawn is None else drawn.get((first, target), 0.0)
        if share is not None and share < SURE:
            return IfHidden("not identified", found.given, share, because="draws")
        return IfHidden("identified", found.given, share)

    def _are_determined(self, sources: Sequence[int], given: Sequence[int]) -> bool:
        """Whether sources are functions of what is adjusted for: then no row tells what else they do."""
        names, fixed = self._network.columns.variables, {*sources, *given}
        return any(
            {names[k] for k in fixed} >= set(one) and {names[k] for k in sources} & set(one)
            for one in self._network.functions
        )

    def _rests_on_unseen(self, sources: Sequence[int], target: int, found: Adjustment) -> bool:
        """Whether no row has two variables of the question, or two between which an edge would make a path."""
        return bool(unseen_pairs(self._network, sources, target, [self._as_found(sources, target, found)]))

    def _lacks_edges(self, sources: Sequence[int], target: int, found: Adjustment) -> bool:
        """Whether a link that the data ask for and the marks lack may turn it.

        That an edge is visible rests on links that are not there: any between what leads to source or target counts.
        """
        effects, linked = [self._as_found(sources, target, found)], self._pag != NONE
        onward = linked & (self._pag.T != ARROW)
        if found.verdict == "no path":
            return bool(missing_edges(self._network, sources, target, effects, onward, linked))
        relevant = np.any([descendants(onward.T, k) for k in (*sources, target)], axis=0)
        relevant[[*sources, target]] = True
        return bool((contradicted(self._network) & ~linked & relevant & relevant[:, None]).any())

    def _as_found(self, sources: Sequence[int], target: int, found: Adjustment) -> Effect:
        """The effect by adjustment; 0 without a path."""
        effect = self._in(self._network.covariance, sources, target, found.given)
        return replace(effect, value=np.zeros_like(effect.value)) if found.verdict == "no path" else effect

    def value(self, sources: Sequence[int], target: int, given: Sequence[int]) -> Effect:
        """The effect by adjustment for `given`; NaN where it is not told."""
        network, members = self._network, self._network.columns.members()
        without = network.without_withheld
        (told,) = told_effects(
            network,
            [self._in(network.covariance, sources, target, given)],
            None if without is None else [self._in(without, sources, target, given)],
            np.concatenate([members[k] for k in sources]),
            members[target],
        )
        return told

    def _in(self, covariance: Matrix, sources: Sequence[int], target: int, given: Sequence[int]) -> Effect:
        network, columns = self._network, self._network.columns
        found = adjusted(covariance, sources, target, given, columns, network.precision)
        asked = {columns.variables[k] for k in (*sources, target, *given)}
        owner = dict(zip(columns.names, columns.variable_of.tolist(), strict=True))
        bent = network.not_described_for(sources, target) or any(
            {columns.variables[owner[one]] for one in pair} <= asked for pair in network.not_described
        )
        # How rows depend on each other is known of residuals of the network's own families alone.
        if bent or (network.precision is not None and network.precision.others):
            return replace(found, standard_error=None)
        return found

    @cached_property
    def _adjustments(self) -> Adjustments:
        return Adjustments(self._pag)
