"""`fedbnsl participant approve`: what a run would cost a site's table, and the site's word that it may take place."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from fedbnsl.errors import PolicyRefusal
from fedbnsl.plan.plan_options import PlanChoice, takes_plan
from fedbnsl.tell import tell


@click.command()
@takes_plan()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--dataset", "dataset_id", help="Which dataset the price is for.  [default: the policy's only one]")
@click.option("--all", "every", is_flag=True, help="Every setting, not only what differs from its default.")
@click.option("--yes", is_flag=True, help="Approve without being asked.")
@click.option(
    "--beyond-bounds",
    is_flag=True,
    help="Approve although a column lies beyond its feature_bound in nearly all records.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was approved as JSON, and the rest on stderr.")
def approve(
    choice: PlanChoice,
    folder: Path,
    dataset_id: str | None,
    every: bool,
    yes: bool,
    beyond_bounds: bool,
    as_json: bool,
) -> None:
    """Show what a run of PLAN would cost FOLDER's dataset, what would be left, and PLAN; then record its approval.

    Of a private PLAN it also says, here alone, which share of the records lies beyond its feature_bounds. These bound
    x^2, in squared units of each column: 100 is for values from -10 to 10. A column that lies beyond its bound in
    nearly all records is refused: a run would spend budget and learn next to nothing about it.

    An approval is for these very settings: the plan's digest goes into the ledger. So approve what the coordinator
    serves: plan.toml in its run folder, or the same PLAN with the same options; names of variables and sites that the
    coordinator adds change nothing of it. Runs are still held to the policy.
    """
    from fedbnsl_client.budget.report import approval_lines, refuse_what_cannot_run
    from fedbnsl_client.data.plan_fit import fit_of, refuse_beyond_bounds, refuse_other_dictionary, site_lines
    from fedbnsl_client.site import folder as site_folder

    def show(text: str) -> None:
        # With --yes the word is given: `| head` may stop the text, but not what it is about. A question, on the other
        # hand, is for somebody who can read what it is about.
        (tell if yes else click.echo)(text, err=as_json)

    plan = choice.load()
    with site_folder.opened(folder) as (policy, ledger):
        dataset = policy.dataset(dataset_id)
        for line in approval_lines(plan, dataset, ledger, every=every):
            show(line)
        refuse_what_cannot_run(plan, policy, dataset, ledger, folder)
        refuse_other_dictionary(plan, site_folder.described(folder)[0])
        table = site_folder.read_table(folder, policy, dataset.id)
        fit = fit_of(table, plan)
        for line in site_lines(table, plan, fit):
            show(line)
        if not beyond_bounds:
            refuse_beyond_bounds(fit, dataset.id)
        if not yes and not click.confirm("approve this plan?", err=as_json):
            raise PolicyRefusal("not approved; nothing was recorded")
        ledger.approve(plan.digest(), plan.name)
        site_folder.security_log(folder).enter(
            "approved", plan_digest=plan.digest().hex(), plan=plan.name, dataset=dataset.id
        )
    digest = plan.digest().hex()
    said = {"approved": digest, "name": plan.name, "dataset": dataset.id, "table": asdict(fit)}
    tell(json.dumps(said, ensure_ascii=False) if as_json else f"approved: {digest}")
