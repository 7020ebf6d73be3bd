"""What a process uses, and a way to run work in a new process, so that its peak memory can be told."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

MIB = 2**20

_T = TypeVar("_T")


@dataclass(frozen=True)
class Reading:
    """A coordinator's process at one moment.

    Attributes
    ----------
    resident_bytes, highest_bytes
        In memory now, and at most so far.
    cpu_s
        Seconds of computing so far.
    n_files
        Open files, connections among them.
    """

    resident_bytes: int
    highest_bytes: int
    cpu_s: float
    n_files: int

    @classmethod
    def of(cls, pid: int) -> "Reading":
        """Read a process now.

        Raises
        ------
        OSError
            If the process has ended, or there is no /proc.
        """
        process = Path("/proc", str(pid))
        fields = dict(line.split(":", 1) for line in (process / "status").read_text("utf-8").splitlines())
        if "VmRSS" not in fields:  # ended, and not yet waited for
            raise ProcessLookupError(pid)
        times = (process / "stat").read_text("utf-8").rpartition(")")[2].split()
        resident, highest = (1024 * int(fields[name].split()[0]) for name in ("VmRSS", "VmHWM"))
        cpu_s = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        return cls(resident, highest, cpu_s, sum(1 for _ in (process / "fd").iterdir()))


def in_own_process(work: Callable[[], _T]) -> _T:
    """Result of work done in a new process. `work` must be a module-level function, or a partial of one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(work).result()


def peak_bytes() -> int:
    """The most resident memory of this process so far."""
    return Reading.of(os.getpid()).highest_bytes
