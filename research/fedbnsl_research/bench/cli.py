"""`fedbnsl bench`: measure again the figures that the project states about itself."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.errors import ResultError
from fedbnsl_research.seeds import Seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from rich.console import Console


@click.command()
@click.argument("figures", nargs=-1, metavar="[FIGURE]...")
@click.option(
    "--case",
    "cases",
    multiple=True,
    help="Of `networks`, `curved`, `hidden` and `discrete`: a case, or a pattern of their names.",
)
@click.option(
    "--seeds",
    type=Seeds(),
    help="Of `networks`, `missing`, `curved`, `hidden`, `directions`, `network` and `discrete`: seeds, such as 0..9.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Of the figure `networks`: fedbnsl, FLOP, BOSS or GES; of `discrete`: a method, or a pattern of their names.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a row.")
def bench(
    figures: tuple[str, ...],
    cases: tuple[str, ...],
    seeds: tuple[int, ...] | None,
    methods: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure the project's own figures: accuracy and bytes on generated data, Sachs, privacy, speed, many sites.

    FIGURE is one of accuracy, sachs, bytes, load, attacks, privacy, privacy-audit, private-steps, private-tables,
    d1000, lean, private-moments, unequal-noise, hubs, kernels, secure-aggregation, confidence, robust, honest-sites,
    growth, startup, tables, networks, groups, missing, private-missing, overlapping, robust-tails, curved, hidden,
    directions, regressions, registration, network, network-answers, discrete; without one, all of them (about an hour
    on two cores). The Sachs figures, network-answers, the end of groups, tables, missing and directions, a part of
    networks, secure-aggregation, confidence, private-tables and discrete need FEDBNSL_DATA.
    """
    from rich.console import Console

    from fedbnsl_research.bench.figures import FIGURES
    from fedbnsl_research.bench.networks import METHODS

    unknown = sorted(set(figures) - set(FIGURES))
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(FIGURES)}", param_hint="FIGURES")
    takers_of = {
        "--case": ("networks", "curved", "hidden", "discrete"),
        "--seeds": ("networks", "missing", "curved", "hidden", "directions", "network", "discrete"),
        "--method": ("networks", "discrete"),
    }
    for option, value in (("--case", cases), ("--seeds", seeds), ("--method", methods)):
        takers = takers_of[option]
        if value and not set(takers) & set(figures):
            raise click.BadParameter(f"it goes with the figure {' or '.join(takers)}", param_hint=option)
    if "networks" in figures and (wrong := sorted(set(methods) - set(METHODS))):
        raise click.BadParameter(f"{', '.join(wrong)}: choose from {', '.join(METHODS)}", param_hint="--method")
    console, progress = Console(), Console(stderr=True)
    for name in figures or FIGURES:
        try:
            with _watched(name, progress) as follow:
                followed = {"cases": cases, "seeds": seeds, "methods": methods, "follow": follow}
                chosen: dict[str, dict[str, Any]] = {"networks": followed, "discrete": followed}
                chosen |= {figure: {"seeds": seeds} for figure in ("missing", "directions", "network")}
                chosen |= {figure: {"cases": cases, "seeds": seeds} for figure in ("curved", "hidden")}
                for row in FIGURES[name](**chosen.get(name, {})):
                    _print_row(name, row, console, as_json=as_json)
        except ResultError as error:
            if figures:
                raise
            progress.print(f"{name}: skipped: {error}", style="yellow", soft_wrap=True)


@contextmanager
def _watched(name: str, console: Console) -> Generator[Callable[[int, int, str], None]]:
    """Say that a figure is measured; what is given takes how much is done, of how much, and what is next."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from fedbnsl_workbench.working import working

    times = TimeElapsedColumn(), TimeRemainingColumn()
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times
    if name not in ("networks", "discrete"):
        with working(f"measuring {name}"):
            yield lambda done, total, what: None
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def follow(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield follow


def _print_row(name: str, row: Mapping[str, Any], console: Console, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"bench": name, **row}, ensure_ascii=False))
        return
    (_, figure), *values = row.items()
    console.print(f"[bold]{name}[/]: {figure}", highlight=False, soft_wrap=True)
    for key, value in values:
        console.print(f"    {key}: {value}", soft_wrap=True)
