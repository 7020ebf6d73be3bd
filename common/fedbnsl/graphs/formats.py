"""A learned network as text, in the formats of other tools; each says which end of a directed edge is the parent.

An edge whose direction nothing tells comes once, and each format says in its own way that it is undirected. Its source
and target, and so its weight, are those that it has in one DAG of the class: the one of lgbn.json. So does an undecided
edge, which the class directs, but too few bootstrap draws.

Names may hold any character but control characters, U+FFFE and U+FFFF, which XML or DAGitty cannot hold, and those that
change the order in which a text is read: a table with such a name is refused when it is read.
"""

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO, StringIO

import numpy as np

from fedbnsl.graphs.csv_names import as_cell
from fedbnsl.graphs.pag import MARK_NAMES, Marks
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Mask, Matrix

ORIENTATION = "edge source -> target: source is the parent"

EDGES_HEADER = [
    *("source", "target", "weight", "directed", "undecided", "directed_by", "adjacent", "forward", "backward"),
    *("mark_source", "mark_target", "mark_source_share", "mark_target_share"),
    *("source_level", "target_level"),
]
_ONE_OF_ITS_CLASS = (
    "one DAG of the learned class, all of which fit the data equally well; an edge that the other files show as "
    "undirected points the other way in others of them or, where edges.csv has undecided = 1, in too many of the "
    "bootstrap draws"
)
_WITHHELD = (
    "noise took these coefficients beyond what a level can change a probability (1) or another mean (its range) by: "
    "the file has the nearest possible value there, and no estimate"
)
_FAMILIES = (
    "numbers of this file are those of straight lines. Of a family that is no linear one, result.json tells better how "
    "the child depends on its parents: `categories` has a table, `curves` a curve, `regressions` odds or rate ratios"
)
_DAGITTY_RESERVED = ("graph", "node")


