"""Run many independent trials in parallel, store each outcome as it ends, and continue after an interruption.

Shared by `tune` and `reproduce`. A trial is a dictionary of plain values; a module-level function turns it into rows.
Every outcome is a line of a JSON Lines file, so that an interruption loses only the trials that were running.
"""

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text
from threadpoolctl import threadpool_limits

from fedbnsl.console.interrupt import Interruption
from fedbnsl.console.time_left import TimeLeft
from fedbnsl.console.wording import duration
from fedbnsl.errors import FedbnslError, SetupError
from fedbnsl.files.durable import make_folder
from fedbnsl_research.trials import workers as trial_workers
from fedbnsl_research.trials.harness import Row
from fedbnsl_research.trials.store import TrialStore

Trial = Mapping[str, Any]
"""What identifies a trial: names and plain JSON values."""

Function = Callable[[Trial], Sequence[Row]]
"""What a trial does; at module level (or a partial of such a one), since other processes import it."""

_LINES_WITHOUT_TERMINAL = 10

_GO_ON = "The trials that had ended are kept: the same command continues from there."


@dataclass(frozen=True)
class Outcome:
    """How one trial ended.

    Attributes
    ----------
    rows
        What it measured, as JSON gives it back; empty if it failed.
    error
        Why it failed, empty otherwise. Only the project's own errors are outcomes; any other ends the whole work.
    seconds
        Wall clock of the trial.
    """

    trial: Trial
    rows: tuple[Row, ...]
    error: str
    seconds: float


def run_trials(
    function: Function,
    trials: Sequence[Trial],
    store: Path,
    *,
    work: str,
    title: str,
    console: Console,
    jobs: int = 1,
    dask: str | None = None,
) -> list[Outcome]:
    """Run the trials that the store does not hold, or only as failed; return the outcomes of all, in the order given.

    Linear algebra runs on one thread in every trial: the outcomes are the same however many processes there are.

    Parameters
    ----------
    store
        File that keeps the outcomes, made if missing. Outcomes of other trials in it are left alone.
    work
        What the trials are for; a store keeps those of one work.
    title, console
        Of the progress bar; where there is no terminal, of a line now and then.
    jobs
        Processes; -1: one a processor. Beyond this machine, Dask's workers count instead.
    dask
        Address of a Dask scheduler whose workers run the trials instead; "" starts a cluster on this machine.

    Raises
    ------
    ResultError
        If the store cannot be read or written, is of another version or work, or another command works on it.
    SetupError
        If `jobs` is no number of processes, Dask is asked for and not installed, its scheduler does not answer, its
        workers run another version, or a worker's process dies.
    Interruption
        On Ctrl-C, within `fedbnsl.console.interrupt.interruptible`; what is done is kept.
    """
    if jobs < 1 and jobs != -1:
        raise SetupError(f"--jobs {jobs}: expected a number of processes, or -1 for one a processor")
    make_folder(store.parent)
    asked = {trial_key(trial): trial for trial in trials}
    with TrialStore(store, work=work) as kept:
        known = {trial_key(line["trial"]): _outcome(line) for line in kept.lines if not line["error"]}
        waiting = [trial for key, trial in asked.items() if key not in known]
        # Closed here, not by the garbage collector: an interruption must end the workers before the command ends.
        with (
            _bar(title, len(asked), len(asked) - len(waiting), console) as tick,
            closing(_attempts(function, waiting, jobs=jobs, dask=dask)) as outcomes,
        ):
            try:
                for outcome in outcomes:
                    line = kept.append(vars(outcome))
                    known[trial_key(outcome.trial)] = _outcome(line)
                    tick()
            except Interruption as error:
                error.remedy = _GO_ON
                raise
    return [known[trial_key(trial)] for trial in trials]


def trial_key(trial: Trial) -> str:
    """A key that depends only on names and values, not on their order; a trial read back from JSON has the same key."""
    return json.dumps(trial, sort_keys=True, allow_nan=False)


def _attempts(
    function: Function, trials: Sequence[Trial], *, jobs: int, dask: str | None
) -> Generator[Outcome, None, None]:
    if not trials:
        return
    if dask is not None:
        yield from trial_workers.on_dask(attempt, function, trials, address=dask, jobs=jobs)
    elif jobs == 1:
        with threadpool_limits(1):
            yield from (attempt(function, trial) for trial in trials)
    else:
        yield from trial_workers.on_processes(attempt, function, trials, jobs=jobs)


def attempt(function: Function, trial: Trial) -> Outcome:
    """Run one trial. A failure with one of the project's own errors is an outcome, too."""
    started = time.perf_counter()
    try:
        rows, error = tuple(function(trial)), ""
    except FedbnslError as failure:
        rows, error = (), f"{type(failure).__name__}: {failure}"
    return Outcome(trial, rows, error, round(time.perf_counter() - started, 3))


def _outcome(line: Mapping[str, Any]) -> Outcome:
    return Outcome(line["trial"], tuple(line["rows"]), line["error"], line["seconds"])


@contextmanager
def _bar(title: str, total: int, done: int, console: Console) -> Generator[Callable[[], None]]:
    """Progress, as something to call after each trial; what was done before does not count towards the time left."""
    if not console.is_terminal:
        yield _lines(title, total, done, console)
        return
    times = TimeElapsedColumn(), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total, completed=done)
        yield lambda: progress.update(task, advance=1)


def _lines(title: str, total: int, done: int, console: Console) -> Callable[[], None]:
    """What to call after each trial, for a pipe or a file: it prints at each tenth."""

    def step() -> int:
        return done * _LINES_WITHOUT_TERMINAL // total if total else 0

    time_left = TimeLeft(title, time.monotonic())

    def tick() -> None:
        nonlocal done
        before = step()
        done += 1
        if step() != before:
            say()

    def say() -> None:
        left_s = time_left.phase(done / total if total else None, time.monotonic()).left_s
        left = f", about {duration(left_s)} left" if left_s and done < total else ""
        console.print(Text(f"{title}: {done}/{total} trials{left}"), soft_wrap=True)

    say()
    return tick
