"""`fedbnsl participant retire`: a site leaves for good."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from fedbnsl.errors import SetupError
from fedbnsl_client.site.options import FOLDER


@click.command()
@FOLDER
@click.option("--yes", is_flag=True, help="Retire without being asked.")
@click.option("--json", "as_json", is_flag=True, help="Print the runs that it took part in as JSON; with --yes.")
def retire(folder: Path, yes: bool, as_json: bool) -> None:
    """Leave for good: all approvals are taken back, and FOLDER's ledger is sealed. This cannot be undone.

    No table of FOLDER takes part in a run again, also not under a policy that approves all. What was released stays
    released, under the guarantee that it was paid for. The command says in which runs the site took part: their
    coordinators still hold its name and numbers, which their operators remove (`fedbnsl coordinator forget`).
    """
    from fedbnsl_client.budget.known_runs import known_runs
    from fedbnsl_client.budget.report import spending
    from fedbnsl_client.site import folder as site_folder
    from fedbnsl_client.site.identity import federation_names

    if as_json and not yes:
        raise SetupError("--json asks nobody: say --yes with it")
    with site_folder.opened(folder) as (policy, ledger):
        ledger.require_open()
        if not yes and not click.confirm(f"seal the ledger of {policy.site} for good? this cannot be undone"):
            raise SetupError("nothing was changed")
        n_approvals = ledger.seal()
        site_folder.security_log(folder).enter("retired")
        runs, names = known_runs(ledger.entries()), federation_names(folder)
        spent = {dataset.id: spending(dataset, ledger) for dataset in policy.datasets}
    known = [*names.values()]
    if as_json:
        of_runs = {number: asdict(run) for number, run in runs.items()}
        told = {"site": policy.site, "federations": known, "runs": of_runs, "spent": spent}
        click.echo(json.dumps(told | {"approvals_taken_back": n_approvals}, ensure_ascii=False))
        return
    click.echo(f"the ledger of {policy.site} is sealed; approvals taken back: {n_approvals}")
    for run in runs.values():
        of = f", federation {names.get(run.authority, run.authority)}" if run.authority else ""
        click.echo(f"  took part in {run}{of}, from {run.since} on")
    for dataset in policy.datasets:
        cost = f"epsilon {spent[dataset.id]['spent']['epsilon']:.4g} at delta {dataset.max_delta:g} over all runs"
        lost = spent[dataset.id]["unprotected"]
        click.echo(f"what {dataset.id} released stays: {'no guarantee, a run was without privacy' if lost else cost}")
    if known:
        click.echo(
            "coordinators hold this site's name, its certificate, and of each run its rows, scores and weights; "
            "ask their operators:"
        )
    for federation in known:
        click.echo(f"  of federation {federation!r}: fedbnsl coordinator forget FEDERATION {policy.site} RUNS")
    click.echo(f"keep {folder}: its ledger and security log show what was released; its key is of no use any more")
