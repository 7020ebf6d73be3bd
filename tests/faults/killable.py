"""`fedbnsl ARGUMENTS` in a process of its own that dies, or stands still, at a named step.

Production code knows nothing of it: the step is a function or method by its dotted name, and is replaced in the child
by one that counts its calls. A name that is not there any more ends the child with its own exit code.
"""

import inspect
import itertools
import multiprocessing
import os
import pkgutil
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal, Self

from forked import start_fork_server

NO_SUCH_STEP = 99  # no exit code of fedbnsl

_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Blow:
    """A signal that a process sends itself, once.

    Attributes
    ----------
    step
        Dotted name of a function or method, such as fedbnsl_client.budget.payments.Payments.reserve.
    when
        Before the step does anything, or after it has returned.
    occurrence
        Which call of the step, from 1.
    """

    step: str
    when: Literal["before", "after"]
    occurrence: int
    signal: int = signal.SIGKILL

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `step:after:2`."""
        step, when, occurrence = text.split(":")
        assert when in ("before", "after"), text
        return cls(step, when, int(occurrence))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.step}:{self.when}:{self.occurrence}"

    def target(self) -> tuple[Any, str, Callable[..., Any]]:
        """Owner, name and present value of the step; AttributeError or ImportError if there is none."""
        owner_name, _, name = self.step.rpartition(".")
        owner = pkgutil.resolve_name(owner_name)
        return owner, name, getattr(owner, name)

    def arm(self) -> None:
        """Replace the step in this process."""
        owner, name, genuine = self.target()
        calls = itertools.count(1)

        def strike(when: str, call: int) -> None:
            if (when, call) == (self.when, self.occurrence):
                os.kill(os.getpid(), self.signal)

        if inspect.iscoroutinefunction(genuine):

            @wraps(genuine)
            async def armed(*args: Any, **kwargs: Any) -> Any:
                call = next(calls)
                strike("before", call)
                result = await genuine(*args, **kwargs)
                strike("after", call)
                return result

        else:

            @wraps(genuine)
            def armed(*args: Any, **kwargs: Any) -> Any:
                call = next(calls)
                strike("before", call)
                result = genuine(*args, **kwargs)
                strike("after", call)
                return result

        setattr(owner, name, armed)


def stop(step: str, when: Literal["before", "after"], occurrence: int) -> Blow:
    """A process stands still at a step, until the test lets it go on."""
    return Blow(step, when, occurrence, signal.SIGSTOP)


def _child(
    arguments: Sequence[str],
    log: Path,
    blow: Blow | None,
    most_file_bytes: int | None,
    constants: Mapping[str, object],
) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    from fedbnsl.cli import run

    for name, value in constants.items():
        module, _, constant = name.rpartition(".")
        owner = pkgutil.resolve_name(module)
        getattr(owner, constant)  # AttributeError if it is not there any more
        setattr(owner, constant, value)
    if blow is not None:
        try:
            blow.arm()
        except (AttributeError, ImportError) as error:
            os.write(2, f"no step {blow}: {error}\n".encode())
            os._exit(NO_SUCH_STEP)
    if most_file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that the write fails instead
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_file_bytes, resource.RLIM_INFINITY))
    run(arguments)


class Command:
    """A running `fedbnsl ARGUMENTS`, both of its streams appended to a log.

    Parameters
    ----------
    blow
        What it does to itself.
    most_file_bytes
        No file may grow beyond it: a full disk, for whoever writes.
    constants
        By dotted name, other values of module constants in this process: times that a test cannot wait for.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        log: Path,
        *,
        blow: Blow | None = None,
        most_file_bytes: int | None = None,
        constants: Mapping[str, object] | None = None,
    ) -> None:
        self.arguments, self.log = tuple(map(str, arguments)), log
        start_fork_server()
        self._process = _CONTEXT.Process(
            target=_child, args=(self.arguments, log, blow, most_file_bytes, constants or {})
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def wait(self, seconds: float) -> int:
        self._process.join(seconds)
        assert self.returncode is not None, f"{self.arguments} still runs after {seconds:g} s:\n{self.said}"
        return self.returncode

    def signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait_until_stopped(self, seconds: float) -> None:
        """Return once SIGSTOP has stopped every thread of it."""
        until = time.monotonic() + seconds
        while self._states() != {"T"}:
            assert self.returncode is None, f"ended with {self.returncode} instead of standing still:\n{self.said}"
            assert time.monotonic() < until, f"does not stand still:\n{self.said}"
            time.sleep(0.01)

    def _states(self) -> set[str]:
        states = set[str]()
        for task in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
                states.add(task.read_text().rpartition(")")[2].split()[0])
        return states

    def end(self) -> None:
        """Kill it if it still runs, and free what it held here."""
        self.signal(signal.SIGKILL)
        self._process.join(10)
        self._process.close()
