"""`fedbnsl tune`: search for settings of a plan, against a known truth or by sites that are left out."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.errors import SetupError
from fedbnsl.plan.plan_options import NameOrPath, PlanChoice, takes_plan
from fedbnsl_research.seeds import Seeds
from fedbnsl_research.tuning.ready_grids import GRIDS
from fedbnsl_workbench.option_types import Finite

if TYPE_CHECKING:
    from fedbnsl_research.tuning.tune import Data

_PATH = click.Path(path_type=Path)
_GENERATED = ("nodes", "edges", "sites", "rows", "heterogeneous")
_DEFAULT_SEEDS = (1, 100, 400)
_FEWEST_TO_LEAVE_OUT = 3
_LEFT_OUT = (
    "held_out: without a true graph, by the mean log likelihood of each site's rows under the network that the other "
    "sites learned, in nats a row; higher is better"
)


@click.command()
@takes_plan()
@click.option(
    "--grid",
    required=True,
    metavar="GRID",
    type=NameOrPath(GRIDS),
    help="TOML file of settings, each with its candidates, or the name of a ready grid, such as example.",
)
@click.option("--random", "n_random", type=click.IntRange(1, 100_000), help="Draw so many configurations instead.")
@click.option("--search-seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draws.")
@click.option("--seeds", type=Seeds(), help="Seeds of data and noise, such as 100..109 or 1,2.  [default: 1,100,400]")
@click.option(
    "--metric",
    help="Score to rank by: shd, tpr, fdr, f1, precision, ..., or held_out, which needs no true graph: the mean "
    "log likelihood, in nats a row, of each site under the network of the others.  [default: shd; without a truth "
    "held_out]",
)
@click.option("--nodes", type=click.IntRange(2, 65_535), default=20, show_default=True, help="Variables (d).")
@click.option("--edges", type=Finite(min=0), default=20.0, show_default=True, help="Expected number of edges.")
@click.option("--sites", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Sites (P).")
@click.option("--rows", type=click.IntRange(min=1), default=5000, show_default=True, help="Rows of each site.")
@click.option(
    "--heterogeneous",
    type=Finite(min=0),
    default=0.0,
    show_default=True,
    metavar="VARIANCE",
    help="Draw each site's edge weights around the common ones with this variance.",
)
@click.option("--data", "folder", type=_PATH, help="Folder with site-1.csv, ..., and perhaps dictionary.toml.")
@click.option("--truth", type=_PATH, help="CSV with columns source,target.  [default: DATA/truth.csv, if any]")
@click.option("--jobs", type=int, default=1, show_default=True, help="Processes; -1: one a processor.")
@click.option(
    "--backend", type=click.Choice(["joblib", "dask"]), default="joblib", show_default=True, help="What runs them."
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Dask scheduler, such as tcp://host:8786.  [default: this machine]"
)
@click.option(
    "--public-data", is_flag=True, help="Confirm that anybody may see the tables: a private plan needs it here."
)
@click.option("--out", required=True, type=_PATH, help="Folder for the trials, the ranking and the best plan.")
@click.option("--json", "as_json", is_flag=True, help="Print the ranking as JSON.")
@click.pass_context
def tune(
    context: click.Context,
    choice: PlanChoice,
    grid: str | Path,
    n_random: int | None,
    search_seed: int,
    seeds: tuple[int, ...] | None,
    metric: str | None,
    nodes: int,
    edges: float,
    sites: int,
    rows: int,
    heterogeneous: float,
    folder: Path | None,
    truth: Path | None,
    jobs: int,
    backend: str,
    scheduler: str | None,
    public_data: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Search for the settings of PLAN that score best over several seeds, or on sites that are left out.

    A grid names settings and their candidates (l1_weight = [0.05, 0.1]; privacy.clip = [5, 10]) and stands for their
    product; with --random, a key may also be a range ({low = 0.01, high = 1.0, log = true, integer = false}). Every
    run is a simulation and guarantees nothing about its tables.

    Tables without a known graph are ranked by held_out: each site is left out in turn, the others learn a network, and
    its log likelihood on the rows of the left out site counts; higher is better. That takes as many runs a
    configuration as there are sites, and no part of it is private: all tables must be public.

    The folder gets trials.csv, ranking.csv and best.toml. The same command continues where it was interrupted, and a
    larger grid runs only what is new.
    """
    from rich.console import Console
    from rich.text import Text

    from fedbnsl_client.cli import warnings_on_stderr
    from fedbnsl_research.tuning.grid import configurations, read_grid
    from fedbnsl_workbench.tables.folder import described_by

    try:
        from fedbnsl_research.tuning.ranking import HELD_OUT, METRICS
        from fedbnsl_research.tuning.tune import EVALUATED_SEEDS, FolderData, GeneratedData
        from fedbnsl_research.tuning.tune import tune as search
    except ModuleNotFoundError as error:
        raise SetupError(
            f"tuning needs the package {error.name}, which is not installed",
            remedy="Install fedbnsl-research with all that it depends on: docs/how-to/install-offline.md.",
        ) from None
    from fedbnsl_research.tuning.display import print_ranking

    given = _given(context)
    if metric is not None and metric not in METRICS:
        raise click.BadParameter(f"{metric!r}: choose from {', '.join(METRICS)}", param_hint="--metric")
    if "search_seed" in given and n_random is None:
        raise click.UsageError("--search-seed goes with --random")
    if scheduler is not None and (backend != "dask" or "jobs" in given):
        raise click.UsageError("--scheduler goes with --backend dask, and its workers say how many --jobs there are")
    if folder is None and (truth is not None or public_data):
        raise click.UsageError("--truth and --public-data go with --data")
    if folder is not None and (needless := [name for name in _GENERATED if name in given]):
        raise click.UsageError(f"--{needless[0]} goes with generated data, not with --data")
    if edges > nodes * (nodes - 1) / 2:
        raise click.BadParameter(f"{nodes} nodes have at most {nodes * (nodes - 1) // 2} edges", param_hint="--edges")

    plan, space = choice.load(), read_grid(grid)
    if folder is not None:
        plan = described_by(plan, folder, given=choice.dictionary)
    choices = space.product() if n_random is None else space.sample(n_random, search_seed)
    plans = configurations(plan, space, choices)
    is_private = any(tried.privacy is not None for _, tried in plans)
    console = Console(stderr=True)
    warnings: list[str] = []
    data: Data
    if folder is None:
        seeds = seeds or _DEFAULT_SEEDS
        data = GeneratedData(nodes, edges, sites, rows, heterogeneous)
        if evaluated := sorted(set(seeds) & set(EVALUATED_SEEDS)):
            warnings.append(
                f"seeds {', '.join(map(str, evaluated))} are among those of the paper's tables and figures "
                f"({EVALUATED_SEEDS[0]} to {EVALUATED_SEEDS[-1]}): scores on these seeds are no longer held out"
            )
    else:
        seeds = _noise_seeds(seeds, is_private=is_private, public_data=public_data)
        beside = folder / "truth.csv"
        if metric != HELD_OUT and truth is None and beside.exists():
            truth = beside
        if metric is not None and metric != HELD_OUT and truth is None:
            raise SetupError(
                f"there is no {beside} to score against; name the true graph with --truth, or rank by "
                f"--metric {HELD_OUT}"
            )
        if truth is not None and not truth.exists():
            raise SetupError(f"there is no {truth} to score against; name the true graph with --truth")
        metric = metric or (HELD_OUT if truth is None else "shd")
        with warnings_on_stderr():
            data = FolderData.of(folder, truth, plan.variables, plan.dictionary)
    metric = metric or "shd"
    if metric == HELD_OUT:
        if data.sites < _FEWEST_TO_LEAVE_OUT:
            raise SetupError(
                f"{HELD_OUT} needs {_FEWEST_TO_LEAVE_OUT} sites or more: one is left out, the others learn"
            )
        console.print(Text(_LEFT_OUT), soft_wrap=True)
    for warning in warnings:
        console.print(Text(f"warning: {warning}", style="bold yellow"), soft_wrap=True)
    header = [
        f"Tuned: the best of {len(plans)} configurations by the mean of {metric}.",
        *([_LEFT_OUT] if metric == HELD_OUT else []),
        *(f"WARNING: {warning}" for warning in warnings),
        f"command: {_command(context, given, seeds)}",
        *(f"grid: {key} = {_shown(candidates)}" for key, candidates in space.candidates.items()),
        f"seeds: {', '.join(map(str, seeds))}",
    ]
    dask = None if backend == "joblib" else scheduler or ""
    ranking = search(plans, data, seeds, out, metric=metric, header=header, console=console, jobs=jobs, dask=dask)
    if as_json:
        rows_shown = [r.as_row(k) for k, r in enumerate(ranking, start=1)]
        click.echo(json.dumps({"metric": metric, "seeds": seeds, "warnings": warnings, "ranking": rows_shown}))
        return
    print_ranking(ranking, metric, out, Console())


