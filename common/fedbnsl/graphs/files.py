"""Write a learned network in the file formats of other tools, and read its edges.

    edges.csv      pandas.read_csv and R's read.csv, without arguments
    weights.csv    the same, with the first column as row names
    strength.csv   bnlearn's boot.strength; only where there are bootstrap draws
    graph.graphml  Gephi, Cytoscape, igraph, networkx
    graph.dot      Graphviz
    dagitty.txt    dagitty.net and R's dagitty
    lgbn.json      pgmpy, and bnlearn by way of any JSON reader; only where the residual variances are known
    pag.csv, pag-tetrad.txt, pag-dagitty.txt    pcalg, Tetrad and DAGitty; only where there are marks of hidden causes

Each is UTF-8, and written whole or not at all. In CSV, a name that a spreadsheet would run begins with an apostrophe:
see `csv_names`.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import ResultError
from fedbnsl.files.durable import make_folder, write_text
from fedbnsl.graphs.class_members import as_named
from fedbnsl.graphs.csv_names import from_cell
from fedbnsl.graphs.formats import (
    EDGES_HEADER,
    LearnedGraph,
    dagitty,
    dot,
    edges_csv,
    graphml,
    lgbn_json,
    weights_csv,
)
from fedbnsl.graphs.graph import cyclic_edges
from fedbnsl.graphs.pag import as_read
from fedbnsl.graphs.pag_formats import PAG_FORMATS
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.messages import composed
from fedbnsl.protocol.sparse import Matrix

__all__ = ["LGBN", "LearnedGraph", "new_graph_folder", "read_edges", "write_all", "write_weights"]

LGBN = "lgbn.json"

_FORMATS: Mapping[str, Callable[[LearnedGraph], str]] = {
    "edges.csv": edges_csv,
    "graph.graphml": graphml,
    "graph.dot": dot,
    "dagitty.txt": dagitty,
    LGBN: lgbn_json,
}


def write_all(graph: LearnedGraph, folder: Path, *, columns: Columns | None = None, mode: int = 0o666) -> None:
    """Write edges.csv, graph.graphml, graph.dot, dagitty.txt and lgbn.json into an existing folder.

    With marks that hold if common causes are hidden, also the files of `pag_formats`, which have circles where too few
    draws agree. Without residual variances, or with a weight that is not finite, lgbn.json is left out: its readers
    need them. Where some variables have several columns, all other files hold the graph between variables. Raises
    ResultError if a file cannot be written.
    """
    for name, as_text in _FORMATS.items():
        if name == LGBN and not graph.is_network:
            continue
        shown = graph if columns is None or name == LGBN else graph.joined(columns)
        write_text(folder / name, as_text(shown), mode=mode)
    if graph.pag is not None:
        variables = graph.variables if columns is None else columns.variables
        for name, of_marks in PAG_FORMATS.items():
            write_text(folder / name, of_marks(variables, as_read(graph.pag, graph.pag_shares)), mode=mode)


def warm_up() -> None:
    """Load what a format needs. A coordinator does so while its sites join: they wait while it writes the files."""
    graphml(LearnedGraph((), np.zeros((0, 0), dtype=bool), np.zeros((0, 0))))


def write_weights(variables: Sequence[str], W: Matrix, path: Path) -> None:
    """Write weights.csv: all of W, (d, d), before anything was cut from it."""
    write_text(path, weights_csv(variables, W))


def new_graph_folder(path: Path) -> None:
    """Make a folder for a graph; raises ResultError if it holds one already, or cannot be made."""
    make_folder(path)
    if (path / "edges.csv").exists():
        raise ResultError(f"folder {path} holds a graph already (edges.csv); results are never overwritten")


def read_edges(path: Path, variables: Sequence[str] | None = None) -> LearnedGraph:
    """Read edges.csv, as written here or by hand, where any columns from `directed` on may be left out.

    Without `directed` all edges are directed. Where some edges are undirected, `dag` is one of the graphs that these
    marks stand for: the one with every source and target as the file names them, if that is one. An undecided edge is
    directed in them. A weight is that of its row, NaN for an empty cell; shares and marks are not read. Without
    `variables` these are the names that have an edge, as they first appear.

    Raises
    ------
    ResultError
        If the file cannot be read, or its edges do not form an acyclic graph on the variables, or no acyclic graph has
        its directed edges and no other v-structures; the text names the line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise ResultError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ResultError(f"{path}: not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise ResultError(f"{path}: not a CSV file: {error}") from None
    edges = _edges(path, rows)
    names = tuple(variables) if variables is not None else tuple(dict.fromkeys(name for edge in edges for name in edge))
    position = {name: k for k, name in enumerate(names)}
    arrows, lines, named, undecided = np.zeros((4, len(names), len(names)), dtype=bool)
    weights = np.zeros((len(names), len(names)))
    for (source, target), (line, weight, directed, is_undecided) in edges.items():
        for name in (source, target):
            if name not in position:
                raise ResultError(f"{path}: line {line}: {name!r} is not one of the {len(names)} variables")
        i, j = position[source], position[target]
        (arrows if directed else lines)[i, j] = True
        named[i, j], undecided[i, j] = True, is_undecided
        weights[i, j] = weight
        if not directed:
            lines[j, i] = True
            weights[j, i] = weight
    cyclic = [f"{names[i]!r} -> {names[j]!r}" for i, j in np.argwhere(cyclic_edges(arrows))]
    if cyclic:
        raise ResultError(
            f"{path}: a Bayesian network has no cycle; remove one of the edges that form one: {first_few(cyclic)}"
        )
    open_arrows = undecided if undecided.any() else None
    if not lines.any():
        return LearnedGraph(names, arrows, weights, undecided=open_arrows)
    marks = arrows | lines
    try:
        dag = as_named(named, marks)
    except ValueError as error:
        raise ResultError(f"{path}: {error}; give one of the undirected edges a direction, or remove it") from None
    return LearnedGraph(names, dag, np.where(dag, weights, 0.0), marks=marks, undecided=open_arrows)


def _edges(path: Path, rows: Sequence[tuple[int, list[str]]]) -> dict[tuple[str, str], tuple[int, float, bool, bool]]:
    """Line, weight, whether its class directs it, whether it is undecided; no edge twice, none to itself."""
    header = rows[0][1] if rows else []
    if header[:3] != EDGES_HEADER[:3] or header != [name for name in EDGES_HEADER if name in header]:
        raise ResultError(
            f"{path}: expected the header {','.join(EDGES_HEADER)} on the first line (any from directed on may be left "
            f"out), got {','.join(header)!r}"
        )
    edges: dict[tuple[str, str], tuple[int, float, bool, bool]] = {}
    for line, row in rows[1:]:
        if not row:
            continue
        here = f"{path}: line {line}"
        if len(row) != len(header):
            raise ResultError(f"{here}: expected {len(header)} cells ({','.join(header)}), got {len(row)}")
        source, target, weight = composed(from_cell(row[0])), composed(from_cell(row[1])), row[2]
        cells = dict(zip(header, row, strict=True))
        directed, undecided = cells.get("directed", "1"), cells.get("undecided", "0")
        if directed not in ("0", "1"):
            raise ResultError(f"{here}: directed is {directed!r}; expected 1, or 0 for an edge without a direction")
        if undecided not in ("0", "1"):
            raise ResultError(f"{here}: undecided is {undecided!r}; expected 0 or 1")
        directed = "1" if undecided == "1" else directed
        if source == target:
            raise ResultError(f"{here}: the edge {source!r} -> {target!r}; no variable is its own parent")
        back = edges.get((target, source))
        first = edges.get((source, target)) or (back if back and not (back[2] and directed == "1") else None)
        if first is not None:
            raise ResultError(f"{here}: the edge {source!r} -> {target!r} is on line {first[0]} already; keep one")
        number = _finite(weight, here) if weight else math.nan
        edges[source, target] = line, number, directed == "1", undecided == "1"
    return edges


def _finite(cell: str, here: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ResultError(f"{here}: the weight {cell!r} is not a finite number")
    return number