@dataclass(frozen=True, eq=False)
class LearnedGraph:
    """A directed acyclic graph with a weight on each edge, and which of its edges have a direction at all."""

    variables: tuple[str, ...]
    dag: Mask
    """(d, d) dag[i, j] for the edge i -> j."""
    weights: Matrix
    """(d, d) weight of i -> j; read only where `dag` has the edge."""
    residual_variance: Matrix | None = None
    """(d,) in squared units of the variables; None if unknown, NaN where one is."""
    variance_note: str = ""
    """What a reader must know about the residual variances."""
    marks: Mask | None = None
    """(d, d) the class that `dag` stands for, with [i, j] and [j, i] for an undirected edge; None: `dag` itself."""
    undecided: Mask | None = None
    """(d, d) directed edges of the class that are shown without a direction; None: there are none."""
    limits: Matrix | None = None
    """(d, d) nearest possible value of a weight that noise has taken beyond it, which is NaN in `weights`; 0 for all
    others. None: there are no such weights."""
    shares: Mapping[tuple[str, str], tuple[float, float, float]] = field(
        default_factory=dict[tuple[str, str], tuple[float, float, float]]
    )
    """Of the bootstrap draws, by (source, target) of an edge between variables: with an edge between them, directed
    like this, and the other way. Empty without draws."""
    directed_by: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """By (source, target) of an edge between variables: who says so, or why nobody does. Empty: not told."""
    sizes: Matrix | None = None
    """(d, d) of the weights, by which one of several stands for an edge between variables; None: as they are."""
    levels: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict[tuple[str, str], tuple[str, str]])
    """By (source, target) of an edge between variables: the levels that its weight is of, where it is one of levels."""
    families: Mapping[str, str] = field(default_factory=dict[str, str])
    """By variable what it is given its parents, where straight lines do not tell best: table, curved or regression."""
    pag: Marks | None = None
    """(V, V) between variables: what holds if common causes may be hidden, see `pag`. None: not told."""
    pag_shares: Matrix | None = None
    """(V, V) of the bootstrap draws: with the same mark, [i, j] at j; NaN: not told. None without draws."""

    def joined(self, columns: Columns) -> "LearnedGraph":
        """The graph between the variables of these columns; of several weights that of the largest size stands for all.

        See `Columns.places`.
        """
        if not columns.has_blocks:
            return self
        dag, marks = columns.joined(self.dag), None if self.marks is None else columns.joined(self.marks)
        places = columns.places(self.weights if self.sizes is None else self.sizes)
        weights = np.where(dag, self.weights.ravel()[places], 0.0)
        undecided = None if self.undecided is None else columns.joined(self.undecided)
        levels: dict[tuple[str, str], tuple[str, str]] = {}
        for v, w in np.argwhere(dag).tolist():
            of = columns.levels(int(places[v, w]))
            if any(of):
                levels[columns.variables[v], columns.variables[w]] = of
        owners: dict[str, int] = dict(zip(columns.names, columns.variable_of.tolist(), strict=True))
        return LearnedGraph(
            columns.variables,
            dag,
            weights,
            marks=marks,
            undecided=undecided,
            shares=self.shares,
            directed_by=self.directed_by,
            levels=levels,
            families={columns.variables[owners[name]]: kind for name, kind in self.families.items()},
            pag=self.pag,
            pag_shares=self.pag_shares,
        )

    def family(self, name: str) -> str:
        """What a variable is given its parents: linear, or one of `families`."""
        return self.families.get(name, "linear")

    @property
    def is_network(self) -> bool:
        """Whether all numbers are known that a linear Gaussian network has, without `unknown` variables."""
        variance = self.residual_variance
        return variance is not None and bool(
            (np.isfinite(variance) | self.unknown).all() and np.isfinite(self.within_limits[self.dag]).all()
        )

    @property
    def unknown(self) -> Mask:
        """(d,) variables without an edge whose residual variance is not known."""
        has_edge = self.dag.any(axis=0) | self.dag.any(axis=1)
        variance = np.zeros(len(self.dag)) if self.residual_variance is None else self.residual_variance
        return np.asarray(np.isnan(variance) & ~has_edge)

    @property
    def within_limits(self) -> Matrix:
        """(d, d) the weights, with the nearest possible value in place of those that are withheld."""
        return self.weights if self.limits is None else np.where(self.limits, self.limits, self.weights)

    @property
    def withheld(self) -> list[tuple[str, str]]:
        """Edges whose weights are withheld."""
        pairs = [] if self.limits is None else np.argwhere(self.dag & (self.limits != 0.0)).tolist()
        return [(self.variables[i], self.variables[j]) for i, j in pairs]

    @property
    def undirected(self) -> Mask:
        """(d, d) edges of the DAG that are shown without a direction: open in its class, or undecided."""
        found = np.zeros_like(self.dag) if self.marks is None else self.dag & self.marks.T
        return found if self.undecided is None else found | self.undecided

    def edges_of_class(self) -> Iterator[tuple[str, str, float, bool, bool]]:
        """(source, target, weight, directed, undecided) in the order of the variables, named as in the DAG."""
        undirected = self.undirected
        undecided = np.zeros_like(self.dag) if self.undecided is None else self.undecided
        for i, j in np.argwhere(self.dag):
            directed, is_undecided = not undirected[i, j], bool(undecided[i, j])
            yield self.variables[i], self.variables[j], float(self.weights[i, j]), directed, is_undecided


def edges_csv(graph: LearnedGraph) -> str:
    """One line an edge, as EDGES_HEADER says: weight and shares in full precision, both empty where not known.

    `directed_by` says who directed an edge, or why nobody did; empty where that is not told.

    Marks are those at source and target if common causes may be hidden: tail, arrow or circle, or none at both where
    the two are then not linked; empty where nothing tells them. Levels are there only where a weight is of one; a level
    is empty where its variable is one column.
    """
    rows: list[list[str]] = []
    place = {name: k for k, name in enumerate(graph.variables)}
    for source, target, weight, directed, undecided in graph.edges_of_class():
        i, j = place[source], place[target]
        ends = [""] * 2 if graph.pag is None else [MARK_NAMES[int(graph.pag[j, i])], MARK_NAMES[int(graph.pag[i, j])]]
        of = graph.pag_shares
        ends += [""] * 2 if of is None else [_number(float(of[j, i])), _number(float(of[i, j]))]
        shares = [repr(share) for share in graph.shares.get((source, target), ())] or [""] * 3
        marks = [str(int(directed)), str(int(undecided)), graph.directed_by.get((source, target), "")]
        levels = map(as_cell, graph.levels.get((source, target), ("", "")))
        rows.append([as_cell(source), as_cell(target), _number(weight), *marks, *shares, *ends, *levels])
    n_cells = len(EDGES_HEADER) - (0 if graph.levels else 2)
    return as_csv([row[:n_cells] for row in (EDGES_HEADER, *rows)])


