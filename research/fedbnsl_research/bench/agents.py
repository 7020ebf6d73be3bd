"""A coordinator that stays up and three agents: what they cost when idle, and ten runs with no hand on them.

Real processes over loopback, with mutual TLS. The runs are private (`private-steps`), queued at once and played one
after another under one approval. What a run takes beyond its rounds is the time between its last round and the first of
the next run: its results, the farewell, the next run's offer, joining.
"""

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from fedbnsl.errors import FedbnslError
from fedbnsl.identity.certificates import Name
from fedbnsl.plan.plan import Plan
from fedbnsl_client.budget.approvals import Terms
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site import identity
from fedbnsl_research.bench.processes import MIB, Reading
from fedbnsl_research.trials.harness import Row
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.runs import queue
from fedbnsl_workbench.localnet import LocalNetwork
from fedbnsl_workbench.tables.folder import write_federation
from fedbnsl_workbench.tables.synthetic import synthesise

_SITES = ("east", "north", "south")
_RUNS = 10
_ROWS = 1000
_IDLE_S = 20.0
_DEADLINE_S = 300.0
_DAYS = 2


def agents(*, n_runs: int = _RUNS, idle_s: float = _IDLE_S) -> Iterator[Row]:
    """What the processes use while nothing is to be done, and how long runs in a row take."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plan, places = _federation(folder, n_runs)
        runs, names = folder / "runs", [f"run-{number:02}" for number in range(n_runs)]
        with LocalNetwork(folder / "logs") as network:
            address = _started(network, folder, runs, places)
            yield from _idle(network, idle_s)
            for name in names:
                queue.add(runs, plan, name)
            results = [runs / name / "result.json" for name in names]
            _until(lambda: all(map(_is_finished, results)), network, f"{n_runs} runs at {address}")
            kept = [place / "results" for place in places.values()]
            _until(lambda: all(len([*one.glob("*/edges.csv")]) == n_runs for one in kept), network, "results at sites")
        yield _in_a_row([runs / name for name in names])


def _federation(folder: Path, n_runs: int) -> tuple[Plan, dict[str, Path]]:
    """Three enrolled sites that have approved so many runs of a plan."""
    tables = synthesise(8, 8, len(_SITES), _ROWS, 2)
    files = write_federation(tables, folder / "tables")
    settings = ["n_participants=3", "privacy.feature_bounds=[100]", "privacy.delta=1e-6"]
    plan = Plan.load("private-steps", settings, epsilon=0.5)
    plan = plan.with_settings(sites=_SITES, variables=tables.variables)
    federation = Federation.create(folder / "federation", name="bench", hosts=("127.0.0.1",), days=_DAYS, ca_days=_DAYS)
    places: dict[str, Path] = {}
    for site, file in zip(_SITES, files, strict=True):
        place = places[site] = folder / site
        site_folder.create(place, site=site, data=file, dataset_id="d", max_epsilon=100.0, max_delta=1e-6)
        bundle = federation.approve(identity.request(place, Name("bench", site)), days=_DAYS)
        identity.enrol(place, bundle, expected_fingerprint=federation.fingerprint)
        with site_folder.opened(place) as (_, ledger):
            terms = Terms.of(plan, "d", n_samples=_ROWS, n_variables=len(tables.variables), runs=n_runs)
            ledger.approve(plan.digest(), plan.name, terms)
    return plan, places


def _started(network: LocalNetwork, folder: Path, runs: Path, places: dict[str, Path]) -> str:
    address_file = folder / "address"
    serve = ["coordinator", "serve", f"--runs={runs}", f"--federation={folder / 'federation'}", "--at-once=1"]
    network.start("coordinator", [*serve, "--listen=127.0.0.1:0", f"--address-file={address_file}"])
    _until(address_file.exists, network, "the coordinator")
    address = address_file.read_text(encoding="utf-8")
    for site, place in places.items():
        network.start(site, ["participant", "agent", place, f"--coordinator={address}"])
    return address


def _idle(network: LocalNetwork, idle_s: float) -> Iterator[Row]:
    time.sleep(5.0)  # until all libraries are loaded
    before = {name: Reading.of(network.pid(name)) for name in ("coordinator", _SITES[0])}
    time.sleep(idle_s)
    for name, was in before.items():
        now = Reading.of(network.pid(name))
        yield {
            "figure": "idle coordinator with three agents" if name == "coordinator" else "idle agent",
            "resident MiB": round(now.resident_bytes / MIB),
            "share of a processor": f"{(now.cpu_s - was.cpu_s) / idle_s:.2%}",
        }


def _in_a_row(folders: list[Path]) -> Row:
    spans = [_span(folder) for folder in folders]
    beyond = [(after[0] - before[1]).total_seconds() for before, after in itertools.pairwise(spans)]
    rounds = [(last - first).total_seconds() for first, last in spans]
    return {
        "figure": f"{len(folders)} private runs in a row, three agents, TLS",
        "seconds in all": round((spans[-1][1] - spans[0][0]).total_seconds(), 1),
        "seconds in the rounds of a run": round(statistics.median(rounds), 2),
        "rounds of a run": sum('"event": "round"' in line for line in _events(folders[0])),
        "seconds a run beyond its rounds, median": round(statistics.median(beyond), 2),
        "largest": round(max(beyond), 2),
    }


def _span(folder: Path) -> tuple[datetime, datetime]:
    """When the first round of a run was asked, and when the last one was complete."""
    events = [json.loads(line) for line in _events(folder)]
    began = next(one["time"] for one in events if one["event"] == "started")
    return datetime.fromisoformat(began), datetime.fromisoformat(
        [one["time"] for one in events if one["event"] == "round"][-1]
    )


def _events(folder: Path) -> list[str]:
    return (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()


def _is_finished(result: Path) -> bool:
    return result.exists() and json.loads(result.read_text(encoding="utf-8"))["state"] == "finished"


def _until(holds: Callable[[], bool], network: LocalNetwork, what: str) -> None:
    end = time.monotonic() + _DEADLINE_S
    while not holds():
        network.check()
        if time.monotonic() > end:
            raise FedbnslError(f"not within {_DEADLINE_S:g} s: {what}")
        time.sleep(0.1)
