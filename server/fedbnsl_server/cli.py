"""`fedbnsl coordinator`: the commands of the machine that coordinates."""

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.console.interrupt import Interruption
from fedbnsl.console.shown import shown_lines
from fedbnsl.console.tell import tell
from fedbnsl.errors import InterruptedRunError, SetupError
from fedbnsl.events.emitter import Events
from fedbnsl.events.options import Listeners, takes_listeners
from fedbnsl.events.security_log_cli import audit_log
from fedbnsl.identity.passphrase import Passphrases, passphrase_option
from fedbnsl.plan.plan_options import PlanChoice, takes_plan
from fedbnsl.web.options import served_at
from fedbnsl_server.identity import cli as enrolment_cli
from fedbnsl_server.observe import cli as observer_cli
from fedbnsl_server.results.variable_names import names_in, variables_in
from fedbnsl_server.runs import cli as runs_cli
from fedbnsl_server.store import cli as order_cli

if TYPE_CHECKING:
    from fedbnsl_server.algorithm.admm import AdmmState
    from fedbnsl_server.identity.enrolment import Federation
    from fedbnsl_server.observe.metrics_port import MetricsPort
    from fedbnsl_server.observe.page.runs_page import RunsPage
    from fedbnsl_server.run.round_loop import RoundRecord


@click.group()
def coordinator() -> None:
    """Coordinate a federation: hand out rounds, compute the consensus, keep the results."""


for _command in (
    enrolment_cli.init,
    enrolment_cli.approve,
    enrolment_cli.revoke,
    enrolment_cli.renew,
    enrolment_cli.enrolled,
    order_cli.eject,
    observer_cli.status,
    observer_cli.watch,
    observer_cli.healthcheck,
    runs_cli.runs,
    audit_log,
):
    coordinator.add_command(_command)


