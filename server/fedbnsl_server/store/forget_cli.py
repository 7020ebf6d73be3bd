"""`fedbnsl coordinator forget`: what this coordinator holds of a site, shown and then taken out."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbnsl.errors import SetupError

if TYPE_CHECKING:
    from fedbnsl_server.store.forget import Held

_FOLDERS = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("federation", type=_FOLDERS)
@click.argument("site")
@click.argument("runs", type=_FOLDERS, nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only show what is held of SITE, and what would go.")
@click.option("--yes", is_flag=True, help="Forget without being asked.")
@click.option("--json", "as_json", is_flag=True, help="Print what goes, what stays and why as JSON; with --yes.")
def forget(federation: Path, site: str, runs: tuple[Path, ...], dry_run: bool, yes: bool, as_json: bool) -> None:
    """Forget SITE, which has left: its certificates, and what the RUNS hold of it alone.

    FEDERATION is the folder of `coordinator init`; RUNS are folders of runs, or runs. Checkpoints go, which hold its
    own weights and sums. result.json and events.jsonl give it another name, without what was told of its table alone.
    Results stay, and say that they rest on its rows; remove a run that must not (`coordinator runs remove`).

    Nothing is changed while a run that SITE is in may go on. The security log keeps a line.
    """
    from fedbnsl_server.identity.enrolment import Federation
    from fedbnsl_server.store import forget as forgetting

    if as_json and not (yes or dry_run):
        raise SetupError("--json asks nobody: say --yes or --dry-run with it")
    enrolled = Federation.open(federation)
    n_certificates = len(enrolled.enrolled().get(site, ()))
    found = forgetting.held((*runs, federation), site)
    if not n_certificates and not any(one.removed or one.changed or one.why_not for one in found):
        where = ", ".join(map(str, (federation, *runs)))
        raise SetupError(
            f"nothing in {where} is of a site {site!r} and can go", remedy="Check the name and the folders."
        )
    report = [
        {
            "folder": str(one.folder),
            "goes": [str(file) for file in one.removed],
            "changes": [str(file) for file in one.changed],
            "stays": {str(file): why for file, why in one.stays.items()},
            "rests_on_it": one.rests,
            "not_yet": one.why_not,
        }
        for one in found
    ]
    going_on = [f"{one.folder}: {one.why_not}" for one in found if one.why_not]
    if going_on and not dry_run:
        raise SetupError(f"{site} cannot be forgotten yet: {'; '.join(going_on)}", remedy="Nothing was changed.")
    if not as_json:
        _show(found, site, n_certificates)
    if not dry_run and not yes and not click.confirm(f"forget {site}? what goes cannot be brought back"):
        raise SetupError("nothing was changed")
    if not dry_run:
        forgetting.forget(found, site)
        enrolled.forget(site, runs=[one.folder.name for one in found if one.removed or one.changed])
    if as_json:
        told = {"site": site, "forgotten": not dry_run, "certificates": n_certificates, "folders": report}
        click.echo(json.dumps(told, ensure_ascii=False))
    elif not dry_run:
        click.echo(f"{site} is forgotten; back-ups of these folders are yours to delete")


def _show(found: "Sequence[Held]", site: str, n_certificates: int) -> None:
    for one in found:
        click.echo(one.folder)
        for what, files in (("goes", one.removed), ("changed", one.changed)):
            if files:
                click.echo(f"  {what:8} {', '.join(str(file.relative_to(one.folder)) for file in files)}")
        for file, why in one.stays.items():
            click.echo(f"  {'stays':8} {file.relative_to(one.folder)}: {why}")
        if one.rests:
            click.echo(f"  the result rests on rows of {site}, and goes on doing so")
        if one.why_not:
            click.echo(f"  not yet: {one.why_not}")
    click.echo(f"certificates of {site}: {n_certificates}, which go: its next call is refused")
