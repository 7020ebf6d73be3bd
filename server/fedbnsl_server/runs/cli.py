"""`fedbnsl coordinator runs`: serve the runs of a folder, and say what is wanted of each."""

import json
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.console.shown import shown_lines
from fedbnsl.console.tell import tell
from fedbnsl.errors import ResultError, SetupError, UnreachableError
from fedbnsl.plan.plan_options import PlanChoice, takes_plan
from fedbnsl_server.options import ServerOptions, json_option, takes_server
from fedbnsl_server.results.variable_names import names_in, variables_in

if TYPE_CHECKING:
    from fedbnsl.plan.plan import Plan
    from fedbnsl_server.algorithm.admm import AdmmState
    from fedbnsl_server.run.round_loop import RoundRecord

_FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_DAY_S = 86_400.0


@click.group()
def runs() -> None:
    """Serve the runs of a FOLDER; queue, pause, stop and remove them.

    All commands but `serve` write small files in FOLDER, which `serve` looks at several times a second; it need not be
    running. Use them as the user that it runs as.
    """


@runs.command()
@_FOLDER
@click.option(
    "--at-once",
    type=click.IntRange(min=1, max=16),
    default=2,
    show_default=True,
    help="How many runs of that folder are open at the same time; the others wait in their order.",
)
@takes_server
def serve(folder: Path, at_once: int, server: ServerOptions) -> None:
    """Stay up and play the runs of FOLDER, which `coordinator runs start` queues, until this process ends.

    Each site needs one agent for all runs (`fedbnsl participant agent`). SIGTERM and Ctrl-C pause the runs, and a new
    start continues them.
    """
    from fedbnsl.console.time_left import phases_shown
    from fedbnsl.files.durable import make_folder
    from fedbnsl_server.run.settings import Follower
    from fedbnsl_server.runs.service import serve_runs

    def say(name: str, text: str) -> None:
        tell(shown_lines(f"{name}: {text}" if name else text))

    show_phase = phases_shown(partial(say, ""), err=False)
    make_folder(folder)
    with server.open(lambda address: say("", f"listening on {address}; runs: {folder}"), partial(say, "")) as opened:
        settings, events = opened

        def follower_of(name: str) -> Follower:
            def after_round(state: "AdmmState", record: "RoundRecord") -> None:
                say(name, f"round {record.round} {record.kind:5} sites {len(record.contributed)}/{len(state.sites)}")
                if settings.page is not None:
                    settings.page.show_graph(name, state)

            return Follower(after_round, partial(show_phase, name), partial(say, name), events)

        serve_runs(folder, settings, at_once=at_once, follower_of=follower_of)


@runs.command("list")
@_FOLDER
@click.option("--site", help="Only runs that this site sits in, may sit in, or has sat in.")
@json_option
def list_(folder: Path, site: str | None, as_json: bool) -> None:
    """All runs of FOLDER, those that are to be played first at the top."""
    from fedbnsl_server.runs import queue

    found = [_told(run) for run in queue.all_runs(folder, skip=_say_unreadable)]
    if site is not None:
        found = [one for one in found if site in one["sites"]]
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    if not found and site is not None:
        click.echo(f"{folder} has no runs of {site}")
    elif not found:
        click.echo(f"{folder} has no runs; queue one: fedbnsl coordinator runs start {folder} PLAN")
    if not found:
        return
    width = max(len(str(one["name"])) for one in found)
    for one in found:
        wanted = f"  (wanted: {one['wanted']})" if one["state"] == "running" and one["wanted"] != "run" else ""
        click.echo(
            f"{one['name']:{width}}  {one['state']:12} {one['since'][:16].replace('T', ' ')}  {one['plan']}{wanted}"
        )


@runs.command()
@_FOLDER
@click.argument("name")
@json_option
def show(folder: Path, name: str, as_json: bool) -> None:
    """The run NAME of FOLDER: where it stands, whose it is, and where its results are."""
    from fedbnsl_server.runs import queue
    from fedbnsl_server.store.run_folder import result_of

    run = queue.named(folder, name)
    told = _told(run) | {"folder": str(run.folder)}
    result = result_of(run.folder)
    if result is not None:
        told |= {"edges": len(result["edges"]), "rounds": len(result["rounds"]), "reason": result["reason"]}
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    for key, value in told.items():
        click.echo(f"{key:12} {', '.join(map(str, value)) if key == 'sites' else value}")


