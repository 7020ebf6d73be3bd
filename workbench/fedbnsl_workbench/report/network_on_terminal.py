"""The network of a run as text: its variables, and what the summary of the run and its page say of its edges."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbnsl.console.whole_words import keep_words
from fedbnsl.console.wording import counted, edges_in_words
from fedbnsl.plan.dictionary import Entry
from fedbnsl_server.results.categories import FEW_RECORDS
from fedbnsl_server.results.result_schema import HiddenCauses
from fedbnsl_workbench.report.edges_on_terminal import MOST_SHOWN
from fedbnsl_workbench.report.nodes import mean_in_words, what_it_is
from fedbnsl_workbench.report.run_files import ReportedRun
from fedbnsl_workbench.report.summary import at_the_head, in_red, print_learned

_MOST_COMBINATIONS = 16
_ALL = "--json has all"


def told_of_network(run: ReportedRun) -> dict[str, Any]:
    """JSON-ready: what the result says of variables and edges, and what says against it."""
    result = run.result
    keys = ("graph_class", "edges", "unsure", "regressions", "hidden_causes", "categories", "curves")
    assumptions = ("assumed", "tested", "not_tested", "not_testable", "contradicted", "reasons", "majority", "draws")
    return {
        "run": str(run.path),
        "variables": variables_of(run),
        **{key: result[key] for key in keys},
        "unused": result["unused"],
        "doubts": in_red(result),
        "warnings": [text for text in result["warnings"] if text not in at_the_head(result)],
        "assumptions": {key: result["verdict"][key] for key in assumptions},
    }


def variables_of(run: ReportedRun) -> list[dict[str, Any]]:
    """JSON-ready: of each variable what the dictionary says, means by column, what its parents explain and leave."""
    return [_variable(run, name, columns) for name, columns in _columns(run).items()]


def _columns(run: ReportedRun) -> dict[str, list[str]]:
    names = run.columns.names
    return {
        name: [names[int(k)] for k in own]
        for name, own in zip(run.columns.variables, run.columns.members(), strict=True)
    }


def _variable(run: ReportedRun, name: str, columns: Sequence[str]) -> dict[str, Any]:
    entry = _entry(run, name)
    told: Mapping[str, Any] = run.result["preparation"] or {}
    means: Mapping[str, float] = told.get("means") or told.get("centres") or {}
    return {
        "name": name,
        "kind": entry.kind,
        "unit": entry.unit,
        "range": None if entry.range is None else list(entry.range),
        "levels": list(entry.levels),
        "transform": entry.applied,
        "means": {column: means[column] for column in columns if column in means},
        **dict.fromkeys(("r2", "residual_variance", "how", "why")),
        **run.result["fit"].get(name, {}),
        **run.result["taken"].get(name, {}),
    }


def _entry(run: ReportedRun, name: str) -> Entry:
    return run.plan.dictionary[name] if name in run.plan.dictionary else Entry()


def print_network(
    run: ReportedRun,
    families: Mapping[str, str],
    console: Console,
    *,
    about_families: str = "",
    no_hidden_causes: bool = False,
) -> None:
    """Print it.

    Parameters
    ----------
    families
        By variable, what it is given its parents, in words.
    about_families
        What to know of them, or why there are none.
    no_hidden_causes
        See `print_summary`.
    """
    result = run.result
    console.print(Text(_heading(result)), soft_wrap=True)
    console.print(keep_words(_table_of_variables(run), console.width))
    lines = Table.grid(padding=(0, 2))
    for name, words in list(families.items())[:MOST_SHOWN]:
        lines.add_row(Text(name), Text(words))
    if len(families) > MOST_SHOWN:
        lines.add_row(f"... {len(families) - MOST_SHOWN} more", _ALL)
    console.print(Text("given parents", style="table.title"))
    if about_families:
        console.print(Text(about_families), soft_wrap=True)
    console.print(lines)
    remarks = print_learned(result, console, no_hidden_causes=no_hidden_causes)
    categories: Mapping[str, Mapping[str, Any]] = result["categories"] or {}
    for name, told in categories.items():
        _print_table_of(name, told, console)
    lines = Table.grid(padding=(0, 2))
    for head, text in remarks:
        lines.add_row(head, Text(text))
    for text in (text for text in result["warnings"] if text not in at_the_head(result)):
        lines.add_row("be careful", Text(text, style="yellow"))
    console.print(lines)


def _heading(result: Mapping[str, Any]) -> str:
    text = f"{counted(len(result['variables']), 'variable')}; {edges_in_words(result['edges'])}"
    if result["hidden_causes"] is None:
        return text
    links = counted(len(HiddenCauses.model_validate(result["hidden_causes"]).links), "link")
    return f"{text}; {links} if common causes may be hidden"


def _table_of_variables(run: ReportedRun) -> Table:
    """The first ones, with what is known of any of them."""
    columns = _columns(run)
    rows = [_variable(run, name, own) for name, own in list(columns.items())[:MOST_SHOWN]]
    has = {key: any(row[key] is not None for row in rows) for key in ("r2", "residual_variance")}
    table = Table(title="variables", title_justify="left")
    for head in ("variable", "what it is", "mean", *["R^2"] * has["r2"], *["spread\nleft"] * has["residual_variance"]):
        table.add_column(head, justify="right" if head in ("R^2", "spread\nleft") else "left", overflow="fold")
    for row in rows:
        entry = _entry(run, row["name"])
        left = row["residual_variance"]
        mean = mean_in_words(entry, row["name"], columns[row["name"]], row["means"]).removeprefix("mean ")
        cells = [row["name"], what_it_is(entry), mean]
        cells += ["" if row["r2"] is None else f"{row['r2']:.2f}"] * has["r2"]
        cells += ["" if left is None or entry.has_levels else f"{left**0.5:.3g}"] * has["residual_variance"]
        table.add_row(*map(Text, cells))
    if len(columns) > MOST_SHOWN:
        more = [f"... {len(columns) - MOST_SHOWN} more", _ALL]
        table.add_row(*more, *[""] * (len(table.columns) - len(more)))
    return table


def _print_table_of(name: str, told: Mapping[str, Any], console: Console) -> None:
    """How likely levels are, by combinations of the parents' levels."""
    given = f" given {', '.join(told['parents'])}" if told["parents"] else ""
    if len(told["rows"]) > _MOST_COMBINATIONS:
        console.print(Text(f"{name}{given}: {len(told['rows'])} combinations of levels, {_ALL}"), soft_wrap=True)
        return
    few = any(row["records"] < FEW_RECORDS for row in told["rows"])
    table = Table(title=Text(f"{name}{given}", style="table.title"), title_justify="left")
    for head in told["parents"]:
        table.add_column(Text(head), overflow="fold")
    for head in (*told["levels"], "records"):
        table.add_column(Text(head), justify="right", overflow="fold")
    for row in told["rows"]:
        numbers = (f"{p:.3f}" for p in row["probabilities"])
        records = f"{row['records']:.6g}" + "*" * (row["records"] < FEW_RECORDS)
        table.add_row(*map(Text, (*row["given"], *numbers, records)))
    if few:
        table.caption, table.caption_justify = Text(f"* fewer than {FEW_RECORDS}: hardly known"), "left"
    console.print(table)
