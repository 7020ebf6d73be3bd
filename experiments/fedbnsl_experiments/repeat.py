"""Keep the command that repeats a run of this machine, however the run ends."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedbnsl_server.store.command import another_folder, keep_commands


@contextmanager
def command_kept(
    out: Path, words: Sequence[str], tables: Path | None, *, spends_budget: bool = False
) -> Generator[None]:
    """Write command.txt when the run is over; a run that did not begin leaves none.

    Parameters
    ----------
    words
        What follows `fedbnsl`, without --data and --out; the plan is plan.toml.
    tables
        Folder with the tables; named as seen from the run folder, so that both can be moved together.
    spends_budget
        Whether repeating the run charges ledgers.
    """
    try:
        yield
    finally:
        if (out / "plan.toml").exists():
            data = [] if tables is None else ["--data", os.path.relpath(tables.resolve(), out.resolve())]
            keep_commands(out, [[*words, *data, "--out", another_folder(out)]], spends_budget=spends_budget)
