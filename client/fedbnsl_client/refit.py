"""Personalised weights: ordinary least squares on the learned DAG with one site's own table. They stay at the site."""

from dataclasses import replace

import numpy as np

from fedbnsl.console.wording import counted, first_few
from fedbnsl.graphs.formats import LearnedGraph
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl_client.data.dataset import Dataset, Gaps
from fedbnsl_client.data.mapped_array import sum_over_rows
from fedbnsl_client.data.outlying import Middle, without_outlying
from fedbnsl_client.data.preparation import means_and_counts
from fedbnsl_client.losses.completed import Patterns, maximum_likelihood
from fedbnsl_client.losses.squared import SecondMoments


def personalise(dataset: Dataset, dag: Mask, *, intercept: bool) -> LearnedGraph:
    """Regress every variable of the table on its parents in the (d, d) DAG, whose order is the table's.

    Without an intercept, means count as part of what parents explain. With gaps, the moments of the table are those of
    maximum likelihood. The weights of a child are NaN, not known, where it or a parent has no value here, or where no
    row has two of them together. Of an edge with several weights, that of the largest size in root mean squares of this
    table stands for all.
    """
    own_means, counts = means_and_counts(dataset.X)
    unknown = np.zeros(len(dag), dtype=bool)
    if (counts == dataset.n_samples).all():
        loss = SecondMoments.of(dataset.X, own_means if intercept else None)
    else:
        means = own_means if intercept else np.zeros(len(dag))
        patterns = sum_over_rows(dataset.X, lambda block: np.array([Patterns.of(block - means)]))[0]
        loss = SecondMoments(maximum_likelihood(patterns, own_means=intercept))
        family = dag | np.eye(len(dag), dtype=bool)
        unknown = (family & ((patterns.pair_counts == 0.0) @ family)).any(axis=0)
    weights = loss.least_squares(dag)
    size = np.sqrt(loss.S.diagonal())
    sizes = np.abs(weights) * size[:, None] / np.where(size, size, 1.0)
    variance = np.where(unknown, np.nan, loss.residual_variance(weights))
    weights[dag & unknown] = np.nan
    return LearnedGraph(dataset.variables, dag, weights, variance, sizes=sizes)


def known_values(table: Dataset, limits: Matrix) -> tuple[Dataset, list[str]]:
    """The table without outlying values, and what to say of them at the site, a line a column; they stay there."""
    X, middle = without_outlying(table.X, limits), Middle.of(table.X)

    def gaps(block: Matrix) -> Index:
        return np.asarray(np.isnan(block).sum(axis=0))

    lost: list[int] = (sum_over_rows(X, gaps) - sum_over_rows(table.X, gaps)).tolist()
    lines: list[str] = []
    for k in np.flatnonzero(lost).tolist():
        name, (above, below) = table.variables[k], limits[:, k] * middle.spreads[k]
        ends = middle.medians[k] + np.array([-below, above])
        is_end = np.isfinite(ends)
        if table.dictionary and name in table.dictionary:
            ends[is_end] = table.dictionary[name].formula.back(ends[is_end])
        sides = (f"{side} {end:.6g}" for side, end, told in zip(("below", "above"), ends, is_end, strict=True) if told)
        lines.append(
            f"{counted(lost[k], 'value')} of {name!r} {' or '.join(sides)} counted as missing: so far apart from all "
            "others, a slip of a decimal point or of a unit is likely"
        )
    return replace(table, X=X, gaps=Gaps()), lines


def unknown_in_words(own: LearnedGraph, dataset: Dataset) -> str:
    """How many of a site's own weights are not known, and why; empty: all are."""
    columns = dataset.columns
    graph = own.joined(columns)
    unknown = np.isnan(graph.weights)
    if not unknown.any():
        return ""
    first = [int(of[0]) for of in columns.members()]  # a row has all columns of a variable, or none
    empty = means_and_counts(dataset.X)[1][first] == 0
    names = np.array(columns.variables)
    apart = unknown.any(axis=0) & ~empty & ~(graph.dag & empty[:, None]).any(axis=0)
    reasons = [f"no value of {first_few(map(repr, names[empty].tolist()))}"] * bool(empty.any())
    reasons += [f"no row with two of {first_few(map(repr, names[apart].tolist()))} and its parents"] * bool(apart.any())
    edges = counted(int(graph.dag.sum()), "edge")
    return f"{int(unknown.sum())} of {edges} have no weight here: this table has {', and '.join(reasons)}"
