"""`fedbnsl coordinator eject`: an operator command to the run in a folder."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbnsl.errors import SetupError, UnreachableError
from fedbnsl_server.runs.options import takes_at

if TYPE_CHECKING:
    from fedbnsl_server.runs.remote import RemoteRuns

_LOOK_S = 0.1


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("site")
@click.option(
    "--from-round",
    type=click.IntRange(min=1),
    metavar="T",
    help="Set the run back, too: repeat round T and all after it without SITE, from the last kept checkpoint before "
    "round T. Not for private runs.  [default: no complete round is repeated]",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the answer of the coordinator, if it runs.",
)
@takes_at
def eject(run: Path, site: str, from_round: int | None, wait_s: float, at: "RemoteRuns | None") -> None:
    """Take SITE out of the RUN in this folder: the run goes on with the others, and SITE is refused from now on.

    With --at, RUN is the name of a run there.

    Its weights and dual variables are taken out of the state; what it did to W before fades as rounds go on, and
    --from-round takes that out as well. Decide on it at once: an ejection is final. The command is a file in RUN,
    for the coordinator's own user: give it as that user. A coordinator that works on the run takes it within a second
    or so, a stopped one at its next start. Under secure aggregation the present round is asked again of the others, who
    pay for it again; what earlier sums hold of SITE stays.
    """
    from fedbnsl_server.store import operator_commands
    from fedbnsl_server.store.run_folder import is_worked_on, load_plan

    if at is not None:
        _eject_elsewhere(at, str(run), site, from_round, wait_s)
        return
    plan = load_plan(run)
    if not is_worked_on(run):
        operator_commands.refuse_what_the_result_tells(run, site, plan.sites)
    command = operator_commands.give(run, site, from_round)
    if not is_worked_on(run):
        click.echo(f"no coordinator works on {run}: the command is taken when it is served again")
        return
    until = time.monotonic() + wait_s
    while (answer := operator_commands.answer_to(run, command)) is None:
        if time.monotonic() > until:
            raise UnreachableError(
                f"the coordinator has not answered within {wait_s:g} s",
                remedy=f"It takes the command when it can; remove {run / operator_commands.COMMAND} to withdraw it.",
            )
        time.sleep(_LOOK_S)
    if not answer.done:
        raise SetupError(answer.text, remedy="Nothing was changed.")
    click.echo(answer.text)


def _eject_elsewhere(runs: "RemoteRuns", run: str, site: str, from_round: int | None, wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while (answer := runs.eject(run, site, from_round)) is None:
        if time.monotonic() > until:
            raise UnreachableError(
                f"the coordinator has not answered within {wait_s:g} s", remedy="It takes the command when it can."
            )
    click.echo(answer)
