"""What a coordinator's page costs: bytes, the time until a browser shows it, and what viewers take from a run.

Rounds with and without viewers are of one run, in turns, so that what else the machine does hits all alike.
"""

import shutil
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl.web.assets import Assets
from fedbnsl_research.bench.processes import Reading
from fedbnsl_research.bench.viewers import Viewers
from fedbnsl_research.trials.harness import Row
from fedbnsl_server.observe.status_client import Observer
from fedbnsl_workbench import localnet
from fedbnsl_workbench.tables.folder import site_files, write_federation
from fedbnsl_workbench.tables.synthetic import synthesise

_SITES = 3
_ROUNDS = 65_000  # more than are played: the run is ended when all is measured
_WARM_ROUNDS = 100
_TURNS = 5
_TURN_S = 8.0
_SETTLE_S = 1.5
_PAINTS = 5
_WAIT_S = 180.0
_POLL_S = 0.05
_PAGES = ("fedbnsl.web", "fedbnsl_server.observe.page")


def pages(turn_s: float = _TURN_S, turns: int = _TURNS) -> Iterator[Row]:
    """Two runs with a page, d=20 and d=100.

    Parameters
    ----------
    turn_s
        Seconds for each number of viewers.
    turns
        How often each number of viewers has its turn.
    """
    sizes = Assets(*_PAGES).sizes()
    of_run = [size for name, size in sizes.items() if name not in ("login.html", "runs.html", "runs.js")]
    yield {
        "figure": "the files of a run's page",
        "kB": round(sum(plain for plain, _ in of_run) / 1e3, 1),
        "kB as sent": round(sum(packed for _, packed in of_run) / 1e3, 1),
        "files": len(of_run),
    }
    for d in (20, 100):
        yield from _of_run(d, turn_s, turns)


def _of_run(d: int, turn_s: float, turns: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch, localnet.LocalNetwork(Path(scratch, "logs")) as network:
        made = synthesise(d, d, _SITES, 500, 2)
        write_federation(made, Path(scratch, "data"))
        plan = Plan.load("fed-sparse").with_settings(n_participants=_SITES, rounds=_ROUNDS, variables=made.variables)
        out = Path(scratch, "run")
        address = localnet.start_coordinator(network, plan, out, seeds={}, web="127.0.0.1:0")
        for site, table in site_files(Path(scratch, "data")).items():
            join = ["participant", "join", address, "--insecure", f"--site={site}", f"--data={table}", "--public-data"]
            network.start(site, join)
        url = f"{localnet.page_of(network)}runs/{out.name}"
        with closing(Observer(address)) as observer:
            run = _Run(network, observer)
            run.wait_for_round(_WARM_ROUNDS)
            yield _state(d, url)
            yield _first_paint(d, url)
            yield from _viewers(d, url, run, turn_s, turns)


class _Run:
    """The rounds of a coordinator, and what its process takes."""

    def __init__(self, network: localnet.LocalNetwork, observer: Observer) -> None:
        self._network, self._observer = network, observer
        self._pid = network.pid(localnet.COORDINATOR)

    def round(self) -> int:
        """The round in progress."""
        self._network.check()
        status = self._observer.status()
        return 0 if status is None else status.round

    def wait_for_round(self, t: int) -> None:
        """Until round t is reached."""
        until = time.monotonic() + _WAIT_S
        while self.round() < t:
            if time.monotonic() > until:
                raise ResultError(f"round {t} was not reached within {_WAIT_S:g} s")
            time.sleep(_POLL_S)

    def cost(self, seconds: float) -> tuple[float, float, float]:
        """Seconds a round, the coordinator's share of a processor, and its processor seconds a round, for a while."""
        began, first, before = time.perf_counter(), self.round(), Reading.of(self._pid)
        time.sleep(seconds)
        last, after = self.round(), Reading.of(self._pid)
        took_s, rounds, cpu_s = time.perf_counter() - began, max(1, last - first), after.cpu_s - before.cpu_s
        return took_s / rounds, cpu_s / took_s, cpu_s / rounds


def _state(d: int, url: str) -> Row:
    """What a new viewer is sent, beside the files."""
    with urllib.request.urlopen(f"{url}/state.json", timeout=30) as reply:  # noqa: S310  # our own, on loopback
        text = reply.read()
    return {
        "figure": f"what a viewer is sent at first, d={d}, after {_WARM_ROUNDS} rounds",
        "kB": round(len(text) / 1e3, 1),
    }


def _first_paint(d: int, url: str) -> Row:
    """From the request to what Chromium calls the first contentful paint; the one in the middle of a few."""
    figure = f"first paint in Chromium, d={d}, while rounds are played"
    program = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    try:
        playwright: Any = import_module("playwright.sync_api")
    except ImportError:
        return {"figure": figure, "ms": None, "skipped": "playwright is not installed"}
    if program is None:
        return {"figure": figure, "ms": None, "skipped": "chromium is not installed"}
    paints: list[float] = []
    named: list[float] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for _ in range(_PAINTS):
            page = browser.new_page()  # a context of its own: nothing is kept from the page before
            began = time.perf_counter()
            page.goto(url)
            page.locator("#sites tr").first.wait_for(state="attached")
            named.append(time.perf_counter() - began)
            paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
            page.wait_for_timeout(500)
            seen = page.evaluate(paint)
            if seen is not None:
                paints.append(float(seen))
            page.close()
        browser.close()
    return {
        "figure": figure,
        "ms": round(statistics.median(paints)) if paints else None,
        "ms until the sites are shown": round(1e3 * statistics.median(named)),
    }


def _viewers(d: int, url: str, run: _Run, turn_s: float, turns: int) -> Iterator[Row]:
    """Rounds with so many viewers against rounds without any."""
    at = urlsplit(url)
    address, path = (at.hostname or "", at.port or 0), f"{at.path}/events"
    cases = {"no viewers": (0, False), "10 viewers": (10, False), "50 viewers": (50, False), "50 that hang": (50, True)}
    costs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, (n, hang) in cases.items():
            looking: AbstractContextManager[object] = Viewers(address, path, n, hang=hang) if n else nullcontext()
            with looking:
                time.sleep(_SETTLE_S)
                costs[name].append(run.cost(turn_s))
    alone_s, _, alone_cpu_s = (statistics.median(values) for values in zip(*costs["no viewers"], strict=True))
    for name, measured in costs.items():
        round_s, share, _ = (statistics.median(values) for values in zip(*measured, strict=True))
        # What they take in a second: beside the rounds, of which there may be fewer in it.
        taken = share - alone_cpu_s / round_s
        yield {
            "figure": f"rounds with {name}, d={d}, {_SITES} sites on one machine",
            "ratio to no viewers": round(round_s / alone_s, 3),
            "ms a round": round(1e3 * round_s, 1),
            "% of a processor, the coordinator": round(100 * share, 1),
            "% of a processor beside the rounds": round(100 * taken, 1),
        }
