"""All formats that a run's network is there in: files of the run folder, and those that are written when asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import FedbnslError, ResultError, SetupError
from fedbnsl.files import durable
from fedbnsl.files.new_files import require_new
from fedbnsl.graphs.files import LGBN
from fedbnsl.graphs.pag import ARROW, TAIL
from fedbnsl.graphs.pag_formats import tetrad
from fedbnsl_server.results.network_of_run import NetworkOfRun, fitted_network
from fedbnsl_server.store.result_file import learned_class, read_result, undecided_edges
from fedbnsl_workbench.networks.exports import r_code
from fedbnsl_workbench.networks.exports.bif import bif, xmlbif
from fedbnsl_workbench.networks.exports.distributions import Distribution, OfLevels, OfMixed, distributions
from fedbnsl_workbench.networks.exports.wording import about_graph, about_numbers, without_lines


@dataclass(frozen=True)
class Source:
    """A run folder, of which a format reads what it needs."""

    run: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        """All of result.json."""
        return read_result(self.run)

    @cached_property
    def fitted(self) -> NetworkOfRun:
        """See `fitted_network`."""
        return fitted_network(self.run)

    @cached_property
    def distributions(self) -> dict[str, Distribution]:
        """See `distributions.distributions`."""
        return distributions(self.fitted)

    @cached_property
    def about_dag(self) -> list[str]:
        """What to know of a file that has numbers of one DAG."""
        return [*about_graph(self.result, is_dag=True), *about_numbers(self.fitted, by_lines=True)]

    @cached_property
    def about_class(self) -> list[str]:
        """What to know of a file that has the class of graphs."""
        return about_graph(self.result, is_dag=False)


class Format(NamedTuple):
    """How a format is written, and what it holds."""

    tools: str
    holds: str
    write: Callable[[Source], tuple[str, Sequence[str]]]
    """The text, and what to know of it."""


class Kept(NamedTuple):
    """A file that a run folder has by itself."""

    tools: str
    holds: str
    file: str


def _bif(source: Source) -> tuple[str, Sequence[str]]:
    return bif(source.fitted.levels, _tables(source), source.about_dag), source.about_dag


def _xmlbif(source: Source) -> tuple[str, Sequence[str]]:
    return xmlbif(source.fitted.levels, _tables(source), source.about_dag), source.about_dag


def _tables(source: Source) -> dict[str, OfLevels]:
    """Raises SetupError where a variable has no levels."""
    numbers = [name for name in source.fitted.variables if name not in source.fitted.levels]
    if numbers:
        raise SetupError(
            f"the format holds variables with levels alone; there are numbers: {first_few(map(repr, numbers))}",
            remedy="--as bnlearn holds numbers whose parents are of any kind; --as json holds every network.",
        )
    return {name: one for name, one in source.distributions.items() if isinstance(one, OfLevels)}


def _bnlearn(source: Source) -> tuple[str, Sequence[str]]:
    mixed = {name: one.parents for name, one in source.distributions.items() if isinstance(one, OfMixed)}
    for name, parents in mixed.items():
        numbers = [one for one in parents if one not in source.fitted.levels]
        raise SetupError(
            f"bnlearn has no variable with levels that depends on a number, as {name!r} does on "
            f"{first_few(map(repr, numbers))}",
            remedy="--as json holds every network; --as pcalg, --as tetrad and files of the run folder hold the graph.",
        )
    of = {name: one for name, one in source.distributions.items() if not isinstance(one, OfMixed)}
    text = r_code.bnlearn(source.fitted.variables, source.fitted.levels, of, source.about_dag)
    return text, source.about_dag


def _json(source: Source) -> tuple[str, Sequence[str]]:
    about = [*about_graph(source.result, is_dag=True), *about_numbers(source.fitted, by_lines=False)]
    return source.fitted.to_json(), about


def _pcalg(source: Source) -> tuple[str, Sequence[str]]:
    arrows, lines = _marks(source.result)
    return r_code.pcalg(source.result["variables"], arrows, lines, source.about_class), source.about_class


def _tetrad(source: Source) -> tuple[str, Sequence[str]]:
    arrows, lines = _marks(source.result)
    marks = np.where(arrows, ARROW, np.where(arrows.T | lines, TAIL, 0)).astype(np.int8)
    about = [
        *source.about_class,
        "in names, white space, commas and semicolons are underscores",
    ]
    comments = "".join(f"# {without_lines(text)}\n" for text in about)
    return comments + tetrad(source.result["variables"], marks), about


def _marks(result: Mapping[str, Any]) -> tuple[Any, Any]:
    """(V, V) arrows, and edges without a direction in both directions."""
    marks, undecided = learned_class(result), undecided_edges(result)
    lines = (marks & marks.T) | undecided | undecided.T
    return marks & ~lines, lines


WRITTEN: Mapping[str, Format] = {
    "bif": Format("pgmpy, bnlearn", "tables, where all variables have levels", _bif),
    "xmlbif": Format("pgmpy, XMLBIF 0.3", "tables, where all variables have levels", _xmlbif),
    "bnlearn": Format("R's bnlearn", "tables and straight lines", _bnlearn),
    "json": Format("any program", "all families: curves, odds, ranges", _json),
    "pcalg": Format("R's pcalg", "the class of graphs, as amat.cpdag", _pcalg),
    "tetrad": Format("Tetrad, causal-learn", "the class of graphs", _tetrad),
}
"""Formats that are written when asked for."""

KEPT: Mapping[str, Kept] = {
    "csv": Kept("pandas, R", "edges with weights and shares", "edges.csv"),
    "graphml": Kept("igraph, networkx, Cytoscape, Gephi", "the class of graphs", "graph.graphml"),
    "dot": Kept("Graphviz", "the class of graphs", "graph.dot"),
    "dagitty": Kept("dagitty.net, R's dagitty", "the class of graphs", "dagitty.txt"),
    "lgbn": Kept("pgmpy, bnlearn", "straight lines, without means", LGBN),
    "strength": Kept("bnlearn", "shares of the bootstrap draws", "strength.csv"),
    "pag-pcalg": Kept("R's pcalg", "marks if causes are hidden, as amat.pag", "pag.csv"),
    "pag-tetrad": Kept("Tetrad, causal-learn", "marks if causes are hidden", "pag-tetrad.txt"),
    "pag-dagitty": Kept("dagitty.net, R's dagitty", "marks if causes are hidden", "pag-dagitty.txt"),
}
"""Formats that are files of a run folder."""


def export(run: Path, name: str, out: Path) -> list[str]:
    """Write a network in a format, and return what to know of the file, sentences.

    Raises
    ------
    SetupError
        If there is no such format, it cannot hold this network, or `out` exists or has no folder.
    ResultError
        If the run has no result, or not this file.
    """
    require_new(out)
    source = Source(run)
    if name in KEPT:
        kept = _kept(source, KEPT[name])
        durable.write_file(out, lambda file: file.write(kept.read_bytes()))
        return []
    if name not in WRITTEN:
        raise SetupError(f"there is no format {name!r}; expected one of {', '.join((*WRITTEN, *KEPT))}")
    text, about = WRITTEN[name].write(source)
    durable.write_text(out, text)
    return list(about)


def _kept(source: Source, kept: Kept) -> Path:
    path = source.run / kept.file
    if not path.exists():
        why = source.result["not_written"].get(kept.file, "the run has not told it")
        raise ResultError(f"{source.run} has no {kept.file}: {why}")
    return path


def available(run: Path) -> list[dict[str, str | None]]:
    """JSON-ready, a row a format: its name, tools, what it holds, its file in the folder, and why not (null: it can).

    Raises ResultError if the run has no result.
    """
    source, rows = Source(run), list[dict[str, str | None]]()
    source.result  # noqa: B018  # what is wrong with all of them is no reason of one
    for name, one in WRITTEN.items():
        try:
            one.write(source)
            why = None
        except FedbnslError as error:
            why = str(error)
        rows.append({"format": name, "tools": one.tools, "holds": one.holds, "file": None, "why_not": why})
    for name, kept in KEPT.items():
        try:
            _kept(source, kept)
            why = None
        except FedbnslError as error:
            why = str(error)
        rows.append({"format": name, "tools": kept.tools, "holds": kept.holds, "file": kept.file, "why_not": why})
    return rows
