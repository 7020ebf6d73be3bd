"""The reference of a score of marks: a file of marks, a graph with hidden variables, or a class."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.graphs.pag import Known as KnownCauses
from fedbnsl.graphs.pag_formats import read_pag
from fedbnsl_server.inference.hidden_causes import MOST_VARIABLES
from fedbnsl_workbench.scoring.class_scores import Known
from fedbnsl_workbench.scoring.mark_scores import TrueMarks
from fedbnsl_workbench.scoring.reference import Reference, UnusableReferenceError


@dataclass(frozen=True, eq=False)
class MarksReference:
    """What a reference says of the k variables that it has in common with a run, hidden causes allowed."""

    kind: str  # "graph", "class" or "pag"
    common: tuple[int, ...]  # their places among the variables of the run, ascending
    true: TrueMarks
    hidden: tuple[str, ...]  # variables of the reference that count as hidden
    only_run: tuple[str, ...]


def read_marks(path: Path, variables: Sequence[str]) -> MarksReference | None:
    """The marks of a file as `pag_formats` writes and reads them; None: it is none.

    ResultError: it is damaged, or has fewer than two variables in common with a run over these.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found = read_pag(text, variables)
    except (OSError, UnicodeDecodeError):
        return None  # whoever reads it as a list of edges says what is wrong
    except ValueError as error:
        raise ResultError(
            f"{path} cannot be read as marks: {error}", remedy="Take a file as a run or another tool writes it."
        ) from None
    if found is None:
        return None
    names, marks = found
    common = tuple(k for k, name in enumerate(variables) if name in names)
    if len(common) < 2:
        raise UnusableReferenceError(f"{path} and the run have {len(common)} variable(s) in common; a score needs two")
    if others := [name for name in names if name not in variables]:
        # The marks of some of its variables are not those that it would have without the others.
        raise ResultError(
            f"{path} has marks of {', '.join(map(repr, others))}, which the run has not",
            remedy="Give the marks of variables that the run has, or the graph with all variables as source,target.",
        )
    places = [names.index(variables[k]) for k in common]
    only_run = tuple(name for name in variables if name not in names)
    return MarksReference("pag", common, TrueMarks.of_marks(marks[np.ix_(places, places)]), (), only_run)


def of_graph(reference: Reference, known: Known) -> MarksReference | str:
    """What a graph says, hidden variables taken out, or a class; or why it says nothing of marks.

    `known`: beforehand, of the variables in common.
    """
    hidden, k = (*reference.only_reference, *reference.hidden), len(reference.common)
    causes = KnownCauses.of_edges(known.allowed, known.required)
    if k > MOST_VARIABLES:
        return f"marks are told of at most {MOST_VARIABLES} variables"
    if reference.whole is not None:
        if not is_acyclic(reference.whole):
            return "the reference has a directed cycle"
        true = TrueMarks.of_graph(reference.whole, k, causes)
    elif hidden:
        return "a reference with undirected edges says nothing of variables that the run does not have"
    else:
        true = TrueMarks.of_class(known.class_of(reference.edges, reference.directed), reference.edges, causes)
    kind = "class" if reference.whole is None else "graph"
    return MarksReference(kind, reference.common, true, hidden, reference.only_run)
