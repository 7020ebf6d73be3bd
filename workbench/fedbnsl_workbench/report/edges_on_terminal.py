"""The table of edges that a terminal shows: with the marks that hold if common causes may be hidden, or without them.

With marks it has the links of the partial ancestral graph, each with its arrowhead at the target. Weights are those of
the class, in which no common cause is hidden: a link has one only where the marks allow its direction.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from rich.table import Table
from rich.text import Text

from fedbnsl.console.wording import counted, edges_in_words, first_few
from fedbnsl.graphs.directed_by import Source
from fedbnsl_server.results.numbers import between, signed
from fedbnsl_server.results.result_schema import Coefficient, DrawnMarks, Edge, HiddenCauses, Shares
from fedbnsl_server.results.sentences import DIRECTED_BY, OF_MARKS, hidden_causes_in_words

MOST_SHOWN = 40
"""Rows of the table; files have the others."""
FLAG = "--no-hidden-causes"
_OF_ONE_DAG = "weights are of source -> target in one of the DAGs that fit equally well (lgbn.json); others may differ"
_OF_THE_CLASS = (
    "of source -> target in one DAG, with its other causes of the target held fixed; only right if no common cause is "
    f"hidden (lgbn.json). None where it has the edge the other way, or the marks name no target: {FLAG} has all"
)
_OF_LINKS = "% of the bootstrap draws: linked, with the same mark at source, at target, and with a hidden cause"
_OF_EDGES = "% of the bootstrap draws: with an edge there, directed source -> target, and the other way"
_BESIDE_DRAWS = "; they tell nothing of directions by interventions, sites or noise"
_NOT_DRAWN = f"shares of marks were not drawn, as there are too many variables; those of edges: {FLAG}"


def shown_edges(edges: Sequence[Edge], told: HiddenCauses | None) -> list[Edge]:
    """The edges that are links if common causes may be hidden, then links that are no edges; None: all edges.

    A link whose marks do not name the edge's target as their one target is told along its marks, and without a weight.
    """
    if told is None:
        return list(edges)
    links = {frozenset((one.source, one.target)): one for one in told.links}
    found: list[Edge] = []
    for edge in edges:
        link = links.pop(frozenset((edge.source, edge.target)), None)
        if link is not None:
            if link.points and link.source == edge.source:
                found.append(edge)
                continue
            ends = link if link.points else edge
            found.append(Edge(source=ends.source, target=ends.target, weight=None))
    return found + [Edge(source=one.source, target=one.target, weight=None) for one in links.values()]


def table_of(
    edges: Sequence[Edge],
    result: Mapping[str, Any],
    along: Mapping[tuple[str, str], float],
    told: HiddenCauses | None,
) -> Table:
    """The first edges; with a column for what any of them has: marks or no direction, a curve, an interval, a share.

    `told`: the marks, for edges as in `shown_edges`; None: as the class has them.
    """
    units, links = result["units"], {} if told is None else told.by_pair()
    majority: float = result["verdict"]["majority"]
    of_class = {(edge["source"], edge["target"]) for edge in result["edges"]}

    def measured(name: str) -> str:
        return f"{name} ({units[name]})" if name in units else name

    of_draws = [edge.bootstrap if told is None else links[edge.source, edge.target].bootstrap for edge in edges]
    has = {
        "link": told is not None or not all(edge.directed for edge in edges),
        "interval": any(edge.interval for edge in edges),
        "share": any(of_draws),
    }
    preparation: Mapping[str, Any] | None = result["preparation"]
    scaled = preparation is not None and preparation["scale"] == "pooled"
    table = Table(title=_title(edges, result, told), title_justify="left")
    for name in ("source", *[""] * has["link"], "target"):
        table.add_column(name, overflow="fold")
    for name in (
        "weight",
        *["without\nunits"] * scaled,
        *["along\ncurve"] * bool(along),
        *["95 %"] * has["interval"],
        *["% of draws:\nedge  ->  <-" if told is None else "% of draws:\nlink  marks  <->"] * has["share"],
    ):
        table.add_column(name, justify="right", overflow="fold")
    for edge, drawn in list(zip(edges, of_draws, strict=True))[:MOST_SHOWN]:
        source, target = (
            measured(f"{name}={level}" if level else name)
            for name, level in ((edge.source, edge.source_level), (edge.target, edge.target_level))
        )
        if edge.coefficients:
            target = f"{target} (largest of {_among(edge.coefficients)})"
        if told is None:
            mark = "->" if edge.directed else "--"
        else:
            link = links[edge.source, edge.target]
            mark = link.marks + "?" * link.is_doubtful(majority)
        curve = along.get((edge.source, edge.target))
        numbers = [signed(edge.weight, edge.interval)]
        numbers += [signed(edge.standardised, edge.standardised_interval)] * scaled
        numbers += ["" if curve is None else f"{curve:.2f}"] * bool(along)
        numbers += [between(edge.interval)] * has["interval"]
        pair = edge.source, edge.target
        agrees = told is None or (pair in of_class and links[pair].points)
        cells = [source, *[mark] * has["link"], target, *(numbers if agrees else [""] * len(numbers))]
        cells += [_of_draws(drawn)] * has["share"]
        # Text: a plain string would lose "[mol/l]" of a name as markup.
        table.add_row(*map(Text, cells))
    if len(edges) > MOST_SHOWN:
        cells = [f"... {len(edges) - MOST_SHOWN} more", *[""] * has["link"], "in edges.csv"]
        table.add_row(*cells, *[""] * (len(table.columns) - len(cells)))
    return table


def remarks_on_links(edges: Sequence[Edge], told: HiddenCauses, majority: float) -> list[tuple[str, str]]:
    """What a reader must know of a table with marks, each with the line's head; `edges`: those of the class."""
    there = {one.marks for one in told.links}
    words = [f"{marks} {meaning}" for marks, meaning in OF_MARKS.items() if marks in there]
    if any(one.is_doubtful(majority) for one in told.links):
        words.append(
            f"? less than {majority:.0%} of the draws have the link with the same marks: take them for circles"
        )
    found = [("marks" * (not k), text) for k, text in enumerate(words)]
    if told.gone:
        gone = first_few([f"{a} and {b}" for a, b in told.gone])
        found.append(("no link", f"{gone}: the graph needs an edge there only if no common cause is hidden"))
    if told.untested:
        pairs = first_few([f"{a} and {b}" for a, b in told.untested])
        found.append(("not testable", f"{pairs}: perhaps no link; no other mark rests on it, and no effect is told"))
    if told.legal is False and not told.untested:
        found.append(("be careful", "the marks contradict each other, so that no effect is told by them"))
    if told.links:
        found.append(("weights", _OF_THE_CLASS))
    directed = [
        f"{edge.source} -> {edge.target} {DIRECTED_BY[edge.directed_by]}"
        for edge in edges
        if edge.directed_by in get_args(Source)
    ]
    if directed:
        found.append(("if none is hidden", f"{first_few(directed)}; the marks do not rest on it"))
    if any(one.bootstrap for one in told.links):
        found.append(("draws", _OF_LINKS))
    elif any(edge.bootstrap for edge in edges):
        found.append(("draws", _NOT_DRAWN))
    return found