@coordinator.command()
@takes_plan(or_folder=True, required=False)
@click.option(
    "--runs",
    "runs_folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="In place of a plan: play the runs of this folder, which `coordinator runs` queues, until this process ends.",
)
@click.option(
    "--at-once",
    type=click.IntRange(min=1, max=16),
    default=2,
    show_default=True,
    help="How many runs of that folder are open at the same time; the others wait in their order.",
)
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
    "--listen",
    metavar="HOST:PORT",
    help="Where to listen; port 0 takes a free one.  [default: all addresses of this machine, at the federation's "
    "port; with --insecure 127.0.0.1:50051]",
)
@click.option(
    "--federation",
    "federation_folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder made by `coordinator init`: TLS, and only its enrolled sites may call.",
)
@click.option("--insecure", is_flag=True, help="Instead of --federation: plaintext, on loopback only.")
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
@click.option(
    "--site-ledgers",
    type=click.Path(path_type=Path),
    help="File that remembers the sites' privacy ledgers from run to run.  [default: beside the run folder]",
)
@click.option(
    "--security-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of who called, who was refused and why; `coordinator audit-log` shows it.  [default: "
    "security-log.jsonl in the federation's folder; with --insecure beside the run folder]",
)
@click.option(
    "--address-file",
    type=click.Path(path_type=Path),
    help="Write the listening host:port to this file once sites can call.",
)
@observer_cli.metrics_options
@takes_listeners
@served_at("--web", "Show the run in a browser", observer_cli.TLS)
@passphrase_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON on standard output.")
def serve(
    choice: PlanChoice,
    runs_folder: Path | None,
    at_once: int,
    variables: str | None,
    sites: str | None,
    listen: str | None,
    federation_folder: Path | None,
    insecure: bool,
    out: Path | None,
    seeds: tuple[str, ...],
    site_ledgers: Path | None,
    security_log: Path | None,
    address_file: Path | None,
    metrics: str | None,
    metrics_token: Path | None,
    listeners: Listeners,
    web: str | None,
    web_token: Path | None,
    passphrases: Passphrases,
    as_json: bool,
) -> None:
    """Wait for the plan's sites, run it, and write the run folder.

    Sites dial in with `fedbnsl participant join`. Given the folder of a RUN instead of a PLAN, continue that run
    after its last complete round. SIGTERM pauses a run: its sites keep calling. Ctrl-C ends it and tells the sites.
    In both cases what was learned so far is kept, and the run can be continued. While the coordinator searches, the
    first Ctrl-C ends the search alone: the run finishes with the best graph so far, and its result says so.

    With --runs it stays up and plays the runs of a folder, one after another or several at once; its sites need one
    agent each (`fedbnsl participant agent`). Both signals then pause its runs, and a new start continues them.
    """
    from fedbnsl.protocol.channel import DEFAULT_PORT, split_address
    from fedbnsl_server.run.serve import serve as serve_run
    from fedbnsl_server.store.command import another_folder, keep_commands
    from fedbnsl_server.store.run_folder import default_folder, holds_a_round, load_plan

    observer_cli.one_of_both(federation_folder, insecure)
    federation = None if federation_folder is None else _federation(federation_folder, passphrases)
    where = listen or (f"127.0.0.1:{DEFAULT_PORT}" if federation is None else f"0.0.0.0:{federation.port}")
    # Until the command ends: a hook that is slow does not keep anybody from the results.
    events = click.get_current_context().with_resource(listeners.listening("fedbnsl-coordinator"))
    if runs_folder is not None:
        if choice.plan is not None or choice.changes_settings or any((out, seeds, variables, sites, as_json)):
            raise SetupError(
                "--runs names a folder of runs, each with its own plan: omit PLAN, --set, --epsilon, --delta, "
                "--dictionary, --variables, --sites, --seed, --out and --json",
                remedy=f"Queue a run: fedbnsl coordinator runs start {runs_folder} PLAN",
            )
        with (
            observer_cli.metrics_port(metrics, metrics_token, federation) as port,
            observer_cli.runs_page(web, web_token, federation) as page,
        ):
            _serve_runs(
                runs_folder, where, federation, at_once, site_ledgers, security_log, address_file, port, events, page
            )
        return
    if choice.plan is None:
        raise SetupError("name a PLAN, a RUN to continue, or a folder of runs: --runs FOLDER")
    if isinstance(choice.plan, Path) and choice.plan.is_dir():
        if choice.changes_settings or out is not None or seeds or variables is not None or sites is not None:
            raise SetupError(
                f"{choice.plan} is a run: it continues with its own settings; omit --set, --epsilon, --delta, --seed, "
                "--variables, --sites and --out"
            )
        plan, folder = load_plan(choice.plan), choice.plan
    else:
        plan = choice.load()
        if variables is not None:
            plan = plan.with_settings(variables=variables_in(variables))
        if sites is not None:
            plan = plan.with_settings(sites=names_in(sites))
        folder = out or default_folder(plan.name)
    if plan.secure_aggregation and federation is None:
        tell(
            "be careful: in plaintext nobody attests a site, so that guarded sites refuse privacy.secure_aggregation; "
            "serve with --federation, or agree on the plan with --set privacy.secure_aggregation=false",
            err=True,
        )

    again = ["fedbnsl", "coordinator", "serve", str(folder)]
    again += ["--insecure"] if federation_folder is None else ["--federation", str(federation_folder)]
    again += [] if listen is None else ["--listen", listen]
    again += [] if site_ledgers is None else ["--site-ledgers", str(site_ledgers)]
    again += [] if security_log is None else ["--security-log", str(security_log)]
    to_continue = f"continue with: {shlex.join(again)}"

    def say(text: str) -> None:
        tell(shown_lines(text), err=as_json)  # a run does not end because nobody reads along

    def listening(address: str) -> None:
        if address_file is not None:
            from fedbnsl.files.durable import write_text

            write_text(address_file, address)
        repeat = ["coordinator", "serve", "plan.toml"]
        join = ["participant", "join"]
        if federation is None or federation_folder is None:
            repeat += ["--insecure", "--listen", address]
            join += [address, "--insecure"]
            public = [*join, "--site", "SITE"]
        else:
            repeat += ["--federation", os.path.relpath(federation_folder.resolve(), folder.resolve())]
            repeat += [] if listen is None else ["--listen", listen]
            # Sites call the port that they were enrolled with, unless they are told another one.
            host, port = federation.address.rpartition(":")[0], split_address(address)[1]
            join += [] if port == federation.port else [f"{host}:{port}"]
            public = [*join, "--identity", "SITE_FOLDER"]
        repeat += ["--out", another_folder(folder)]
        guarded, public = [*join, "--policy", "SITE_FOLDER"], [*public, "--data", "TABLE", "--public-data"]
        if plan.privacy is not None:
            keep_commands(folder, [repeat, guarded], spends_budget=True)
        else:  # a site that has no policy joins in another way, and the coordinator cannot tell which it was
            keep_commands(folder, [repeat, guarded], spends_budget=False, instead=public)
        say(f"listening on {address}; run folder: {folder}")

    from fedbnsl.console.time_left import phases_shown
    from fedbnsl.console.wording import counted_edges
    from fedbnsl.rounds.kinds import n_rounds

    def after_round(state: "AdmmState", record: "RoundRecord") -> None:
        total, kind = n_rounds(plan), record.kind
        say(
            f"round {record.round}/{total} {kind:5} sites {len(record.contributed)}/{len(state.sites)}"
            f"  h(W) {record.acyclicity:.1e}  {counted_edges(record.edges, record.undirected)}"
            f"  {record.local_s + record.global_s:.2f} s"
        )
        if page is not None:
            page.after_round(folder.name, state, record)

    show_phase = phases_shown(say, err=as_json)
    with (
        observer_cli.metrics_port(metrics, metrics_token, federation) as port,
        observer_cli.runs_page(web, web_token, federation) as page,
    ):
        if port is not None:
            say(f"metrics on port {port.port}")
        if page is not None:
            events.listen(page.heard)
            say(f"page: {page.port.url}")
        try:
            result = serve_run(
                plan,
                folder,
                listen=where,
                federation=federation,
                on_listening=listening,
                on_round=after_round,
                on_phase=lambda phase: show_phase("", phase),
                notice=say,
                seeds=_parse_seeds(seeds),
                site_ledgers=site_ledgers,
                security_log=security_log,
                metrics=port,
                emit=events,
                page=page,
            )
        except (InterruptedRunError, Interruption) as error:
            learned = f"What was learned so far is in {folder}" if holds_a_round(folder) else "No round was finished"
            remedy = f"{learned}; {to_continue}"
            raise InterruptedRunError(str(error), remedy=remedy) from None
        finally:
            if page is not None and page.over(folder.name):
                page.wait_for_viewers()
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
    if result["state"] == "interrupted":
        say(f"{result['reason']}; {to_continue}")
    elif not as_json:
        _summarise(result, folder)


