"""`fedbnsl coordinator`: the commands of the machine that coordinates."""

import json
import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.console.interrupt import Interruption
from fedbnsl.console.shown import shown_lines
from fedbnsl.console.tell import tell
from fedbnsl.errors import InterruptedRunError, SetupError
from fedbnsl.events.security_log_cli import audit_log
from fedbnsl.plan.plan_options import PlanChoice, takes_plan
from fedbnsl.web.operators_cli import operators_group
from fedbnsl_server.identity import cli as enrolment_cli
from fedbnsl_server.identity.roles import ROLES
from fedbnsl_server.observe import cli as observer_cli
from fedbnsl_server.options import ServerOptions, takes_server
from fedbnsl_server.runs import cli as runs_cli
from fedbnsl_server.runs.cli import named_plan
from fedbnsl_server.store import backup_cli
from fedbnsl_server.store import cli as command_cli
from fedbnsl_server.store.forget_cli import forget

if TYPE_CHECKING:
    from fedbnsl.plan.plan import Plan
    from fedbnsl_server.algorithm.admm import AdmmState
    from fedbnsl_server.run.round_loop import RoundRecord


@click.group()
def coordinator() -> None:
    """Coordinate a federation: hand out rounds, compute the consensus, keep the results."""


for _command in (
    enrolment_cli.init,
    enrolment_cli.approve,
    enrolment_cli.revoke,
    enrolment_cli.renew,
    enrolment_cli.roster,
    enrolment_cli.enrolled,
    command_cli.eject,
    forget,
    backup_cli.backup,
    observer_cli.status,
    observer_cli.watch,
    observer_cli.healthcheck,
    runs_cli.runs,
    audit_log,
    operators_group(ROLES, sign="federation.toml", side="coordinator"),
):
    coordinator.add_command(_command)


def _renamed(context: click.Context, parameter: click.Parameter, folder: Path | None) -> None:
    if folder is not None:
        raise SetupError(
            "the runs of a folder are served by a command of their own",
            remedy=f"Use: fedbnsl coordinator runs serve {shlex.quote(str(folder))}, with the same other options.",
        )


@coordinator.command()
@takes_plan(or_folder=True)
@click.option(
    "--variables",
    metavar="NAMES|FILE",
    help="Names of the run's variables, separated by commas, or a file whose header names them, such as a CSV "
    "table.  [default: those of the plan, which must name them then]",
)
@click.option(
    "--sites",
    metavar="NAMES",
    help="Names of the sites that may take part, separated by commas, as many as the plan's n_participants.  "
    "[default: those of the plan; if it names none, whoever joins first]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Run folder; if it holds a run of this plan, that run is continued.  [default: runs/<plan name>-<UTC time>]",
)
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    metavar="NAME=N",
    help="Record in the manifest the seed of generated data; repeatable.",
)
@takes_server
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON on standard output.")
@click.option(
    "--runs", type=click.Path(path_type=Path), hidden=True, is_eager=True, expose_value=False, callback=_renamed
)
def serve(
    choice: PlanChoice,
    variables: str | None,
    sites: str | None,
    out: Path | None,
    seeds: tuple[str, ...],
    server: ServerOptions,
    as_json: bool,
) -> None:
    """Wait for the plan's sites, run it, and write the run folder.

    Sites dial in with `fedbnsl participant join`. Given the folder of a RUN instead of a PLAN, continue that run
    after its last complete round. SIGTERM pauses a run: its sites keep calling. Ctrl-C ends it and tells the sites.
    In both cases what was learned so far is kept, and the run can be continued. While the coordinator searches, the
    first Ctrl-C ends the search alone: the run finishes with the best graph so far, and its result says so.

    For several runs, one after another or at once, see `fedbnsl coordinator runs serve`.
    """
    from fedbnsl.console.time_left import phases_shown
    from fedbnsl.console.wording import counted_edges
    from fedbnsl_server.run.serve import serve as serve_run
    from fedbnsl_server.run.settings import Follower
    from fedbnsl_server.store.run_folder import default_folder, holds_a_round, load_plan

    if isinstance(choice.plan, Path) and choice.plan.is_dir():
        if choice.changes_settings or out is not None or seeds or variables is not None or sites is not None:
            raise SetupError(
                f"{choice.plan} is a run: it continues with its own settings; omit --set, --epsilon, --delta, --seed, "
                "--variables, --sites and --out"
            )
        plan, folder = load_plan(choice.plan), choice.plan
    else:
        plan = named_plan(choice, variables, sites)
        folder = out or default_folder(plan.name)
    if plan.secure_aggregation and server.federation is None:
        tell(
            "be careful: in plaintext nobody attests a site, so that guarded sites refuse privacy.secure_aggregation; "
            "serve with --federation, or agree on the plan with --set privacy.secure_aggregation=false",
            err=True,
        )
    to_continue = f"continue with: {_command_to_continue(folder, server)}"

    def say(text: str) -> None:
        tell(shown_lines(text), err=as_json)  # a run does not end because nobody reads along

    def listening(address: str) -> None:
        _keep_commands(plan, folder, address, server)
        say(f"listening on {address}; run folder: {folder}")

    show_phase = partial(phases_shown(say, err=as_json), "")
    with server.open(listening, say) as (settings, events):
        page = settings.page

        def after_round(state: "AdmmState", record: "RoundRecord") -> None:
            say(
                f"round {record.round}/{record.rounds} {record.kind:5} sites {len(record.contributed)}"
                f"/{len(state.sites)}  h(W) {record.acyclicity:.1e}  "
                f"{counted_edges(record.edges, record.undirected)}  {record.local_s + record.global_s:.2f} s"
            )
            if page is not None:
                page.show_graph(folder.name, state)

        try:
            follower = Follower(after_round, show_phase, say, events)
            result = serve_run(plan, folder, settings, follower, seeds=_parse_seeds(seeds))
        except (InterruptedRunError, Interruption) as error:
            learned = f"What was learned so far is in {folder}" if holds_a_round(folder) else "No round was finished"
            raise InterruptedRunError(str(error), remedy=f"{learned}; {to_continue}") from None
        finally:
            if page is not None and page.over(folder.name):
                page.wait_for_viewers()
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
    if result["state"] == "interrupted":
        say(f"{result['reason']}; {to_continue}")
    elif not as_json:
        _summarise(result, folder)


