"""`fedbnsl effect`: what a learned network says of the total effect of one variable on another."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl_server.results.numbers import between, signed

if TYPE_CHECKING:  # it takes long to load
    from fedbnsl_server.results.learned_network import LearnedNetwork

_MOST_ROWS = 60  # of probabilities


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "sources",
    metavar="NAME",
    multiple=True,
    required=True,
    help="Variable that is set to another value. Several times: variables that are set together.",
)
@click.option("--to", "target", metavar="NAME", required=True, help="Variable whose mean changes.")
@click.option(
    "--change",
    type=float,
    nargs=2,
    metavar="A B",
    help="Set the source from A to B, in its unit from the mean of its site: along curves, where effects bend.",
)
@click.option(
    "--no-hidden-causes",
    is_flag=True,
    help="Assume that no common cause is missing from the tables, and tell the effect under this assumption alone.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
def effect(
    run: Path,
    sources: tuple[str, ...],
    target: str,
    change: tuple[float, float] | None,
    no_hidden_causes: bool,
    as_json: bool,
) -> None:
    """Tell the total effect of one variable on another in the network of the run folder RUN.

    It is by how many units the mean of the target changes if the source is set one unit higher by an intervention, or
    from A to B with --change: only then are effects that bend those of their curves, and not of straight lines.
    Where a run tells no curve, as a private one, such a change is not known.
    Where the graph leaves directions open, each graph that it stands for gives an effect: one value for all of them is
    identified, otherwise all values are shown. An effect that rests on an arrow which too few bootstrap draws agree
    with is not identified. The 95 % intervals are those of the coefficients given the graph; noise
    of a private run is part of them. Numbers are those of the learned network: where it lacks an edge, a regression
    on the rows that adjusts for the same variables gives another one.

    Between categories that were counted it is the change of a level's probability, by the tables; how likely each
    level of the target is, where the source is set to each of its own, stands below.

    All of this holds if no common cause of two variables is missing from the tables. Where the run tells what holds
    otherwise, that comes first: an effect is identified then if the marks of the graph say what to adjust for, whatever
    is hidden, and nine in ten bootstrap draws agree (which are counted for one source and up to 60 variables).
    """
    from rich.console import Console

    from fedbnsl_server.results.effect_report import effect_of
    from fedbnsl_server.results.learned_network import read_network

    network = read_network(run)
    if no_hidden_causes:
        network = replace(network, pag=None, none_hidden=True)
    report = effect_of(network, sources, target, change)
    if as_json:
        click.echo(json.dumps({"run": str(run), **report}, ensure_ascii=False))
    else:
        _show(report, network, Console())


def _show(report: dict[str, Any], network: "LearnedNetwork", console: Any) -> None:
    """First what says against the graph: who reads "identified" reads no further."""
    from rich.text import Text

    from fedbnsl.console.whole_words import keep_words
    from fedbnsl_server.results.sentences import note, sentence

    near, elsewhere = _doubts(report, network)
    first = [note("doubt", doubt=doubt) for doubt in near]
    if elsewhere:
        first.append(note("doubts_elsewhere", names=elsewhere))
    for one in first:
        console.print(Text(sentence(one), style="bold red"), soft_wrap=True)
    units = {name: f"{name} ({unit})" if unit else name for name, unit in report["units"].items()}
    change = "" if report["change"] is None else " from {:g} to {:g}".format(*report["change"])
    title = f"effect of {' and '.join(units[name] for name in report['from'])}{change} on {units[report['to']]}"
    title += " in the best graphs" if report["open"] else ""
    if (hidden := report["hidden_causes"]) is not None:
        _print_effects(console, report, hidden["effects"], f"{title}, whatever is hidden")
        console.print(Text(hidden["in_words"]), soft_wrap=True)
        title += ", if no common cause is hidden"
    _print_effects(console, report, report["effects"], title)
    if report["probabilities"]:
        console.print(keep_words(_probabilities(report), console.width, fewest=2))
    doubts = {sentence(note("doubt", doubt=doubt)) for doubt in network.doubts}
    for text in report["in_words"]:
        if text not in doubts:
            console.print(Text(text), soft_wrap=True)


def _doubts(report: dict[str, Any], network: "LearnedNetwork") -> tuple[list[str], list[str]]:
    """What says against the graph where the effect comes by, and the variables that the rest of it names.

    A sentence that names no variable, or leaves some out, may be about any.
    """
    names = network.columns.variables
    through, start = network.on_the_way([names.index(name) for name in report["from"]], names.index(report["to"]))
    asked = {name for name, passed in zip(names, through | start, strict=True) if passed}
    asked.add(report["to"])
    if (hidden := report["hidden_causes"]) is not None:
        asked.update(hidden["adjusted_for"] or ())
    near: list[str] = []
    elsewhere: set[str] = set()
    for doubt in network.doubts:
        named = {name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", doubt)}
        if not named or named & asked or re.search(r"\d more\b", doubt):
            near.append(doubt)
        else:
            elsewhere |= named
    return near, [name for name in names if name in elsewhere]


def _print_effects(console: Any, report: dict[str, Any], rows: list[dict[str, Any]], title: str) -> None:
    """A table of effects between columns, with their intervals and what is adjusted for; none of no row."""
    from rich.table import Table
    from rich.text import Text

    from fedbnsl.console.whole_words import keep_words

    table = Table(title=Text(title, style="table.title"), title_justify="left")
    # A column for what differs or is known: the rest would only take its width from the others.
    ends = [end for end in ("source", "target") if len({row[end] for row in rows}) > 1]
    known = any(value["interval"] is not None for row in rows for value in row["values"])
    for end in ends:
        table.add_column({"source": "of", "target": "on"}[end], overflow="fold")
    for number in ("effect", "without\nunits"):
        table.add_column(number, justify="right", overflow="fold")
        if known:
            table.add_column("95 %", justify="right", overflow="fold")
        if number == "effect":  # a narrow terminal lacks the last columns
            table.add_column("adjusted for", overflow="fold")
    for row in rows:
        for value in row["values"]:
            numbers = [
                (signed(value[number], value[interval]), _between(value[interval]))
                for number, interval in (("effect", "interval"), ("standardised", "standardised_interval"))
            ]
            words = _sets_in_words(value["adjusted_for"], report["from"])
            if not value["effect"]:  # which is no estimate
                numbers, words = [(_no_path(value["adjusted_for"], report["to"]), ""), ("", "")], ""
            of_effect, without_units = (pair[: 1 + known] for pair in numbers)
            table.add_row(*(Text(row[end]) for end in ends), *of_effect, Text(words), *without_units)
    if table.row_count:
        console.print(keep_words(table, console.width, fewest=len(ends) + 1))


def _probabilities(report: dict[str, Any]) -> Any:
    """How likely the target's levels are, where the source is set to each of its levels."""
    from rich.table import Table
    from rich.text import Text

    (source,), target = report["from"], report["to"]
    table = Table(title=Text(f"probability of {target}, {source} set", style="table.title"), title_justify="left")
    for name in (source, target):
        table.add_column(name, overflow="fold")
    for number in ("probability", "95 %"):
        table.add_column(number, justify="right", overflow="fold")
    table.add_column("adjusted for", overflow="fold")
    for one in report["probabilities"][:_MOST_ROWS]:
        p = "not known" if one["probability"] is None else f"{one['probability']:.3f}"
        ends = "" if one["interval"] is None else "{:.3f} to {:.3f}".format(*one["interval"])
        table.add_row(
            *map(Text, (one["set"], one["level"], p, ends, _sets_in_words(one["adjusted_for"], report["from"])))
        )
    if len(report["probabilities"]) > _MOST_ROWS:
        table.add_row(f"... {len(report['probabilities']) - _MOST_ROWS} more", "in --json", "", "", "")
    return table


def _no_path(sets: list[list[list[str]]], target: str) -> str:
    """In place of a number: why there is no effect, and whether all graphs without one have the target as a cause."""
    is_cause = all(any(target in parents for parents in of_sources) for of_sources in sets)
    return f"none: {target} is a cause" if is_cause else "none: no path"


def _sets_in_words(sets: list[list[list[str]]], sources: Sequence[str]) -> str:
    """Such as `nothing, or crp and plate`; of several sources `for a nothing, for b crp`, and at most three sets."""

    def listed(names: list[str]) -> str:
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "nothing"

    words = [
        listed(parents[0])
        if all(names == parents[0] for names in parents)
        else ", ".join(f"for {source} {listed(names)}" for source, names in zip(sources, parents, strict=True))
        for parents in sets[:3]
    ]
    return ", or ".join([*words, *([f"{len(sets) - 3} more sets"] if len(sets) > 3 else [])])


def _between(interval: list[float] | None) -> str:
    if interval is None:
        return "-"
    return "" if interval[0] == interval[1] else between(interval)
