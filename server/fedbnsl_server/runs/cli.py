"""`fedbnsl coordinator runs`: serve the runs of a folder, and say what is wanted of each."""

import json
import math
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.console.shown import shown_lines
from fedbnsl.console.tell import tell
from fedbnsl.console.wording import first_few
from fedbnsl.errors import ResultError, RunAbandonedError, SetupError, UnreachableError
from fedbnsl.plan.plan_options import PlanChoice, takes_plan
from fedbnsl_server.options import ServerOptions, json_option, takes_server
from fedbnsl_server.results.variable_names import names_in, variables_in
from fedbnsl_server.runs.options import AtCommand, say_unreadable, takes_runs

if TYPE_CHECKING:
    from typing import BinaryIO

    from fedbnsl.plan.plan import Plan
    from fedbnsl_server.algorithm.admm import AdmmState
    from fedbnsl_server.run.round_loop import RoundRecord
    from fedbnsl_server.runs.folder import Runs

_FOLDER = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_DAY_S = 86_400.0
_LOOK_S, _WAIT_LOOK_S = 0.1, 0.5


@click.group()
def runs() -> None:
    """Serve the runs of a FOLDER; queue, pause, stop and remove them, and fetch their results.

    All commands but `serve` write small files in FOLDER, which `serve` looks at several times a second; it need not be
    running. Use them as the user that it runs as. From another machine, give --at https://HOST:PORT in place of FOLDER:
    the page of `serve --web`, with the token of an operator (`coordinator operators`).
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


@runs.command("list", cls=AtCommand)
@takes_runs
@click.option("--site", help="Only runs that this site sits in, may sit in, or has sat in.")
@click.option("--study", help="Only runs of this study.")
@json_option
def list_(runs: "Runs", site: str | None, study: str | None, as_json: bool) -> None:
    """All runs of FOLDER, those that are to be played first at the top; those of a study together."""
    from fedbnsl_server.runs.queue import OPEN
    from fedbnsl_server.runs.studies import in_studies

    known = runs.all()
    found = [
        one
        for one in in_studies(known)
        if (site is None or site in one["sites"]) and (study is None or study == one["study"])
    ]
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    if not known:
        click.echo(f"no runs there yet; queue one: fedbnsl coordinator runs start {runs.place} PLAN")
    elif not found:
        of = [*([] if site is None else [site]), *([] if study is None else [f"study {study}"])]
        click.echo(f"no runs of {' in '.join(of)}")
    if not found:
        return
    width = max(len(str(one["name"])) for one in found)
    heading = ""
    for one in found:
        if one["study"] != heading:
            heading = one["study"]
            click.echo(shown_lines(f"study {heading}:" if heading else "no study:"))
        notes = [f"for {first_few(one['awaited'])}"] if one["awaited"] else []
        notes += [f"wanted: {one['wanted']}"] if one["state"] in OPEN and one["wanted"] != "run" else []
        note = f"  ({'; '.join(notes)})" if notes else ""
        since = one["since"][:16].replace("T", " ")
        click.echo(shown_lines(f"{one['name']:{width}}  {one['state']:12} {since}  {one['plan']}{note}"))


@runs.command(cls=AtCommand)
@takes_runs
@click.argument("name")
@json_option
def show(runs: "Runs", name: str, as_json: bool) -> None:
    """The run NAME of FOLDER: where it stands, whose it is, and where its results are."""
    told = runs.one(name)
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    for key, value in told.items():
        if value not in ("", []):
            click.echo(shown_lines(f"{key:12} {', '.join(value) if key in ('sites', 'awaited') else value}"))


@runs.command(cls=AtCommand)
@takes_runs
@takes_plan()
@click.option("--name", default="", help="Name of the run's folder.  [default: the plan's name and the time]")
@click.option(
    "--study", default="", help="What the run belongs to; no part of the plan, and not told to sites.  [default: none]"
)
@click.option("--variables", metavar="NAMES|FILE", help="As of `coordinator serve`.")
@click.option("--sites", metavar="NAMES", help="As of `coordinator serve`.")
@json_option
def start(
    runs: "Runs",
    choice: PlanChoice,
    name: str,
    study: str,
    variables: str | None,
    sites: str | None,
    as_json: bool,
) -> None:
    """Queue a new run of PLAN in FOLDER. The same plan under the same name is queued once, however often it is given.

    Sites whose agents run take part by themselves once their operators have approved the very plan, which names its
    sites and variables; `coordinator runs show` says its digest. A run that was paused or stopped, or has failed, goes
    on with `coordinator runs resume`.
    """
    from fedbnsl_server.run.serve import check_plan
    from fedbnsl_server.store.run_folder import default_folder

    plan = named_plan(choice, variables, sites)
    check_plan(plan)
    if not plan.sites:
        tell("be careful: the plan names no sites, so that no agent can take part; name them: --sites", err=True)
    told = runs.start(plan, name or default_folder(plan.name).name, study)
    stands = "" if told["state"] == "queued" else f", and {told['state']}"
    text = f"queued: {told['name']}{stands} (plan digest {told['plan_digest']})"
    tell(json.dumps(told, ensure_ascii=False) if as_json else text)


@runs.command(cls=AtCommand)
@takes_runs
@click.argument("name")
@json_option
def resume(runs: "Runs", name: str, as_json: bool) -> None:
    """Let the run NAME of FOLDER go on, after its last complete round, that was paused or stopped or has failed."""
    from fedbnsl_server.runs.queue import OPEN

    told = runs.want(name, "run")
    stands = told["state"] if told["state"] in OPEN else "queued"
    tell(json.dumps(told, ensure_ascii=False) if as_json else f"{told['name']}: {stands}")


def _command(wanted: str, text: str) -> click.Command:
    @takes_runs
    @click.argument("name")
    @click.option(
        "--wait",
        "wait_s",
        type=click.FloatRange(min=0),
        default=60.0,
        show_default=True,
        help="Seconds to wait until the service has done it.",
    )
    @json_option
    def command(runs: "Runs", name: str, wait_s: float, as_json: bool) -> None:
        from fedbnsl_server.runs.queue import OPEN

        told = runs.want(name, wanted)
        until = time.monotonic() + wait_s
        while told["state"] in OPEN and time.monotonic() < until:
            time.sleep(_LOOK_S)
            told = runs.one(name)
        if told["state"] in OPEN:
            raise UnreachableError(
                f"run {name} still goes on after {wait_s:g} s", remedy="It is noted, and done when the service can."
            )
        again = f"fedbnsl coordinator runs resume {runs.place} {told['name']}"
        tell(json.dumps(told, ensure_ascii=False) if as_json else f"{name}: {told['state']}; go on with: {again}")

    command.__doc__ = text
    return click.command(wanted, cls=AtCommand)(command)


runs.add_command(
    _command(
        "pause",
        "Pause the run NAME of FOLDER after its last complete round: its sites wait, and keep their places.",
    )
)
runs.add_command(
    _command(
        "stop",
        "End the run NAME of FOLDER and tell its sites; what was learned so far is kept, and it can be resumed.",
    )
)


@runs.command(cls=AtCommand)
@takes_runs
@click.argument("name")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait, then exit code 6.  [default: as long as it takes]",
)
@json_option
def wait(runs: "Runs", name: str, timeout_s: float | None, as_json: bool) -> None:
    """Wait until the run NAME of FOLDER is over; exit code 10 if it failed or was stopped.

    It waits over a pause, and over a coordinator that does not answer for a while.
    """
    told = _over(runs, name, math.inf if timeout_s is None else timeout_s)
    text = f"run {name} is over: {told['state']}"
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    if told["state"] != "finished":
        reason, go_on = (f"fedbnsl coordinator runs {command} {runs.place} {name}" for command in ("show", "resume"))
        raise RunAbandonedError(text, remedy=f"Its reason: {reason}. Go on with it: {go_on}")
    if not as_json:
        click.echo(f"{text}; fetch its result: fedbnsl coordinator runs fetch {runs.place} {name} --out DIR")


def _over(runs: "Runs", name: str, timeout_s: float) -> dict[str, Any]:
    """The run once it is over. Raises UnreachableError if it is not after so many seconds."""
    until, said = time.monotonic() + timeout_s, ""
    while True:
        silence: UnreachableError | None = None
        try:
            told = runs.one(name)
            if told["state"] in ("finished", "failed", "stopped"):
                return told
            now = " for ".join([told["state"], *([first_few(told["awaited"])] if told["awaited"] else [])])
        except UnreachableError as error:
            now, silence = f"{error}; trying again", error
        if time.monotonic() >= until:
            raise silence or UnreachableError(
                f"run {name} is not over after {timeout_s:g} s: {now}", remedy="It goes on; wait for it again."
            )
        if now != said:
            said = now
            tell(f"{name}: {now}", err=True)
        time.sleep(_WAIT_LOOK_S)


@runs.command(cls=AtCommand)
@takes_runs
@click.argument("name")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Where to.  [default: NAME]")
@json_option
def fetch(runs: "Runs", name: str, out: Path | None, as_json: bool) -> None:
    """Copy the result of the run NAME of FOLDER, as `fedbnsl report`, `effect` and `network` read it.

    Files that are there already are replaced by those of the same run, and never by those of another.
    """
    from fedbnsl.files import durable
    from fedbnsl_server.runs.folder import RESULT_FILES
    from fedbnsl_server.runs.remote import is_whole

    out = out or Path(name)
    run = runs.one(name)["run"]
    listed = {file: digest for file, digest in runs.files(name).items() if file in RESULT_FILES}  # whoever lists them
    durable.make_folder(out)
    _refuse_another_run(out, run)
    # First what says which run it is, so that it can be fetched again; the result last: with it, all others are there.
    for file in sorted(listed, key=lambda one: (one == "result.json", one != "run.json")):
        content = runs.file(name, file)
        if not is_whole(content, listed[file]):
            raise ResultError(
                f"{file} of run {name} changed while it was fetched", remedy="The run goes on: fetch it again."
            )
        durable.write_file(out / file, partial(_write, content))
    told = {"name": name, "run": run, "out": str(out), "files": sorted(listed)}
    tell(json.dumps(told, ensure_ascii=False) if as_json else f"fetched {len(listed)} files of {name} to {out}")


def _write(content: bytes, file: "BinaryIO") -> None:
    file.write(content)


def _refuse_another_run(out: Path, run: str) -> None:
    """Raise SetupError if the folder holds another run, or a simulation, which has no number."""
    try:
        there = f"run {json.loads((out / 'run.json').read_text(encoding='utf-8'))['run']}"
    except (OSError, ValueError, KeyError, TypeError):
        there = "another run" if (out / "plan.toml").exists() or (out / "result.json").exists() else ""
    if there and there != f"run {run}":
        raise SetupError(f"{out} holds {there}, and not run {run}: it is not overwritten", remedy="Give another --out.")


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
            for run in queue.all_runs(folder, skip=say_unreadable)
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


def _over_since(place: Path) -> float:
    result = place / "result.json"
    return (result if result.exists() else place).stat().st_mtime
