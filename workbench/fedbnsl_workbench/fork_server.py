"""Start commands as processes that have loaded their libraries already: what a demo would wait for most.

The standard library's fork server is one process with one thread. It loads what a coordinator and a site need, compiled
kernels too, and forks for every command. A fork runs `fedbnsl ARGUMENTS` in a session of its own, with its own log and
exit code. Real sites and coordinators never start like this.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

_PRELOADED = "fedbnsl_workbench.preloaded"


def begin_to_load() -> bool:
    """Start the server, which loads while its caller does something else; False where the system has none."""
    if sys.platform != "linux":
        return False
    multiprocessing.get_context("forkserver").set_forkserver_preload([_PRELOADED])
    forkserver.ensure_running()
    return True


class Forked:
    """A forked `fedbnsl ARGUMENTS`, whose output is appended to the log: what a run needs of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str | Path], log: Path) -> None:
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_command,
            args=([*map(str, arguments)], str(log), {**os.environ, "PYTHONUNBUFFERED": "1"}),
            daemon=True,
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid or 0

    def poll(self) -> int | None:
        """Its exit code, below zero if a signal ended it; None: it runs."""
        code = self._process.exitcode
        # The fork server's word for one that was killed before it had told its own number; no command ends with it.
        return -signal.SIGKILL if code == 255 else code

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; subprocess.TimeoutExpired after so many seconds."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("fedbnsl", timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it may end in between, and the server then knows it no more
                os.kill(self.pid, sig)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()


def _command(arguments: list[str], log: str, environment: Mapping[str, str]) -> None:
    from fedbnsl.cli import end_at_once, main

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(written, stream)
    os.close(written)
    sys.argv[:] = ["fedbnsl", *arguments]
    try:
        main(arguments)
    except SystemExit as ended:  # as `fedbnsl.cli.run`
        end_at_once([ended.code if isinstance(ended.code, int) else int(ended.code is not None)])
