"""`fedbnsl participant peers`: which other sites this one relies on in secure aggregation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbnsl.errors import SetupError
from fedbnsl_client.site.options import FOLDER, federation_option

if TYPE_CHECKING:
    from fedbnsl_client.site.identity import Identity


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
@click.option(
    "--import",
    "sheet",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Confirm all sites of this sheet at once, which `fedbnsl coordinator roster` wrote. Compare its digest with "
    "the people of the other sites first.",
)
@click.option(
    "--digest", help="With --import: the digest that the other sites' people read out; without it, you are asked."
)
@federation_option
@click.option("--json", "as_json", is_flag=True, help="Print fingerprints as JSON.")
def peers(
    folder: Path,
    to_confirm: tuple[tuple[str, str], ...],
    to_forget: tuple[str, ...],
    sheet: Path | None,
    digest: str | None,
    federation: str | None,
    as_json: bool,
) -> None:
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
    from fedbnsl_client.site.identity import Identity, place_of

    place = place_of(folder, federation)
    identity = Identity.open(place)
    log, of = site_folder.security_log(folder), identity.name.federation
    for site, fingerprint in to_confirm:
        if site == identity.name.site:
            raise SetupError(f"--confirm {site}: that is this site itself")
        known.confirm(place, site, fingerprint)
        log.enter("peer confirmed", federation=of, site=site, fingerprint=fingerprint)
    if sheet is not None:
        _import(folder, place, identity, sheet, digest)
    elif digest is not None:
        raise SetupError("--digest goes with --import")
    for site in to_forget:
        known.forget(place, site)
        log.enter("peer forgotten", federation=of, site=site)
    own, trusted = key_fingerprint(public_key_of(identity.certificate)), known.read(place)
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


def _import(folder: Path, place: Path, identity: Identity, file: Path, told: str | None) -> None:
    """Confirm all sites of a sheet, once people have compared its digest; none if a line is not right."""
    from fedbnsl.identity.certificates import fingerprint, key_fingerprint, same_fingerprint
    from fedbnsl.identity.roster_sheet import RosterSheet, same_digest
    from fedbnsl_client.secure_aggregation import peers as known
    from fedbnsl_client.secure_aggregation.keys import public_key_of
    from fedbnsl_client.site import folder as site_folder

    sheet = RosterSheet.from_text(file.read_text(encoding="utf-8", errors="replace"), origin=str(file))
    own, name = key_fingerprint(public_key_of(identity.certificate)), identity.name
    authority = fingerprint(identity.ca)
    if sheet.federation != name.federation or not same_fingerprint(sheet.authority, authority):
        raise SetupError(f"{file} is of federation {sheet.federation!r}, or of another authority than {authority}")
    if not same_fingerprint(sheet.sites.get(name.site, ""), own):
        raise SetupError(
            f"{file} has another key for this site, {name.site}, or none; nobody was confirmed",
            remedy="Whoever wrote it may have put others in the sites' place: tell the other sites by telephone.",
        )
    others = {site: key for site, key in sheet.sites.items() if site != name.site}
    click.echo(
        f"sheet of {sheet.day}, with this site's own key: {', '.join(others)}\n  digest {sheet.digest}", err=True
    )
    click.echo(
        "a sheet that only came from the coordinator is worth no more than the coordinator's word: read the digest to "
        "the people of these sites, by telephone or in person, and let them read theirs",
        err=True,
    )
    if told is None:
        if not click.confirm("have people of each of these sites read out this digest?", err=True):
            raise SetupError("nobody was confirmed", remedy="Confirm single sites with --confirm SITE FINGERPRINT.")
    elif not same_digest(told, sheet.digest):
        raise SetupError(f"the sheet has another digest, {sheet.digest}; nobody was confirmed")
    log, of = site_folder.security_log(folder), name.federation
    for site in known.confirm_all(place, others):
        log.enter("peer confirmed", federation=of, site=site, fingerprint=others[site], sheet=sheet.digest)
