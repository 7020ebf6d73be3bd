"""`fedbnsl coordinator operators` and `fedbnsl participant operators`: who may use the pages, and for what."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.files.durable import OWNER_ONLY
from fedbnsl.web.roles import Roles

if TYPE_CHECKING:
    from fedbnsl.events.security_log import SecurityLog
    from fedbnsl.web.operators import Operators


def operators_group(roles: Roles, *, sign: str, side: str) -> click.Group:
    """The commands for the operators of one side.

    Parameters
    ----------
    roles
        What there is to choose from.
    sign
        The file that tells the folder of a federation or a site from others.
    side
        The group of commands that these belong to, for messages.
    """
    each = f"Each role may do what those above it may:\n\n\b\n{roles.in_words()}"

    @click.group(help=f"Who may use the pages of this side, under which name, and for what.\n\n{each}")
    def operators() -> None:
        pass

    folder_argument = click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))

    def opened(folder: Path) -> "tuple[Operators, SecurityLog]":
        from fedbnsl.events.security_log import NAME, SecurityLog
        from fedbnsl.web.operators import Operators

        if not (folder / sign).exists():
            raise SetupError(f"{folder} has no {sign}", remedy=f"Name the folder made by `fedbnsl {side} init`.")
        return Operators(roles, folder=folder), SecurityLog(folder / NAME)

    @operators.command()
    @folder_argument
    @click.argument("name")
    @click.option(
        "--role",
        type=click.Choice((*roles.names, "proxy")),
        required=True,
        help="What the operator may do; proxy: say which of the others asks, for an authenticating proxy.",
    )
    @click.option("--no-token", is_flag=True, help="For an operator whom a proxy names: there is no token to show.")
    @click.option(
        "--out",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the token to a new file that only its owner may read, in place of printing it.",
    )
    def add(folder: Path, name: str, role: str, no_token: bool, out: Path | None) -> None:
        """Add the operator NAME to FOLDER, and make a token for them: shown once, as only its digest is kept.

        Without --out the token is all of standard output. Whoever has it acts under this name: hand it over by a way
        that nobody else reads. A page that is served already with operators knows the new one from its next request on.
        """
        known, log = opened(folder)
        if no_token and out is not None:
            raise SetupError("--no-token makes no token for --out")
        add_operator = partial(known.add, name, role, with_token=not no_token)
        token = add_operator() if out is None else _written(out, add_operator)
        log.enter("operator added", operator=name, role=role)
        if out is not None:
            click.echo(f"added {name} ({role}); the token is in {out}", err=True)
        elif token:
            click.echo(f"added {name} ({role}); the token, which is shown this once:", err=True)
            click.echo(token)
        else:
            click.echo(f"added {name} ({role}), without a token", err=True)

    @operators.command("list")
    @folder_argument
    @click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
    def list_(folder: Path, as_json: bool) -> None:
        """The operators of FOLDER, their roles, and since when they have them."""
        found = opened(folder)[0].named().values()
        if as_json:
            told = [{"name": one.name, "role": one.role, "added": one.added} for one in found]
            click.echo(json.dumps(told, ensure_ascii=False))
            return
        width = max((len(one.name) for one in found), default=0)
        for one in found:
            click.echo(f"{one.name:{width}}  {one.role:10}  {one.added[:16].replace('T', ' ')}")
        if not found:
            click.echo(f"no operators; add one: fedbnsl {side} operators add {folder} NAME --role {roles.names[0]}")

    @operators.command()
    @folder_argument
    @click.argument("name")
    def remove(folder: Path, name: str) -> None:
        """Remove the operator NAME from FOLDER: the token opens nothing any more, also where a page is open."""
        known, log = opened(folder)
        known.remove(name)
        log.enter("operator removed", operator=name)
        click.echo(f"removed {name}")

    return operators


def _written(out: Path, make: Callable[[], str]) -> str:
    """Make a token and write it to a new file of its owner alone.

    Raises SetupError if there is such a file, ResultError if it cannot be written; no token is made where it cannot be
    opened.
    """
    try:
        file = os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY), "w")
    except FileExistsError:
        raise SetupError(
            f"{out} exists already: a token is never written over a file", remedy="Name another."
        ) from None
    except OSError as error:
        raise ResultError(f"{out} cannot be written: {error.strerror}") from None
    try:
        with file:
            token = make()
            file.write(f"{token}\n")
    except BaseException as error:
        out.unlink()
        if isinstance(error, OSError):
            remedy = "Nobody has the token: remove the operator, and add it again."
            raise ResultError(f"{out} cannot be written: {error.strerror}", remedy=remedy) from None
        raise
    return token
