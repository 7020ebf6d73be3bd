"""The federation of docker-compose.yml, from key to result: three sites with generated tables and a known truth.

The paper's method first, DP-PGCD over sparse messages (`private-steps`), then `private` with secure aggregation, by the
same coordinator and the same agents, which stay up. Ends with 0 if both results are private, near the truth and paid
for in every ledger, prints them side by side, and removes what it made.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import tomli_w

from compose.federation import (
    ROOT,
    SITES,
    SYNTHETIC,
    Project,
    StepError,
    approve_offer,
    confirm_peers,
    each_site,
    enrol,
    fedbnsl,
    queue,
    set_policies,
)
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.sources.csv_table import read_header
from fedbnsl_workbench.tables.folder import ranges_of_generated

RUN_DEADLINE_S = 600.0
EPSILON, DELTA = 1.0, 1e-8


def await_end(project: Project, run: str) -> None:
    """Wait until a run is over and all agents have kept its result, showing the coordinator's rounds."""
    shown, until = "", time.monotonic() + RUN_DEADLINE_S
    while True:
        last_line = (project.compose("logs", "--no-color", "--tail=1", "coordinator").strip().splitlines() or [""])[-1]
        if last_line != shown:
            click.echo(f"  {last_line}")
            shown = last_line
        told = json.loads(
            project.within("coordinator", "fedbnsl", "coordinator", "runs", "show", "/runs", run, "--json")
        )
        if told["state"] == "finished" and all(each_site(lambda site: _has_kept(project, site, run)).values()):
            return
        if told["state"] in ("failed", "interrupted") or time.monotonic() > until:
            raise StepError(f"the run is {told['state']}\n{project.compose('logs', '--no-color', '--tail=20')}")
        time.sleep(0.5)


def _has_kept(project: Project, site: str, run: str) -> bool:
    return bool(project.within(site, "sh", "-c", f"ls /site/kept/{run}-*/edges.csv 2>/dev/null || true").strip())


@dataclass(frozen=True)
class Judged:
    """A run that is as it has to be, in numbers."""

    result: dict[str, Any]
    scores: dict[str, Any]
    spent: dict[str, dict[str, float]]


def judged(project: Project, run: str, truth: Path, scratch: Path, before: dict[str, float]) -> Judged:
    """What is to be seen in a result; raises StepError if it is not as it has to be.

    Parameters
    ----------
    before
        zCDP that each site had spent.
    """
    folder = scratch / run
    folder.mkdir()
    for name in ("result.json", "edges.csv", "weights.csv", "plan.toml"):
        text = project.within("coordinator", "cat", f"/runs/{run}/{name}")
        (folder / name).write_text(text, encoding="utf-8")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    scores = json.loads(fedbnsl("evaluate", folder, "--truth", truth, "--json"))["scores"]
    spent = each_site(lambda site: spent_at(project, site))
    paid = {site: spent[site]["zcdp"] - before[site] for site in SITES}
    counted = {site: result["privacy"]["sites"][site]["contributed_zcdp"] for site in SITES}
    contributed = {site: entry["rounds_contributed"] for site, entry in result["sites"].items()}
    for holds, demand in (
        (result["state"] == "finished", f"the run finishes, not: {result['state']} {result['reason']}"),
        (result["manifest"]["private"] is True, "the result is private"),
        (bool(result["privacy"]["guarantee"]), "the guarantee is stated"),
        (contributed == dict.fromkeys(SITES, len(result["rounds"])), f"every site is in every round: {contributed}"),
        (
            all(math.isclose(paid[site], counted[site], rel_tol=1e-6) for site in SITES),
            f"ledgers count what the coordinator counts: {paid}, {counted}",
        ),
        (2 * scores["shd"] <= scores["n_reference_edges"], f"the graph is near the truth: SHD {scores['shd']}"),
    ):
        if not holds:
            raise StepError(f"expected: {demand}")
    return Judged(result, scores, spent)