@runs.command()
@_FOLDER
@takes_plan(or_folder=True)
@click.option("--name", default="", help="Name of the run's folder.  [default: the plan's name and the time]")
@click.option("--variables", metavar="NAMES|FILE", help="As of `coordinator serve`.")
@click.option("--sites", metavar="NAMES", help="As of `coordinator serve`.")
@json_option
def start(folder: Path, choice: PlanChoice, name: str, variables: str | None, sites: str | None, as_json: bool) -> None:
    """Queue a new run of PLAN in FOLDER, or let the RUN of that folder go on that was paused, stopped or has failed.

    Sites whose agents run take part by themselves once their operators have approved the very plan, which names its
    sites and variables; `coordinator runs show` says its digest.
    """
    from fedbnsl_server.run.serve import check_plan
    from fedbnsl_server.runs import queue

    if isinstance(choice.plan, Path) and choice.plan.is_dir():
        if choice.changes_settings or name or variables is not None or sites is not None:
            raise SetupError(f"{choice.plan} is a run: it goes on with its own settings; leave the other options out")
        run = queue.named(folder, str(choice.plan))
        if run.state() == "finished":
            raise SetupError(f"run {run.name} is finished; begin a new one with its plan: {run.folder / 'plan.toml'}")
        run = queue.want(run, "run")
    else:
        plan = named_plan(choice, variables, sites)
        check_plan(plan)
        if not plan.sites:
            tell("be careful: the plan names no sites, so that no agent can take part; name them: --sites", err=True)
        run = queue.add(folder, plan, name)
    told = _told(run)
    tell(json.dumps(told, ensure_ascii=False) if as_json else f"queued: {run.name} (plan digest {told['plan_digest']})")


def _command(wanted: str, text: str) -> click.Command:
    @_FOLDER
    @click.argument("name")
    @click.option(
        "--wait",
        "wait_s",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        help="Seconds to wait until the service has done it.",
    )
    def command(folder: Path, name: str, wait_s: float) -> None:
        from fedbnsl_server.runs import queue

        run = queue.named(folder, name)
        if run.state() in queue.OVER:
            raise SetupError(f"run {run.name} is over: {run.state()}")
        queue.want(run, wanted)
        until = time.monotonic() + wait_s
        while run.state() == "running" and time.monotonic() < until:
            time.sleep(0.1)
        if run.state() == "running":
            raise UnreachableError(
                f"run {run.name} still goes on after {wait_s:g} s", remedy="It is noted, and done when the service can."
            )
        stands = queue.read(run.folder).shown()
        click.echo(f"{run.name}: {stands}; go on with: fedbnsl coordinator runs start {folder} {run.folder}")

    command.__doc__ = text
    return click.command(wanted)(command)


runs.add_command(
    _command(
        "pause",
        "Pause the run NAME of FOLDER after its last complete round: its sites wait, and keep their places.",
    )
)
runs.add_command(
    _command(
        "stop",
        "End the run NAME of FOLDER and tell its sites; what was learned so far is kept, and it can be started again.",
    )
)


@runs.command()
@_FOLDER
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--older-than",
    "older_than_days",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="All runs that have been over for this many days.",
)
@click.option("--yes", is_flag=True, help="Remove without being asked.")
def remove(folder: Path, names: tuple[str, ...], older_than_days: float | None, yes: bool) -> None:
    """Delete runs of FOLDER with all their results: those named, or all that are over for some days, or were stopped.

    A run that a coordinator works on is not removed. What sites have spent stays in their ledgers.
    """
    from fedbnsl_server.runs import queue

    if bool(names) is (older_than_days is not None):
        raise SetupError("name the runs to remove, or say --older-than DAYS")
    if older_than_days is None:
        chosen = [queue.named(folder, name) for name in names]
    else:
        before = time.time() - older_than_days * _DAY_S
        chosen = [
            run
            for run in queue.all_runs(folder, skip=_say_unreadable)
            if run.is_over() and _over_since(run.folder) < before
        ]
    if not chosen:
        click.echo("nothing to remove")
        return
    click.echo("to remove: " + ", ".join(run.name for run in chosen))
    if not yes and not click.confirm(f"delete {len(chosen)} run(s) with all results?"):
        click.echo("nothing was removed")
        return
    for run in chosen:
        queue.remove(run)
    click.echo(f"removed {len(chosen)}; {shutil.disk_usage(folder).free / 1e9:.1f} GB are free")


def named_plan(choice: PlanChoice, variables: str | None, sites: str | None) -> "Plan":
    """The chosen plan with the names of --variables and --sites."""
    plan = choice.load()
    if variables is not None:
        plan = plan.with_settings(variables=variables_in(variables))
    return plan if sites is None else plan.with_settings(sites=names_in(sites))


def _say_unreadable(place: Path, error: ResultError) -> None:
    tell(f"left out: {error}; mend it, or remove {place} by hand", err=True)


def _over_since(place: Path) -> float:
    result = place / "result.json"
    return (result if result.exists() else place).stat().st_mtime


def _told(run: Any) -> dict[str, Any]:
    from fedbnsl_server.store.run_folder import result_of

    plan = run.plan()
    sites = plan.sites or (result_of(run.folder) or {"sites": ()})["sites"]
    return {
        "name": run.name,
        "run": f"{run.run:016x}",
        "state": run.shown(),
        "wanted": run.wanted,
        "since": run.since.isoformat(timespec="seconds"),
        "plan": plan.name,
        "plan_digest": plan.digest().hex(),
        "sites": list(sites),
    }
