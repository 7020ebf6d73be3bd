"""A round that looks for curves at a site: how residuals of children vary with steps of other columns."""

from typing import cast

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graphs.graph import topological_order
from fedbnsl.protocol.matrix_codec import as_sent
from fedbnsl.protocol.messages import LocalUpdate, RoundTask
from fedbnsl.rounds.curvature import STEPS, Answer, Task, pairs_of
from fedbnsl.rounds.hinges import KNOTS
from fedbnsl_client.data.outlying import some_values
from fedbnsl_client.losses.curvature import Hinged, curvature_sums
from fedbnsl_client.rounds.kinds import LocalRounds, check_edges


class Rounds(LocalRounds):
    """Sums over the rows, of a large table over 100,000 to 200,000 of them, evenly spread."""

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Refuse a graph with a cycle, or with edges that the plan forbids."""
        check_edges(task, cast(Task, task.content).graph.support(), self.problem.mask)
        try:
            topological_order(self.problem.mask.columns.joined(cast(Task, task.content).graph.support()))
        except ValueError:
            raise RemoteProtocolError(f"the task of round {task.round} has a graph with a cycle") from None

    def answer(self, task: RoundTask) -> Answer:
        """Those of all pairs that the graph asks for."""
        content = cast(Task, task.content)
        problem, dag = self.problem, content.graph.support()
        columns = problem.mask.columns
        pairs = pairs_of(dag, columns, problem.plan.numbers(columns))
        X = some_values(problem.X)
        there = ~np.isnan(X)
        n = np.maximum(there.sum(axis=0), 1)
        X = X - np.where(there, X, 0.0).sum(axis=0) / n
        scale = np.ones(X.shape[1]) if problem.units is None else problem.units.scales
        if problem.plan.preparation is None or problem.plan.preparation.scale == "none":
            own = np.sqrt(np.square(np.where(there, X, 0.0)).sum(axis=0) / n)
            scale = np.where(own > 0.0, own, 1.0)
        hinged = Hinged.of(X / scale, content.hinged, np.array(KNOTS))
        sums = curvature_sums(hinged, dag, pairs, np.array(STEPS))
        return Answer(as_sent(sums.ravel(), problem.plan.value_type).reshape(sums.shape))
