"""A partial ancestral graph as text for other tools: each edge has a mark at either end, see `pag`.

pag.csv          pcalg, as its functions take and give a matrix of type amat.pag
pag-tetrad.txt   Tetrad, and causal-learn's reader of its files
pag-dagitty.txt  dagitty.net and R's dagitty
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fedbnsl.graphs.csv_names import as_cell
from fedbnsl.graphs.formats import as_csv, dagitty_ids, dagitty_quoted
from fedbnsl.graphs.pag import ARROW, CIRCLE, NONE, TAIL, Marks, towards_arrow

_TETRAD = {CIRCLE: "oo", ARROW: "<>", TAIL: "--"}
_DAGITTY = {CIRCLE: "@@", ARROW: "<>", TAIL: ("", "")}


def pcalg_csv(variables: Sequence[str], marks: Marks) -> str:
    """The marks as a matrix: in row i and column j that at j of their edge, 0 none, 1 circle, 2 arrowhead, 3 tail."""
    names = [as_cell(name) for name in variables]
    rows = ([name, *map(str, row)] for name, row in zip(names, marks.tolist(), strict=True))
    return as_csv([["amat.pag", *names], *rows])


def tetrad(variables: Sequence[str], marks: Marks) -> str:
    """Tetrad's text of a graph.

    It separates names by white space and semicolons: such characters become an underscore, and a name that another one
    has then gets underscores more.
    """
    ids = list(_tetrad_ids(variables))
    edges = [
        f"{k}. {ids[i]} {_TETRAD[at_i][0]}-{_TETRAD[at_j][1]} {ids[j]}"
        for k, (i, j, at_i, at_j) in enumerate(_edges(marks), 1)
    ]
    return "\n".join(["Graph Nodes:", ";".join(ids), "", "Graph Edges:", *edges, ""])


def dagitty_pag(variables: Sequence[str], marks: Marks) -> str:
    """DAGitty's language, a graph of its type `pag`; names are written as `formats.dagitty` writes them."""
    ids = dict(zip(variables, dagitty_ids(variables), strict=True))
    lines = ["pag {"]
    for name in variables:
        label = f" [label={dagitty_quoted(name)}]" if ids[name] != name else ""
        lines.append(dagitty_quoted(ids[name]) + label)
    for i, j, at_i, at_j in _edges(marks):
        one, other = dagitty_quoted(ids[variables[i]]), dagitty_quoted(ids[variables[j]])
        lines.append(f"{one} {_DAGITTY[at_i][0]}-{_DAGITTY[at_j][1]} {other}")
    return "\n".join([*lines, "}", ""])


PAG_FORMATS: Mapping[str, Callable[[Sequence[str], Marks], str]] = {
    "pag.csv": pcalg_csv,
    "pag-tetrad.txt": tetrad,
    "pag-dagitty.txt": dagitty_pag,
}


def _edges(marks: Marks) -> Iterator[tuple[int, int, int, int]]:
    """i, j, and the marks at i and at j: towards an arrowhead, if only one end has one."""
    for i, j in np.argwhere(np.triu(marks != NONE)).tolist():
        a, b = towards_arrow(marks, i, j)
        yield a, b, int(marks[b, a]), int(marks[a, b])


def _tetrad_ids(variables: Sequence[str]) -> Iterator[str]:
    taken = set(variables)
    for name in variables:
        unique = re.sub(r"[\s;]", "_", name)
        while unique != name and unique in taken:
            unique += "_"
        taken.add(unique)
        yield unique
