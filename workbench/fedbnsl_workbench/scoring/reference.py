"""A reference graph to score against, read from a CSV file of edges."""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import ResultError
from fedbnsl.graphs.class_members import as_named
from fedbnsl.graphs.csv_names import from_cell
from fedbnsl.protocol.messages import composed
from fedbnsl.protocol.sparse import Mask


class UnusableReferenceError(ResultError):
    """A file that cannot be used as a graph to score against."""

    remedy = (
        "Give a CSV file with commas, the header source,target (and weight, if known), and one edge a row; its "
        "variables are named as in the tables."
    )


@dataclass(frozen=True, eq=False)
class Reference:
    """A reference graph over the k variables, at least 2, that it has in common with a run."""

    common: tuple[int, ...]  # places of these variables among those of the run, ascending
    # (k, k) its subgraph induced on them; it may have cycles. Where the file has undirected edges, these have the
    # directions of one DAG that the file stands for: those of its rows, if they give one.
    edges: Mask
    directed: Mask | None  # (k, k) of `edges`, those directed in a file with undirected edges; None: it has none
    weights: Mapping[tuple[int, int], float] | None  # by places among the variables of the run; None: none in the file
    # (k + m, k + m) all edges of the file, of the variables in common and then the m others; None: some are undirected
    whole: Mask | None
    hidden: tuple[str, ...]  # variables of the file that are said to be in no table
    # Variables that only one of the two has: they are not scored.
    only_reference: tuple[str, ...]
    only_run: tuple[str, ...]

    def of_common(self, graph: Mask) -> Mask:
        """(k, k) subgraph, induced on the variables in common, of a (d, d) graph over those of the run."""
        return graph[np.ix_(self.common, self.common)]

    @property
    def left_out(self) -> str:
        """A sentence on what is not scored; empty: nothing is left out."""
        if not self.only_reference:
            return ""
        sides = (("the truth", self.only_reference), ("the run", self.only_run))
        left = "; ".join(f"only in {where}: {_quoted(names)}" for where, names in sides if names)
        return (
            f"only the {len(self.common)} variables that the run and the truth have in common are scored, by the "
            f"subgraphs induced on them; left out are those {left}"
        )


