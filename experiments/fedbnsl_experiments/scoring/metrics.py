"""How near a learned graph is to a reference graph, and how near the empty graph and chance would be.

Graphs are boolean (d, d) arrays without diagonal, edges[i, j] for i -> j. The reference may be cyclic, and even hold
both i -> j and j -> i (a 2-cycle): these are two edges of one adjacent pair. There, NOTEARS' own code, which compares
pairs, counts no error for an estimated i -> j. Here j -> i is missing: SHD is always the least number of edges to add,
remove or reverse, and the empty graph's SHD is the number of reference edges. Without 2-cycles both agree.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.class_members import consistent_extension
from fedbnsl.graphs.csv_names import from_cell
from fedbnsl.messages import composed
from fedbnsl.sparse import Mask
from fedbnsl.wording import first_few
from fedbnsl_experiments.scoring.structural_intervention import sid as sid


class UnusableReferenceError(ResultError):
    """A file that cannot be used as a graph to score against."""

    remedy = (
        "Give a CSV file with commas, the header source,target (and weight, if known), and one edge a row; its "
        "variables are named as in the tables."
    )


@dataclass(frozen=True)
class Scores:
    """An estimated graph against a reference graph; ratios are in [0, 1].

    `fdr` and `tpr` are NOTEARS' quotients, whose denominator is at least 1: they are 0 when there is nothing to divide
    by. Every other ratio is None when its denominator is 0.

    Attributes
    ----------
    n_edges, n_reference_edges
        Edges of the two graphs; a 2-cycle is two.
    missing
        Reference edges to add to the estimate, without the reversed ones.
    extra
        Estimated edges to remove, without the reversed ones.
    reversed
        Estimated edges i -> j where the reference has only j -> i, and the estimate only i -> j.
    shd
        missing + extra + reversed.
    shd_double
        missing + extra + 2 reversed: the entries in which the two arrays differ.
    tpr
        Correct edges / max(reference edges, 1).
    fdr
        (reversed + extra) / max(estimated edges, 1).
    precision
        Correct edges / estimated edges.
    f1
        2 correct edges / (estimated edges + reference edges): the harmonic mean of precision and recall where both
        exist, 0 for an empty estimate of some edges, None only if both graphs are empty.
    skeleton_hits
        Pairs adjacent in both graphs, whatever the direction.
    skeleton_precision, skeleton_recall
        skeleton_hits / adjacent pairs of the estimate, of the reference.
    skeleton_f1
        2 skeleton_hits / (adjacent pairs of the estimate + those of the reference).
    v_structures_reference, v_structures_estimated
        Unshielded colliders a -> c <- b, a and b not adjacent, of each graph. An edge of a 2-cycle counts as any other.
    v_structures_common
        The same a -> c <- b, unshielded in both graphs.
    """

    n_edges: int
    n_reference_edges: int
    missing: int
    extra: int
    reversed: int
    shd: int
    shd_double: int
    tpr: float
    fdr: float
    precision: float | None
    f1: float | None
    skeleton_hits: int
    skeleton_precision: float | None
    skeleton_recall: float | None
    skeleton_f1: float | None
    v_structures_reference: int
    v_structures_estimated: int
    v_structures_common: int

    @property
    def recall(self) -> float:
        """Another name of `tpr`."""
        return self.tpr

    def as_dict(self) -> dict[str, float | None]:
        """Every score by name, `recall` included; ready for JSON, where None is null."""
        return {**asdict(self), "recall": self.recall}


def score(estimate: Mask, reference: Mask) -> Scores:
    """Compare two (d, d) graphs over the same variables."""
    lacking, needless, correct = reference & ~estimate, estimate & ~reference, estimate & reference
    n_lacking, n_needless, n_correct = _count(lacking), _count(needless), _count(correct)
    n_reversed = _count(needless & lacking.T)
    n_edges, n_reference_edges = n_correct + n_needless, n_correct + n_lacking
    adjacent, reference_adjacent = estimate | estimate.T, reference | reference.T
    # These two are symmetric: every pair is in them twice.
    n_pairs, n_reference_pairs = _count(adjacent) // 2, _count(reference_adjacent) // 2
    skeleton_hits = _count(adjacent & reference_adjacent) // 2
    return Scores(
        n_edges=n_edges,
        n_reference_edges=n_reference_edges,
        missing=n_lacking - n_reversed,
        extra=n_needless - n_reversed,
        reversed=n_reversed,
        shd=n_lacking + n_needless - n_reversed,
        shd_double=n_lacking + n_needless,
        tpr=n_correct / max(n_reference_edges, 1),
        fdr=n_needless / max(n_edges, 1),
        precision=_ratio(n_correct, n_edges),
        f1=_ratio(2 * n_correct, n_edges + n_reference_edges),
        skeleton_hits=skeleton_hits,
        skeleton_precision=_ratio(skeleton_hits, n_pairs),
        skeleton_recall=_ratio(skeleton_hits, n_reference_pairs),
        skeleton_f1=_ratio(2 * skeleton_hits, n_pairs + n_reference_pairs),
        v_structures_reference=_count_v_structures(reference, reference_adjacent),
        v_structures_estimated=_count_v_structures(estimate, adjacent),
        v_structures_common=_count_v_structures(correct, adjacent | reference_adjacent),
    )


def _count(entries: Mask) -> int:
    return int(np.count_nonzero(entries))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _count_v_structures(edges: Mask, adjacent: Mask) -> int:
    """Colliders a -> c <- b, a < b, by `edges`, whose a and b are not `adjacent`."""
    E = edges.astype(np.float32)
    # Entry (a, b) counts the common children of a and b: exact in float32 up to 2^24 of them.
    common_children = E @ E.T
    return int(common_children[np.triu(~adjacent, k=1)].sum(dtype=np.float64))


def empty_graph_scores(reference: Mask) -> Scores:
    """Scores of the graph without edges: what learning nothing reaches."""
    return score(np.zeros_like(reference), reference)


def random_dag(n_variables: int, n_edges: int, rng: np.random.Generator) -> Mask:
    """(d, d) DAG with exactly this number of edges: a uniform order, and a uniform choice of its forward pairs.

    Raises
    ------
    ValueError
        If no DAG has so many edges.
    """
    n_pairs = n_variables * (n_variables - 1) // 2
    if not 0 <= n_edges <= n_pairs:
        raise ValueError(f"a DAG over {n_variables} variables has 0 to {n_pairs} edges, not {n_edges}")
    order = rng.permutation(n_variables)
    earlier, later = np.triu_indices(n_variables, k=1)
    chosen = rng.choice(n_pairs, size=n_edges, replace=False, shuffle=False)
    edges = np.zeros((n_variables, n_variables), dtype=bool)
    edges[order[earlier[chosen]], order[later[chosen]]] = True
    return edges


def random_dag_scores(
    reference: Mask, n_edges: int, *, n_draws: int = 1000, seed: int = 0
) -> dict[str, dict[str, float | None]]:
    """Scores of random DAGs: what chance reaches with as many edges.

    Parameters
    ----------
    reference
        (d, d) graph.
    n_edges
        Edges of each random DAG.
    n_draws
        Random DAGs, at least 1.

    Returns
    -------
    scores
        `mean` and `std` (of a sample: n - 1) of each of `Scores.as_dict()`. Both are None where the score is None,
        which depends only on the numbers of edges; `std` is also None for a single draw.

    Raises
    ------
    ValueError
        If no DAG has `n_edges` edges.
    """
    rng = np.random.default_rng(seed)
    draws = [score(random_dag(reference.shape[0], n_edges, rng), reference).as_dict() for _ in range(n_draws)]
    mean: dict[str, float | None] = {}
    std: dict[str, float | None] = {}
    for name in draws[0]:
        values = [value for draw in draws if (value := draw[name]) is not None]
        mean[name] = float(np.mean(values)) if values else None
        std[name] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": mean, "std": std}


@dataclass(frozen=True, eq=False)
class Reference:
    """A reference graph over the variables that it has in common with a run.

    Attributes
    ----------
    common
        (k,) places of these variables among those of the run, ascending; k is at least 2.
    edges
        (k, k) its subgraph induced on them; it may have cycles. Where the file has undirected edges, these have the
        directions of one DAG that the file stands for.
    directed
        (k, k) of `edges`, those that are directed in a file with undirected edges; None: it has none.
    weights
        Of its edges, by places among the variables of the run; None if the file has no weights.
    only_reference, only_run
        Variables that only one of the two has: they are not scored.
    """

    common: tuple[int, ...]
    edges: Mask
    directed: Mask | None
    weights: Mapping[tuple[int, int], float] | None
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


def read_reference(path: Path, variables: Sequence[str]) -> Reference:
    """The graph of a CSV file, one edge a row, over the variables that it has in common with a run.

    The header names `source` and `target`. Where it also names `weight`, a row of weight 0 is no edge; where it names
    `directed`, a row with 0 there is an edge without a direction. Other columns are ignored. A line that starts with #
    is a comment, unless its first cell is one of `variables`.

    A list of edges cannot name a variable without edges. So `variables` that the file does not name have no edges,
    unless the file also names others that are not exactly in `variables`. Then the file is about another set of
    variables, and only those named in both are in common.

    Raises
    ------
    ResultError
        If the file cannot be read, lacks the header, has a row that is too short or without a finite weight, or a
        self-loop, or if fewer than two variables are in common.
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
    foreign = tuple(name for name in named if name not in position)
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
    arrows, lines = edges, lines | lines.T
    if lines.any():
        edges = _one_dag(path, arrows, lines)
    weights = {edge: row.weight for edge, row in listed.items() if row.weight is not None}
    places = tuple(position[name] for name in common)
    return Reference(
        common=places,
        edges=edges[np.ix_(places, places)],
        directed=arrows[np.ix_(places, places)] if lines.any() else None,
        weights=weights or None,
        only_reference=foreign,
        only_run=tuple(name for name in variables if name not in common),
    )


def _one_dag(path: Path, arrows: Mask, lines: Mask) -> Mask:
    """A DAG that a file with undirected edges stands for."""
    try:
        if (arrows & (arrows.T | lines)).any():
            raise ValueError("an edge is listed with two directions, or with one and without")
        return consistent_extension(arrows | lines)
    except ValueError as error:
        raise UnusableReferenceError(f"{path} is no class of graphs: {error}") from None


def read_full_reference(path: Path, variables: Sequence[str]) -> Mask:
    """(d, d) graph, as `read_reference` reads it, of a file that names none but these variables.

    Raises
    ------
    ResultError
        As `read_reference`, and if the file names another variable.
    """
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
    for row in reader:
        if not row:
            continue
        try:
            edge = _Row(
                composed(from_cell(row[source])),
                composed(from_cell(row[target])),
                None if weight is None else float(row[weight]),
                directed is None or row[directed] != "0",
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
