"""The learned graph in a run's results: its files, and its edges by name for result.json."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedbnsl.files.durable import write_text
from fedbnsl.graphs import files as graph_files
from fedbnsl.graphs.directed_by import DirectedBy, Source
from fedbnsl.graphs.formats import LearnedGraph, lgbn_json, strength_csv
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.largest_changes import largest_changes, told
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph, graph_to_refit, raw_weights
from fedbnsl_server.results.confidence import sizes, to_no_units, unidentified

_NOISY_VARIANCES = (
    "variances were computed from noisy moments of a private run, which cost no further privacy; none is below one "
    "standard deviation of its noise"
)


def write_graph(
    graph: ConsensusGraph,
    state: AdmmState,
    plan: Plan,
    variables: tuple[str, ...],
    folder: Path,
    families: Mapping[str, str],
) -> None:
    """Write the files of the graph; see `fedbnsl_server.results.results` for which.

    `families`: by variable between which the graph is, what it is given its parents, if that is not linear.
    """
    learned = replace(_learned(graph, state, plan), families=_by_column(graph, families))
    graph_files.write_all(learned, folder, columns=graph.mask.columns)
    W = told(raw_weights(state, plan).to_dense(), largest_changes(plan, graph.mask.columns))
    graph_files.write_weights(variables, W, folder / "weights.csv")
    if state.confidence is not None and state.confidence.draws:
        shares = state.confidence.shares(graph.mask.columns.variables)
        write_text(folder / "strength.csv", strength_csv(shares))


def network_content(
    graph: ConsensusGraph, state: AdmmState, plan: Plan, families: Mapping[str, str]
) -> dict[str, Any] | None:
    """What lgbn.json holds of the graph; None: it is not written. See `write_graph` for `families`."""
    learned = replace(_learned(graph, state, plan), families=_by_column(graph, families))
    return json.loads(lgbn_json(learned)) if learned.is_network else None


def _by_column(graph: ConsensusGraph, families: Mapping[str, str]) -> dict[str, str]:
    columns = graph.mask.columns
    of_columns: list[int] = columns.variable_of.tolist()
    named = [(name, columns.variables[v]) for name, v in zip(columns.names, of_columns, strict=True)]
    return {name: families[variable] for name, variable in named if variable in families}


def _learned(graph: ConsensusGraph, state: AdmmState, plan: Plan) -> LearnedGraph:
    variance, columns = state.residual_variance, graph.mask.columns
    marks, shares = (None, None) if state.confidence is None else state.confidence.pag_with_shares()
    return LearnedGraph(
        columns.names,
        graph.dag,
        graph.told,
        variance if variance.size else None,
        variance_note=_NOISY_VARIANCES if plan.privacy else "",
        marks=columns.spread(graph.class_marks),
        undecided=columns.spread(graph.undecided),
        shares={} if graph.drawn is None else graph.drawn.shares(graph.between_variables, columns.variables),
        directed_by={(columns.variables[i], columns.variables[j]): by for (i, j), by in graph.directed_by.items()},
        limits=None
        if graph.largest is None
        else np.where(graph.withheld, np.copysign(graph.largest, graph.weights), 0.0),
        sizes=sizes(graph.told, to_no_units(graph, state.confidence), unidentified(state.confidence, graph)),
        pag=marks,
        pag_shares=shares,
    )


def named_edges(
    graph: ConsensusGraph, columns: Columns, no_units: Matrix | None = None, unknown: Mask | None = None
) -> list[dict[str, Any]]:
    """Edges between variables, by decreasing absolute weight; where columns have units, of the weight without any.

    An edge of a variable with several columns has the weight of largest size, whose levels it names, and all of them
    under `coefficients`. Source and target are those in the DAG of lgbn.json, of an undirected edge too: all numbers
    are of this direction.

    (d, d) `no_units` multiplies a weight so that it has no unit (None: weights have no other form). An edge has a
    weight that is `unknown` only if it has no other (None: all are known).
    """
    shown = graph.told if no_units is None else graph.told * no_units
    members, places = columns.members(), columns.places(sizes(graph.told, no_units, unknown))

    def coefficient(i: int, j: int) -> dict[str, Any]:
        without = {} if no_units is None else {"standardised": float(shown[i, j])}
        return {
            "source": columns.names[i], "target": columns.names[j], "weight": float(graph.told[i, j]), **without
        }  # fmt: skip

    edges: list[tuple[float, tuple[int, int], dict[str, Any]]] = []
    for (v, w), directed_by in graph.directed_by.items():
        largest = divmod(int(places[v, w]), len(columns.names))
        levels = columns.levels(int(places[v, w]))
        edge = {
            **coefficient(*largest),
            "source": columns.variables[v],
            "target": columns.variables[w],
            "directed": not graph.marks[w, v],
            "directed_by": directed_by,
            **{key: level for key, level in zip(("source_level", "target_level"), levels, strict=True) if level},
        }
        if evidence := graph.directed.evidence.get((v, w)):
            edge["evidence"] = dict(evidence)
        pairs = [(i, j) for i in members[v].tolist() for j in members[w].tolist()]
        if len(pairs) > 1:
            edge["coefficients"] = [coefficient(*pair) for pair in pairs]
        edges.append((-abs(float(np.nan_to_num(shown[largest]))), (v, w), edge))
    return [edge for _, _, edge in sorted(edges, key=lambda one: one[:2])]


def directions(edges: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many of the named edges are directed by whom, and how many by none; further sources where they direct any."""
    counted = Counter(edge["directed_by"] for edge in edges)
    return {who: counted[who] for who in get_args(DirectedBy) if counted[who] or who not in get_args(Source)}


def dropped_edges(
    graph: ConsensusGraph | None, state: AdmmState | None, plan: Plan, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Edges that were left out to break cycles: before the refit, and at the end."""
    if graph is None or state is None:
        return []
    columns = plan.columns(names)
    of_columns = told(raw_weights(state, plan).to_dense(), largest_changes(plan, columns))
    of_run = of_columns if state.units is None else state.units.weights_of_columns(of_columns)
    W, variables = of_columns.ravel()[columns.places(of_run)], columns.variables
    dropped = [("graph", edge) for edge in graph.dropped]
    if state.refitted is not None and plan.refit_rounds:
        before = graph_to_refit(replace(state, refitted=None), plan, plan.edge_mask(names))
        dropped = [("refit", edge) for edge in before.dropped] + dropped
    return [
        {"source": variables[i], "target": variables[j], "weight": float(W[i, j]), "before": stage}
        for stage, (i, j) in dropped
    ]


def files_not_written(
    graph: ConsensusGraph | None, state: AdmmState | None, plan: Plan, outcome: str
) -> dict[str, str]:
    """Files of the graph that the run has no numbers for, with the reason."""
    if state is None or graph is None:
        return {}
    if state.residual_variance.size:
        whole = _learned(graph, state, plan).is_network
        return {} if whole else {graph_files.LGBN: "one of the weights or residual variances is not finite"}
    if plan.privacy is not None and not plan.moments_rounds:
        why = "releasing them would cost privacy"
    elif plan.privacy is not None and state.refitted is not None:
        why = "the noise hides them, or the released mean squares are too near feature_bounds to tell their size"
    elif outcome != "finished":
        why = f"the run ended before its {'search' if plan.moments_rounds else 'refit'}"
    else:
        why = "the plan has no refit"
    return {graph_files.LGBN: f"it needs the residual variances, which are unknown: {why}"}
