"""`fedbnsl participant peers`: which other sites this one relies on in secure aggregation."""

import json
from pathlib import Path

import click

from fedbnsl.errors import SetupError
from fedbnsl_client.site.options import FOLDER


@click.command()
@FOLDER
@click.option(
    "--confirm",
    "to_confirm",
    nargs=2,
    multiple=True,
    metavar="SITE FINGERPRINT",
    help="Rely on SITE, whose people have told you this fingerprint of its key; repeatable.",
)
@click.option("--forget", "to_forget", multiple=True, metavar="SITE", help="Do not rely on SITE any more; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print fingerprints as JSON.")
def peers(folder: Path, to_confirm: tuple[tuple[str, str], ...], to_forget: tuple[str, ...], as_json: bool) -> None:
    """Show this site's fingerprint and those of the other sites that it relies on; confirm or forget some.

    Plans with privacy.secure_aggregation let the sites share the noise, so that the guarantee of each relies on the
    others. The coordinator signs all certificates and could invent sites: so compare fingerprints with the people of
    the other sites by telephone or in person, not through the coordinator. FOLDER is the site's.

    A run needs as many confirmed sites as share its noise with this one: all others but those that may collude
    (privacy.colluding).
    """
    from fedbnsl.identity.certificates import key_fingerprint
    from fedbnsl_client.secure_aggregation import peers as known
    from fedbnsl_client.secure_aggregation.keys import public_key_of
    from fedbnsl_client.site import folder as site_folder
    from fedbnsl_client.site.identity import Identity

    identity = Identity.open(folder)
    for site, fingerprint in to_confirm:
        if site == identity.name.site:
            raise SetupError(f"--confirm {site}: that is this site itself")
        known.confirm(folder, site, fingerprint)
        site_folder.security_log(folder).enter("peer confirmed", site=site, fingerprint=fingerprint)
    for site in to_forget:
        known.forget(folder, site)
        site_folder.security_log(folder).enter("peer forgotten", site=site)
    own, trusted = key_fingerprint(public_key_of(identity.certificate)), known.read(folder)
    others = trusted.confirmed
    if as_json:
        followed = [one.model_dump() for one in trusted.followed]
        said = {"site": identity.name.site, "fingerprint": own, "confirmed": dict(others), "followed": followed}
        click.echo(json.dumps(said))
        return
    click.echo(f"this site, {identity.name.site}: tell the others\n  {own}")
    click.echo(f"confirmed here: {len(others)}")
    for site, fingerprint in others.items():
        click.echo(f"  {site}\n    {fingerprint}")
        for one in trusted.followed:
            if one.site == site:
                click.echo(f"    since {one.at} in place of {one.former}, which had signed the key after it")
