"""The summary of a run on the terminal, when it is over."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbnsl.console.whole_words import keep_words
from fedbnsl.console.wording import first_few, levels_in_words
from fedbnsl_server.observe.terminal import megabytes
from fedbnsl_server.results.curves import clearly_bent
from fedbnsl_server.results.numbers import between, ratio, signed
from fedbnsl_server.results.numbers import ratios as between_ratios
from fedbnsl_server.results.outlier_scores import in_one_line, outliers, who_was_left_out
from fedbnsl_server.results.result_schema import Edge, Estimate, HiddenCauses, Regression
from fedbnsl_server.results.sentences import (
    checks_in_words,
    directions_in_words,
    in_words,
    taken_in_words,
    whole,
)
from fedbnsl_workbench.networks.scores import in_one_line as in_one_line_of_scores
from fedbnsl_workbench.report.along_curves import along_curves
from fedbnsl_workbench.report.edges_on_terminal import (
    FLAG,
    MOST_SHOWN,
    remarks_on_class,
    remarks_on_links,
    shown_edges,
    table_of,
)
from fedbnsl_workbench.report.prepared import in_short
from fedbnsl_workbench.scoring.class_scores import ClassScores
from fedbnsl_workbench.scoring.metrics import Scores

_OF_LINES = "weights are of straight lines through curves, which the page draws"
_ALONG = "; the strength along a curve is the standard deviation of the change, in scales of the target"


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
    no_hidden_causes: bool = False,
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
    no_hidden_causes
        Show edges as they are if no common cause is hidden, even where the result tells what holds without that.
    seconds
        Wall clock of the whole command.
    """
    sent, lines = result["bytes"], Table.grid(padding=(0, 2))
    for head, text in print_learned(result, console, no_hidden_causes=no_hidden_causes):
        lines.add_row(head, Text(text))
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
    if described := in_one_line_of_scores(result):
        lines.add_row("describes rows", Text(described))
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


def print_learned(
    result: Mapping[str, Any], console: Console, *, no_hidden_causes: bool = False
) -> list[tuple[str, str]]:
    """What is in red, edges, and regressions; returns what else to say of them, each with the line's head.

    `no_hidden_causes`: see `print_summary`.
    """
    for sentence in in_words(outliers(result["influence"])):
        console.print(Text(f"be careful: {sentence}", style="bold red"), soft_wrap=True)
    _print_contradicted(result["verdict"], console)
    of_class, along = [Edge.model_validate(edge) for edge in result["edges"]], along_curves(result)
    if along:
        of_class.sort(key=lambda edge: -along.get((edge.source, edge.target), abs(edge.standardised or 0.0)))
    told = None if result["hidden_causes"] is None else HiddenCauses.model_validate(result["hidden_causes"])
    with_marks = None if no_hidden_causes else told
    edges = shown_edges(of_class, with_marks)
    table = table_of(edges, result, along, with_marks)
    to_weight = [column.header for column in table.columns].index("weight") + 1
    console.print(keep_words(table, console.width, fewest=to_weight) if edges else str(table.title))
    every = reported(result)
    regressions = every if with_marks is None else allowed_by(with_marks, every, result)
    if any(one.estimates for one in every):
        table = _table_of_regressions(regressions, result["units"], of=sum(len(one.estimates) for one in every))
        console.print(keep_words(table, console.width, fewest=4) if table.row_count else str(table.title))
    remarks = (
        remarks_on_class(edges, told)
        if with_marks is None
        else remarks_on_links(of_class, with_marks, result["verdict"]["majority"])
    )
    lines = list(remarks)
    shown = {name for edge in edges[:MOST_SHOWN] for name in (edge.source, edge.target)}
    levels = {name: own for name, own in result["levels"].items() if name in shown}
    if said := levels_in_words(levels, references_of(edges[:MOST_SHOWN], result)):
        lines.append(("levels", said))
    lines += _checks(result["verdict"])
    if result["taken"]:
        lines.append(("taken as", taken_in_words(result["taken"])))
    if result["curves"] and (curves := clearly_bent(result["curves"])):
        named = first_few([f"{one['source']} -> {one['target']}" for one in curves])
        lines.append(("curves", f"{named}: {_OF_LINES}{_ALONG * bool(along)}"))
    for text, children in remarks_on(regressions).items():
        lines.append(("regressions", f"{', '.join(children)}: {text}"))
    return lines


