"""Personalised weights: ordinary least squares on the learned DAG with one site's own table. They stay at the site."""

import numpy as np

from fedbnsl.graphs.formats import LearnedGraph
from fedbnsl.protocol.sparse import Mask
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.preparation import column_means
from fedbnsl_client.losses.squared import SecondMoments


def personalise(dataset: Dataset, dag: Mask, *, intercept: bool) -> LearnedGraph:
    """Regress every variable of the table on its parents in the (d, d) DAG, whose order is the table's.

    Without an intercept, means count as part of what parents explain. Of an edge with several weights, that of the
    largest size in root mean squares of this table stands for all.
    """
    centre = column_means(dataset.X) if intercept else None
    loss = SecondMoments.of(dataset.X, centre)
    weights = loss.least_squares(dag)
    size = np.sqrt(loss.S.diagonal())
    sizes = np.abs(weights) * size[:, None] / np.where(size, size, 1.0)
    return LearnedGraph(dataset.variables, dag, weights, loss.residual_variance(weights), sizes=sizes)