def read_reference(path: Path, variables: Sequence[str], hidden: Sequence[str] = ()) -> Reference:
    """The graph of a CSV file, one edge a row, over the variables that it has in common with a run.

    The header names `source` and `target`. Where it also names `weight`, a row of weight 0 is no edge; where it names
    `directed`, a row with 0 there is an edge without a direction, unless `undecided` is 1: then its class directs it.
    Other columns are ignored. A line that starts with # is a comment, unless its first cell is one of `variables`.

    A list of edges cannot name a variable without edges. So `variables` that the file does not name have no edges,
    unless the file also names others that are not exactly in `variables`. Then the file is about another set of
    variables, and only those named in both are in common. Names that are `hidden` do not count as others.
    ResultError: a fault of the file, or fewer than two variables in common.
    """
    position = {name: k for k, name in enumerate(variables)}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(_listed_edges(path, file, position))
    except OSError as error:
        raise UnusableReferenceError(f"{path} cannot be read: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise UnusableReferenceError(f"{path} is no UTF-8 CSV file: {error}") from None
    named = dict.fromkeys(name for row in rows for name in (row.source, row.target))
    for name in hidden:
        if name in position or name not in named:
            why = "the run has it" if name in position else f"{path} does not name it"
            raise UnusableReferenceError(f"{name!r} is said to be hidden, but {why}")
    foreign = tuple(name for name in named if name not in position and name not in hidden)
    common = [name for name in variables if not foreign or name in named]
    if len(common) < 2:
        raise UnusableReferenceError(
            f"{path} and the run have {len(common)} variable(s) in common, and a score needs two: the truth names "
            f"{_quoted(named)}, the run {_quoted(variables)}; expected exactly the same names"
        )
    loops = _quoted(row.source for row in rows if row.source == row.target and row.weight != 0)
    if loops:
        raise UnusableReferenceError(f"{path} has an edge from a variable to itself: {loops}; remove that row")
    listed = {
        (position[row.source], position[row.target]): row
        for row in rows
        if row.weight != 0 and row.source in position and row.target in position
    }
    edges, lines = np.zeros((2, len(position), len(position)), dtype=bool)
    for edge, row in listed.items():
        (edges if row.directed else lines)[edge] = True
    as_listed, arrows, lines = edges | lines, edges, lines | lines.T
    if lines.any():
        edges = _one_dag(path, as_listed, arrows, lines)
    weights = {edge: row.weight for edge, row in listed.items() if row.weight is not None}
    places = tuple(position[name] for name in common)
    return Reference(
        common=places,
        edges=edges[np.ix_(places, places)],
        directed=arrows[np.ix_(places, places)] if lines.any() else None,
        weights=weights or None,
        whole=_all_edges(rows, [*common, *foreign, *hidden]),
        hidden=tuple(hidden),
        only_reference=foreign,
        only_run=tuple(name for name in variables if name not in common),
    )


def _all_edges(rows: "Sequence[_Row]", names: Sequence[str]) -> Mask | None:
    place, found = {name: k for k, name in enumerate(names)}, np.zeros((len(names),) * 2, dtype=bool)
    edges = [row for row in rows if row.weight != 0]
    for row in edges:
        found[place[row.source], place[row.target]] = True
    return found if all(row.directed for row in edges) else None


def _one_dag(path: Path, named: Mask, arrows: Mask, lines: Mask) -> Mask:
    """A DAG that a file with undirected edges stands for: the one that it names, if that is one."""
    try:
        if (arrows & (arrows.T | lines)).any():
            raise ValueError("an edge is listed with two directions, or with one and without")
        return as_named(named, arrows | lines)
    except ValueError as error:
        raise UnusableReferenceError(f"{path} is no class of graphs: {error}") from None


def read_full_reference(path: Path, variables: Sequence[str]) -> Mask:
    """(d, d) graph, as `read_reference` reads it, of a file that names no other variables; ResultError if it does."""
    reference = read_reference(path, variables)
    if reference.only_reference:
        raise UnusableReferenceError(
            f"{path} names variables that the tables do not have: {_quoted(reference.only_reference)}; expected "
            "exactly their names"
        )
    return reference.edges


@dataclass(frozen=True)
class _Row:
    """An edge as it is listed; the weight is None without that column."""

    source: str
    target: str
    weight: float | None
    directed: bool


def _listed_edges(path: Path, file: TextIO, position: Mapping[str, int]) -> Iterator[_Row]:
    # A comment becomes a blank line, not none: the reader's line numbers stay those of the file.
    lines = ("\n" if _is_comment(line, position) else line for line in file)
    # Strict: otherwise an unclosed quote would swallow the rest of the file.
    reader = csv.reader(lines, strict=True)
    no_row: list[str] = []
    header = next((row for row in reader if row), no_row)
    if not {"source", "target"} <= set(header):
        raise UnusableReferenceError(
            f"{path} lacks the header source,target; its first row is {','.join(header)[:80]!r}"
        )
    source, target = header.index("source"), header.index("target")
    weight = header.index("weight") if "weight" in header else None
    directed = header.index("directed") if "directed" in header else None
    undecided = header.index("undecided") if "undecided" in header else None
    for row in reader:
        if not row:
            continue
        try:
            edge = _Row(
                composed(from_cell(row[source])),
                composed(from_cell(row[target])),
                None if weight is None else float(row[weight]),
                directed is None or row[directed] != "0" or (undecided is not None and row[undecided] == "1"),
            )
        except (IndexError, ValueError):
            edge = _Row("", "", math.nan, True)
        if not math.isfinite(edge.weight or 0.0):
            wanted = "a source and a target" if weight is None else "a source, a target and a finite weight"
            raise UnusableReferenceError(
                f"{path}, line {reader.line_num}: expected {wanted}, got {','.join(row)[:80]!r}"
            )
        yield edge


def _is_comment(line: str, position: Mapping[str, int]) -> bool:
    return line.startswith("#") and composed(next(csv.reader([line]))[0]) not in position


def _quoted(names: Iterable[str]) -> str:
    return first_few(map(repr, names), most=10)
