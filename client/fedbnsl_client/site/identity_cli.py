"""`fedbnsl participant request | enrol | check | leave`: a site's identity, and its connection to the coordinator."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from fedbnsl.console.shown import shown_lines
from fedbnsl.errors import IdentityError, PolicyRefusal, SetupError
from fedbnsl.identity.passphrase import Passphrases, ask_option, passphrase_option
from fedbnsl.plan.plan_options import NameOrPath
from fedbnsl.plan.ready_files import READY_PLANS
from fedbnsl_client.site.options import FOLDER, PATH, DescribedBy, LinkOptions, gathered, takes_link


@click.command()
@click.argument("folder", type=PATH)
@click.option("--federation", required=True, help="Name of the federation; the coordinator's operator knows it.")
@click.option("--site", help="Name of this site.  [default: that of FOLDER's policy.toml]")
@click.option(
    "--out",
    type=PATH,
    help="Where the request goes; - is standard output.  [default: SITE.request.pem]",
)
@click.option(
    "--renew", is_flag=True, help="Ask for another certificate for the same key; the present one stays usable."
)
@click.option(
    "--new-key",
    is_flag=True,
    help="With --renew: for a new key, which the old one signs, so that sites that have confirmed the old one accept "
    "it. Not if the old key may be in other hands: then tell the other sites by telephone.",
)
@passphrase_option
@ask_option
def request(
    folder: Path,
    federation: str,
    site: str | None,
    out: Path | None,
    renew: bool,
    new_key: bool,
    passphrases: Passphrases,
) -> None:
    """Make a key in FOLDER, which never leaves it, and write a request for a certificate.

    Send the request to the coordinator's operator; it holds nothing secret. Until it is answered, the command writes
    the same request again.

    With --passphrase-file or --ask-passphrase the key is encrypted; every command that uses it needs the passphrase.
    """
    from fedbnsl.files import durable
    from fedbnsl.identity.certificates import Name
    from fedbnsl_client.budget.policy import Policy
    from fedbnsl_client.site import folder as site_folder
    from fedbnsl_client.site import identity

    policy = folder / site_folder.POLICY
    if policy.exists():
        named = Policy.load(policy).site
        if site not in (None, named):
            raise SetupError(f"--site {site!r}: the policy in {folder} says {named!r}; leave the option out")
        site = named
    if site is None:
        raise SetupError("--site NAME is needed: FOLDER has no policy with a site name")
    if new_key and not renew:
        raise SetupError("--new-key goes with --renew: a site that is not enrolled yet has a new key anyway")
    asked = identity.request(folder, Name(federation, site), renew=renew, with_new_key=new_key, passphrases=passphrases)
    if out == Path("-"):
        click.echo(asked.decode(), nl=False)
        return
    out = out or Path(f"{site}.request.pem")
    durable.write_text(out, asked.decode())
    click.echo(f"send {out} to the coordinator's operator, and tell by another way the fingerprint of its key:")
    click.echo(f"  {identity.key_of(asked)}")
    if renew:
        click.echo(identity.what_peers_do(folder, asked))
    click.echo(f"what comes back goes into: fedbnsl participant enrol {folder} BUNDLE")


@click.command()
@FOLDER
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--fingerprint",
    "expected",
    help="SHA-256 of the federation's authority, as told by its operator; without it, you are asked.",
)
@passphrase_option
def enrol(folder: Path, bundle: str, expected: str | None, passphrases: Passphrases) -> None:
    """Import BUNDLE, the answer to FOLDER's request (a file, or - for standard input).

    First compare the fingerprint of the federation's authority with what the coordinator's operator told you in
    another way than the bundle: by telephone, or in person.
    """
    from fedbnsl.identity.bundle import Bundle
    from fedbnsl.identity.certificates import day, fingerprint
    from fedbnsl_client.budget.policy import Policy
    from fedbnsl_client.site import folder as site_folder
    from fedbnsl_client.site import identity

    if bundle == "-" and expected is None:
        raise SetupError("--fingerprint is needed with a bundle from standard input, which leaves nobody to ask")
    with click.open_file(bundle, "rb") as file:
        found = Bundle.from_toml(file.read().decode("utf-8", "replace"), origin=bundle)
    if expected is None:
        shown = fingerprint(found.ca_certificate)
        click.echo(f"the authority of federation {found.federation!r} has the fingerprint\n  {shown}")
        if not click.confirm("is that what the coordinator's operator told you?"):
            raise IdentityError("not enrolled; nothing was imported")
        expected = shown
    enrolled = identity.enrol(folder, found, expected_fingerprint=expected, passphrases=passphrases)
    until = day(enrolled.certificate.not_valid_after_utc)
    click.echo(f"enrolled as {enrolled.name.site} in {enrolled.name.federation}, until {until}")
    policy = folder / site_folder.POLICY
    if policy.exists():
        try:
            Policy.load(policy).check_coordinator(enrolled.coordinator, authority=fingerprint(enrolled.ca))
        except PolicyRefusal as refusal:
            click.secho(f"warning: {folder}'s policy does not allow this coordinator: {refusal}", fg="yellow", err=True)
    which = f" --federation {enrolled.name.federation}" if len(identity.federations(folder)) > 1 else ""
    click.echo(f"next: fedbnsl participant check {folder}{which}")


_takes_link = takes_link("Plaintext, on loopback only; name HOST:PORT then.")

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "bright_black"}


@click.command()
@FOLDER
@_takes_link
@click.option(
    "--connection-only", is_flag=True, help="Leave out policy and data: for health checks while a run uses them."
)
@click.option(
    "--plan",
    "plan_name",
    metavar="PLAN",
    type=NameOrPath(READY_PLANS),
    help="Ready plan, or a file: also say which share of the table's records lies beyond its feature_bounds, which "
    "are bounds on x^2, in squared units of each column: 100 is for values from -10 to 10.",
)
@click.option("--dataset", "dataset_id", help="With --plan: which dataset.  [default: the policy's only one]")
@gathered(
    "described_by",
    DescribedBy,
    click.option(
        "--dictionary",
        type=PATH,
        help="Try this data dictionary on the tables, in place of the folder's dictionary.toml; a PLAN without one "
        "gets it, too.",
    ),
    click.option("--column-map", type=PATH, help="Try this column map, in place of the folder's columns.toml."),
)
@click.option("--json", "as_json", is_flag=True, help="Print all findings as JSON.")
def check(
    folder: Path,
    link_options: LinkOptions,
    connection_only: bool,
    plan_name: str | Path | None,
    dataset_id: str | None,
    described_by: DescribedBy,
    as_json: bool,
) -> int:
    """Check what every run needs; say what is wrong and what to do. Nothing of a table is sent.

    FOLDER is the site's; HOST:PORT is by default the coordinator that enrolled it. In this order: files, expiry of the
    certificate, host name, port, TLS, identity, version, clock, policy, data, and the plan if one is given. Ends with
    the exit code of the first check that failed.
    """
    from fedbnsl.plan.dictionary import Dictionary
    from fedbnsl.plan.plan import Plan
    from fedbnsl_client.site.doctor import Finding, examine

    if plan_name is None and dataset_id is not None:
        raise SetupError("--dataset needs --plan: without a plan all datasets are checked")
    if plan_name is not None and connection_only:
        raise SetupError("--plan checks the table, which --connection-only leaves out")
    plan = None if plan_name is None else Plan.load(plan_name)
    if plan is not None and not plan.dictionary and described_by.dictionary is not None:
        plan = plan.with_dictionary(Dictionary.load(described_by.dictionary), origin=str(described_by.dictionary))
    findings: list[Finding] = []
    for found in examine(
        folder,
        link_options.coordinator,
        insecure=link_options.insecure,
        connection_only=connection_only,
        plan=plan,
        dataset_id=dataset_id,
        described_by=described_by,
        federation=link_options.federation,
        passphrases=link_options.passphrases,
    ):
        findings.append(found)
        if not as_json:
            click.echo(click.style(f"{found.state:8}", fg=_COLOURS[found.state]) + f"{found.check:9} {found.text}")
            if found.remedy:
                click.echo(f"{'':18}{found.remedy}")
    failed = [found for found in findings if found.state == "failed"]
    if as_json:
        # Details are for a plan alone.
        said = [{key: value for key, value in asdict(one).items() if key != "details" or value} for one in findings]
        click.echo(json.dumps({"ok": not failed, "findings": said}, ensure_ascii=False))
    elif not failed:
        rest = "" if connection_only else "; plan, budget and the ledger's past are looked at on joining"
        click.echo(f"nothing was found that stands in the way{rest}")
    return failed[0].exit_code if failed else 0


@click.command()
@FOLDER
@_takes_link
@click.option("--site", help="With --insecure and without a policy: name of the site that leaves.")
def leave(folder: Path, link_options: LinkOptions, site: str | None) -> None:
    """Leave the run for this site, if its process is gone for good: the run then waits only for the plan's quorum.

    The site can join again with `participant join` while the run lasts.
    """
    from fedbnsl_client.budget.policy import Policy
    from fedbnsl_client.session import Session
    from fedbnsl_client.site import folder as site_folder

    link = link_options.link(folder)
    policy = folder / site_folder.POLICY
    name = link.site or (Policy.load(policy).site if policy.exists() else site)
    if name is None or site not in (None, name):
        raise SetupError(f"--site {site!r}: this folder's site is {name!r}" if name else "--site NAME is needed")
    with Session(
        link.address, link.credentials, notice=lambda text: click.echo(shown_lines(text), err=True)
    ) as session:
        session.withdraw(name)
    click.echo(f"{name} has left the run; it may come back with `participant join`")
