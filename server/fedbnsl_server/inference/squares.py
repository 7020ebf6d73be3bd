"""What squares of numbers say after a search with them: which numbers bend, along what, and lines along the edges.

Squares of all numbers are in the moments, each in one block with its number. A result tells straight lines along the
edges, and of numbers that bend a parabola (`inference.curves`). All of it follows from what was released.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.inference.confidence import Confidence, Evidence, confidence_of
from fedbnsl_server.inference.curves import Effect, Points, effects_of
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.hinges import HingeMoments
from fedbnsl_server.search.linear_network import LinearNetwork, fitted
from fedbnsl_server.search.private.noisy_class_search import Learned

# Of the square q of a standard normal z, E[q^2 z^2] = 5: so much more than by E[q^2] its part of what a line leaves
# counts in the error of the line.
_UNEVEN = 5.0
# Of a change along a parabola: about what noisy centres, and clipping of squares and records, add to its error.
_OF_CLIPPING = 0.05


@dataclass(frozen=True, eq=False)
class Bends:
    """A graph found in D columns, the last ones squares."""

    learned: Learned
    mask: EdgeMask  # of the D columns
    u: int  # columns that are no squares
    class_of: Callable[[Mask], Mask]  # as in `Again`
    said: Mask  # (u,) columns of numbers that are said to bend

    @cached_property
    def lines(self) -> FoundGraph:
        """The graph with straight lines, by the moments that it says."""
        found, network = self.learned.graph, self._of_lines
        return FoundGraph(found.dag, network.weights, network.residual_variance, found.score)

    @property
    def share_left(self) -> Matrix:
        """(u,) of what straight lines leave of a column, what squares leave, too."""
        by_lines, all_parts = self._of_lines.residual_variance, self.learned.graph.residual_variance[: self.u]
        return np.minimum(all_parts / np.maximum(by_lines, np.finfo(float).tiny), 1.0)

    @cached_property
    def bent(self) -> Mask:
        """(u,) columns that bend."""
        known = self.mask.of_variables.allowed
        return self._moments.bent(self.learned.graph.dag, self.said, known | known.T, self._counted)

    def effects(self, scales: Matrix) -> tuple[Effect, ...]:
        """Along the edges of the columns that bend; `scales`: (u,) their units, in those of the tables."""
        dag, moments = self.learned.graph.dag, self._moments.over(self._moments.with_hinges_of(self.bent))
        found = effects_of(moments, dag, self.class_of(dag), self._counted, scales, Points.of_squares())
        return tuple(
            one._replace(error=tuple(np.hypot(one.error, _OF_CLIPPING * np.abs(one.change)).tolist()), p_straight=None)
            for one in found
        )

    def of_lines(self, tests: Confidence) -> Confidence:
        """The tests of the graph, with lines and their errors in place of coefficients of all columns.

        A line's residual is a sum of the D residuals of the graph, of which the noise is known. About a line through a
        parabola, records scatter unevenly.
        """
        learned, u, network = self.learned, self.u, self._of_lines
        everything = fitted(learned.graph.dag, learned.moments, self.mask.columns)
        parts = everything.back[:, :u] @ (np.eye(u) - network.weights)
        units = np.linalg.norm(everything.units(learned.accuracy)[:, None] * parts, axis=0)
        evidence = Evidence(learned.moments[:u, :u], replace(learned.accuracy, scales=units))
        lines = confidence_of(learned.graph.dag, evidence, self._columns, None)
        uneven = np.sqrt(1.0 + (_UNEVEN - 1.0) * (1.0 - self.share_left))[lines.edges[:, 1]]
        return tests.over(np.arange(u)).with_lines_of(replace(lines, standard_error=lines.standard_error * uneven))

    @property
    def _columns(self) -> Columns:
        return self.mask.columns.over(np.arange(self.u))

    @cached_property
    def _of_lines(self) -> LinearNetwork:
        return fitted(self.learned.graph.dag, self.learned.moments[: self.u, : self.u], self._columns)

    @property
    def _counted(self) -> float:
        """Records that would tell as much without noise."""
        return self.learned.seen.error**-2

    @cached_property
    def _moments(self) -> HingeMoments:
        columns, place = self.mask.columns, np.arange(len(self.mask.allowed))
        first = np.unique(columns.variable_of, return_index=True)[1][columns.variable_of]
        return HingeMoments.of(self.learned.moments, columns, np.where(place < self.u, place, first))
