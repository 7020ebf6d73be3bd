"""A moments round at a site: the exact second moments of the pairs that the task needs."""

from dataclasses import replace
from typing import cast

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graphs.family_moments import asked_moments
from fedbnsl.protocol.matrix_codec import as_sent
from fedbnsl.protocol.messages import LocalUpdate, RoundTask
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds.moments import Answer, Task
from fedbnsl_client.data.outlying import some_values
from fedbnsl_client.losses.squared_residuals import products_of_squares
from fedbnsl_client.rounds.kinds import LocalRounds, check_size


class Rounds(LocalRounds):
    """Exact second moments, for plans without privacy."""

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Refuse weights that give no usable residuals."""
        residuals = cast(Task, task.content).residuals
        if residuals is not None:
            check_size(task, residuals.value)
            if (residuals.to_dense().diagonal() != 0.0).any():
                raise RemoteProtocolError(f"the task of round {task.round} has a column in its own residual")

    def answer(self, task: RoundTask) -> Answer:
        """Those that the families of the neighbours need."""
        problem, content = self.problem, cast(Task, task.content)
        neighbours, value_type = content.neighbours.support(), problem.plan.value_type
        asked = asked_moments(neighbours, problem.mask)
        told = Answer(as_sent(problem.loss.S[asked], value_type))
        if content.residuals is not None:
            told = replace(told, squares=as_sent(self._squares(content.residuals)[asked], value_type))
            if problem.plan.tells_means:
                told = replace(told, means=problem.means)
        if not problem.plan.sends_between_rows:
            return told
        between = problem.between_rows
        return replace(told, between=as_sent(between.products[asked], value_type), n_row_pairs=between.n_pairs)

    def _squares(self, weights: SparseMatrix) -> Matrix:
        """Of a large table, those of 100,000 to 200,000 rows, evenly spread.

        Zeros beside levels where the site keeps counts of few rows to itself: weights can be such that one product
        tells the counts of all combinations of the levels in it.
        """
        dictionary = self.problem.plan.dictionary
        if self.problem.least_cell > 1 and any(one.has_levels for one in dictionary.root.values()):
            return np.zeros((weights.n_variables, weights.n_variables))
        X, units = some_values(self.problem.X), self.problem.units
        preparation = self.problem.plan.preparation
        if preparation is not None and preparation.intercept != "none":
            there = ~np.isnan(X)
            X = X - np.where(there, X, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        return products_of_squares(X if units is None else X / units.scales, weights.to_dense())
