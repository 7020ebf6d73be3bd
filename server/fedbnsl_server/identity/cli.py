"""`fedbnsl coordinator init | approve | revoke | renew | roster | enrolled`: who belongs to the federation."""

import io
import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from fedbnsl.errors import IdentityError, SetupError
from fedbnsl.identity.passphrase import Passphrases, ask_option, passphrase_option

_folder_argument = click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
_days_option = click.option(
    "--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Days that the certificate is valid."
)
_ca_key_option = click.option(
    "--ca-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the authority's key is, if it is kept away from the coordinator.  [default: FOLDER/ca.key]",
)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="Name of the federation: letters, digits, '.', '-', '_'.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    help="Host name or address under which sites call this coordinator, the main one first; repeatable.",
)
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=50051, show_default=True, help="Port that sites will call."
)
@_days_option
@click.option(
    "--ca-days",
    type=click.IntRange(1, 36_500),
    default=3650,
    show_default=True,
    help="Days that the federation's authority is valid.",
)
@_ca_key_option
@passphrase_option
@ask_option
def init(
    folder: Path,
    name: str,
    hosts: tuple[str, ...],
    port: int,
    days: int,
    ca_days: int,
    ca_key: Path | None,
    passphrases: Passphrases,
) -> None:
    """Make a federation in FOLDER: its certificate authority, and this coordinator's certificate.

    Keep the authority's key secret: whoever has it can enrol sites. It is needed for `approve` and `renew` only, so it
    may lie on another machine or medium.

    With --passphrase-file this key and the coordinator's, in server.pem, are encrypted; --ask-passphrase asks for each.
    """
    from fedbnsl_server.identity.enrolment import Federation

    federation = Federation.create(
        folder,
        name=name,
        hosts=hosts,
        port=port,
        days=days,
        ca_days=ca_days,
        ca_key=ca_key,
        passphrases=passphrases,
    )
    click.echo(f"made federation {name!r} in {folder}; sites will call {federation.address}")
    click.echo(f"fingerprint of its authority, for every site to compare: {federation.fingerprint}")
    click.echo(f"next, at a site:  fedbnsl participant request SITE_FOLDER --federation {name}")
    elsewhere = "" if ca_key is None else f" --ca-key {ca_key}"
    click.echo(f"then here:        fedbnsl coordinator approve {folder} REQUEST{elsewhere}")


@click.command()
@_folder_argument
@click.argument("request", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where the bundle goes.  [default: <site>.bundle.toml here]"
)
@_days_option
@click.option(
    "--renew", is_flag=True, help="Give a site that is enrolled another certificate; the old one stays valid."
)
@click.option("--yes", is_flag=True, help="Approve without being asked.")
@_ca_key_option
@passphrase_option
def approve(
    folder: Path,
    request: str,
    out: Path | None,
    days: int,
    renew: bool,
    yes: bool,
    ca_key: Path | None,
    passphrases: Passphrases,
) -> None:
    """Sign the certificate request of a site (a file, or - for standard input) and enrol the site in FOLDER.

    The bundle that this writes holds nothing secret; send it back to the site. Use `--out -` for standard output.
    """
    from fedbnsl.files.durable import write_text
    from fedbnsl.identity.certificates import key_fingerprint
    from fedbnsl_server.identity.enrolment import Federation

    if request == "-" and not yes:
        raise SetupError("--yes is needed with a request from standard input: nobody can be asked")
    federation = Federation.open(folder, ca_key=ca_key, passphrases=passphrases)
    with click.open_file(request, "rb") as file:
        asked = file.read()
    key, name = federation.read_request(asked)
    click.echo(f"{name.uri} asks for a certificate for {days} days, for the key", err=True)
    click.echo(f"  {key_fingerprint(key)}", err=True)
    if not yes and not click.confirm("did the site tell you this fingerprint, and may it take part?", err=True):
        raise IdentityError("not approved; nothing was signed")
    bundle = federation.approve(asked, days=days, renew=renew)
    if out == Path("-"):
        click.echo(bundle.to_toml(), nl=False)
    else:
        out = out or Path(f"{name.site}.bundle.toml")
        write_text(out, bundle.to_toml())
        click.echo(f"enrolled {name.site}: send {out} to the site")
    click.echo(f"tell the site by another channel: the authority's fingerprint is {federation.fingerprint}", err=True)


