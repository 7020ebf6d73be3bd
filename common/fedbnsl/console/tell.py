"""Print what a command does while it does it; a reader that goes away (`| head`) ends the printing, not the work."""

import os
import sys

import click


def tell(text: str, *, err: bool = False) -> None:
    """Print a line. If nobody reads the stream any more, this line and all later ones go nowhere."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        # Also for what is left in the buffer: Python would fail on it at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if err else sys.stdout).fileno())
        os.close(nowhere)
