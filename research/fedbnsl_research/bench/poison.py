"""Sites that send something wrong, on purpose or by mistake, for figures and tests of one site's influence."""

from dataclasses import replace
from typing import cast

import numpy as np

from fedbnsl.graphs.family_moments import asked_moments
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.protocol.messages import Content, LocalUpdate, RoundTask
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import admm, moments, refit
from fedbnsl_client.participant import Participant
from fedbnsl_workbench.tables.synthetic import random_weights, sample

CONSTANT = 0.5


class ConstantWeights(Participant):
    """Sends the same weight for every edge, in all rounds of weights; its moments are honest."""

    def handle(self, task: RoundTask) -> LocalUpdate:
        """Its honest answer, with other weights."""
        update = super().handle(task)
        return replace(update, content=_with_weights(update.content, CONSTANT))


class Garbage(Participant):
    """Sends weights and second moments of another network, in a run without privacy and prior knowledge."""

    def handle(self, task: RoundTask) -> LocalUpdate:
        """Its honest answer, with other weights and moments."""
        update, rng = super().handle(task), np.random.default_rng(7)
        if isinstance(task.content, moments.Task):
            d = task.content.neighbours.n_variables
            X = sample(random_weights(d, 2 * d, rng), 50 * d, rng)
            mask = EdgeMask(Knowledge(), [str(k) for k in range(d)])
            wrong = (X.T @ X / len(X))[asked_moments(task.content.neighbours.support(), mask)]
            return replace(update, content=replace(cast(moments.Answer, update.content), moments=wrong))
        d = update.content.weights.n_variables if isinstance(update.content, admm.Answer | refit.Answer) else 0
        return replace(update, content=_with_weights(update.content, random_weights(d, 2 * d, rng) if d else 0.0))


def swapped(X: Matrix, W: Matrix) -> Matrix:
    """A table with two columns in each other's place: the two ends of the largest effect in W."""
    i, j = np.unravel_index(np.abs(W).argmax(), W.shape)
    order = np.arange(len(W))
    order[[i, j]] = j, i
    return X[:, order]


def _with_weights(content: Content, W: Matrix | float) -> Content:
    """The content with these weights wherever it has weights: off the diagonal, or on the graph of a refit."""
    if isinstance(content, admm.Answer | refit.Answer):
        d = content.weights.n_variables
        dense = np.where(np.eye(d, dtype=bool), 0.0, W)
        if isinstance(content, admm.Answer):
            return admm.Answer(SparseMatrix.from_dense(dense))
        return replace(content, weights=SparseMatrix.on_support(dense, content.weights.support()))
    return content