def _print_contradicted(verdict: Mapping[str, Any], console: Console) -> None:
    for text in (*verdict["incomplete"], *verdict["few_rows"], *verdict["outlying"], *verdict["withheld"]):
        console.print(Text(whole(text), style="bold red"), soft_wrap=True)
    if verdict["contradicted"]:
        told = " ".join(map(whole, verdict["contradicted"]))
        console.print(Text(f"the data contradict what was assumed: {told}", style="bold red"), soft_wrap=True)
    lines = Table.grid(padding=(0, 2))
    for k, reason in enumerate(verdict["reasons"], start=1):
        lines.add_row("likely reasons" if k == 1 else "", Text(f"{k}. {whole(reason)}"))
    if verdict["reasons"]:
        console.print(lines)


def _checks(verdict: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Who directed the edges, what was assumed, and what of it was tested, each with the line's head."""
    if words := directions_in_words(verdict):
        yield "directions", words
    if verdict["assumed"]:
        for k, text in enumerate([*map(whole, verdict["assumed"]), *checks_in_words(verdict)]):
            yield "assumed" * (not k), text


def reported(result: Mapping[str, Any]) -> list[Regression]:
    """The regressions; none where all are mean differences, which the table of edges has."""
    found = [Regression.model_validate(one) for one in result["regressions"]]
    return found if any(one.kind != "mean difference" for one in found) else []


def allowed_by(told: HiddenCauses, regressions: Sequence[Regression], result: Mapping[str, Any]) -> list[Regression]:
    """The regressions with the estimates whose direction the marks allow; none of those without any."""
    owners: Mapping[str, str] = result["columns"] or {}
    found: list[Regression] = []
    allowed = {pair for pair, link in told.by_pair().items() if link.points}
    for one in regressions:
        left = [own for own in one.estimates if (owners.get(own.source, own.source), one.child) in allowed]
        found += [one.model_copy(update={"estimates": left})] if left else []
    return found


def in_numbers(told: Estimate, kind: str) -> tuple[str, str]:
    """An estimate, and its 95 % interval."""
    if told.curved:
        return "curved: see the plot", ""
    if kind == "mean difference":
        return signed(told.estimate, told.interval), between(told.interval)
    return ratio(told.estimate), between_ratios(told.interval)


def _table_of_regressions(regressions: Sequence[Regression], units: Mapping[str, str], *, of: int) -> Table:
    """The first estimates, by child; `of`: how many there are with those whose direction the marks do not allow."""
    told = [(one, estimate) for one in regressions for estimate in one.estimates]
    title = f"odds ratios, rate ratios and mean differences: {len(told)}"
    if len(told) < of:
        title += f" of {of} ({FLAG}: all)"
    table = Table(title=title, title_justify="left")
    for name in ("of", "for one more of", "kind"):
        table.add_column(name, overflow="fold")
    for name in ("estimate", "95 %", "rows"):
        table.add_column(name, justify="right", overflow="fold")
    for one, estimate in told[:MOST_SHOWN]:
        ends = (f"{end} ({units[end]})" if end in units else end for end in (estimate.target, estimate.source))
        table.add_row(*map(Text, (*ends, one.kind.split()[0], *in_numbers(estimate, one.kind), f"{one.rows:,}")))
    if len(told) > MOST_SHOWN:
        table.add_row(f"... {len(told) - MOST_SHOWN} more", "in regressions.csv", "", "", "", "")
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
