"""What many sites cost a coordinator: memory, and time per round by component.

The sites are in this process, each with its own connection. The coordinator is a separate process, so that its readings
in /proc include nothing else.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.join_run import take_part
from fedbnsl_client.site.admission import PublicTable
from fedbnsl_client.site.identity import Link
from fedbnsl_research.bench.processes import MIB, Reading
from fedbnsl_research.trials.harness import Row, site_datasets
from fedbnsl_server.observe.status_client import Observer
from fedbnsl_workbench import localnet
from fedbnsl_workbench.scoring.evaluation import read_result
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

_SITES = 500
_VARIABLES = 50
_ROUNDS = 20
_SAMPLES = 200
_DEADLINE_S = 600.0
_READING_S = 0.2

Result = dict[str, Any]


@dataclass(frozen=True)
class Readings:
    """A coordinator before a site has called, when one site is missing before round 1, and just before its end."""

    idle: Reading
    joined: Reading
    last: Reading


class _Sites(ExitStack):
    """A thread a site, which computes what it sends."""

    def __init__(self, tables: Mapping[str, Dataset]) -> None:
        super().__init__()
        self._tables = tables
        self._threads = self.enter_context(ThreadPoolExecutor(len(tables), thread_name_prefix="site"))

    def join(self, site: str, address: str) -> "Future[Any]":
        """Let a site take part in the run until its end."""
        table = PublicTable(site, self._tables[site])
        return self._threads.submit(take_part, table, Link(address), patience_s=_DEADLINE_S)


def load() -> Iterator[Row]:
    """A run with many sites, each of which must contribute to every round."""
    plan = Plan.load("fed-sparse").with_settings(rounds=_ROUNDS)
    yield from _load(plan, n_sites=_SITES, n_variables=_VARIABLES)


def _load(plan: Plan, *, n_sites: int, n_variables: int) -> Iterator[Row]:
    result, alone, readings = _measured(plan, n_sites=n_sites, n_variables=n_variables)
    yield _times(result, alone, readings)
    yield _memory(result, readings)


def _measured(plan: Plan, *, n_sites: int, n_variables: int) -> tuple[Result, Result, Readings]:
    """A run over loopback gRPC, the same run in one process, and what the coordinator's process was like.

    Raises
    ------
    FedbnslError
        If the coordinator or a site fails, a site misses a round, or the two runs learn different graphs.
    """
    truth = synthesise(n_variables, n_variables, n_sites, _SAMPLES, 2)
    plan = plan.with_settings(
        n_participants=n_sites,
        variables=truth.variables,
        join_deadline_s=_DEADLINE_S,
        round_deadline_s=_DEADLINE_S,
        run_deadline_s=_DEADLINE_S,
    )
    tables = site_datasets(truth)
    with tempfile.TemporaryDirectory() as scratch:
        simulate(plan, tables, Path(scratch, "alone"))
        readings = _over_grpc(plan, list(tables), _Sites(tables), Path(scratch, "network"))
        alone, result = read_result(Path(scratch, "alone")), read_result(Path(scratch, "network"))
    _check(result, alone, plan)
    return result, alone, readings


def _over_grpc(plan: Plan, names: Sequence[str], sites: _Sites, out: Path) -> Readings:
    """One run; what the coordinator's process was like.

    Raises
    ------
    FedbnslError
        Of the first site, or the coordinator, that fails.
    """
    # The network ends before the sites are waited for: without a coordinator they end as well.
    with sites, localnet.LocalNetwork(out / "logs") as network:
        address = localnet.start_coordinator(network, plan, out, seeds={})
        pid = network.pid(localnet.COORDINATOR)
        idle = Reading.of(pid)
        *early, latecomer = names
        joined_sites = [sites.join(site, address) for site in early]

        def check() -> None:
            network.check()
            for site in joined_sites:
                if site.done():
                    site.result()

        with closing(Observer(address)) as observer:
            while (status := observer.status()) is None or len(status.sites) < len(early):
                check()
                time.sleep(_READING_S)
        joined = last = Reading.of(pid)
        joined_sites.append(sites.join(latecomer, address))
        while not network.ended(localnet.COORDINATOR):
            check()
            with suppress(OSError):  # it ended just now
                last = Reading.of(pid)
            time.sleep(_READING_S)
        network.check()
        for site in joined_sites:
            site.result()
    return Readings(idle, joined, last)


def _check(result: Result, alone: Result, plan: Plan) -> None:
    """Reject a run in which a site missed a round, or whose graph differs from that of the run in one process."""
    sites = sorted(alone["sites"])
    if [entry["contributed"] for entry in result["rounds"]] != [sites] * n_rounds(plan):
        raise ResultError("a site missed a round of the run that was to be measured")
    if result["edges"] != alone["edges"]:
        raise ResultError("the run over the network learned another graph than the same run in one process")


def _times(result: Result, alone: Result, readings: Readings) -> Row:
    """Where the time of a round goes. Overhead is all time outside the sites' solving and the global step.

    Solving time comes from the same run in one process, divided ideally among the processors. This overstates
    rather than understates what the network adds.
    """
    n_rounds, n_sites = len(result["rounds"]), len(result["sites"])
    solving_s = alone["seconds"]["local"] / min(n_sites, len(os.sched_getaffinity(0)))
    seconds = result["seconds"]
    total_s, local_s, global_s = (seconds[part] / n_rounds for part in ("total", "local", "global"))
    solving_s /= n_rounds
    saving_s, messages_s = total_s - local_s - global_s, local_s - solving_s
    return {
        "figure": f"a round with {n_sites} sites, d={len(result['variables'])}, over loopback gRPC / in one process",
        "ratio": round(seconds["total"] / alone["seconds"]["total"], 2),
        "rounds": n_rounds,
        "contributions": sum(len(entry["contributed"]) for entry in result["rounds"]),
        "s a round": round(total_s, 3),
        "s solving": round(solving_s, 3),
        "s global step": round(global_s, 3),
        "s messages": round(messages_s, 3),
        "s checkpoint and event": round(saving_s, 3),
        "ms overhead a site": round(1e3 * (messages_s + saving_s) / n_sites, 2),
        "s of the coordinator's processor a round": round((readings.last.cpu_s - readings.joined.cpu_s) / n_rounds, 3),
    }


def _memory(result: Result, readings: Readings) -> Row:
    """The coordinator's resident memory as sites join and rounds pass."""
    grown = readings.last.highest_bytes - readings.idle.resident_bytes
    return {
        "figure": f"memory of a coordinator with {len(result['sites'])} sites, d={len(result['variables'])}",
        "MiB without sites": round(readings.idle.resident_bytes / MIB),
        "MiB before round 1": round(readings.joined.resident_bytes / MIB),
        "MiB after the last round": round(readings.last.resident_bytes / MIB),
        "MiB at most": round(readings.last.highest_bytes / MIB),
        "KiB a site": round(grown / len(result["sites"]) / 1024),
        "open files without sites": readings.idle.n_files,
        "open files before round 1": readings.joined.n_files,
    }
