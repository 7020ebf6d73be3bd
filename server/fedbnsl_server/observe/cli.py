"""`fedbnsl coordinator status | watch | healthcheck`: look at a running coordinator without changing it."""

import json
import time
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.console.interrupt import Interruption
from fedbnsl.console.wording import counted_edges
from fedbnsl.errors import InterruptedRunError, RunAbandonedError, SetupError, UnreachableError
from fedbnsl_server.options import Caller, Http, asks_a_coordinator, takes_metrics

if TYPE_CHECKING:
    from fedbnsl.protocol.messages import RunStatus
    from fedbnsl_server.observe.prometheus import MetricsPort
    from fedbnsl_server.observe.status_client import Observer
    from fedbnsl_server.observe.terminal import RunDisplay

_POLL_S = 0.5


_run_option = click.option(
    "--run",
    metavar="NAME",
    default="",
    help="Which run of a coordinator with several.  [default: the one that goes on]",
)


def _tag(observer: "Observer", name: str) -> int:
    """Of the run of that name; 0 without a name."""
    if not name:
        return 0
    from fedbnsl.protocol.messages import run_tag

    runs = {one.name: one for one in observer.runs() or ()}
    if name not in runs:
        raise SetupError(f"the coordinator has no run {name!r}; its runs: {', '.join(sorted(runs)) or 'none'}")
    return run_tag(runs[name].run)


@click.command()
@asks_a_coordinator
@_run_option
def status(coordinator: Caller, as_json: bool, run: str) -> None:
    """Show the runs of the coordinator at HOST:PORT (this machine, at the federation's port or 50051).

    Of a coordinator with several runs it lists them, and shows those that are open; --json prints a line for each of
    these.
    """
    from rich.console import Console

    from fedbnsl.protocol.messages import run_tag
    from fedbnsl_server.observe.status_client import Observer
    from fedbnsl_server.observe.terminal import runs_table, view

    address = coordinator.address
    with closing(Observer(address, coordinator.credentials)) as observer:
        offers = observer.runs()
        tags = [_tag(observer, run)] if run else [run_tag(one.run) for one in offers or () if one.is_open]
        if run and offers and next(one for one in offers if one.name == run).state in ("queued", "interrupted"):
            Console().print(runs_table([one for one in offers if one.name == run]))
            return
        found = [observer.status(tag) for tag in tags or [0]]
        if offers is None or None in found:
            raise UnreachableError(f"the coordinator at {address} does not answer ({observer.silence})")
    for seen in found:
        if seen is None:
            continue
        if as_json:
            click.echo(json.dumps(_as_json(seen), ensure_ascii=False))
        elif seen.rounds:
            of = f"run {seen.name}" if len(offers) > 1 else f"run {seen.run:08x}"
            Console().print(view(f"{address}: {seen.state} ({of}, fedbnsl {seen.version})", seen))
    if not as_json and len(offers) != 1:
        Console().print(runs_table(offers))


@click.command()
@asks_a_coordinator
@takes_metrics
@click.option(
    "--patience",
    "patience_s",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a coordinator that does not answer, or for an interrupted run to continue.",
)
@_run_option
def watch(coordinator: Caller, as_json: bool, metrics: Http, patience_s: float, run: str) -> None:
    """Watch the run of the coordinator at HOST:PORT (this machine, at the federation's port or 50051) until it ends.

    On a terminal it is a live view, on a pipe a line now and then; with --json an object whenever round, state or
    phase change. Ctrl-C stops watching, never the run. Exit code 10 if the run failed, 6 if the coordinator stays away.
    """
    from rich.console import Console

    from fedbnsl_server.observe.status_client import Observer
    from fedbnsl_server.observe.terminal import RunDisplay

    console = Console(stderr=as_json)
    address = coordinator.address
    with (
        closing(Observer(address, coordinator.credentials)) as observer,
        metrics.metrics(coordinator.federation) as port,
    ):
        if port is not None:
            console.print(f"metrics on port {port.port}", highlight=False)
        try:
            with RunDisplay(f"coordinator at {address}", console) as display:
                tag = _tag(observer, run)
                last = _until_the_end(observer, address, display, port, patience_s=patience_s, as_json=as_json, run=tag)
        except Interruption:
            raise InterruptedRunError("the watching ended", remedy="The run itself goes on.") from None
    if not as_json:
        click.echo(f"the run {last.state} after {last.elapsed_s:.1f} s, {counted_edges(last.edges, last.undirected)}")
    if last.state == "failed":
        raise RunAbandonedError(f"the run failed in round {last.round}")


def _until_the_end(
    observer: "Observer",
    address: str,
    display: "RunDisplay",
    port: "MetricsPort | None",
    *,
    patience_s: float,
    as_json: bool,
    run: int,
) -> "RunStatus":
    seen_at, said = time.monotonic(), ("", -1, "")
    seen: RunStatus | None = None
    if port is not None:
        port.look = lambda: None if seen is None else {seen.name: seen}
    while True:
        seen = observer.status(run)
        step = None if seen is None else (seen.state, seen.round, seen.phase.what if seen.phase else "")
        if seen is not None and as_json and step is not None and step != said:
            said = step
            click.echo(json.dumps(_as_json(seen), ensure_ascii=False))
        if seen is not None and seen.state in ("finished", "failed"):
            display.show(seen)
            return seen
        if seen is None or seen.state == "interrupted":
            away = "does not answer" if seen is None else "was interrupted"
            if time.monotonic() - seen_at > patience_s:
                raise UnreachableError(
                    f"the coordinator at {address} {away} and did not come back within {patience_s:g} s"
                )
            display.show_trouble(f"the coordinator at {address} {away}; waiting for it to come back")
        else:
            seen_at = time.monotonic()
            display.show(seen)
        time.sleep(_POLL_S)


@click.command()
@asks_a_coordinator
@click.pass_context
def healthcheck(context: click.Context, coordinator: Caller, as_json: bool) -> None:
    """Ask the coordinator at HOST:PORT (this machine, at the federation's port or 50051) whether it takes calls.

    For containers: one line, exit code 0 if it does and 6 if it does not, after 3 s at the latest.
    """
    from fedbnsl_server.grpc_api.health import why_not_serving

    address = coordinator.address
    why_not = why_not_serving(address, coordinator.credentials)
    if as_json:
        click.echo(json.dumps({"address": address, "serving": not why_not, "why_not": why_not}, ensure_ascii=False))
    else:
        click.echo(f"{address}: {why_not or 'serving'}")
    if why_not:
        context.exit(UnreachableError.exit_code)


def _as_json(seen: "RunStatus") -> dict[str, Any]:
    from fedbnsl.privacy.zcdp import zcdp_of
    from fedbnsl_server.observe.terminal import seconds_left
    from fedbnsl_server.sites.why_left import WHY_LEFT

    told = asdict(seen)
    told |= {"run": f"{seen.run:08x}", "time_left_s": seconds_left(seen), "caller": told.pop("site")}
    for site in told["sites"]:
        units = site.pop("spent_units")
        site["why_left"] = WHY_LEFT[site["why_left"]].word if site["left"] else None
        site |= {"online": site["online_s"] > 0, "spent_zcdp": None if units is None else zcdp_of(units)}
    return told
