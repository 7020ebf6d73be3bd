"""A refit round at the coordinator: send the learned graph, average the sites' least-squares weights."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.refit import Answer, Task
from fedbnsl_server.algorithm.admm import AdmmState, mean_of
from fedbnsl_server.algorithm.consensus_graph import graph_to_refit
from fedbnsl_server.algorithm.influence import Compared, pairs, sampling_variance
from fedbnsl_server.inference.degenerate_columns import Unused
from fedbnsl_server.rounds.kinds import Run


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """The support of W, made acyclic; in a later refit, the graph of the one before."""
    return state, Task(graph_to_refit(state, run.plan, run.mask).as_sparse())


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report weights on another graph, or too large to be kept."""
    if not np.array_equal(answer.weights.index, task.graph.index):
        return "is no refit of the graph that was sent"
    return "" if (np.abs(answer.weights.value) <= LARGEST).all() else f"has a weight beyond {LARGEST:g}"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """The mean of weights and residual variances over the sites that contributed, or what the plan has instead."""
    rule, variances = run.rule(answers), np.stack([answer.residual_variance for answer in answers.values()])
    if rule is None:
        rows = run.weights(answers)
        whole = mean_of((answer.weights for answer in answers.values()), rows)
        weights = SparseMatrix(whole.n_variables, task.graph.index, whole.at(task.graph.index))
        variance = np.average(variances, axis=0, weights=rows)
    else:
        entries = rule(np.stack([answer.weights.value for answer in answers.values()]))
        weights = SparseMatrix(task.graph.n_variables, task.graph.index, entries)
        variance = rule(variances)
    # Nothing is left of them, and no parent explains it: a level that occurs nowhere.
    constant = np.flatnonzero((variance == 0.0) & ~weights.to_dense().any(axis=0)).tolist()
    if state.units is not None:
        support = task.graph.support()
        weights = SparseMatrix.on_support(state.units.weights_of_tables(weights.to_dense()), support)
        variance = variance * np.square(state.units.scales)
    return replace(
        state,
        refitted=weights.as_float32() if run.plan.value_type == "float32" else weights,
        residual_variance=variance,
        unused=Unused(tuple(sorted({*state.unused.constant, *constant}))),
    )


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Residual variances v by their logarithms, whose sampling variance is 2 / rows, and weights.

    That of the weight of i -> j is at most v_j / v_i / rows.
    """
    variances = np.stack([answer.residual_variance for answer in answers.values()])
    typical = np.median(variances, axis=0)
    typical = np.maximum(typical, np.finfo(np.float64).tiny)  # a variable that its parents determine
    by_rows = sampling_variance(run.rows(answers))
    edges = pairs(task.graph.support())
    weights = np.stack([answer.weights.value for answer in answers.values()])
    size = np.sqrt(typical[edges[:, 0]]) / np.sqrt(typical[edges[:, 1]])
    logarithms = np.log(np.maximum(variances, 1e-12 * typical))
    one = np.repeat(np.arange(len(typical))[:, None], 2, axis=1)
    return [
        Compared(weights * size, by_rows, edges, one_vote=not run.plan.weighs_rows),
        Compared(logarithms, 2.0 * by_rows, one, one_vote=not run.plan.weighs_rows),
    ]