def side_by_side(runs: dict[str, Judged]) -> list[str]:
    """Both results, as lines."""
    of = list(runs.values())
    guarantees = [next(iter(one.result["privacy"]["sites"].values())) for one in of]
    rows: dict[str, list[str]] = {
        "epsilon": [f"{site['epsilon']:g} at delta {site['delta']:.0e}" for site in guarantees],
        "the coordinator sees": [
            "sums over all sites" if "price_zcdp_against_all_others" in site else "each site's releases"
            for site in guarantees
        ],
        "edges (truth)": [f"{one.scores['n_edges']} ({one.scores['n_reference_edges']})" for one in of],
        "SHD": [str(one.scores["shd"]) for one in of],
        "rounds": [str(len(one.result["rounds"])) for one in of],
        "kB of a site": [f"{_bytes(one.result) / len(SITES) / 1000:.1f}" for one in of],
        "seconds": [f"{one.result['seconds']['total']:.1f}" for one in of],
        "epsilon spent by then": [f"{max(s['epsilon'] for s in one.spent.values()):.2f}" for one in of],
    }
    return [f"{'':24}{''.join(f'{name:28}' for name in runs)}".rstrip()] + [
        f"{name:24}{''.join(f'{value:28}' for value in values)}".rstrip() for name, values in rows.items()
    ]


def _bytes(result: dict[str, Any]) -> int:
    return sum(result["bytes"][way]["serialised"] for way in ("up", "down"))


def spent_at(project: Project, site: str) -> dict[str, float]:
    """What the table of a site has spent, by a ledger whose chain is whole: otherwise this command fails."""
    ledger = json.loads(project.within(site, "fedbnsl", "participant", "ledger", "/site", "--verify", "--json"))
    spent: dict[str, float] = ledger["datasets"][0]["spent"]
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave containers, networks and volumes for a look")
    keep = parser.parse_args().keep
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is removed, too

    started = time.monotonic()
    subprocess.run(["tests/compose/make-images"], cwd=ROOT, check=True)
    name = f"fedbnsl-demo-{os.getpid()}"
    # Below runs/ and not in the system's temporary folder, which an engine in a virtual machine does not see.
    scratch = ROOT / "runs" / name
    tables, truth = scratch / "tables", scratch / "tables" / "truth.csv"
    project = Project(name, tables)
    runs: dict[str, Judged] = {}
    try:
        fedbnsl("data", "synth", *SYNTHETIC, "--out", tables)
        dictionary = ranges_of_generated(read_header(tables / "site-1.csv"))
        (scratch / "dictionary.toml").write_text(
            tomli_w.dumps(dictionary.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8"
        )
        plans = {"private-steps": scratch / "steps.toml", "private": scratch / "sums.toml"}
        variables = read_header(tables / "site-1.csv")
        for plan, file in plans.items():
            shown = Plan.load(plan, [f"n_participants={len(SITES)}"], epsilon=EPSILON, delta=DELTA)
            shown = shown.with_settings(sites=SITES, variables=variables)
            file.write_text(shown.with_dictionary(dictionary, origin="generated tables").to_toml(), encoding="utf-8")
        click.echo("keys, requests, certificates")
        enrol(project)
        click.echo("policies and ledgers; the coordinator and the agents stay up from now on")
        set_policies(project, scratch / "dictionary.toml")
        project.compose("up", "--detach", "--no-build")
        click.echo(f"the coordinator's page: https://localhost:{project.web_port}, token {project.web_token}")
        confirm_peers(project)
        before = dict.fromkeys(SITES, 0.0)
        for plan, file in plans.items():
            click.echo(f"the run of {plan}: queued, looked at and approved at every site")
            queue(project, plan, file)
            approve_offer(project, plan)
            await_end(project, plan)
            runs[plan] = judged(project, plan, truth, scratch, before)
            before = {site: spending["zcdp"] for site, spending in runs[plan].spent.items()}
            click.echo(runs[plan].result["privacy"]["guarantee"])
        for plan in plans:
            now = json.loads(project.page(f"/runs/{plan}/state.json"))
            if now["now"]["state"] != "finished":
                raise StepError(f"expected: the page shows that {plan} is over, not: {now['now']['state']}")
        for line in side_by_side(
            {"private-steps": runs["private-steps"], "private, secure aggregation": runs["private"]}
        ):
            click.echo(line)
    except StepError as error:
        click.echo(f"compose-demo failed: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        return 130
    finally:
        if keep:
            click.echo(f"kept: {scratch}; {' '.join(project.command)} down --volumes")
        else:
            project.remove()
            shutil.rmtree(scratch, ignore_errors=True)
    click.echo(f"all of it in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
