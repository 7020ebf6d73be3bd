"""What result.json says of cause and effect if common causes may be hidden."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedbnsl.graphs.pag import ARROW, CIRCLE, MARK_NAMES, NONE, TAIL, Marks, towards_arrow
from fedbnsl.plan.columns import Columns
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.inference.hidden_adjustment import Adjustments
from fedbnsl_server.results.sentences import note

_NUMBERS = {name: mark for mark, name in MARK_NAMES.items()}
_SAYS = {
    (TAIL, ARROW): "acts_on",
    (CIRCLE, ARROW): "acts_on_or_hidden",
    (ARROW, ARROW): "hidden_cause",
    (CIRCLE, CIRCLE): "linked",
}


def hidden_causes_of(
    confidence: Confidence | None, graph: ConsensusGraph | None, columns: Columns
) -> dict[str, Any] | None:
    """The links of the partial ancestral graph, and edges of the graph that are none there; None: not told."""
    if confidence is None or graph is None or not confidence.pag.size:
        return None
    marks, names, dag = confidence.pag, columns.variables, columns.joined(graph.dag)
    drawn = bool(confidence.draws and confidence.pag_counts.size)
    links: list[dict[str, Any]] = []
    untested = {frozenset(pair) for pair in confidence.pag_untested.tolist()}
    for i, j in np.argwhere(np.triu(marks != NONE)).tolist():
        a, b = towards_arrow(marks, i, j)
        of_source, of_target = int(marks[b, a]), int(marks[a, b])
        shares = {
            "adjacent": confidence.draws - int(confidence.pag_counts[a, b, NONE]),
            "mark_source": int(confidence.pag_counts[b, a, of_source]),
            "mark_target": int(confidence.pag_counts[a, b, of_target]),
            "hidden_cause": int(confidence.pag_headed[a, b]),
        } if drawn else {}  # fmt: skip
        links.append(
            {
                "source": names[a],
                "target": names[b],
                "mark_source": MARK_NAMES[of_source],
                "mark_target": MARK_NAMES[of_target],
                "says": note(
                    "link_untested" if frozenset((a, b)) in untested else _SAYS[of_source, of_target],
                    a=names[a],
                    b=names[b],
                ),
                "bootstrap": {name: count / confidence.draws for name, count in shares.items()} or None,
            }
        )
    gone = np.argwhere(np.triu((dag | dag.T) & (marks == NONE))).tolist()
    return {
        "links": links,
        "gone": [[names[i], names[j]] for i, j in gone],
        "untested": [[names[i], names[j]] for i, j in confidence.pag_untested.tolist()],
        "legal": confidence.pag_is_legal,
        "effects": list(_effects(confidence, names)) if confidence.no_path_counts.size else None,
        "no_path": list(_no_path(confidence, names)) if confidence.no_path_counts.size else None,
    }


def _effects(confidence: Confidence, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    adjustments = Adjustments(confidence.pag)
    for (a, b), count in zip(confidence.adjusted.tolist(), confidence.adjusted_counts.tolist(), strict=True):
        yield {
            "source": names[a],
            "target": names[b],
            "adjusted_for": [names[k] for k in adjustments.of([a], b).given],
            "share": count / confidence.draws,
        }


def _no_path(confidence: Confidence, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Those that not all draws agree with."""
    shares = confidence.no_path_counts / confidence.draws
    none = ~Adjustments(confidence.pag).may_act() & ~np.eye(len(names), dtype=bool)
    for i, j in np.argwhere(none & (shares < 1.0)).tolist():
        yield {"source": names[i], "target": names[j], "share": float(shares[i, j])}


def marks_of(told: Mapping[str, Any], variables: Sequence[str]) -> Marks:
    """(V, V) marks that a result tells."""
    position = {name: k for k, name in enumerate(variables)}
    marks: Marks = np.full((len(position),) * 2, NONE, dtype=np.int8)
    for one in told["links"]:
        i, j = position[one["source"]], position[one["target"]]
        marks[j, i], marks[i, j] = _NUMBERS[one["mark_source"]], _NUMBERS[one["mark_target"]]
    return marks
