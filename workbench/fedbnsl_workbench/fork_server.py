"""Start commands as processes of their own that have loaded their libraries already: what a demo would wait for most.

A server is one process. It loads what a coordinator and a site need, and compiled kernels, and then forks for every
command. What is forked runs `fedbnsl ARGUMENTS` as always: a session, a log and an exit code of its own. It is a child
of the process that asked, as one that `subprocess` started, and shares with the others no memory that any of them
writes: they know of each other what they say over gRPC. Real sites and coordinators never start like this.

The server has one thread and opens no channel, table or ledger, so that nothing is lost or doubled when it forks. What
is random in a command comes from the operating system when it is drawn.
"""

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Self

import click

from fedbnsl.cli import before_loading, fedbnsl, run
from fedbnsl.console.interrupt import signals_to_heed
from fedbnsl.errors import FedbnslError

_POLL_S = 0.02
_NEEDED = (
    "fedbnsl_server.cli",
    "fedbnsl_server.run.serve",
    "fedbnsl_client.cli",
    "fedbnsl_client.site.identity",
)
_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def is_available() -> bool:
    """Whether this system lets a process adopt what its child has forked."""
    return sys.platform == "linux"


class ForkServer:
    """A server for one run; leaving the context ends it, but none of the processes that it has forked.

    It begins to load at once, while its caller does something else.
    """

    def __init__(self) -> None:
        mine, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", __name__, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._lines = mine.makefile("rw", encoding="utf-8")
        mine.close()
        self._is_ready = False
        _adopt(orphans=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        _adopt(orphans=False)

    def start(self, arguments: Sequence[str | Path], log: Path) -> "Forked":
        """Start `fedbnsl ARGUMENTS` in a session of its own; what it prints is appended to the log.

        Raises
        ------
        FedbnslError
            If the server has died.
        """
        if not self._is_ready:
            self._told()
            self._is_ready = True
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        asked = {"arguments": [*map(str, arguments)], "log": str(log), "environment": environment}
        # A signal in between would leave a process that nobody ends: nobody would know its number.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals_to_heed())
        try:
            return Forked(int(self._told(json.dumps(asked) + "\n")))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _told(self, asked: str = "") -> str:
        """The next line of the server."""
        try:
            self._lines.write(asked)
            self._lines.flush()
            told = self._lines.readline()
        except (OSError, ValueError):  # the latter once it was ended
            told = ""
        if not told:
            raise FedbnslError("the process that should start the others has died; it may have said why above")
        return told

    def end(self) -> None:
        """End the server, which has forked all that it should."""
        if self._process.poll() is None:
            self._process.kill()  # it holds nothing
        self._process.wait()
        with suppress(OSError):  # a request that it did not take
            self._lines.close()


class Forked:
    """A process that a server has forked: what a run needs of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, below zero if a signal ended it; None: it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended.

        Raises
        ------
        subprocess.TimeoutExpired
            After so many seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired("fedbnsl", timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _adopt(*, orphans: bool) -> None:
    """Whether this process becomes the parent of processes whose own has ended, as those of the server's forks do.

    Raises
    ------
    OSError
        If the system refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _load() -> None:
    """Load what a coordinator and a site need; what one of them alone needs after its start, it loads meanwhile."""
    for module in _NEEDED:
        import_module(module)
    fedbnsl.list_commands(click.Context(fedbnsl))  # reads the metadata of every distribution
    import_module("fedbnsl_client.join_run").warm_up()
    gc.freeze()  # what is loaded is no garbage: collections in the forks need not look at it, nor copy it


def _serve(connection: socket.socket) -> list[str]:
    """Fork for every line until nobody asks any more; what is forked returns, with the arguments of its command."""
    with connection, connection.makefile("rw", encoding="utf-8") as lines:
        answer = "ready"
        while True:
            lines.write(f"{answer}\n")
            lines.flush()
            line = lines.readline()
            if not line:
                os._exit(0)  # at once: there is nothing to tidy up
            pid = _fork_orphan()
            if pid == 0:
                break
            answer = str(pid)
    asked = json.loads(line)
    os.environ.clear()
    os.environ.update(asked["environment"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    return list(asked["arguments"])


def _fork_orphan() -> int:
    """Fork a process whose parent ends at once; return its number, and 0 in itself."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.close(reading)
            os.close(writing)
            return 0
        os.write(writing, str(pid).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(between, 0)  # from here on the one that asked is the parent
    with os.fdopen(reading) as told:
        return int(told.read())


if __name__ == "__main__":
    before_loading()
    _load()
    command = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv[:] = ["fedbnsl", *command]
    run(command)
