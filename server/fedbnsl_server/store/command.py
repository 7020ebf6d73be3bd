"""command.txt in the folder of a run: the commands that repeat the run, to be typed in that folder."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from fedbnsl.files.durable import write_text

COMMAND = "command.txt"

_SPENDS_AGAIN = "# a repetition is one more run: it spends the sites' privacy budgets again"


def another_folder(run: Path) -> str:
    """Where a repetition writes its results, as seen from the run's folder: beside it."""
    return str(Path("..", f"{run.resolve().name}-again"))


def keep_commands(
    run: Path, commands: Sequence[Sequence[str]], *, spends_budget: bool, instead: Sequence[str] = ()
) -> None:
    """Write command.txt: the words after `fedbnsl` of each command, and what some type `instead` of the last one."""
    lines = [shlex.join(["fedbnsl", *words]) for words in commands]
    lines += [f"# or: {shlex.join(['fedbnsl', *instead])}"] if instead else []
    write_text(run / COMMAND, "\n".join([*lines, *([_SPENDS_AGAIN] if spends_budget else []), ""]))
