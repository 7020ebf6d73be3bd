"""`fedbnsl coordinator`: the commands of the machine that coordinates."""

import json
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.errors import InterruptedRunError, SetupError
from fedbnsl.plan.plan_options import PlanChoice, takes_plan
from fedbnsl_server.identity import cli as enrolment_cli
from fedbnsl_server.observe import cli as observer_cli

if TYPE_CHECKING:
    from fedbnsl_server.algorithm.admm import AdmmState
    from fedbnsl_server.algorithm.round_loop import RoundRecord
    from fedbnsl_server.identity.enrolment import Federation
    from fedbnsl_server.observe.prometheus import MetricsPort


@click.group()
def coordinator() -> None:
    """Coordinate a federation: hand out rounds, compute the consensus, keep the results."""


for _command in (
    enrolment_cli.init,
    enrolment_cli.approve,
    enrolment_cli.revoke,
    enrolment_cli.renew,
    enrolment_cli.enrolled,
    observer_cli.status,
    observer_cli.watch,
    observer_cli.healthcheck,
):
    coordinator.add_command(_command)


@coordinator.command()
@takes_plan(or_folder=True)
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
    help="Run folder; one that holds a run of this plan is gone on with.  [default: runs/<plan name>-<UTC time>]",
)
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    metavar="NAME=N",
    help="Note in the manifest a seed that generated data came from; repeatable.",
)
@click.option(
    "--site-ledgers",
    type=click.Path(path_type=Path),
    help="File that remembers the sites' privacy ledgers from run to run.  [default: beside the run folder]",
)
@click.option(
    "--address-file",
    type=click.Path(path_type=Path),
    help="Write the listening host:port to this file once sites can call.",
)
@observer_cli.metrics_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON on standard output.")
def serve(
    choice: PlanChoice,
    listen: str | None,
    federation_folder: Path | None,
    insecure: bool,
    out: Path | None,
    seeds: tuple[str, ...],
    site_ledgers: Path | None,
    address_file: Path | None,
    metrics: str | None,
    as_json: bool,
) -> None:
    """Wait for the plan's sites, run it, and write the run folder.

    Sites dial in with `fedbnsl participant join`. Given the folder of a RUN instead of a PLAN, it goes on with that run
    after its last complete round. SIGTERM pauses a run: its sites keep calling. Ctrl-C ends it, and tells them so.
    Either way what was learned so far is kept, and the run can be continued.
    """
    from fedbnsl.channel import DEFAULT_PORT
    from fedbnsl_server.serve import serve as serve_run
    from fedbnsl_server.store.run_folder import default_folder, load_plan

    observer_cli.one_of_both(federation_folder, insecure)
    federation = None if federation_folder is None else _federation(federation_folder)
    where = listen or (f"127.0.0.1:{DEFAULT_PORT}" if federation is None else f"0.0.0.0:{federation.port}")
    if isinstance(choice.plan, Path) and choice.plan.is_dir():
        if choice.changes_settings or out is not None or seeds:
            raise SetupError(
                f"{choice.plan} is a run: it goes on with its own settings; omit --set, --epsilon, --delta, --seed "
                "and --out"
            )
        plan, folder = load_plan(choice.plan), choice.plan
    else:
        plan = choice.load()
        folder = out or default_folder(plan.name)

    again = ["fedbnsl", "coordinator", "serve", str(folder)]
    again += ["--insecure"] if federation_folder is None else ["--federation", str(federation_folder)]
    again += [] if listen is None else ["--listen", listen]
    again += [] if site_ledgers is None else ["--site-ledgers", str(site_ledgers)]
    to_continue = f"continue with: {shlex.join(again)}"

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    def listening(address: str) -> None:
        if address_file is not None:
            from fedbnsl.durable import write_text

            write_text(address_file, address)
        say(f"listening on {address}; run folder: {folder}")

    from fedbnsl.rounds.kinds import n_rounds

    def after_round(state: "AdmmState", record: "RoundRecord") -> None:
        total, kind = n_rounds(plan), record.kind
        say(
            f"round {record.round}/{total} {kind:5} sites {len(record.contributed)}/{len(state.sites)}"
            f"  h(W) {record.acyclicity:.1e}  edges {record.edges}  {record.local_s + record.global_s:.2f} s"
        )

    with nullcontext() if metrics is None else _metrics_port(metrics) as port:
        if port is not None:
            say(f"metrics on port {port.port}")
        try:
            result = serve_run(
                plan,
                folder,
                listen=where,
                federation=federation,
                on_listening=listening,
                on_round=after_round,
                notice=say,
                seeds=_parse_seeds(seeds),
                site_ledgers=site_ledgers,
                metrics=port,
            )
        except InterruptedRunError as error:
            remedy = f"What was learned so far is in {folder}; {to_continue}"
            raise InterruptedRunError(str(error), remedy=remedy) from None
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
    if result["state"] == "interrupted":
        say(f"{result['reason']}; {to_continue}")
    elif not as_json:
        _summarise(result, folder)


def _federation(folder: Path) -> "Federation":
    from fedbnsl_server.identity.enrolment import Federation

    return Federation.open(folder)


def _metrics_port(address: str) -> "MetricsPort":
    from fedbnsl_server.observe.prometheus import MetricsPort

    return MetricsPort(address)


def _parse_seeds(seeds: tuple[str, ...]) -> dict[str, int]:
    parsed: dict[str, int] = {}
    for seed in seeds:
        name, _, number = seed.partition("=")
        if not name or not number.lstrip("-").isdecimal():
            raise click.BadParameter(f"{seed!r}: expected NAME=N", param_hint="--seed")
        parsed[name] = int(number)
    return parsed


def _summarise(result: dict[str, Any], folder: Path) -> None:
    click.echo(f"learned {len(result['edges'])} edges in {result['seconds']['total']:.1f} s; results: {folder}")
    for file, why in result["not_written"].items():
        click.echo(f"{file} was not written: {why}")
    if result["privacy"]:
        because = [f"no privacy guarantee: {reason}" for reason in result["privacy"]["no_guarantee_because"]]
        for line in because or [result["privacy"]["guarantee"]]:
            click.echo(line)
