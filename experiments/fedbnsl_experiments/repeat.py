"""The command that repeats a run of this machine: kept as command.txt in the run's folder, to be typed there."""

import os
import shlex
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedbnsl.durable import write_text

COMMAND = "command.txt"


@contextmanager
def command_kept(out: Path, words: Sequence[str], tables: Path | None) -> Generator[None]:
    """Write command.txt when the run is over, however it ends; a run that did not begin leaves none.

    Parameters
    ----------
    words
        What follows `fedbnsl`, without --data and --out; the plan is plan.toml.
    tables
        Folder with the tables; named as seen from the run folder, so that both can be moved together.
    """
    try:
        yield
    finally:
        if (out / "plan.toml").exists():
            data = [] if tables is None else ["--data", os.path.relpath(tables.resolve(), out.resolve())]
            command = ["fedbnsl", *words, *data, "--out", "ANOTHER_FOLDER"]
            write_text(out / COMMAND, shlex.join(command) + "\n")