def _command_to_continue(folder: Path, server: ServerOptions) -> str:
    again = ["fedbnsl", "coordinator", "serve", str(folder)]
    again += ["--insecure"] if server.federation_folder is None else ["--federation", str(server.federation_folder)]
    again += [] if server.listen is None else ["--listen", server.listen]
    again += [] if server.site_ledgers is None else ["--site-ledgers", str(server.site_ledgers)]
    again += [] if server.security_log is None else ["--security-log", str(server.security_log)]
    return shlex.join(again)


def _keep_commands(plan: "Plan", folder: Path, address: str, server: ServerOptions) -> None:
    """Write command.txt: what repeats the run at the coordinator and at each site."""
    from fedbnsl.protocol.channel import split_address
    from fedbnsl_server.store.command import another_folder, keep_commands

    repeat = ["coordinator", "serve", "plan.toml"]
    join = ["participant", "join"]
    if server.federation is None or server.federation_folder is None:
        repeat += ["--insecure", "--listen", address]
        join += [address, "--insecure"]
        public = [*join, "--site", "SITE"]
    else:
        repeat += ["--federation", os.path.relpath(server.federation_folder.resolve(), folder.resolve())]
        repeat += [] if server.listen is None else ["--listen", server.listen]
        # Sites call the port that they were enrolled with, unless they are told another one.
        host, port = server.federation.address.rpartition(":")[0], split_address(address)[1]
        join += [] if port == server.federation.port else [f"{host}:{port}"]
        public = [*join, "--identity", "SITE_FOLDER"]
    repeat += ["--out", another_folder(folder)]
    guarded, public = [*join, "--policy", "SITE_FOLDER"], [*public, "--data", "TABLE", "--public-data"]
    if plan.privacy is not None:
        keep_commands(folder, [repeat, guarded], spends_budget=True)
    else:  # a site that has no policy joins in another way, and the coordinator cannot tell which it was
        keep_commands(folder, [repeat, guarded], spends_budget=False, instead=public)


def _parse_seeds(seeds: tuple[str, ...]) -> dict[str, int]:
    parsed: dict[str, int] = {}
    for seed in seeds:
        name, _, number = seed.partition("=")
        if not name or not number.lstrip("-").isdecimal():
            raise click.BadParameter(f"{seed!r}: expected NAME=N", param_hint="--seed")
        parsed[name] = int(number)
    return parsed


def _summarise(result: dict[str, Any], folder: Path) -> None:
    from fedbnsl.console.wording import edges_in_words
    from fedbnsl_server.results.outlier_scores import in_one_line, outliers, who_was_left_out
    from fedbnsl_server.results.sentences import in_words
    from fedbnsl_server.results.unused import unused_notes
    from fedbnsl_server.sites.ejection import left_in_the_result

    for text in in_words([*result["verdict"]["incomplete"], *outliers(result["influence"])]):
        tell(f"be careful: {text}")
    tell(f"learned {edges_in_words(result['edges'])} in {result['seconds']['total']:.1f} s; results: {folder}")
    tell(f"outlier scores: {in_one_line(result['influence'])}")
    for text in in_words([*unused_notes(result["unused"]), *who_was_left_out(result["rounds"])]):
        tell(text)
    for one in result["ejected"]:
        tell(left_in_the_result(one["site"], one["after_round"]))
    for file, why in result["not_written"].items():
        tell(f"{file} was not written: {why}")
    if result["privacy"]:
        because = [f"no privacy guarantee: {reason}" for reason in result["privacy"]["no_guarantee_because"]]
        for line in because or [result["privacy"]["guarantee"]]:
            tell(line)
