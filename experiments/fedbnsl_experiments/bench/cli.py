"""`fedbnsl bench`: measure again the figures that the project states about itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.errors import ResultError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console


@click.command()
@click.argument("figures", nargs=-1, metavar="[FIGURE]...")
@click.option(
    "--rows",
    "n_rows",
    type=click.IntRange(min=1000, max=10**8),
    help="Of the figure `sources`: rows of its Parquet folder; TMPDIR takes 320 bytes for each.  [default: 10000000]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a row.")
def bench(figures: tuple[str, ...], n_rows: int | None, as_json: bool) -> None:
    """Measure the project's own figures: accuracy and bytes on generated data, Sachs, privacy, speed, many sites.

    FIGURE is one of accuracy, tuning, sachs, local-solve, network, bytes, load, attacks, rows, sources, sites, privacy,
    privacy-tuning, private-steps, global-step, d1000, lean, private-moments, unequal-noise, robust, honest-sites,
    growth, startup, tables; without one, all of them (about an hour on two cores). The Sachs figures and the end
    of tables need FEDBNSL_DATA.
    """
    from rich.console import Console

    from fedbnsl_experiments.bench.figures import FIGURES

    unknown = sorted(set(figures) - set(FIGURES))
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(FIGURES)}", param_hint="FIGURES")
    if n_rows is not None and "sources" not in figures:
        raise click.BadParameter("it goes with the figure sources", param_hint="--rows")
    console, progress = Console(), Console(stderr=True)
    for name in figures or FIGURES:
        try:
            with progress.status(f"measuring {name}"):
                given = {"n_rows": n_rows} if name == "sources" and n_rows is not None else {}
                for row in FIGURES[name](**given):
                    _print_row(name, row, console, as_json=as_json)
        except ResultError as error:
            if figures:
                raise
            progress.print(f"{name}: skipped: {error}", style="yellow", soft_wrap=True)


def _print_row(name: str, row: Mapping[str, Any], console: Console, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"bench": name, **row}, ensure_ascii=False))
        return
    (_, figure), *values = row.items()
    console.print(f"[bold]{name}[/]: {figure}", highlight=False, soft_wrap=True)
    for key, value in values:
        console.print(f"    {key}: {value}", soft_wrap=True)
