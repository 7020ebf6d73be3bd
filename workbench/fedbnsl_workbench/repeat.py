"""Keep the command that repeats a run of this machine, however the run ends."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedbnsl.console.interrupt import Interruption
from fedbnsl.errors import InterruptedRunError
from fedbnsl_server.store.command import another_folder, keep_commands
from fedbnsl_server.store.run_folder import holds_a_round


@contextmanager
def command_kept(
    out: Path, words: Sequence[str], tables: Path | None, *, spends_budget: bool = False
) -> Generator[None]:
    """Write command.txt when the run is over; a run that did not begin leaves none. Interrupted, say what there is.

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
    except (InterruptedRunError, Interruption) as error:
        learned = f"What its complete rounds learned is in {out}" if holds_a_round(out) else "No round was complete"
        error.remedy = f"{learned}; the same command with another --out begins anew."
        raise
    finally:
        if (out / "plan.toml").exists():
            data = [] if tables is None else ["--data", os.path.relpath(tables.resolve(), out.resolve())]
            keep_commands(out, [[*words, *data, "--out", another_folder(out)]], spends_budget=spends_budget)
