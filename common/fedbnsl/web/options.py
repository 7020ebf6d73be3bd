"""The options of a command that serves a page or metrics over HTTP while it works."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeGuard

import click

from fedbnsl.errors import SetupError


def served_at(option: str, what: str, tls: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Give a command an option for an address, such as --web, and one for its token; the help has the rest."""

    def both(command: click.decorators.FC) -> click.decorators.FC:
        token = click.option(
            f"{option}-token",
            type=click.Path(path_type=Path),
            help=f"File with the token that whoever asks must show; with it {option} is served over TLS, under {tls}. "
            "Needed beyond loopback.",
        )
        where = click.option(option, metavar="HOST:PORT", help=f"{what} there; port 0 takes a free one.")
        return where(token(command))

    return both


def is_asked_for(address: str | None, token_file: Path | None, *, option: str) -> TypeGuard[str]:
    """Whether there is an address. Raises SetupError if there is a token without one."""
    if address is None and token_file is not None:
        raise SetupError(f"{option}-token goes with {option}")
    return address is not None
