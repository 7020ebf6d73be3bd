"""How the commands on runs find them: in a FOLDER of this machine, or --at a coordinator on another one."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbnsl.console.tell import tell
from fedbnsl.errors import FedbnslError, SetupError

if TYPE_CHECKING:
    from fedbnsl_server.runs.folder import RunsFolder
    from fedbnsl_server.runs.remote import RemoteRuns

AT = "--at"


class AtCommand(click.Command):
    """A command whose first argument, a folder, is left out where --at names a coordinator."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`."""
        before = args[: args.index("--")] if "--" in args else args
        is_elsewhere = any(one == AT or one.startswith(f"{AT}=") for one in before)
        return super().parse_args(ctx, ["", *args] if is_elsewhere else args)


def _folder(_: click.Context, __: click.Parameter, given: str) -> Path | None:
    return Path(given) if given else None


def takes_at(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --at, --token-file and --ca; its function gets `RemoteRuns`, or None without them, as `at`."""

    @functools.wraps(command)
    def with_at(*args: object, at: str | None, token_file: Path | None, ca: Path | None, **others: Any) -> None:
        if at is None:
            if token_file is not None or ca is not None:
                raise SetupError(f"--token-file and --ca go with {AT}; without it a command takes a folder")
            command(*args, at=None, **others)
            return
        from fedbnsl_server.runs.remote import RemoteRuns

        if token_file is None:
            raise SetupError(f"{AT} needs --token-file", remedy="Ask whoever administers the coordinator for a token.")
        command(*args, at=RemoteRuns(at, token_file=token_file, ca=ca), **others)

    options = (
        click.option(
            AT,
            "at",
            metavar="https://HOST:PORT",
            help="Instead of the folder: the coordinator whose page is there (`coordinator runs serve --web`).",
        ),
        click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            help="With --at: file with your token, as `coordinator operators add --out` wrote it.",
        ),
        click.option(
            "--ca",
            type=click.Path(path_type=Path),
            help="With --at: the authority that the coordinator's certificate is under, the federation's ca.pem.  "
            "[default: those that this machine trusts]",
        ),
    )
    decorated: Callable[..., None] = with_at
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def takes_runs(command: Callable[..., None]) -> Callable[..., None]:
    """Give an `AtCommand` FOLDER or --at; its function gets `RunsFolder` or `RemoteRuns` as `runs`."""

    @functools.wraps(command)
    def with_runs(*args: object, folder: Path | None, at: "RemoteRuns | None", **others: Any) -> None:
        command(*args, runs=_in_folder(folder) if at is None else at, **others)

    return click.argument("folder", metavar="[FOLDER]", callback=_folder)(takes_at(with_runs))


def _in_folder(folder: Path | None) -> "RunsFolder":
    from fedbnsl_server.runs.folder import RunsFolder

    if folder is None:
        raise SetupError(f"name the folder of runs, or a coordinator with {AT}")
    if folder.is_file():
        raise SetupError(f"{folder} is a file; expected the folder of runs")
    return RunsFolder(folder, skip=say_unreadable)


def say_unreadable(place: Path, error: FedbnslError) -> None:
    """Of a run that cannot be read."""
    tell(f"left out: {error}; mend it, or remove {place} by hand", err=True)
