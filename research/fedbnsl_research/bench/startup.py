"""How long commands take to start: processor seconds of each command, and wall clock of a whole demo.

The fastest of a few turns, each in a new process. Kernels and bytecode are already compiled by the turn before.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from fedbnsl_research.trials.harness import Row

_TURNS = 3
_COMMANDS = (
    ("--help",),
    ("participant", "join", "--help"),
    ("coordinator", "serve", "--help"),
)
_PARTS = (
    ("what a coordinator loads before it listens", "import fedbnsl_server.cli, fedbnsl_server.run.serve"),
    ("what a site loads before it calls", "from fedbnsl_client.join_run import warm_up; warm_up()"),
)


def startup() -> Iterator[Row]:
    """Help texts, what the two sides load, and the demo from command to result."""
    for command in _COMMANDS:
        yield _row(f"fedbnsl {' '.join(command)}", *[["-m", "fedbnsl", *command]] * _TURNS)
    for title, program in _PARTS:
        yield _row(title, *[["-c", f"import fedbnsl.cli\n{program}"]] * _TURNS)
    with tempfile.TemporaryDirectory() as scratch:
        yield _row(
            "fedbnsl demo, all processes", *(["-m", "fedbnsl", "demo", f"--out={scratch}/{k}"] for k in range(_TURNS))
        )


def _row(title: str, *turns: Sequence[str]) -> Row:
    """The least of each over some turns."""
    seconds, cpu_seconds = (min(costs) for costs in zip(*map(_costs, turns), strict=True))
    return {"figure": title, "seconds": round(seconds, 3), "cpu seconds": round(cpu_seconds, 3)}


def _costs(arguments: Sequence[str]) -> tuple[float, float]:
    """Wall and processor seconds of a Python process and of those that it waited for."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)  # noqa: S603
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
