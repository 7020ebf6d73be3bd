"""What a format cannot hold of a network, in sentences that stand in its comments and at the terminal."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedbnsl import __version__
from fedbnsl.console.wording import counted, first_few
from fedbnsl.network.families import Count, Number
from fedbnsl_server.results.network_of_run import NetworkOfRun
from fedbnsl_server.store.result_file import learned_class, undecided_edges
from fedbnsl_workbench.networks.exports.distributions import owner

_MOST = 20  # edges that a sentence lists


def about_graph(result: Mapping[str, Any], *, is_dag: bool) -> list[str]:
    """Of the graph; `is_dag`: whether the format has no place for an edge without a direction."""
    found = [f"a Bayesian network that fedbnsl {__version__} has learned"]
    if (told := result["privacy"]) is not None:
        found.append(f"privacy: {told['guarantee'] or 'no guarantee: ' + '; '.join(told['no_guarantee_because'])}")
    names, marks, undecided = result["variables"], learned_class(result), undecided_edges(result)
    both = np.triu(marks & marks.T)
    listed = _pairs(names, both)
    if listed and is_dag:
        found.append(
            f"one member of the class of graphs that fit the data equally well is taken: "
            f"{counted(len(listed), 'edge')} may point the other way: {first_few(listed, _MOST)}"
        )
    if undecided.any():
        rows = first_few(_pairs(names, undecided), _MOST)
        how = "are directed here" if is_dag else "have no direction here"
        found.append(f"edges that too few bootstrap draws direct {how}: {rows}")
    if result["hidden_causes"] is not None and result["hidden_causes"]["legal"] is not None:
        found.append(
            "the graph holds if no common cause is missing from the tables; what holds otherwise is in pag.csv, "
            "pag-tetrad.txt and pag-dagitty.txt of the run folder"
        )
    return found


def about_numbers(fitted: NetworkOfRun, *, by_lines: bool) -> list[str]:
    """Of what variables are given their parents; `by_lines`: whether numbers are straight lines without ends."""
    found = [*_simplified(fitted), *_units(fitted)] if by_lines else []
    withheld = [
        f"noise took the coefficient of {source!r} on {target!r} beyond what is possible: the nearest is here"
        for source, target in fitted.learned.withheld
    ]
    left_out = [f"{name!r} is left out: {why}" for name, why in fitted.left_out.items()]
    doubts = [f"be careful: {doubt}" for doubt in fitted.doubts]
    return [*found, *fitted.rough(fitted.variables), *withheld, *left_out, *doubts]


def _simplified(fitted: NetworkOfRun) -> Iterator[str]:
    for name, family in fitted.network.families.items():
        if isinstance(family, Count):
            yield f"{name!r} is a count about a rate: here a straight line and normal noise stand for it"
        if not isinstance(family, Number):
            continue
        if family.bends:
            bent = first_few(repr(owner(fitted, bend.parent)) for bend in family.bends)
            yield f"the effect of {bent} on {name!r} is a curve: a straight line stands for it"
        if math.isfinite(family.low) or math.isfinite(family.high):
            low, high = fitted.entry(name).range or (family.low, family.high)
            yield f"{name!r} has values from {low:g} to {high:g}: here it is normal, without ends"


def _units(fitted: NetworkOfRun) -> Iterator[str]:
    for name in fitted.variables:
        entry = fitted.entry(name)
        if name in fitted.levels:
            continue
        if entry.applied != "none":
            yield f"{name!r} is {entry.applied}({name}{f' in {entry.unit}' if entry.unit else ''})"
        elif entry.unit:
            yield f"{name!r} is in {entry.unit}"


def _pairs(names: list[str], of: Any) -> list[str]:
    return [f"{names[i]!r} - {names[j]!r}" for i, j in np.argwhere(of).tolist()]


def without_lines(text: str) -> str:
    """A text in one line, as comments of one line need it."""
    return " ".join(text.split())