def remarks_on_class(edges: Sequence[Edge], told: HiddenCauses | None) -> list[tuple[str, str]]:
    """What a reader must know of a table without marks; `told`: the marks, if the result has them."""
    found = [] if all(edge.directed for edge in edges) else [("undirected (--)", _OF_ONE_DAG)]
    for k, text in enumerate([] if told is None else hidden_causes_in_words(told)):
        found.append(("", text) if k else ("hidden causes", f"if there may be some: {text}"))
    if any(edge.bootstrap for edge in edges):
        beside = any(edge.directed_by in get_args(Source) for edge in edges)
        found.append(("draws", _OF_EDGES + _BESIDE_DRAWS * beside))
    return found


def _title(edges: Sequence[Edge], result: Mapping[str, Any], told: HiddenCauses | None) -> str:
    learned: Sequence[Mapping[str, Any]] = result["edges"]
    if told is not None:
        of_class = edges_in_words(learned)
        return f"{counted(len(edges), 'link')} if common causes may be hidden ({FLAG}: {of_class})"
    title = f"edges learned: {len(learned)}"
    if not all(edge.directed for edge in edges):
        title += f" ({edges_in_words(learned)})"
    return title + ", if no common cause is hidden" * bool(result["hidden_causes"])


def _among(coefficients: Sequence[Coefficient]) -> str:
    """How many there are; where some have an interval, those: of the others the data leave the value open."""
    known = sum(one.interval is not None for one in coefficients)
    return f"{known} known" if 0 < known < len(coefficients) else str(len(coefficients))


def _of_draws(drawn: Shares | DrawnMarks | None) -> str:
    """Per cent of the draws with an edge, as named, and the other way round; or with a link, its marks and both."""
    if drawn is None:
        return "not known"
    shares = (drawn.adjacent, drawn.forward, drawn.backward) if isinstance(drawn, Shares) else (
        drawn.adjacent, drawn.mark_source, drawn.mark_target, drawn.hidden_cause
    )  # fmt: skip
    return " ".join(f"{100 * share:3.0f}" for share in shares)
