"""The options of a command that shows a page while it works."""

from collections.abc import Callable
from pathlib import Path

import click


def web_options(tls: str, what: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Give a command --web and --web-token.

    Parameters
    ----------
    tls
        Where TLS comes from, for the help.
    what
        What the page shows, for the help.
    """

    def both(command: click.decorators.FC) -> click.decorators.FC:
        token = click.option(
            "--web-token",
            type=click.Path(path_type=Path),
            help=f"File with the token that a viewer must show; with it the page is served over TLS, under {tls}. "
            "Needed beyond loopback.",
        )
        where = click.option(
            "--web", metavar="HOST:PORT", help=f"Show {what} in a browser there; port 0 takes a free one."
        )
        return where(token(command))

    return both
