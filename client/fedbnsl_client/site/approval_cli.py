"""`fedbnsl participant approve`: what a run would cost a site's table, and the site's word that it may take place."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from fedbnsl.console.tell import tell
from fedbnsl.errors import PolicyRefusal, SetupError
from fedbnsl.plan.plan_options import PlanChoice, takes_plan
from fedbnsl_client.site.options import FOLDER, cluster_of, federation_option, takes_blocks, takes_engine

_SHORTEST_DIGEST = 8


@click.command()
@takes_plan()
@FOLDER
@click.option(
    "--dataset", "dataset_id", help="Which dataset the privacy cost is for.  [default: the policy's only one]"
)
@takes_blocks
@click.option("--all", "every", is_flag=True, help="Also the privacy cost in detail, and every setting of PLAN.")
@click.option(
    "--runs",
    "n_runs",
    type=click.IntRange(min=0, max=10_000),
    default=1,
    show_default=True,
    help="In how many runs of this very plan the site's agent may take part, from now on; 0: in none.",
)
@click.option("--yes", is_flag=True, help="Approve without being asked.")
@click.option(
    "--beyond-bounds",
    is_flag=True,
    help="Approve although a column lies beyond its feature_bound in nearly all records.",
)
@federation_option
@takes_engine
@click.option("--json", "as_json", is_flag=True, help="Print what was approved as JSON, and the rest on stderr.")
def approve(
    choice: PlanChoice,
    folder: Path,
    dataset_id: str | None,
    blocks: tuple[int, ...],
    every: bool,
    n_runs: int,
    yes: bool,
    beyond_bounds: bool,
    federation: str | None,
    engine: str | None,
    as_json: bool,
) -> None:
    """Show what a run of PLAN would cost FOLDER's dataset, and what would be left; then record its approval.

    A table that is not the registered one any more is refused before a cost is shown.

    Of a private PLAN it also says, here alone, which share of the records lies beyond its feature_bounds. These bound
    x^2, in squared units of each column: 100 is for values from -10 to 10. A column that lies beyond its bound in
    nearly all records is refused: a run would spend budget and learn next to nothing about it.

    Of a private PLAN it says whom the epsilon protects: a record, and somebody with records at several sites
    (privacy.sites_per_person); and against whom: the coordinator together with how many sites (privacy.colluding), and
    with how many if it says that sites are lost which are there. The policy's rules max_epsilon_per_person, min_honest
    and max_retries limit these.

    An approval is for these very settings: the plan's digest goes into the ledger. So approve what the coordinator
    serves: plan.toml in its run folder, or the same PLAN with the same options; names of variables and sites that the
    coordinator adds change nothing of it. Runs are still held to the policy.

    Of a site in several federations, an approval is for the one that --federation names; those of the same PLAN for
    others stay as they are.

    An agent (`fedbnsl participant agent`) takes part in no other run than one of the very PLAN, names included, at the
    privacy cost that is shown here, and in no more runs than are allowed below; `fedbnsl participant withdraw` ends
    that.
    """
    from fedbnsl_client.site.approving import proposed

    def show(text: str) -> None:
        # With --yes the word is given: `| head` may stop the text, but not what it is about. A question, on the other
        # hand, is for somebody who can read what it is about.
        (tell if yes else click.echo)(text, err=as_json)

    plan = choice.load()
    with (
        cluster_of(engine) as cluster,
        proposed(
            plan,
            folder,
            show,
            dataset_id=dataset_id,
            blocks=blocks,
            every=every,
            beyond_bounds=beyond_bounds,
            federation=federation,
            cluster=cluster,
        ) as proposal,
    ):
        if not yes and not click.confirm("approve this plan?", err=as_json):
            raise PolicyRefusal("not approved; nothing was recorded")
        for_agents = proposal.approve(n_runs)
    digest = plan.digest().hex()
    said = {"approved": digest, "name": plan.name, "dataset": proposal.dataset, "table": asdict(proposal.fit)}
    if not (plan.sites and plan.variables) and not as_json:
        tell(
            "names of sites or variables that the coordinator adds change the digest of its run, and nothing else: "
            "`participant join` takes this approval for it, too"
        )
    if not for_agents and n_runs and not as_json:
        tell("an agent takes no part in its runs: the plan does not name its sites")
    tell(json.dumps(said, ensure_ascii=False) if as_json else f"approved: {digest}")


@click.command()
@FOLDER
@click.argument("digest", metavar="DIGEST")
@click.option("--federation", metavar="NAME", help="Only the approval for this federation.  [default: for all]")
def withdraw(folder: Path, digest: str, federation: str | None) -> None:
    """Take back the approval of the plan with this DIGEST, or the beginning of it; `participant ledger` shows it.

    No run of that plan is joined from then on. The site's agent leaves one that goes on after its present round; what
    was released until then stays released, and paid for.
    """
    from fedbnsl_client.site import folder as site_folder
    from fedbnsl_client.site.identity import authority_of, federation_names, place_of

    authority = "" if federation is None else authority_of(place_of(folder, federation))
    with site_folder.opened(folder) as (_, ledger):
        approvals = ledger.approvals.current()
        known = [one for one in approvals if one.startswith(digest.lower())]
        if len(digest) < _SHORTEST_DIGEST:
            raise SetupError(f"{digest!r} is too short; give at least {_SHORTEST_DIGEST} characters of the digest")
        if len(known) != 1:
            raise SetupError(f"{digest!r} is the beginning of {len(known)} approved digests; expected that of one")
        if authority and all(one.authority != authority for one in approvals[known[0]]):
            raise SetupError(
                f"{known[0]} is not approved for federation {federation!r}",
                remedy="participant ledger shows for which it is; without --federation it is taken back for all.",
            )
        ledger.approvals.withdraw(bytes.fromhex(known[0]), authority=authority)
        names = federation_names(folder)
        for one in approvals[known[0]]:
            if authority in ("", one.authority):
                of = names.get(one.authority, one.authority)
                site_folder.security_log(folder).enter("approval withdrawn", plan_digest=known[0], federation=of)
    tell(f"withdrawn: {known[0]}")