def strength_csv(shares: Mapping[tuple[str, str], tuple[float, float, float]]) -> str:
    """One line an ordered pair, in the columns of bnlearn's boot.strength: from,to,strength,direction.

    `strength` is the share of the draws with an edge between the two; `direction`, of these draws, the share that have
    it from -> to, where one without a direction counts half for either. Shares are as in `LearnedGraph`.
    """
    rows: list[tuple[str, str, float, float]] = []
    for (source, target), (adjacent, forward, backward) in shares.items():
        along = 0.5 * (1.0 + (forward - backward) / adjacent)
        rows += [(source, target, adjacent, along), (target, source, adjacent, 1.0 - along)]
    return as_csv(
        [["from", "to", "strength", "direction"]]
        + [[as_cell(source), as_cell(target), repr(strength), repr(along)] for source, target, strength, along in rows]
    )


def weights_csv(variables: Sequence[str], W: Matrix) -> str:
    """All of W, (d, d), in full precision: a row is a source, a column a target, as the corner cell says."""
    names = [as_cell(name) for name in variables]

    def cells(row: Matrix) -> list[str]:
        texts = ["0.0"] * row.size  # as nearly all of many variables' weights are
        for j in np.flatnonzero(row).tolist():
            texts[j] = _number(float(row[j]))
        return texts

    rows = ([name, *cells(row)] for name, row in zip(names, W, strict=True))
    return as_csv([[r"source\target", *names], *rows])


def graphml(graph: LearnedGraph) -> str:
    """GraphML whose node ids are the names; tools differ in which of `name` and `label` they show.

    The attribute `directed` of an edge is false where it has no direction, `undecided` true where its class has one.
    """
    import networkx as nx  # here: only this format needs it

    network: nx.DiGraph[str] = nx.DiGraph(orientation=ORIENTATION)
    for name in graph.variables:
        network.add_node(name, name=name, label=name, **({"family": graph.family(name)} if graph.families else {}))
    for source, target, weight, directed, undecided in graph.edges_of_class():
        known = {"weight": weight} if math.isfinite(weight) else {}
        network.add_edge(source, target, **known, directed=directed, undecided=undecided)
    xml = BytesIO()
    nx.write_graphml_xml(network, xml)
    return xml.getvalue().decode() + "\n"


def dot(graph: LearnedGraph) -> str:
    """Graphviz text; labels to 3 significant digits, negative weights dashed.

    A node's id has each backslash of the name doubled, since Graphviz has no other way to end a quoted id with one; the
    label, which is what Graphviz draws, is the name itself.
    """
    lines = [f"// {ORIENTATION}", "// dashed: negative weight"]
    if graph.families:
        lines.append("// family: what a node is given its parents; labels of edges are of straight lines")
    lines.append("digraph learned {")
    for name in graph.variables:
        family = f", family={graph.family(name)}" if graph.families else ""
        # Graphviz resolves HTML entities in labels, but not in ids.
        lines.append(f"  {_dot_quoted(name)} [label={_dot_quoted(name.replace('&', '&amp;'))}{family}];")
    for source, target, weight, directed, _ in graph.edges_of_class():
        style = (", style=dashed" if weight < 0 else "") + ("" if directed else ", dir=none")
        label = f"{weight:.3g}" if math.isfinite(weight) else "?"
        lines.append(f'  {_dot_quoted(source)} -> {_dot_quoted(target)} [label="{label}"{style}];')
    return "\n".join([*lines, "}", ""])


