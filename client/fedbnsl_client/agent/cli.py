"""`fedbnsl participant agent` and `participant runs`: a site without a person at the keyboard."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.console.interrupt import Interruption
from fedbnsl.console.shown import shown_lines
from fedbnsl.console.tell import tell
from fedbnsl.errors import PlanMismatchError, SetupError
from fedbnsl.events.options import Listeners, takes_listeners
from fedbnsl.web.options import is_asked_for, served_at
from fedbnsl_client.site.options import FOLDER, LinkOptions, gathered, takes_link

if TYPE_CHECKING:
    from fedbnsl.protocol.messages import RunOffer
    from fedbnsl_client.agent.agent import Agent
    from fedbnsl_client.agent.part import Site
    from fedbnsl_client.budget.approvals import Approval
    from fedbnsl_client.observe.site_page import ShownRun

_takes_link = takes_link(
    "Plaintext, on loopback only; no certificate is needed.",
    click.option(
        "--coordinator",
        metavar="HOST:PORT",
        help="Which coordinator to call.  [default: the one that enrolled the site]",
    ),
)


@dataclass(frozen=True)
class _Served:
    """What the agent shows of itself, and to whom."""

    metrics: str | None
    metrics_token: Path | None
    web: str | None
    web_token: Path | None
    web_certificate: Path | None


@click.command()
@FOLDER
@_takes_link
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the results, one folder a run.  [default: results in FOLDER]",
)
@click.option("--dataset", help="Which dataset of the policy, where it allows plans that nobody approved.")
@click.option(
    "--at-once",
    type=click.IntRange(min=1, max=16),
    default=2,
    show_default=True,
    help="In how many runs to take part at the same time.",
)
@click.option("--json-logs", is_flag=True, help="Write each notice as a JSON object, for a collector of logs.")
@gathered(
    "served",
    _Served,
    served_at("--metrics", "Serve metrics for Prometheus", "--web-certificate"),
    served_at("--web", "Show the agent and its runs in a browser", "--web-certificate"),
    click.option(
        "--web-certificate",
        type=click.Path(path_type=Path),
        help="With a token: PEM file with a certificate that browsers and scrapers of the site trust, and its key.",
    ),
)
@takes_listeners
def agent(
    folder: Path,
    link_options: LinkOptions,
    out: Path | None,
    dataset: str | None,
    at_once: int,
    json_logs: bool,
    served: _Served,
    listeners: Listeners,
) -> None:
    """Stay up for the site in FOLDER, and take part in the runs that its operator has approved or its policy allows.

    A run is joined only if its very plan is approved (`participant approve PLAN FOLDER`), with the sites that it names
    and at the privacy cost that was shown, or if the policy's `auto_approve` lists it. `participant runs` shows what
    the coordinator offers; `participant withdraw` takes an approval back, also while a run goes on. Commands on FOLDER
    can be used while the agent runs. SIGTERM and Ctrl-C leave the runs that go on; a restart joins them again.
    """
    from fedbnsl_client.agent.agent import Agent
    from fedbnsl_client.agent.part import Site
    from fedbnsl_client.site import folder as site_folder
    from fedbnsl_client.site import identity

    with site_folder.opened(folder) as (policy, ledger):
        ledger.require_open()
    # The first one, also once there is another: an agent goes on as it was started.
    if link_options.federation is None and not link_options.insecure and (known := [*identity.federations(folder)]):
        link_options = replace(link_options, federation=known[0])

    def notice(run: str, text: str) -> None:
        _write(run, text, site=policy.site, as_json=json_logs)

    link = partial(link_options.link, folder)
    first = link_options.whom(folder)
    policy.check_coordinator(first.address, authority=first.authority)
    context = click.get_current_context()
    context.with_resource(_alone(link_options.place(folder)))  # before a page is announced
    events = context.with_resource(listeners.listening("fedbnsl-participant"))
    site = Site(
        folder,
        out or folder / "results",
        dataset,
        link,
        notice,
        events,
        name=policy.site,
        coordinator=first.address,
        authority=first.authority,
    )
    running = Agent(site, at_once=at_once)
    if is_asked_for(served.metrics, served.metrics_token, option="--metrics"):
        from fedbnsl.web.metrics_port import MetricsPort
        from fedbnsl_client.observe.prometheus import AgentCollector

        collector, secure = AgentCollector(running, folder), _tls(served.web_certificate)
        port = MetricsPort(
            served.metrics, collector, token_file=served.metrics_token, secure=secure, needs="--web-certificate"
        )
        context.with_resource(port)
        notice("", f"metrics on port {port.port}")
    if is_asked_for(served.web, served.web_token, option="--web"):
        from fedbnsl.web.operators import Operators
        from fedbnsl_client.observe.site_page import SitePage

        page = SitePage(
            served.web,
            lambda: _shown_runs(running),
            agent=lambda: _about(running, site),
            token_file=served.web_token,
            certificate=served.web_certificate if served.web_token or Operators.are_named_in(folder) else None,
            folder=folder,
            proposals=lambda: running.proposals,
            federation=link_options.federation,
        )
        context.with_resource(page)
        notice("", f"page: {page.port.url}")
    notice("", f"agent of {policy.site}: asking {first.address} for runs; results: {site.out}")
    try:
        running.run()
    except Interruption:
        notice("", "agent stopped")


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Let one agent at a time serve a federation's place in the site's folder."""
    from fedbnsl_client.budget.ledger_lock import LedgerBusyError, OwnerLock

    try:
        lock = OwnerLock.of(folder.resolve() / "agent")
    except LedgerBusyError:
        raise SetupError(f"another agent serves {folder}", remedy="One is enough; end it first.") from None
    try:
        yield
    finally:
        lock.release()


