"""`fedbnsl network`: use the network of a run folder."""

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fedbnsl.cli import Group
from fedbnsl.console.wording import counted, first_few
from fedbnsl.errors import ResultError, SetupError
from fedbnsl.files.new_files import require_new
from fedbnsl_workbench.networks.exports.cli import export

_RUN = click.argument("run", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")


@click.group(cls=Group)
def network() -> None:
    """Use the network of a run folder: show it, draw rows, ask about values, predict rows, compare it, export it.

    Nothing is sent, and nothing is charged to any budget: all follows from the run's result.
    """


network.add_command(export)


@network.command()
@_RUN
@click.option(
    "--no-hidden-causes",
    is_flag=True,
    help="Show edges as they are if no common cause is missing from the tables.",
)
@_JSON
def show(run: Path, no_hidden_causes: bool, as_json: bool) -> None:
    """Show the network of the run folder RUN: variables, edges with the shares of the draws, and what contradicts it.

    Of each variable what the data dictionary says, its mean, the part of its variance that its parents explain, the
    standard deviation that they leave, and the formula that rows are drawn by: of numbers after the dictionary's
    transform. The words are those of the page,
    which `fedbnsl report` writes.
    """
    from rich.console import Console

    from fedbnsl.network.family_contents import content_of
    from fedbnsl_server.results.network_of_run import fitted_network
    from fedbnsl_workbench.networks.families_in_words import NOISE_IN_NUMBERS, ONE_OF_THE_CLASS, families_in_words
    from fedbnsl_workbench.report.network_on_terminal import print_network, told_of_network
    from fedbnsl_workbench.report.run_files import read_run

    read, families, why_not = read_run(run), dict[str, str](), ""
    try:
        fitted = fitted_network(run)
        families = families_in_words(fitted)
    except (SetupError, ResultError) as error:  # a run that tells no means or variances has edges to show
        fitted, why_not = None, f"formulas are not known: {error}"
    if as_json:
        of_families = {
            "columns": [] if fitted is None else list(fitted.columns.names),
            "families": {name: content_of(one) for name, one in fitted.network.families.items()} if fitted else None,
            "families_in_words": families or None,
            "no_families_because": why_not or None,
        }
        click.echo(json.dumps(told_of_network(read) | of_families, ensure_ascii=False))
        return
    about = [why_not or ONE_OF_THE_CLASS * (not all(edge["directed"] for edge in read.result["edges"]))]
    about += [NOISE_IN_NUMBERS] * (fitted is not None and fitted.is_noisy)
    print_network(
        read, families, Console(), about_families="; ".join(filter(None, about)), no_hidden_causes=no_hidden_causes
    )


@network.command()
@_RUN
@click.option("--rows", type=click.IntRange(1, 100_000_000), default=1000, show_default=True, help="Rows to draw.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="CSV file to write; must not exist."
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed, the same rows.")
@click.option(
    "--comparison",
    type=click.Path(dir_okay=False, path_type=Path),
    help="CSV file to write, too: how near the rows are, of all columns, levels and pairs; must not exist.",
)
@click.option("--plain", is_flag=True, help="Without the first line, which begins with # and says what the rows are.")
@_JSON
def sample(run: Path, rows: int, out: Path, seed: int, comparison: Path | None, plain: bool, as_json: bool) -> None:
    """Draw a synthetic table from the network of the run folder RUN: to write an analysis on, or to try a program.

    Columns, units, levels and ranges are those of the data dictionary. Rows are as those of one site whose means are
    those of all sites. Beyond what the network says, they tell nothing: noise is normal, effects are those of the
    result, and no value is missing. How near the rows come to what the run tells, and to the network, stands below, and
    whole in --json and --comparison; no row is copied from a table. From a private run they cost nothing beyond what
    the run has spent.
    """
    from fedbnsl.files import durable
    from fedbnsl_server.results.network_of_run import fitted_network
    from fedbnsl_workbench.networks.comparison import as_csv
    from fedbnsl_workbench.networks.synthetic import write_table

    for file in filter(None, (out, comparison)):
        require_new(file)
    begun, fitted = time.monotonic(), fitted_network(run)
    told = write_table(fitted, rows, seed, out, plain=plain)
    if comparison:
        durable.write_text(comparison, as_csv(told))
    told = {"run": str(run), "out": str(out), "rows": rows, "seed": seed, "privacy": fitted.privacy} | told
    told |= {"left_out": dict(fitted.left_out), "doubts": fitted.doubts}
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        _show_sample(told, time.monotonic() - begun)


_ABOUT_ROWS = (
    "means and spreads are of columns, after the data dictionary's transforms; spreads and correlations of the network "
    "are those by straight lines"
)


def _show_sample(told: dict[str, Any], seconds: float) -> None:
    from rich.console import Console
    from rich.text import Text

    from fedbnsl_workbench.networks.comparison_shown import tables_of

    console = Console()
    _show_doubts(console, told)
    for table in tables_of(told):
        console.print(table)
    lines = [
        _ABOUT_ROWS,
        *(f"left out: {name}: {why}" for name, why in told["left_out"].items()),
        f"privacy: {told['privacy']}",
        f"wrote {told['out']}: {told['rows']:,} rows in {seconds:.1f} s",
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _show_doubts(console: Any, told: dict[str, Any]) -> None:
    """What says against the network, in short, and what to know of the question."""
    from rich.text import Text

    from fedbnsl_workbench.networks.asking import in_short, names_in

    whole = f"fedbnsl network show {shlex.quote(told['run'])}"
    for doubt in [*in_short(told["doubts"], whole, names_in(told)), *told.get("notes", ())]:
        console.print(Text(f"be careful: {doubt}", style="bold red"), soft_wrap=True)


@network.command()
@_RUN
@click.option("--target", metavar="NAME", required=True, help="Variable to tell.")
@click.option(
    "--given", metavar="NAME=VALUE", multiple=True, help="A value that is known, in the dictionary's unit, or a level."
)
@click.option("--do", "set_to", metavar="NAME=VALUE", multiple=True, help="A value that an intervention sets.")
@click.option(
    "--no-hidden-causes",
    is_flag=True,
    help="With --do: assume that no common cause is missing from the tables.",
)
@_JSON
def ask(
    run: Path, target: str, given: tuple[str, ...], set_to: tuple[str, ...], no_hidden_causes: bool, as_json: bool
) -> None:
    """Ask the network of the run folder RUN what a variable is like where others are known, or are set.

    Of a number, the mean, the standard deviation and the interval that holds 95 % of values; of a variable with levels,
    how likely each is. Intervals count the noise of the variable, and not that the network is an estimate. In a network
    of straight lines alone they follow from formulas; else from 200,000 draws, which count by how likely what is known
    is in them.

    --given asks what is seen together, --do what an intervention does: only where every graph that fits the data as
    well says the same of the target and of what is known, and where no common cause is hidden.
    """
    from fedbnsl_server.results.network_of_run import fitted_network
    from fedbnsl_workbench.networks.questions import answer

    fitted = fitted_network(run)
    known, wanted = (
        _values(texts, option, fitted.variables) for texts, option in ((given, "--given"), (set_to, "--do"))
    )
    told = {"run": str(run)} | answer(fitted, target, known, wanted, none_hidden=no_hidden_causes)
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        _show_answer(told)


@network.command()
@_RUN
@click.argument("table", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--target", metavar="NAME", required=True, help="Variable to predict.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="CSV file to write; must not exist."
)
@click.option("--own-means", is_flag=True, help="Variables have the means of this table: it is that of one site.")
@_JSON
def predict(run: Path, table: Path, target: str, out: Path, own_means: bool, as_json: bool) -> None:
    """Predict a variable in each row of the CSV file TABLE by the network of the run folder RUN.

    Of a number, its mean and the interval that holds 95 % of values; of a variable with levels, how likely each is. The
    other columns of a row count as far as it has values; what the row has of the target itself does not, but how near
    predictions come to it is told. Cells are in the data dictionary's units and levels; an empty one, or one that
    it does not have, is a missing value. Nothing of the table is sent. Variables have the means of all sites, or those
    of the table: sites may differ in them.
    """
    import numpy as np

    from fedbnsl.network.prediction_file import told_of, write_predictions
    from fedbnsl.network.predictions import predicted
    from fedbnsl_server.results.network_of_run import fitted_network
    from fedbnsl_workbench.networks.rows import read_rows, rows_of_table

    require_new(out)
    fitted = fitted_network(run)
    fitted.require(target)
    X, unread = rows_of_table(fitted, read_rows(table))
    used, common = fitted.with_own_means(X) if own_means else (fitted, fitted.variables)
    found = predicted(used, X, target, np.random.default_rng(1))
    write_predictions(found, X, used, target, out)
    told = {"run": str(run), "out": str(out), "unread": unread, **told_of(found, X, used, target, common)}
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        _show_predictions(told)


def _show_predictions(told: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    from fedbnsl.network.prediction_file import lines_of

    console = Console()
    _show_doubts(console, told)
    unread = told["unread"].items()
    lines = [f"{counted(n, 'cell')} of {name} count as missing: no value of the data dictionary" for name, n in unread]
    for line in (*lines, *lines_of(told), f"wrote {told['out']}: {told['rows']:,} rows"):
        console.print(Text(line), soft_wrap=True)


@network.command()
@_RUN
@click.argument("table", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@_JSON
def validate(run: Path, table: Path | None, as_json: bool) -> None:
    """Show how well the network of the run folder RUN describes rows: those of its sites, or of the CSV file TABLE.

    Without TABLE, what the sites have told in the run's own round (plan setting validation = "sums"), on rows that the
    network was learned from. RUN may be a site's validation.json, too. With TABLE, on the rows of this file, which are
    new if no site has them; cells are as in `network predict`, and nothing is sent.

    A row counts for a variable where it has the variable and all of its parents. Sites differ in means where
    instruments or patients do: scores are with the means of each site, or of the table, and beside them with those of
    all sites.
    """
    from fedbnsl.plan.plan import Plan
    from fedbnsl_server.results.network_of_run import fitted_network
    from fedbnsl_server.store.result_file import read_result
    from fedbnsl_workbench.networks.scores import scores_of_rows, scores_of_run, scores_of_site

    if table is not None:
        from fedbnsl_workbench.networks.rows import read_rows, rows_of_table

        fitted = fitted_network(run)
        X, unread = rows_of_table(fitted, read_rows(table))
        told = {"table": str(table), "rows": len(X), "unread": unread, **scores_of_rows(fitted, X)}
    elif run.is_file():
        told = scores_of_site(run)
    else:
        result = read_result(run)
        told = scores_of_run(result, Plan.load(run / "plan.toml").validation)
    if as_json:
        click.echo(json.dumps({"run": str(run), **told}, ensure_ascii=False))
    else:
        _show_scores(told)


def _show_scores(told: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    from fedbnsl.console.whole_words import keep_words
    from fedbnsl_workbench.networks.scores import meaning, table_of

    console = Console()
    console.print(keep_words(table_of(told["variables"]), console.width, fewest=7))
    lines = [
        f"{n:,} cells of {name} are no value of the data dictionary: missing"
        for name, n in told.get("unread", {}).items()
    ]
    lines.append(meaning(told))
    if "table" not in told:
        lines.append(
            "The network was learned from these rows: on others it is somewhat worse, most where rows are few."
        )
    for line in lines:
        console.print(Text(line), soft_wrap=True)


@network.command()
@_RUN
@click.argument("other", type=click.Path(path_type=Path))
@_JSON
def diff(run: Path, other: Path, as_json: bool) -> None:
    """Compare the networks of the run folders RUN and OTHER: edges that came, went, turned, were directed or left open.

    Shares are of the bootstrap draws that have an edge of the pair. A pair whose shares are alike in both runs, and
    near a half, has hardly changed, whatever the graphs show.
    """
    from fedbnsl_server.store.result_file import read_result
    from fedbnsl_workbench.networks.differences import differences

    told = {"first": str(run), "second": str(other)} | differences(read_result(run), read_result(other))
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        _show_differences(told)


def _show_differences(told: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for key in ("first", "second"):
        if names := told["variables_of_one_alone"][key]:
            console.print(Text(f"only {told[key]} tells of {first_few(names)}: not compared"), soft_wrap=True)
        if told["draws"][key] == 0:
            lacks = f"{told[key]} made no bootstrap draws: how sure its edges are is not known"
            console.print(Text(lacks, style="yellow"), soft_wrap=True)
    console.print(Text(f"{counted(told['same'], 'edge')} alike, {len(told['edges'])} not"))
    if not told["edges"]:
        return
    table = Table()
    for head in ("what", told["first"], "draws", told["second"], "draws"):
        table.add_column(Text(head), justify="right" if head == "draws" else "left", overflow="fold")
    for row in told["edges"]:
        cells = [Text(row["what"])]
        for key in ("first", "second"):
            share = row[key]["share"]
            cells += [Text(row[key]["edge"] or "none"), Text("" if share is None else f"{100 * share:.0f} %")]
        table.add_row(*cells)
    console.print(table)


def _values(texts: tuple[str, ...], option: str, variables: Sequence[str]) -> dict[str, str]:
    """By variable; names and values may hold equals signs: the longest name that there is counts."""
    found: dict[str, str] = {}
    for text in texts:
        begins = [one for one in variables if text.startswith(f"{one}=")]
        name, value = (one := max(begins, key=len), text[len(one) + 1 :]) if begins else text.rpartition("=")[::2]
        if not name:
            raise SetupError(f"{option} {text!r}: expected NAME=VALUE")
        if name in found:
            raise SetupError(f"{option}: {name!r} has two values")
        found[name] = value.strip()
    return found


def _show_answer(told: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    from fedbnsl_workbench.networks.asking import in_words

    console = Console()
    _show_doubts(console, told)
    for line in in_words(told):
        console.print(Text(line), soft_wrap=True)