def dagitty(graph: LearnedGraph) -> str:
    r"""DAGitty's language, each edge with its weight as path coefficient `beta`.

    The language has no comments, and so no place for families: the arrow `->`, from parent to child, states the
    orientation, and `--` that there is none; a graph with such an edge is of DAGitty's type `pdag`. In a quoted
    name a backslash stands for itself, except before a quotation mark, so `"` is written `\"` and `\` stays; a name
    that *ends* with a backslash is followed by DAGitty's line continuation (`\` and a newline, which it skips), as
    the closing quotation mark would otherwise belong to the name. DAGitty refuses variables that are called `graph`
    or `node`: their ids get an underscore, and the name becomes the label.
    """
    ids = dict(zip(graph.variables, dagitty_ids(graph.variables), strict=True))
    lines = ["pdag {" if graph.undirected.any() else "dag {"]
    for name in graph.variables:
        label = f" [label={dagitty_quoted(name)}]" if ids[name] != name else ""
        lines.append(dagitty_quoted(ids[name]) + label)
    for source, target, weight, directed, _ in graph.edges_of_class():
        arrow = "->" if directed else "--"
        # Unquoted, DAGitty would read -1e-05 as -1e.
        beta = f' [beta="{weight!r}"]' if math.isfinite(weight) else ""
        lines.append(f"{dagitty_quoted(ids[source])} {arrow} {dagitty_quoted(ids[target])}{beta}")
    return "\n".join([*lines, "}", ""])


def lgbn_json(graph: LearnedGraph) -> str:
    """The linear Gaussian network as pgmpy loads it. It skips all keys but nodes, arcs and cpds.

    `directions` is there where some edges have none, and the file holds one DAG of the class; `variances` is a note;
    `withheld` names edges whose coefficient is no estimate, `not_known` variables that are left out; `families` says
    what a variable is given its parents, where some are not linear.

    The intercepts are 0: variables count from zero or, where a plan takes off means, from the means of their site. A
    parent called `(Intercept)` cannot be told from the intercept: a table with that name is refused. Raises ValueError
    if the residual variances are unknown: no reader could load the network without them.
    """
    if graph.residual_variance is None:
        raise ValueError("a linear Gaussian network needs residual variances")
    left_out = {name for name, is_unknown in zip(graph.variables, graph.unknown.tolist(), strict=True) if is_unknown}
    of_nodes: list[float] = graph.residual_variance.tolist()
    variances = {name: one for name, one in zip(graph.variables, of_nodes, strict=True) if name not in left_out}
    parents: dict[str, dict[str, float]] = {name: {} for name in graph.variables}
    for source, target, weight, *_ in replace(graph, weights=graph.within_limits).edges_of_class():
        parents[target][source] = weight
    withheld, kinds = graph.withheld, {name: graph.family(name) for name in variances}
    content = {
        "orientation": f"arcs are [source, target]; {ORIENTATION}",
        **({"directions": _ONE_OF_ITS_CLASS} if graph.undirected.any() else {}),
        **({"variances": graph.variance_note} if graph.variance_note else {}),
        **({"withheld": withheld, "about_withheld": _WITHHELD} if withheld else {}),
        **({"not_known": sorted(left_out)} if left_out else {}),
        **({"families": kinds, "about_families": _FAMILIES} if graph.families else {}),
        "nodes": list(variances),
        "arcs": [[source, target] for source, target, *_ in graph.edges_of_class()],
        "cpds": {
            name: {
                "coefficients": {"(Intercept)": [0.0]} | {parent: [weight] for parent, weight in parents[name].items()},
                "variance": [variance],
                "parents": list(parents[name]),
            }
            for name, variance in variances.items()
        },
    }
    # ASCII with \u escapes, because pgmpy opens the file in the encoding of the machine, which may not be UTF-8.
    return json.dumps(content, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def as_csv(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells, each ended by a line feed."""
    text = StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _number(weight: float) -> str:
    """In full precision; an empty cell, which pandas and R read as missing, for a weight that is not finite."""
    return repr(weight) if math.isfinite(weight) else ""


def _dot_quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def dagitty_quoted(name: str) -> str:
    """A name in quotation marks; see `dagitty`."""
    return '"' + name.replace('"', '\\"') + ("\\\n" if name.endswith("\\") else "") + '"'


def dagitty_ids(variables: Sequence[str]) -> Iterator[str]:
    """What DAGitty calls the variables, in order; see `dagitty`."""
    taken = set(variables)
    for name in variables:
        unique = name
        while unique in _DAGITTY_RESERVED or (unique != name and unique in taken):
            unique += "_"
        yield unique