def _tls(certificate: Path | None) -> Any:
    if certificate is None:
        return None
    from fedbnsl.web.exposure import renewed_from

    return renewed_from(certificate, option="--web-certificate")


def _shown_runs(running: Agent) -> dict[str, ShownRun]:
    from fedbnsl_client.observe.site_page import ShownRun

    return {f"{run:016x}": ShownRun(part.view, part.leaving) for run, part in running.shown.items()}


def _about(running: Agent, site: Site) -> dict[str, Any]:
    """What the first page shows."""
    runs = [
        {
            "key": f"{run:016x}",
            "name": part.offer.name,
            "plan": part.offer.plan_name,
            "state": "takes part" if part.goes_on else "finished" if part.failure is None else str(part.failure),
            "goes_on": part.goes_on,
            "round": part.round,
        }
        for run, part in running.shown.items()
    ]
    proposals = {name: key for key, (name, _) in running.proposals.items()}
    waiting = [[name, why, proposals.get(name, "")] for name, why in running.waiting.items()]
    return {
        "site": site.name,
        "coordinator": site.coordinator,
        "trouble": running.trouble,
        "runs": runs[::-1],
        "waiting": waiting,
    }


@click.command()
@FOLDER
@_takes_link
@click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the plan of each run to this folder, NAME.toml: what `participant approve` takes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
def runs(folder: Path, link_options: LinkOptions, save: Path | None, as_json: bool) -> None:
    """Show the runs of the coordinator that concern the site in FOLDER, and which of them are approved.

    Nothing of a table is sent.
    """
    from fedbnsl.files import durable
    from fedbnsl_client.agent.results import plain_name
    from fedbnsl_client.session import Session
    from fedbnsl_client.site import folder as site_folder
    from fedbnsl_client.site.admission import approval_for

    link = link_options.link(folder)
    with site_folder.opened(folder) as (policy, ledger):
        policy.check_coordinator(link.address, authority=link.authority)
        approvals = ledger.approvals.current()
    with Session(link.address, link.credentials) as session:
        _, offers = session.offers()
        told = [
            _told(one, approval_for(folder, approvals.get(one.plan_digest.hex(), ()), link.authority)) for one in offers
        ]
        if save is not None:
            durable.make_folder(save)
            for one, content in zip(offers, told, strict=True):
                content["file"] = str(_saved(save / f"{plain_name(one.name)}.toml", one, session.plan_of(one.run)))
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    for content in told:
        word = "approved" if content["approved"] else "not approved"
        if content["agent_runs_left"] == 0:
            word += ", but for no more runs of an agent (approve it again)"
        at = f"; plan written to {content['file']}" if "file" in content else ""
        click.echo(shown_lines(f"{content['name']}: {content['state']}, plan {content['plan']!r}, {word}{at}"))
        click.echo(f"  digest {content['plan_digest']}; sites: {', '.join(content['sites']) or 'whoever joins first'}")
    if not told:
        click.echo(f"the coordinator at {link.address} has no runs for this site")


def _saved(file: Path, offer: RunOffer, plan_toml: str) -> Path:
    """Write an offered plan; a file that is there already stays, and is said to be there unless it is the same."""
    from fedbnsl.files import durable
    from fedbnsl.plan.plan import Plan

    if Plan.from_toml(plan_toml, origin=f"the plan of run {offer.name}").digest() != offer.plan_digest:
        raise PlanMismatchError(f"run {offer.name}: the plan does not have the digest that the coordinator lists")
    if not file.exists():
        durable.write_text(file, plan_toml)
    elif file.read_text(encoding="utf-8", errors="replace") != plan_toml:
        raise SetupError(f"{file} is there already, and is not the plan of run {offer.name}", remedy="Save elsewhere.")
    return file


def _told(offer: RunOffer, known: Approval | None) -> dict[str, Any]:
    return {
        "name": offer.name,
        "run": f"{offer.run:016x}",
        "state": offer.state,
        "plan": offer.plan_name,
        "plan_digest": offer.plan_digest.hex(),
        "sites": list(offer.sites),
        "approved": known is not None,
        "agent_runs_left": _runs_left(known, offer),
    }


def _runs_left(known: Approval | None, offer: RunOffer) -> int | None:
    """In how many more runs of a plan an agent may take part; None: it is in this one already, or in none."""
    if known is None or known.terms is None or f"{offer.run:016x}" in known.taken:
        return None
    return known.runs_left


def _write(run: str, text: str, *, site: str, as_json: bool) -> None:
    """A line on standard error; systemd and containers add the time to it, but not to what it holds."""
    if not as_json:
        tell(shown_lines(f"{run}: {text}" if run else text), err=True)
        return
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "site": site, "run": run, "text": text}
    tell(json.dumps(line, ensure_ascii=False), err=True)
    sys.stderr.flush()
