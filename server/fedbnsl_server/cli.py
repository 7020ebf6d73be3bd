"""`fedbnsl coordinator`: the commands of the machine that coordinates."""

import json
from pathlib import Path
from typing import Any

import click

from fedbnsl.errors import SetupError


@click.group()
def coordinator() -> None:
    """Coordinate a federation: hand out rounds, compute the consensus, keep the results."""


@coordinator.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replace a setting of the plan; repeatable."
)
@click.option(
    "--listen",
    default="127.0.0.1:50051",
    show_default=True,
    metavar="HOST:PORT",
    help="Where sites call; port 0 takes a free one.",
)
@click.option(
    "--insecure", is_flag=True, help="Plaintext, on loopback only. TLS is not there yet: this flag is needed."
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Run folder, new or empty.  [default: runs/<plan name>-<UTC time>]"
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
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON on standard output.")
def serve(
    plan_file: Path,
    overrides: tuple[str, ...],
    listen: str,
    insecure: bool,
    out: Path | None,
    seeds: tuple[str, ...],
    site_ledgers: Path | None,
    address_file: Path | None,
    as_json: bool,
) -> None:
    """Wait for the plan's sites, run it, and write the run folder.

    Sites dial in with `fedbnsl participant join`. Ctrl-C or SIGTERM ends the run; what was learned so far is kept.
    """
    from fedbnsl.plan import Plan
    from fedbnsl_server.admm import AdmmState
    from fedbnsl_server.results import default_folder
    from fedbnsl_server.rounds import RoundRecord
    from fedbnsl_server.run_coordinator import serve as serve_run

    plan = Plan.load(plan_file, overrides)
    if not insecure:
        raise SetupError("TLS is not part of this version; pass --insecure to serve plaintext on loopback")
    folder = out or default_folder(plan.name)

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    def listening(address: str) -> None:
        if address_file is not None:
            from fedbnsl.graph_files import write_text

            write_text(address_file, address)
        say(f"listening on {address}, waiting for {plan.n_participants} sites; run folder: {folder}")

    def after_round(state: AdmmState, record: RoundRecord) -> None:
        total, kind = plan.rounds + plan.refit_rounds, record.kind.name.lower()
        say(
            f"round {record.round}/{total} {kind:5} sites {len(record.contributed)}/{len(state.sites)}"
            f"  h(W) {record.acyclicity:.1e}  edges {record.edges}  {record.local_s + record.global_s:.2f} s"
        )

    result = serve_run(
        plan,
        folder,
        listen=listen,
        on_listening=listening,
        on_round=after_round,
        notice=say,
        seeds=_parse_seeds(seeds),
        site_ledgers=site_ledgers,
    )
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
    else:
        _summarise(result, folder)


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
    if result["privacy"]:
        because = [f"no privacy guarantee: {reason}" for reason in result["privacy"]["no_guarantee_because"]]
        for line in because or [result["privacy"]["guarantee"]]:
            click.echo(line)