def _serve_runs(
    folder: Path,
    listen: str,
    federation: "Federation | None",
    at_once: int,
    site_ledgers: Path | None,
    security_log: Path | None,
    address_file: Path | None,
    port: "MetricsPort | None",
    events: Events,
    page: "RunsPage | None",
) -> None:
    from fedbnsl.console.time_left import phases_shown
    from fedbnsl.files.durable import make_folder, write_text
    from fedbnsl_server.runs.service import serve_runs

    def say(name: str, text: str) -> None:
        tell(shown_lines(f"{name}: {text}" if name else text))

    def listening(address: str) -> None:
        if address_file is not None:
            write_text(address_file, address)
        say("", f"listening on {address}; runs: {folder}")

    def after_round(name: str, state: "AdmmState", record: "RoundRecord") -> None:
        say(name, f"round {record.round} {record.kind:5} sites {len(record.contributed)}/{len(state.sites)}")
        if page is not None:
            page.after_round(name, state, record)

    make_folder(folder)
    if page is not None:
        events.listen(page.heard)
        say("", f"page: {page.port.url}")
    if port is not None:
        say("", f"metrics on port {port.port}")
    serve_runs(
        folder,
        listen=listen,
        federation=federation,
        at_once=at_once,
        on_listening=listening,
        on_round=after_round,
        on_phase=phases_shown(lambda text: say("", text), err=False),
        notice=say,
        site_ledgers=site_ledgers,
        security_log=security_log,
        metrics=port,
        emit=events,
        page=page,
    )


def _federation(folder: Path, passphrases: Passphrases) -> "Federation":
    from fedbnsl_server.identity.enrolment import Federation

    return Federation.open(folder, passphrases=passphrases)


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
    from fedbnsl_server.results.influence import in_one_line, outliers, who_was_left_out
    from fedbnsl_server.results.unused import unused_sentences
    from fedbnsl_server.sites.ejection import left_in_the_result

    for sentence in [*result.get("verdict", {}).get("incomplete", []), *outliers(result["influence"])]:
        tell(f"be careful: {sentence}")
    tell(f"learned {edges_in_words(result['edges'])} in {result['seconds']['total']:.1f} s; results: {folder}")
    tell(f"influence: {in_one_line(result['influence'])}")
    for sentence in [*unused_sentences(result["unused"]), *who_was_left_out(result["rounds"])]:
        tell(sentence)
    for one in result["ejected"]:
        tell(left_in_the_result(one["site"], one["after_round"]))
    for file, why in result["not_written"].items():
        tell(f"{file} was not written: {why}")
    if result["privacy"]:
        because = [f"no privacy guarantee: {reason}" for reason in result["privacy"]["no_guarantee_because"]]
        for line in because or [result["privacy"]["guarantee"]]:
            tell(line)
