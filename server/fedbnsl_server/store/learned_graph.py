"""The learned graph in a run's results: its files, and its edges by name for result.json."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbnsl.graphs import files as graph_files
from fedbnsl.graphs.formats import LearnedGraph
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph, graph_to_refit, raw_weights

_NOISY_VARIANCES = (
    "variances were computed from noisy moments of a private run, which cost no further privacy; none is below one "
    "standard deviation of its noise"
)


def write_graph(graph: ConsensusGraph, state: AdmmState, plan: Plan, variables: tuple[str, ...], folder: Path) -> None:
    """Write the files of the graph; see `fedbnsl_server.store.results` for which.

    Raises
    ------
    ResultError
        If one cannot be written.
    """
    variance = state.residual_variance
    learned = LearnedGraph(
        variables,
        graph.dag,
        graph.weights,
        variance if variance.size else None,
        variance_note=_NOISY_VARIANCES if plan.privacy else "",
    )
    graph_files.write_all(learned, folder)
    W = raw_weights(state, plan).to_dense()
    graph_files.write_weights(variables, W, folder / "weights.csv")


def named_edges(graph: ConsensusGraph, variables: Sequence[str]) -> list[dict[str, Any]]:
    """Edges by name, by decreasing absolute weight; where columns have units, by that of the weight without any."""
    units = graph.units
    shown = graph.weights if units is None else units.weights_of_columns(graph.weights)
    pairs = [(int(i), int(j)) for i, j in zip(*graph.dag.nonzero(), strict=True)]
    pairs.sort(key=lambda edge: (-abs(shown[edge]), edge))
    edges = [{"source": variables[i], "target": variables[j], "weight": float(graph.weights[i, j])} for i, j in pairs]
    if units is None:
        return edges
    return [{**edge, "standardised": float(shown[pair])} for edge, pair in zip(edges, pairs, strict=True)]


def dropped_edges(
    graph: ConsensusGraph | None, state: AdmmState | None, plan: Plan, variables: Sequence[str]
) -> list[dict[str, Any]]:
    """Edges that were left out to break cycles: before the refit, and at the end."""
    if graph is None or state is None:
        return []
    W = raw_weights(state, plan).to_dense()
    dropped = [("graph", edge) for edge in graph.dropped]
    if state.refitted is not None and plan.refit_rounds:
        before = graph_to_refit(replace(state, refitted=None), plan, EdgeMask(plan.knowledge, variables))
        dropped = [("refit", edge) for edge in before.dropped] + dropped
    return [
        {"source": variables[i], "target": variables[j], "weight": float(W[i, j]), "before": stage}
        for stage, (i, j) in dropped
    ]


def files_not_written(state: AdmmState | None, plan: Plan, outcome: str) -> dict[str, str]:
    """Files of the graph that the run has no numbers for, with the reason."""
    if state is None or state.residual_variance.size:
        return {}
    if plan.privacy is not None and not plan.moments_rounds:
        why = "releasing them would cost privacy"
    elif plan.privacy is not None and state.refitted is not None:
        why = "the noise hides them, or the released mean squares are too near feature_bounds to tell their size"
    elif outcome != "finished":
        why = f"the run ended before its {'search' if plan.moments_rounds else 'refit'}"
    else:
        why = "the plan has no refit"
    return {graph_files.LGBN: f"it needs the residual variances, which are unknown: {why}"}
