"""The summary of a run on the terminal, when it is over."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbnsl.console.whole_words import keep_words
from fedbnsl.console.wording import edges_in_words, first_few, levels_in_words
from fedbnsl_server.inference.directions import Source
from fedbnsl_server.observe.terminal import megabytes
from fedbnsl_server.results.numbers import between, ratio, signed
from fedbnsl_server.results.numbers import ratios as between_ratios
from fedbnsl_server.results.outlier_scores import in_one_line, outliers, who_was_left_out
from fedbnsl_server.results.result_schema import Coefficient, Edge, Estimate, Regression, Shares
from fedbnsl_server.results.sentences import (
    checks_in_words,
    directions_in_words,
    hidden_causes_in_words,
    in_words,
    taken_in_words,
    whole,
)
from fedbnsl_workbench.report.along_curves import along_curves
from fedbnsl_workbench.report.prepared import in_short
from fedbnsl_workbench.scoring.class_scores import ClassScores
from fedbnsl_workbench.scoring.metrics import Scores

_EDGES_SHOWN = 40
_OF_ONE_DAG = "weights are of source -> target in one DAG of the class (lgbn.json); another may have others"
_OF_LINES = "weights are of straight lines through curves, which the page draws"
_ALONG = "; the strength along a curve is the standard deviation of the change, in scales of the target"
_BESIDE_DRAWS = "; they tell nothing of directions by interventions, sites or noise"
_OF_DRAWS = "% of the bootstrap draws: with an edge there, directed source -> target, and the other way"


def at_the_head(result: Mapping[str, Any]) -> list[str]:
    """Warnings that summary and page have at their head, and so not among the others."""
    verdict = result["verdict"]
    return [
        *in_words(outliers(result["influence"])),
        *verdict["incomplete"],
        *verdict["few_rows"],
        *verdict["outlying"],
        *verdict["withheld"],
    ]


def in_red(result: Mapping[str, Any]) -> list[str]:
    """What stands at the head of the summary in red, one finding each: also what contradicts the assumptions."""
    contradicted = [
        f"the data contradict what was assumed: {whole(text)}" for text in result["verdict"]["contradicted"]
    ]
    return [*map(whole, at_the_head(result)), *contradicted]


def print_summary(
    result: Mapping[str, Any],
    folder: Path,
    console: Console,
    *,
    scores: Scores | None = None,
    of_classes: ClassScores | None = None,
    left_out: str = "",
    seconds: float,
) -> None:
    """What was learned, what it cost, and where it is kept.

    Parameters
    ----------
    result
        The content of result.json; with "ledgers", what each site's ledger has spent and has left.
    scores
        Against a known truth, if there is one.
    of_classes
        Of the classes of learned graph and truth, which count where the result is a class.
    left_out
        What the scores leave out; empty: nothing.
    seconds
        Wall clock of the whole command.
    """
    for sentence in in_words(outliers(result["influence"])):
        console.print(Text(f"be careful: {sentence}", style="bold red"), soft_wrap=True)
    _print_checks(result["verdict"], console)
    edges, along = [Edge.model_validate(edge) for edge in result["edges"]], along_curves(result)
    if along:
        edges.sort(key=lambda edge: -along.get((edge.source, edge.target), abs(edge.standardised or 0.0)))
    table = _table_of(edges, result, along)
    to_weight = [column.header for column in table.columns].index("weight") + 1
    console.print(keep_words(table, console.width, fewest=to_weight) if edges else "edges learned: 0")
    regressions = reported(result)
    if any(one.estimates for one in regressions):
        console.print(keep_words(_table_of_regressions(regressions, result["units"]), console.width, fewest=4))
    sent = result["bytes"]
    lines = Table.grid(padding=(0, 2))
    if not all(edge.directed for edge in edges):
        lines.add_row("undirected (--)", _OF_ONE_DAG)
    shown = {name for edge in edges[:_EDGES_SHOWN] for name in (edge.source, edge.target)}
    levels = {name: own for name, own in result["levels"].items() if name in shown}
    if said := levels_in_words(levels, references_of(edges[:_EDGES_SHOWN], result)):
        lines.add_row("levels", Text(said))
    if result["taken"]:
        lines.add_row("taken as", Text(taken_in_words(result["taken"])))
    for k, text in enumerate(hidden_causes_in_words(result["hidden_causes"]) if result["hidden_causes"] else ()):
        lines.add_row("" if k else "hidden causes", Text(text if k else f"if there may be some: {text}"))
    if result["curves"] and (curves := result["curves"]["effects"]):
        named = first_few([f"{one['source']} -> {one['target']}" for one in curves])
        lines.add_row("curves", Text(f"{named}: {_OF_LINES}{_ALONG * bool(along)}"))
    if any(edge.bootstrap for edge in edges):
        beside = any(edge.directed_by in get_args(Source) for edge in edges)
        lines.add_row("draws", _OF_DRAWS + _BESIDE_DRAWS * beside)
    for text, children in remarks_on(regressions).items():
        lines.add_row("regressions", Text(f"{', '.join(children)}: {text}"))
    if of_classes is not None and result["graph_class"] == "cpdag":
        n_reference = of_classes.n_reference_directed + of_classes.n_reference_undirected
        f1 = "-" if of_classes.skeleton_f1 is None else f"{of_classes.skeleton_f1:.2f}"
        lines.add_row(
            "against the truth", f"SHD of the classes {of_classes.shd} of {n_reference} edges, skeleton F1 {f1}"
        )
    elif scores is not None:
        lines.add_row(
            "against the truth",
            f"SHD {scores.shd} of {scores.n_reference_edges} edges ({scores.missing} missing, {scores.extra} extra, "
            f"{scores.reversed} reversed)",
        )
    if left_out:
        lines.add_row("", Text(left_out, style="yellow"))
    if prepared := in_short(result):
        lines.add_row("prepared", prepared)
    for kind, meaning in (("formula", "as the paper counts"), ("serialised", "real protobuf messages")):
        up, down = sent["up"][kind], sent["down"][kind]
        lines.add_row(
            f"bytes, {kind}", f"{megabytes(up + down)} ({megabytes(up)} up, {megabytes(down)} down): {meaning}"
        )
    for site, of in result.get("ledgers", {}).items():
        spent, left = of["spent"]["epsilon"], of["left"]["epsilon"]
        lines.add_row(
            f"{site}'s ledger",
            f"epsilon {spent:.4g} of {of['max_epsilon']:g} spent (delta {of['delta']:.3g}); room for {left:.4g}",
        )
    if result["privacy"] and result["privacy"]["guarantee"]:
        lines.add_row("guarantee", result["privacy"]["guarantee"])
    if result["dropped_edges"]:
        lines.add_row("cycles", f"{len(result['dropped_edges'])} weak edges left out to break them (see result.json)")
    lines.add_row("outlier scores", Text(in_one_line(result["influence"])))
    for sentence in in_words(who_was_left_out(result["rounds"])):
        lines.add_row("left out", Text(sentence))
    for file, why in result["not_written"].items():
        lines.add_row("not written", f"{file}: {why}")
    took = result["seconds"]
    for warning in (warning for warning in result["warnings"] if warning not in at_the_head(result)):
        lines.add_row("be careful", Text(warning, style="yellow"))
    lines.add_row("seconds", f"{seconds:.1f} in all, {took['total']:.1f} from the first round on")
    console.print(lines)
    # By itself: a table would cut a long path short.
    console.print(Text(f"as a page          fedbnsl report {shlex.quote(str(folder))}"), soft_wrap=True)
    console.print(Text(f"run folder         {folder}"), soft_wrap=True)


def _print_checks(verdict: Mapping[str, Any], console: Console) -> None:
    for text in (*verdict["incomplete"], *verdict["few_rows"], *verdict["outlying"], *verdict["withheld"]):
        console.print(Text(whole(text), style="bold red"), soft_wrap=True)
    if verdict["contradicted"]:
        told = " ".join(map(whole, verdict["contradicted"]))
        console.print(Text(f"the data contradict what was assumed: {told}", style="bold red"), soft_wrap=True)
    lines = Table.grid(padding=(0, 2))
    for k, reason in enumerate(verdict["reasons"], start=1):
        lines.add_row("likely reasons" if k == 1 else "", f"{k}. {whole(reason)}")
    if verdict["assumed"]:
        lines.add_row("assumed", Text(" ".join([*map(whole, verdict["assumed"]), checks_in_words(verdict)])))
    if words := directions_in_words(verdict):
        lines.add_row("directions", words)
    console.print(lines)


def _table_of(edges: Sequence[Edge], result: Mapping[str, Any], along: Mapping[tuple[str, str], float]) -> Table:
    """The first edges; with a column for what any of them has: no direction, a curve, an interval, a share."""
    units = result["units"]

    def measured(name: str) -> str:
        return f"{name} ({units[name]})" if name in units else name

    has = {
        "link": not all(edge.directed for edge in edges),
        "interval": any(edge.interval for edge in edges),
        "share": any(edge.bootstrap for edge in edges),
    }
    preparation: Mapping[str, Any] | None = result["preparation"]
    scaled = preparation is not None and preparation["scale"] == "pooled"
    title = f"edges learned: {len(edges)}" + (f" ({edges_in_words(result['edges'])})" if has["link"] else "")
    table = Table(title=title, title_justify="left")
    for name in ("source", *[""] * has["link"], "target"):
        table.add_column(name, overflow="fold")
    for name in (
        "weight",
        *["without\nunits"] * scaled,
        *["along\ncurve"] * bool(along),
        *["95 %"] * has["interval"],
        *["% of draws:\nedge  ->  <-"] * has["share"],
    ):
        table.add_column(name, justify="right", overflow="fold")
    for edge in edges[:_EDGES_SHOWN]:
        source, target = (
            measured(f"{name}={level}" if level else name)
            for name, level in ((edge.source, edge.source_level), (edge.target, edge.target_level))
        )
        if edge.coefficients:
            target = f"{target} (largest of {_among(edge.coefficients)})"
        cells = [source, *["->" if edge.directed else "--"] * has["link"], target, signed(edge.weight, edge.interval)]
        cells += [signed(edge.standardised, edge.standardised_interval)] * scaled
        curve = along.get((edge.source, edge.target))
        cells += ["" if curve is None else f"{curve:.2f}"] * bool(along)
        cells += [between(edge.interval)] * has["interval"]
        cells += [_of_draws(edge.bootstrap)] * has["share"]
        # Text: a plain string would lose "[mol/l]" of a name as markup.
        table.add_row(*map(Text, cells))
    if len(edges) > _EDGES_SHOWN:
        cells = [f"... {len(edges) - _EDGES_SHOWN} more", *[""] * has["link"], "in edges.csv"]
        table.add_row(*cells, *[""] * (len(table.columns) - len(cells)))
    return table


def reported(result: Mapping[str, Any]) -> list[Regression]:
    """The regressions; none where all are mean differences, which the table of edges has."""
    found = [Regression.model_validate(one) for one in result["regressions"]]
    return found if any(one.kind != "mean difference" for one in found) else []


def in_numbers(told: Estimate, kind: str) -> tuple[str, str]:
    """An estimate, and its 95 % interval."""
    if told.curved:
        return "curved: see the plot", ""
    if kind == "mean difference":
        return signed(told.estimate, told.interval), between(told.interval)
    return ratio(told.estimate), between_ratios(told.interval)


def _table_of_regressions(regressions: Sequence[Regression], units: Mapping[str, str]) -> Table:
    """The first estimates, by child."""
    told = [(one, estimate) for one in regressions for estimate in one.estimates]
    table = Table(title=f"odds ratios, rate ratios and mean differences: {len(told)}", title_justify="left")
    for name in ("of", "for one more of", "kind"):
        table.add_column(name, overflow="fold")
    for name in ("estimate", "95 %", "rows"):
        table.add_column(name, justify="right", overflow="fold")
    for one, estimate in told[:_EDGES_SHOWN]:
        ends = (f"{end} ({units[end]})" if end in units else end for end in (estimate.target, estimate.source))
        table.add_row(*map(Text, (*ends, one.kind.split()[0], *in_numbers(estimate, one.kind), f"{one.rows:,}")))
    if len(told) > _EDGES_SHOWN:
        table.add_row(f"... {len(told) - _EDGES_SHOWN} more", "in regressions.csv", "", "", "", "")
    return table


def remarks_on(regressions: Sequence[Regression]) -> dict[str, list[str]]:
    """What is to be said of regressions, each with the children that it is said of."""
    found: dict[str, list[str]] = {}
    for one in regressions:
        for text in one.notes:
            found.setdefault(text, []).append(one.child)
    return found


def references_of(edges: Sequence[Edge], result: Mapping[str, Any]) -> dict[str, str]:
    """Of each nominal source of these edges, the level that the others are compared with."""
    compared = {edge.source for edge in edges if edge.source_level}
    return {name: level for name, level in result["references"].items() if name in compared}


def _among(coefficients: Sequence[Coefficient]) -> str:
    """How many there are; where some have an interval, those: of the others the data leave the value open."""
    known = sum(one.interval is not None for one in coefficients)
    return f"{known} known" if 0 < known < len(coefficients) else str(len(coefficients))


def _of_draws(shares: Shares | None) -> str:
    """Per cent of the draws with an edge, as named, and the other way round."""
    if shares is None:
        return "not known"
    return " ".join(f"{100 * share:3.0f}" for share in (shares.adjacent, shares.forward, shares.backward))