@click.command()
@_folder_argument
@click.argument("site")
@click.option("--keep-newest", is_flag=True, help="Revoke all but the certificate issued last: the end of a renewal.")
def revoke(folder: Path, site: str, keep_newest: bool) -> None:
    """Revoke SITE's certificates: its next call is refused, also during a run. Other sites are not affected.

    What SITE has contributed to a run stays in it; `fedbnsl coordinator eject RUN SITE` takes it out.
    """
    from fedbnsl_server.identity.enrolment import Federation

    n_revoked = Federation.open(folder).revoke(site, keep_newest=keep_newest)
    click.echo(f"revoked {n_revoked} certificate{'' if n_revoked == 1 else 's'} of {site}")
    if not keep_newest:
        click.echo(f"what it has contributed to a run that goes on stays in it; fedbnsl coordinator eject RUN {site}")
        click.echo("takes it out, while the run goes on")


@click.command()
@_folder_argument
@_days_option
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="The coordinator has moved: names or addresses under which sites call from now on, the main one first; "
    "repeatable. Name the old one, too, while sites still call it.",
)
@click.option("--port", type=click.IntRange(1, 65_535), help="With --host: port that sites call.  [default: as before]")
@_ca_key_option
@passphrase_option
def renew(
    folder: Path, days: int, hosts: tuple[str, ...], port: int | None, ca_key: Path | None, passphrases: Passphrases
) -> None:
    """Give this coordinator a new key and certificate; a running `serve` uses it for new connections.

    With --host, for other names than before, under the same authority: no site has to be enrolled again.
    """
    from fedbnsl.identity.certificates import day
    from fedbnsl_server.identity.enrolment import Federation

    if port is not None and not hosts:
        raise SetupError("--port goes with --host")
    federation = Federation.open(folder, ca_key=ca_key, passphrases=passphrases)
    certificate = federation.move(hosts, port, days=days) if hosts else federation.renew(days=days)
    click.echo(f"the coordinator's certificate is valid until {day(certificate.not_valid_after_utc)}")
    if hosts:
        click.echo(
            f"it is for {', '.join(hosts)}; at each site:  fedbnsl participant moved FOLDER {federation.address}"
        )


@click.command()
@_folder_argument
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where the sheet goes; - is standard output.  [default: NAME.sites.toml]",
)
@click.option(
    "--qr",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the digest as a QR code to this SVG file, for a sheet that is printed and signed.",
)
def roster(folder: Path, out: Path | None, qr: Path | None) -> None:
    """Write one sheet with the fingerprints of all sites' keys, for the sites to confirm each other.

    The sites do not have to believe this coordinator: each finds its own line, and their people read the sheet's digest
    to each other (`fedbnsl participant peers FOLDER --import SHEET`).
    """
    from fedbnsl.files.durable import write_text
    from fedbnsl_server.identity.enrolment import Federation

    sheet = Federation.open(folder).sheet()
    if out == Path("-"):
        click.echo(sheet.to_text(), nl=False)
    else:
        out = out or Path(f"{sheet.federation}.sites.toml")
        write_text(out, sheet.to_text())
        click.echo(f"{len(sheet.sites)} sites: send {out} to each, which imports it: participant peers FOLDER --import")
    if qr is not None:
        import segno

        image = io.BytesIO()
        segno.make(sheet.digest, error="q", micro=False).save(image, kind="svg", scale=6, light="white")
        write_text(qr, image.getvalue().decode())
        click.echo(f"wrote {qr}", err=True)
    click.echo(f"digest, which the sites' people read to each other:\n  {sheet.digest}", err=True)


@click.command()
@_folder_argument
@click.option("--json", "as_json", is_flag=True, help="Print every certificate as JSON.")
def enrolled(folder: Path, as_json: bool) -> None:
    """The sites of the federation in FOLDER and the state of their certificates, and the authority's fingerprint."""
    from fedbnsl.identity.certificates import day
    from fedbnsl_server.identity.enrolment import Federation

    federation = Federation.open(folder)
    table = federation.enrolled()
    if as_json:
        sites = {site: [{**asdict(one), "state": one.state} for one in issued] for site, issued in table.items()}
        summary = {"federation": federation.name, "fingerprint": federation.fingerprint, "sites": sites}
        click.echo(json.dumps(summary, ensure_ascii=False))
        return
    click.echo(f"federation {federation.name!r} at {federation.address}, authority {federation.fingerprint}")
    for site, issued in table.items():
        for one in issued:
            when, until = one.revoked_at or one.expires_at, "since" if one.revoked_at else "until"
            which = f"key {one.key[:23]}" if one.key else f"certificate {one.fingerprint[:23]}"
            click.echo(f"{site:20} {one.state:8} {until} {day(datetime.fromisoformat(when))}  {which}...")
    if not table:
        click.echo("no site is enrolled yet")
