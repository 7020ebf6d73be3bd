"""`fedbnsl coordinator audit-log` and `fedbnsl participant audit-log`: read and check a security log."""

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from fedbnsl.console.shown import shown
from fedbnsl.events.security_log import NAME, Line, lines, verify

_SHOWN_FIRST = ("time", "event", "site")
_NOT_SHOWN = ("n", "previous")


@click.command("audit-log")
@click.argument("log", metavar="FOLDER", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--verify",
    "check",
    is_flag=True,
    help="Check the chain over all files instead of showing it. Exit code 9: it is broken, or its end is missing; 15: "
    "it is whole, but this user has noted no head of it, so that a missing end would not show.",
)
@click.option(
    "--head",
    metavar="NUMBER:HASH",
    help="With --verify: a head noted before must be in the log; default: what this user's commands noted last.",
)
@click.option(
    "--since",
    metavar="DATE[THH:MM]",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]),
    help="From then, UTC.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the entries as they are in the log, one JSON object a line."
)
def audit_log(log: Path, check: bool, head: str | None, since: datetime | None, as_json: bool) -> None:
    """Show the security log in FOLDER (or the file itself), the oldest entry first.

    FOLDER is a coordinator's federation or a site's own folder; for a coordinator without TLS, the one that holds its
    run folders. The chain shows that no line was changed, removed or moved. The head that is noted in the state folder
    of the user who writes the log shows that its end is there. Whoever can write both can hide what they did: note the
    head that --verify prints where they cannot write, and pass it later with --head.
    """
    path = log / NAME if log.is_dir() else log
    if check:
        oldest, found = verify(path, head or "")
        click.echo(f"the chain is whole: entries {oldest} to {found.number}")
        click.echo(f"head, to be noted elsewhere: {found}")
        return
    if head:
        raise click.UsageError("--head goes with --verify")
    for line in lines(path):
        if since is None or _time_of(line) >= since.replace(tzinfo=UTC):
            text = line.text.decode(errors="replace")
            click.echo(shown(text, len(text)) if as_json else _readable(line))


def _time_of(line: Line) -> datetime:
    try:
        return datetime.fromisoformat(str(line.entry["time"]))
    except (KeyError, ValueError):
        return datetime.now(UTC)  # a line that cannot be read is shown


def _readable(line: Line) -> str:
    if not line.entry:
        return f"{line.file.name}, line {line.number}, cannot be read"
    time, event, site = (_short(name, line.entry.get(name, "")) for name in _SHOWN_FIRST)
    rest = {name: value for name, value in line.entry.items() if name not in (*_SHOWN_FIRST, *_NOT_SHOWN)}
    details = ", ".join(f"{name} {_short(name, value)}" for name, value in rest.items())
    return f"{time[:19]}  {event:18} {site or '-':16} {details}".rstrip()


def _short(name: str, value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return shown(f"{text[:23]}..." if name in ("certificate", "authority") and len(text) > 23 else text)
