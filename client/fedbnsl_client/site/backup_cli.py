"""`fedbnsl participant backup`: a site's folder in one file, with a ledger that gives no budget back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from fedbnsl.files.archive import KEEP, OUT, write_archive
from fedbnsl_client.site.options import FOLDER


@click.command()
@FOLDER
@OUT
@KEEP
def backup(folder: Path, out: Path, keep: int | None) -> None:
    """Write all files of a site's FOLDER into one tar file, also while an agent runs.

    The ledger is verified first, and copied between two entries. The copy is marked: it forgets what is spent after it,
    so where it is restored it opens only by `participant ledger --accept-backup`, which charges that. The file holds
    the site's key and ledger: keep it as secret as the folder. Never back up the state directory together with it.
    """
    from fedbnsl_client.site import folder as site_folder

    with (
        site_folder.opened(folder) as (policy, ledger),
        tempfile.TemporaryDirectory(prefix=".fedbnsl-", dir=out) as place,
    ):
        copy = Path(place) / site_folder.LEDGER
        ledger.back_up(copy)
        instead = {site_folder.LEDGER: copy, f"{site_folder.LEDGER}-journal": None}
        click.echo(write_archive(folder, out, policy.site, keep=keep, instead=instead))
    click.echo("to restore it: tar -xf into a new folder, then fedbnsl participant ledger FOLDER --accept-backup")
