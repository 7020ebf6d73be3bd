"""A run over real gRPC against the published code of NOTEARS-ADMM (Ng and Zhang 2022), both in processor seconds.

Ours are the seconds of a coordinator and of all sites, as separate processes, with what they load, and from the moment
on when all have joined. Theirs are those of their solver alone, in one process that sees the second moments of all
sites, without what it loads. The tables are the same.
"""

import json
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Self

import numpy as np

from fedbnsl.errors import SetupError
from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench.processes import Reading
from fedbnsl_research.trials.harness import N_SAMPLES, Row
from fedbnsl_workbench import localnet
from fedbnsl_workbench.scoring.evaluation import learned_graph, read_result
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.tables.folder import site_files, write_federation
from fedbnsl_workbench.tables.synthetic import SyntheticFederation, synthesise

_N_SITES = 8
_SIZES = (20, 100, 200)
_SEED = 2
_LOOK_S = 0.005

# With their defaults and the threshold of their example. Tables that are read do not count.
_THEIRS = """
import sys, time
import numpy as np, torch
from notears_admm.linear_admm import notears_linear_admm
from notears_admm.postprocess import postprocess
torch.set_default_dtype(torch.double)
torch.set_num_threads(1)
Xs = np.load(sys.argv[1])
before = time.process_time()
B = postprocess(notears_linear_admm(Xs, lambda1=0.01), threshold=0.3)
print(time.process_time() - before)
np.save(sys.argv[2], B != 0)
"""


def notears_admm(python: Path | None = None) -> Iterator[Row]:
    """One row a size; with a Python that can import `notears_admm` and torch, theirs are measured, too.

    Raises
    ------
    SetupError
        If it cannot.
    """
    for d in _SIZES:
        federation = synthesise(d, d, _N_SITES, N_SAMPLES, _SEED)
        row: Row = {"figure": f"lean run over gRPC, d={d}, P={_N_SITES}, {N_SAMPLES} rows a site, all processes"}
        with tempfile.TemporaryDirectory() as scratch:
            row |= _ours(federation, Path(scratch))
            row |= {"notears-admm": "not measured"} if python is None else _theirs(federation, Path(scratch), python)
        if python is not None:
            theirs = row["cpu seconds, notears-admm"]
            row["theirs / ours from the first round on"] = round(theirs / row["cpu seconds from the first round on"])
            row["theirs / ours with all that is loaded"] = round(theirs / row["cpu seconds"], 1)
        yield row


def _ours(federation: SyntheticFederation, folder: Path) -> Row:
    write_federation(federation, folder / "data")
    plan = Plan.load("lean").with_settings(n_participants=_N_SITES)
    with _Watched() as watched:
        localnet.run(plan, site_files(folder / "data"), folder / "run", watch=lambda status: None, seeds={})
    result = read_result(folder / "run")
    return {
        "cpu seconds": round(watched.cpu_s, 2),
        "cpu seconds from the first round on": round(watched.cpu_s - watched.cpu_s_at(_joined(folder / "run")), 2),
        "seconds from the first round on": round(result["seconds"]["total"], 2),
        "SHD": score(learned_graph(result), federation.W != 0).shd,
    }


def _joined(run: Path) -> float:
    """When all sites had joined, in seconds since the epoch."""
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    started = next(event for event in map(json.loads, lines) if event["event"] == "started")
    return datetime.fromisoformat(started["time"]).timestamp()


def _theirs(federation: SyntheticFederation, folder: Path, python: Path) -> Row:
    tables, found = folder / "tables.npy", folder / "found.npy"
    np.save(tables, np.stack(federation.tables))
    done = subprocess.run(  # noqa: S603
        [python, "-c", _THEIRS, tables, found], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise SetupError(f"{python} cannot run notears_admm: {said}")
    return {
        "cpu seconds, notears-admm": round(float(done.stdout.split()[-1]), 1),
        "SHD, notears-admm": score(np.load(found), federation.W != 0).shd,
    }


class _Watched:
    """Processor seconds of the processes that this one starts, all of them waited for, at any moment meanwhile (Linux).

    Those that it had started before do not count.

    Read in ticks of the system's clock, 10 ms for each process.
    """

    def __enter__(self) -> Self:
        self._readings: list[tuple[float, float]] = []
        self._others = _children()
        self._before, self._over = _waited_for(), threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self.cpu_s = _waited_for() - self._before

    def cpu_s_at(self, moment: float) -> float:
        """At the last reading before a moment, in seconds since the epoch."""
        return max((cpu_s for when, cpu_s in self._readings if when <= moment), default=0.0)

    def _read(self) -> None:
        while not self._over.wait(_LOOK_S):
            cpu_s = 0.0
            for pid in _children() - self._others:
                with suppress(OSError):  # it has ended: the run is over
                    cpu_s += Reading.of(pid).cpu_s
            self._readings.append((time.time(), cpu_s))


def _children() -> set[int]:
    files = Path("/proc/self/task").glob("*/children")
    return {int(pid) for children in files for pid in children.read_text("utf-8").split()}


def _waited_for() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
