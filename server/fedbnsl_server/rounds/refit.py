"""A refit round at the coordinator: send the learned graph, average the sites' least-squares weights."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.rounds.refit import Answer, Task
from fedbnsl.sparse import SparseMatrix
from fedbnsl_server.algorithm.admm import AdmmState, mean_of
from fedbnsl_server.algorithm.consensus_graph import graph_to_refit
from fedbnsl_server.rounds.kinds import Run


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """The support of W, made acyclic; in a later refit, the graph of the one before."""
    return state, Task(graph_to_refit(state, run.plan, run.mask).as_sparse())


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Weights on another graph."""
    same = np.array_equal(answer.weights.index, task.graph.index)
    return "" if same else "is no refit of the graph that was sent"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """The mean of weights and residual variances over the sites that contributed."""
    support = task.graph.support()
    mean = SparseMatrix.on_support(mean_of(answer.weights for answer in answers.values()), support)
    return replace(
        state,
        refitted=mean.as_float32() if run.plan.value_type == "float32" else mean,
        residual_variance=np.mean([answer.residual_variance for answer in answers.values()], axis=0),
    )
