"""The command `fedbnsl`: finds its groups by entry point, and turns errors into exit codes with a remedy."""

import atexit
import gc
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points

import click

from fedbnsl import __version__
from fedbnsl.console.interrupt import interruptible
from fedbnsl.console.shown import shown_lines
from fedbnsl.errors import FedbnslError, InterruptedRunError, SetupError

_GROUP = "fedbnsl.commands"

# Commands that a site's distribution does not have.
_ELSEWHERE = {
    "fedbnsl": (
        *("coordinator", "demo", "effect", "evaluate", "network", "report", "simulate"),
        *("data hospital", "data split", "data synth"),
    ),
    "fedbnsl-research": ("bench", "reproduce", "tune"),
}

_EXIT_CODES = """\b
Exit codes:
  0  done
  1  unexpected error (a bug)
  2  wrong usage of a command, or an address or name that cannot be used
  3  plan: an unknown or impossible setting
  4  data: the table cannot be used
  5  protocol: the two sides do not fit each other
  6  unreachable: the other side does not answer
  7  quorum lost: too few sites answered before the deadline
  8  divergence: a computed number is no longer finite
  9  result: a run folder or graph file cannot be read or written
  10  abandoned: the coordinator ended the run without a result
  11  ledger: the record of spent privacy cannot be used, or refuses an entry
  12  refused by the site's own policy
  13  budget exhausted: the dataset's privacy budget does not pay for the run
  14  identity: a certificate, a key or an enrolment is not valid
  15  unknown end: nothing tells whether the end of a security log is missing
  130  interrupted"""


class Group(click.Group):
    """A group whose commands may come from several distributions; it names the one that has a missing command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group`."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            command = " ".join([*ctx.command_path.split()[1:], error.command_name])
            for distribution, commands in _ELSEWHERE.items():
                if command in commands:
                    remedy = f"Install {distribution} from the project's wheels: docs/how-to/install-offline.md."
                    raise SetupError(f"{command!r} is a command of {distribution}", remedy=remedy) from None
            # click looks for near names in `commands`, where no entry point is.
            names = self.list_commands(ctx)
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=names, ctx=ctx) from None


class _Commands(Group):
    """The commands of the installed fedbnsl packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_entries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = None
        # Each distribution with commands in one group names it, and its module adds them to the same click.Group.
        for entry in _entries().get(cmd_name, ()):
            command = entry.load()
        return command if isinstance(command, click.Command) else None


@cache
def _entries() -> dict[str, list[EntryPoint]]:
    """The groups by name; finding them reads the metadata of every installed distribution."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=_GROUP):
        found.setdefault(entry.name, []).append(entry)
    return found


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=_EXIT_CODES,
    help="Learn one Bayesian network from tables that never leave their sites.",
)
@click.version_option(__version__, prog_name="fedbnsl")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def fedbnsl(debug: bool) -> None:
    """Root of all commands; `main` reads --debug."""


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line as a whole process, which ends with the exit code whatever its other threads do.

    A daemon thread may still be in a compiler or in linear algebra. Where Python tears itself down, the destructors of
    those libraries pull the memory from under it, and a segmentation fault takes the place of the exit code.
    """
    codes: list[int] = []
    atexit.register(end_at_once, codes)  # before a command loads libraries: what they register is called earlier
    try:
        main(arguments)
    except SystemExit as ended:
        codes.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise


def end_at_once(codes: Sequence[int]) -> None:
    """Skip what Python would still do: collect garbage, and run the destructors of libraries."""
    if codes:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # nobody reads it, it is closed, or there is none
                stream.flush()
        os._exit(codes[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and raise SystemExit with the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    _write_what_can_be_written()
    before_loading()
    try:
        # Allowed anywhere on the line: to report an error, people repeat the command and append --debug.
        without_debug = [argument for argument in arguments if argument != "--debug"]
        with interruptible():
            code = fedbnsl.main(without_debug, prog_name="fedbnsl", standalone_mode=False)
    except FedbnslError as error:
        sys.exit(report(error, debug=debug))
    except click.exceptions.Abort:
        unanswered = InterruptedRunError(
            "interrupted at a question", remedy="Nothing was confirmed, and nothing was done."
        )
        sys.exit(report(unanswered, debug=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except Exception as error:
        bug = _not_installed(error) or FedbnslError(f"unexpected {type(error).__name__}: {error}")
        bug.__cause__ = error
        sys.exit(report(bug, debug=debug))
    sys.exit(code if isinstance(code, int) else 0)


def _write_what_can_be_written() -> None:
    r"""Write letters that a terminal or file not in UTF-8 lacks as \u03b2, and end no run for them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def before_loading() -> None:
    """Set what has to be set before libraries are loaded."""
    # At the default threshold of 700 objects, a fifth of numba's loading time is garbage collection that finds nothing.
    gc.set_threshold(50_000)
    # One thread for linear algebra unless asked otherwise: several processes share a machine in a demo, and results
    # are the same bits whatever the number of cores. Set before numpy is imported by a command.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def _not_installed(error: Exception) -> SetupError | None:
    """The error for a missing package: the coordinator's image has none for reports. None for any other error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None or error.name.startswith("fedbnsl"):
        return None
    remedy = "Install fedbnsl with all that it depends on: docs/how-to/install-offline.md."
    return SetupError(f"this command needs the package {error.name}, which is not installed", remedy=remedy)


def report(error: FedbnslError, *, debug: bool) -> int:
    """Say on standard error what happened and what to do; return the exit code."""
    if debug:
        for part in traceback.format_exception(error):
            click.echo(shown_lines(part), err=True, nl=False)
    click.secho(f"error: {shown_lines(str(error))}", fg="red", err=True)
    click.echo(shown_lines(error.remedy), err=True)
    return error.exit_code
