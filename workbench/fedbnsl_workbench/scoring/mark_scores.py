"""How right the marks of a run are that hold if common causes may be hidden, against a graph, a class, or marks.

What a reference says of a pair is read from marks without circles (the maximal ancestral graph of a DAG, with what is
hidden taken out), or with circles where it leaves something open (a class, a partial ancestral graph). Of a run's
marks some are right, some wrong, and some open in the reference. A reference also has marks to find: those of its
partial ancestral graph.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.pag import ARROW, CIRCLE, NONE, TAIL, Known, Marks
from fedbnsl.protocol.sparse import Mask
from fedbnsl_server.inference.ancestral_graphs import of_dag, pag_of


@dataclass(frozen=True)
class Counts:
    """Of one kind of mark: how many a run tells, how many are right or open, how many there are, and were found."""

    told: int
    right: int
    open: int
    of_reference: int
    found: int


@dataclass(frozen=True, eq=False)
class TrueMarks:
    """What a reference says of k variables."""

    said: Marks  # (k, k) with circles where it leaves something open
    to_find: Marks  # (k, k) its partial ancestral graph
    none_hidden: bool  # a class says so: then no pair has a hidden cause

    @classmethod
    def of_graph(cls, dag: Mask, n_observed: int, known: Known) -> "TrueMarks":
        """Of a DAG whose first nodes are observed; `known`: beforehand, of these, as far as the DAG keeps it."""
        mag, leads = of_dag(dag, n_observed), arrows_lead(dag)[:n_observed, :n_observed]
        return cls(mag, pag_of(mag, Known(known.no_cause & ~leads, known.cause & leads)), False)

    @classmethod
    def of_class(cls, marks: Mask, dag: Mask, known: Known) -> "TrueMarks":
        """Of a class, [i, j] for i -> j and both for an open edge, and one of its DAGs."""
        return cls(as_marks(marks), cls.of_graph(dag, len(dag), known).to_find, True)

    @classmethod
    def of_marks(cls, marks: Marks) -> "TrueMarks":
        """Of a partial ancestral graph."""
        return cls(marks, marks, False)


def as_marks(graph: Mask) -> Marks:
    """(k, k) marks of a class or a DAG: tail and arrowhead where it has a direction, circles where it has none."""
    found = np.where(graph | graph.T, CIRCLE, NONE).astype(np.int8)
    arrows = graph & ~graph.T
    found[arrows], found[arrows.T] = ARROW, TAIL
    return found


def mark_scores(marks: Marks, true: TrueMarks) -> dict[str, Any]:
    """What (k, k) marks say rightly: by kind the `Counts`, ready for JSON."""
    acts = _paths((true.said == ARROW) & (true.said.T == TAIL))
    may_act = _paths((true.said != NONE) & (true.said.T != ARROW) & (true.said != TAIL))
    linked, both = true.said != NONE, (true.said == ARROW) & (true.said.T == ARROW)
    may_hide = linked & (true.said != TAIL) & (true.said.T != TAIL)
    if true.none_hidden:
        may_hide = both  # empty
    told, to_find = _kinds(marks), _kinds(true.to_find)
    # By kind, [i, j] that it is right of, and that it may be right of.
    holds: Mapping[str, tuple[Mask, Mask]] = {
        "links": (linked, linked),
        "arrowheads": (~may_act.T, ~acts.T),
        "tails": (acts.T, may_act.T),
        "acts_on": (acts, may_act),
        "hidden_cause": (both, may_hide),
    }
    return {
        kind: asdict(
            Counts(
                told=int(told[kind].sum()),
                right=int((told[kind] & right).sum()),
                open=int((told[kind] & may & ~right).sum()),
                of_reference=int(to_find[kind].sum()),
                found=int((to_find[kind] & told[kind]).sum()),
            )
        )
        for kind, (right, may) in holds.items()
    }


def _kinds(marks: Marks) -> dict[str, Mask]:
    """By kind, [i, j] that have it: an arrowhead or a tail at j; of pairs that are told without an order, i < j."""
    heads, tails = marks == ARROW, marks == TAIL
    return {
        "links": np.triu(marks != NONE),
        "arrowheads": heads,
        "tails": tails,
        "acts_on": heads & tails.T,
        "hidden_cause": np.triu(heads & heads.T),
    }


def _paths(steps: Mask) -> Mask:
    """[i, j]: steps lead from i to j."""
    found = steps.copy()
    for k in range(len(found)):
        found |= found[:, k, None] & found[k]
    return found