def _noise_seeds(seeds: tuple[int, ...] | None, *, is_private: bool, public_data: bool) -> tuple[int, ...]:
    """The seeds of runs over tables that are given."""
    if not is_private:
        if seeds is not None:
            raise SetupError(
                "--seeds: without [privacy] a run over given tables draws nothing: every seed gives the same"
            )
        return (0,)
    if not public_data:
        raise SetupError(
            "a simulation counts nothing in a ledger; with a private plan, confirm by --public-data that the tables "
            "are generated or published"
        )
    return seeds or _DEFAULT_SEEDS


def _given(context: click.Context) -> dict[str, Any]:
    """The parameters that are on the command line."""
    line = click.core.ParameterSource.COMMANDLINE
    return {name: value for name, value in context.params.items() if context.get_parameter_source(name) is line}


def _command(context: click.Context, given: dict[str, Any], seeds: tuple[int, ...]) -> str:
    """The command line that repeats the search."""
    parts = ["fedbnsl", "tune"]
    for parameter in context.command.params:
        value = given.get(parameter.name or "")
        if value is None:
            continue
        if isinstance(parameter, click.Argument):
            parts.append(str(value))
        elif isinstance(value, bool):
            parts.append(parameter.opts[0])
        elif parameter.multiple:
            parts += [part for one in value for part in (parameter.opts[0], str(one))]
        else:
            parts += [parameter.opts[0], ",".join(map(str, seeds)) if parameter.name == "seeds" else str(value)]
    return shlex.join(parts)


def _shown(candidates: object) -> str:
    if isinstance(candidates, list):
        return json.dumps(candidates)
    return str(candidates)
