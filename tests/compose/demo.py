"""The federation of docker-compose.yml, from key to result: three sites with generated tables and a known truth.

Ends with 0 if the result is private, near the truth and paid for in every ledger, and removes what it made.
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
from pathlib import Path

import click

from compose.federation import ROOT, SITES, SYNTHETIC, Project, StepError, enrol, fedbnsl, set_policies
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.csv_table import read_header

RUN_DEADLINE_S = 600.0


def run(project: Project) -> None:
    """Start everything and wait until all four have ended, showing the coordinator's rounds."""
    project.compose("up", "--detach", "--no-build")
    shown, until = "", time.monotonic() + RUN_DEADLINE_S
    while True:
        states = {service: project.state(service) for service in ("coordinator", *SITES)}
        last_line = (project.compose("logs", "--no-color", "--tail=1", "coordinator").strip().splitlines() or [""])[-1]
        if last_line != shown:
            click.echo(f"  {last_line}")
            shown = last_line
        if all(state["Status"] == "exited" for state in states.values()):
            break
        if time.monotonic() > until:
            raise StepError(f"not over after {RUN_DEADLINE_S:.0f} s")
        time.sleep(1.0)
    failed = {service: state["ExitCode"] for service, state in states.items() if state["ExitCode"] != 0}
    if failed:
        raise StepError(f"exit codes {failed}\n{project.compose('logs', '--no-color', '--tail=20', *failed)}")


def check(project: Project, truth: Path, scratch: Path) -> list[str]:
    """What is to be seen in the result, as lines; raises StepError if it is not as it has to be."""
    folder = scratch / "run"
    folder.mkdir()
    for name in ("result.json", "edges.csv", "weights.csv", "plan.toml"):
        text = project.once("coordinator", f"/runs/run/{name}", options=("--entrypoint", "cat"))
        (folder / name).write_text(text, encoding="utf-8")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    scores = json.loads(fedbnsl("evaluate", folder, "--truth", truth, "--json"))["scores"]
    spent = {site: spent_at(project, site) for site in SITES}
    counted = {site: result["privacy"]["sites"][site]["contributed_zcdp"] for site in SITES}

    contributed = {site: entry["rounds_contributed"] for site, entry in result["sites"].items()}
    for holds, demand in (
        (result["state"] == "finished", f"the run finishes, not: {result['state']} {result['reason']}"),
        (result["manifest"]["private"] is True, "the result is private"),
        (bool(result["privacy"]["guarantee"]), "the guarantee is stated"),
        (contributed == dict.fromkeys(SITES, len(result["rounds"])), f"every site is in every round: {contributed}"),
        (
            all(math.isclose(spent[site]["zcdp"], counted[site], rel_tol=1e-6) for site in SITES),
            f"ledgers count what the coordinator counts: {spent}, {counted}",
        ),
        (2 * scores["shd"] <= scores["n_reference_edges"], f"the graph is near the truth: SHD {scores['shd']}"),
    ):
        if not holds:
            raise StepError(f"expected: {demand}")
    return [
        f"{scores['n_edges']} edges, truth {scores['n_reference_edges']}, SHD {scores['shd']} "
        f"(the empty graph: {scores['n_reference_edges']})",
        result["privacy"]["guarantee"],
        "spent, by ledgers whose chains are whole: epsilon "
        + ", ".join(f"{site} {spending['epsilon']:.2f}" for site, spending in spent.items()),
        f"{len(result['rounds'])} rounds in {result['seconds']['total']:.1f} s, every site in each",
    ]


def spent_at(project: Project, site: str) -> dict[str, float]:
    """What the table of a site has spent, by a ledger whose chain is whole: otherwise this command fails."""
    ledger = json.loads(project.once(site, "participant", "ledger", "/site", "--verify", "--json"))
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
    tables, plan = scratch / "tables", scratch / "plan.toml"
    project = Project(name, tables, plan)
    try:
        fedbnsl("data", "synth", *SYNTHETIC, "--out", tables)
        demo_plan = Plan.load("private-steps", [f"n_participants={len(SITES)}"])
        demo_plan = demo_plan.with_settings(variables=read_header(tables / "site-1.csv"))
        plan.write_text(demo_plan.to_toml(), encoding="utf-8")
        click.echo("keys, requests, certificates")
        enrol(project)
        click.echo("policies, ledgers, approvals")
        set_policies(project, plan)
        click.echo("the run")
        run(project)
        for line in check(project, tables / "truth.csv", scratch):
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
