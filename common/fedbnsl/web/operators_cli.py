"""`fedbnsl coordinator operators` and `fedbnsl participant operators`: who may use the pages, and for what."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbnsl.errors import SetupError
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
    def add(folder: Path, name: str, role: str, no_token: bool) -> None:
        """Add the operator NAME to FOLDER, and print a token for them: once, as only its digest is kept.

        The token is all of standard output. Whoever has it acts under this name: hand it over by a way that nobody else
        reads. A page that is served already with operators knows the new one from its next request on.
        """
        known, log = opened(folder)
        token = known.add(name, role, with_token=not no_token)
        log.enter("operator added", operator=name, role=role)
        if token:
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
