"""`fedbnsl network export`: the network in the format of another tool."""

import json
from pathlib import Path
from typing import Any

import click

from fedbnsl.errors import SetupError

_MOST_LINES = 30  # of a thousand variables, each with a unit


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--as", "name", metavar="FORMAT", help="One of those that the command lists without it.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write; must not exist.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
def export(run: Path, name: str | None, out: Path | None, as_json: bool) -> None:
    """Write the network of the run folder RUN in the format of another tool; without --as, list the formats.

    The list says which of them hold this network, and which are files of the run folder already. Where a format cannot
    hold all of it, such as a curve, a range, or an edge without a direction, the terminal and the comments of the
    file say what stands in its place; where that would say something else, the format is refused, and another named.
    Numbers are those of rows with the means of all sites, as those of `ask`.
    """
    from fedbnsl_workbench.networks.exports import formats

    if name is None:
        if out is not None:
            raise SetupError("--out without --as: expected the format of the file", remedy="See the list without both.")
        rows = formats.available(run)
        if as_json:
            click.echo(json.dumps({"run": str(run), "formats": rows}, ensure_ascii=False))
        else:
            _show_formats(rows)
        return
    if out is None:
        raise SetupError("--as without --out: expected the file to write")
    about = formats.export(run, name, out)
    if as_json:
        told = {"run": str(run), "format": name, "out": str(out), "about": about}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        _show_about(about, out)


def _show_formats(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table()
    for head in ("--as", "for", "holds", "here"):
        table.add_column(head, overflow="fold")
    for row in rows:
        here = f"not: {row['why_not']}" if row["why_not"] else row["file"] or "when asked for"
        table.add_row(Text(row["format"]), Text(row["tools"]), Text(row["holds"]), Text(here))
    console.print(table)


def _show_about(about: list[str], out: Path) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for line in (doubts := [line for line in about if line.startswith("be careful:")]):
        console.print(Text(line, style="bold red"), soft_wrap=True)
    others = [line for line in about if line not in doubts]
    for line in others[:_MOST_LINES]:
        console.print(Text(line), soft_wrap=True)
    more = f"; {len(others) - _MOST_LINES:,} more of such lines are in it" if len(others) > _MOST_LINES else ""
    console.print(Text(f"wrote {out}{more}"), soft_wrap=True)
