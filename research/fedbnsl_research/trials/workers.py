"""Trials on other processes: joblib's on this machine, or the workers of a Dask scheduler.

On the first signal, the main process ends the work. Workers ignore Ctrl-C in the terminal; otherwise each of them would
print a traceback.
"""

import logging
import os
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import joblib as untyped_joblib
from threadpoolctl import threadpool_limits

from fedbnsl import __version__
from fedbnsl.errors import SetupError

joblib: Any = untyped_joblib  # has no types

_R = TypeVar("_R")
_Trial = Mapping[str, Any]
_Attempt = Callable[[Any, _Trial], _R]

_WORKERS_DEADLINE_S = 30

_WORKER_DIED = "Start the same command again, with fewer --jobs if memory was short; what was done is kept."


def on_processes(
    attempt: _Attempt[_R], function: object, trials: Sequence[_Trial], *, jobs: int
) -> Generator[_R, None, None]:
    """What the attempts give, as they end, from processes of this machine.

    Raises
    ------
    SetupError
        If a process dies.
    """
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    run = partial(_apart, attempt, function, os.getpid())
    # One trial per batch: joblib would collect short ones to send them together; an interruption would lose these.
    parallel = joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")
    outcomes: Generator[_R, None, None] = parallel(joblib.delayed(run)(trial) for trial in trials)
    try:
        yield from outcomes
    except TerminatedWorkerError:
        raise SetupError("a worker process died", remedy=_WORKER_DIED) from None
    finally:
        outcomes.close()


def _apart(attempt: _Attempt[_R], function: object, commander: int, trial: _Trial) -> _R:
    if os.getpid() != commander:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threadpool_limits(1)  # for the rest of the process
    return attempt(function, trial)


def on_dask(
    attempt: _Attempt[_R], function: object, trials: Sequence[_Trial], *, address: str, jobs: int
) -> Generator[_R, None, None]:
    """What the attempts give, as they end, from the workers of a Dask scheduler.

    Parameters
    ----------
    address
        Of the scheduler; "": a cluster on this machine, for as long as this lasts.
    jobs
        Processes of that cluster.

    Raises
    ------
    SetupError
        If Dask is not installed, the scheduler does not answer or has no workers, or they run another version.
    """
    try:
        import distributed as untyped_distributed
    except ImportError:
        raise SetupError(
            "the backend dask needs the package distributed, which is not installed",
            remedy="pip install distributed, or leave out --backend dask.",
        ) from None
    distributed: Any = untyped_distributed
    with _client(distributed, address, jobs) as client:
        _check_workers(client, address)
        # retries=0: a trial is repeated elsewhere only if its worker died. pure=False: the same function and trial run
        # again instead of being taken from the scheduler's memory.
        futures = [client.submit(_on_one_thread, attempt, function, trial, pure=False, retries=0) for trial in trials]
        try:
            for future in cast(Iterator[Any], distributed.as_completed(futures)):
                yield future.result()
                future.release()
        except distributed.KilledWorker:
            raise SetupError("a Dask worker died, several times", remedy=_WORKER_DIED) from None


def _on_one_thread(attempt: _Attempt[_R], function: object, trial: _Trial) -> _R:
    threadpool_limits(1)
    return attempt(function, trial)


@contextmanager
def _client(distributed: Any, address: str, jobs: int) -> Generator[Any]:
    if address:
        try:
            client = distributed.Client(address, timeout=_WORKERS_DEADLINE_S)
        except (OSError, ValueError) as error:
            raise SetupError(f"no Dask scheduler answers at {address}: {error}") from None
        with client:
            yield client
        return
    with (
        distributed.LocalCluster(
            n_workers=os.cpu_count() if jobs == -1 else jobs,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",  # any free port: None would be port 8787 of every interface
            silence_logs=logging.ERROR,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(_ignore_interrupt)
        yield client


def _check_workers(client: Any, address: str) -> None:
    place = address or "on this machine"
    try:
        client.wait_for_workers(1, timeout=_WORKERS_DEADLINE_S)
    except TimeoutError:
        raise SetupError(f"the Dask scheduler {place} has no workers after {_WORKERS_DEADLINE_S} s") from None
    try:
        versions: dict[str, str] = client.run(_version)
    except ImportError as error:
        raise SetupError(f"the Dask workers {place} cannot import fedbnsl: {error}") from None
    for worker, version in versions.items():
        if version != __version__:
            raise SetupError(f"Dask worker {worker} runs fedbnsl {version}, this is {__version__}")


def _version() -> str:
    return __version__


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
