"""Personalised weights: ordinary least squares on the learned DAG with one site's own table. They stay at the site."""

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.graphs.formats import LearnedGraph
from fedbnsl.protocol.sparse import Mask
from fedbnsl_client.data.dataset import MIN_ROWS, Dataset
from fedbnsl_client.data.mapped_array import sum_over_rows
from fedbnsl_client.data.preparation import column_means, values_by_column
from fedbnsl_client.losses.completed import Patterns, maximum_likelihood
from fedbnsl_client.losses.squared import SecondMoments


def personalise(dataset: Dataset, dag: Mask, *, intercept: bool) -> LearnedGraph:
    """Regress every variable of the table on its parents in the (d, d) DAG, whose order is the table's.

    Without an intercept, means count as part of what parents explain. With gaps, the moments of the table are those of
    maximum likelihood if there is an intercept; without one, those of its rows without a gap. Of an edge with several
    weights, that of the largest size in root mean squares of this table stands for all.
    """
    n_values = values_by_column(dataset.X)
    if n_values is not None and intercept:
        means = column_means(dataset.X, n_values)
        patterns = sum_over_rows(dataset.X, lambda block: np.array([Patterns.of(block - means)]))[0]
        loss = SecondMoments(maximum_likelihood(patterns))
    else:
        X = dataset.complete_cases().X
        if len(X) < MIN_ROWS <= dataset.n_samples:
            raise DataError(
                f"{len(X)} of {dataset.n_samples} rows are without a missing value; a refit without an intercept "
                f"needs {MIN_ROWS}",
                remedy="Refit with an intercept, which uses rows with gaps, too, or leave out columns that are often "
                "empty.",
            )
        loss = SecondMoments.of(X, column_means(X) if intercept else None)
    weights = loss.least_squares(dag)
    size = np.sqrt(loss.S.diagonal())
    sizes = np.abs(weights) * size[:, None] / np.where(size, size, 1.0)
    return LearnedGraph(dataset.variables, dag, weights, loss.residual_variance(weights), sizes=sizes)
