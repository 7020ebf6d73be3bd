"""A partial ancestral graph as text of other tools, and from it: each edge has a mark at either end, see `pag`.

pag.csv          pcalg, as its functions take and give a matrix of type amat.pag
pag-tetrad.txt   Tetrad, and causal-learn's reader of its files
pag-dagitty.txt  dagitty.net and R's dagitty
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from fedbnsl.graphs.csv_names import as_cell, from_cell
from fedbnsl.graphs.formats import as_csv, dagitty_ids, dagitty_quoted
from fedbnsl.graphs.pag import ARROW, CIRCLE, NONE, TAIL, Marks, towards_arrow

_CORNER = "amat.pag"
_TETRAD = {CIRCLE: "oo", ARROW: "<>", TAIL: "--"}
_DAGITTY = {CIRCLE: "@@", ARROW: "<>", TAIL: ("", "")}


def pcalg_csv(variables: Sequence[str], marks: Marks) -> str:
    """The marks as a matrix: in row i and column j that at j of their edge, 0 none, 1 circle, 2 arrowhead, 3 tail."""
    names = [as_cell(name) for name in variables]
    rows = ([name, *map(str, row)] for name, row in zip(names, marks.tolist(), strict=True))
    return as_csv([[_CORNER, *names], *rows])


def tetrad(variables: Sequence[str], marks: Marks) -> str:
    """Tetrad's text of a graph.

    It separates names by white space, semicolons and commas: such characters become an underscore, and a name that
    another one has then gets underscores more.
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


def read_pag(text: str, names: Sequence[str]) -> tuple[list[str], Marks] | None:
    """Variables and marks of a text in one of these formats; None: it is in none of them.

    `names`: what variables may be called, where a format writes a name in another way.

    Raises
    ------
    ValueError
        If it begins like one of the formats, and goes on otherwise.
    """
    start = text.lstrip("\ufeff").lstrip()
    if start.startswith(_CORNER):
        return _from_pcalg(start)
    if start.startswith("Graph Nodes:"):
        return _from_edges(*_tetrad_parts(start, dict(zip(_tetrad_ids(names), names, strict=True))))
    if re.match(r"(pag|mag)\s*\{", start):
        return _from_edges(*_dagitty_parts(start, dict(zip(dagitty_ids(names), names, strict=True))))
    return None


def _from_pcalg(text: str) -> tuple[list[str], Marks]:
    (_, *header), *rows = (row for row in csv.reader(text.splitlines(), strict=True) if row)
    names = [from_cell(cell) for cell in header]
    if [from_cell(row[0]) for row in rows] != names or {len(row) for row in rows} != {len(names) + 1}:
        raise ValueError("rows and columns are not those of one square")
    marks = np.array([row[1:] for row in rows]).astype(np.int8)
    if not np.isin(marks, (NONE, CIRCLE, ARROW, TAIL)).all():
        raise ValueError("expected 0, 1, 2 or 3 in every cell")
    return names, _checked(names, marks)


_Edges = Sequence[tuple[str, str, str, str]]  # one end, the mark there, the mark at the other, the other end


def _tetrad_parts(text: str, named: Mapping[str, str]) -> tuple[list[str], _Edges]:
    head, _, listed = text.partition("Graph Edges:")
    nodes = [named.get(one, one) for one in re.split(r"[;,\s]+", head.removeprefix("Graph Nodes:").strip())]
    edges: list[tuple[str, str, str, str]] = []
    for line in filter(re.compile(r"\d+\.").match, map(str.strip, listed.splitlines())):
        found = re.match(r"\d+\.\s+(\S+)\s+([-<o])-([-o>])\s+(\S+)", line)
        if found is None:
            raise ValueError(f"{line!r} is no edge")
        one, at_one, at_other, other = found.groups()
        edges.append((named.get(one, one), at_one, at_other, named.get(other, other)))
    return nodes, edges


_DAGITTY_TOKEN = re.compile(
    r"""\s*(?:
        "(?P<quoted>(?:[^"\\]|\\"|\\\n|\\(?!["\n]))*)"        # a name; see `formats.dagitty`
        | (?P<plain>[\w.]+)
        | (?P<edge>[<@]?-[>@-]?)
        | ;
        | \[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\]                      # labels and places
    )""",
    re.VERBOSE | re.DOTALL,
)


def _dagitty_parts(text: str, named: Mapping[str, str]) -> tuple[list[str], _Edges]:
    body, at, parts = text[text.index("{") + 1 : text.rindex("}")].rstrip(), 0, list[tuple[str, bool]]()
    while at < len(body):
        found = _DAGITTY_TOKEN.match(body, at)
        if found is None:
            raise ValueError(f"{body[at : at + 40]!r} is no edge and no variable")
        at = found.end()
        if found["edge"]:
            parts.append((found["edge"], True))
        elif found["quoted"] is not None or found["plain"]:
            name = found["plain"] or found["quoted"].replace("\\\n", "").replace('\\"', '"')
            parts.append((named.get(name, name), False))
    edges: list[tuple[str, str, str, str]] = []
    for k, (sign, is_edge) in enumerate(parts):
        if is_edge:
            if not 0 < k < len(parts) - 1 or parts[k - 1][1] or parts[k + 1][1]:
                raise ValueError(f"an edge {sign!r} is not between two variables")
            at_one, at_other = sign.split("-", 1)
            of = {"@": "o", "": "-"}
            edges.append((parts[k - 1][0], of.get(at_one, at_one), of.get(at_other, at_other), parts[k + 1][0]))
    return list(dict.fromkeys(name for name, is_edge in parts if not is_edge)), edges


def _from_edges(names: list[str], edges: _Edges) -> tuple[list[str], Marks]:
    place, of = {name: k for k, name in enumerate(names)}, {"o": CIRCLE, "<": ARROW, ">": ARROW, "-": TAIL}
    marks = np.zeros((len(names), len(names)), dtype=np.int8)
    for one, at_one, at_other, other in edges:
        if one not in place or other not in place:
            raise ValueError(f"an edge of {one!r} and {other!r}, which are not both among the nodes")
        i, j = place[one], place[other]
        if marks[i, j]:
            raise ValueError(f"two edges of {one!r} and {other!r}")
        marks[j, i], marks[i, j] = of[at_one], of[at_other]
    return names, _checked(names, marks)


def _checked(names: list[str], marks: Marks) -> Marks:
    if len(set(names)) < len(names):
        raise ValueError("two variables have the same name")
    if marks.diagonal().any() or ((marks != NONE) != (marks.T != NONE)).any():
        raise ValueError("an edge has a mark at one end alone, or both ends at one variable")
    if ((marks == TAIL) & ((marks.T == TAIL) | (marks.T == CIRCLE))).any():
        raise ValueError("an edge has a tail, and no arrowhead at its other end: that is for selection bias")
    return marks


def _edges(marks: Marks) -> Iterator[tuple[int, int, int, int]]:
    """i, j, and the marks at i and at j: towards an arrowhead, if only one end has one."""
    for i, j in np.argwhere(np.triu(marks != NONE)).tolist():
        a, b = towards_arrow(marks, i, j)
        yield a, b, int(marks[b, a]), int(marks[a, b])


def _tetrad_ids(variables: Sequence[str]) -> Iterator[str]:
    taken = set(variables)
    for name in variables:
        unique = re.sub(r"[\s;,]", "_", name)
        while unique != name and unique in taken:
            unique += "_"
        taken.add(unique)
        yield unique
