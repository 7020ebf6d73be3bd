"""Processes of tests come from one fork server a worker: it has loaded once what takes each of them seconds."""

import itertools
import os
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl_workbench import localnet
from fedbnsl_workbench.fork_server import Forked

_TESTS = Path(__file__).parent


def start_fork_server() -> None:
    """Start the process that all others are forked from; does nothing if it runs."""
    forkserver.set_forkserver_preload(["preloaded"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_TESTS), before]))  # it is told no other path
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def forked_network(logs: Path) -> localnet.LocalNetwork:
    """A network whose processes are forked."""
    start_fork_server()
    return localnet.LocalNetwork(logs, forked=True)


def forked_run(plan: Plan, tables: Mapping[str, Path], out: Path, **options: Any) -> None:
    """`localnet.run` of forked processes."""
    start_fork_server()
    localnet.run(plan, tables, out, forked=True, **options)


class Command(Forked):
    """A forked `fedbnsl ARGUMENTS`, whose log holds what it says."""

    def __init__(self, arguments: Sequence[str | Path], log: Path) -> None:
        start_fork_server()
        self._log = log
        super().__init__(arguments, log)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def communicate(self, timeout: float | None = None) -> str:
        """All that it has said when it has ended."""
        self.wait(timeout)
        return self._log.read_text(encoding="utf-8")


_JOINED = itertools.count(1)


def joining(folder: Path, address: str, options: Sequence[str] = ()) -> Command:
    """A site that takes part in a run, with its folder as policy."""
    log = folder.with_name(f"{folder.name}-{next(_JOINED)}.log")
    return Command(["participant", "join", address, *options, f"--policy={folder}", "--patience=20"], log)
