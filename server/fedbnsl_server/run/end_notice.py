"""What the sites are told when a run is over."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedbnsl.errors import DivergenceError, FedbnslError, InterruptedRunError, QuorumLostError, ResultError
from fedbnsl.graphs.pag import NONE
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Finished, LinkMarks
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import consensus_graph
from fedbnsl_server.inference.confidence import Confidence

_PUBLIC_REASONS: list[tuple[type[FedbnslError], str]] = [
    (InterruptedRunError, "the coordinator was interrupted; join again if it continues the run"),
    (QuorumLostError, "too few sites answered in time"),
    (DivergenceError, "the iteration diverged: its numbers are no longer finite"),
    (ResultError, "the coordinator could not write its results"),
]


def end_of(state: AdmmState, plan: Plan, variables: tuple[str, ...]) -> Finished:
    """What the sites are told when all rounds are complete."""
    graph = consensus_graph(state, plan, plan.edge_mask(variables))
    undecided = np.flatnonzero(graph.withdrawn[graph.between_variables])
    return Finished(
        graph.as_sparse(),
        draws=graph.drawn,
        undecided=tuple(undecided.tolist()),
        directed_by=tuple(graph.directed_by.values()),
        marks=_marks(state.confidence),
    )


def _marks(confidence: Confidence | None) -> LinkMarks | None:
    """As result.json has them: of its links alone."""
    if confidence is None or not confidence.pag.size:
        return None
    pag, counts = confidence.pag, confidence.pag_counts
    pairs: list[list[int]] = np.argwhere(np.triu(pag != NONE)).tolist()
    links = tuple((i, j, int(pag[j, i]), int(pag[i, j])) for i, j in pairs)
    if not (confidence.draws and counts.size):
        return LinkMarks(links)
    same = tuple((int(counts[j, i, at_i]), int(counts[i, j, at_j])) for i, j, at_i, at_j in links)
    return LinkMarks(links, confidence.draws, same)


def told(end: Finished, result: Mapping[str, Any], network: str) -> Finished:
    """The same with what the written result says against its graph, and with the network that sites score."""
    return replace(end, search_ended_early=bool(result.get("verdict", {}).get("incomplete")), network=network)


def public_reason(error: Exception) -> str:
    """What the sites are told: fixed sentences, because an error's text may hold paths of this machine."""
    for kind, sentence in _PUBLIC_REASONS:
        if isinstance(error, kind):
            return sentence
    return "an unexpected error at the coordinator"
