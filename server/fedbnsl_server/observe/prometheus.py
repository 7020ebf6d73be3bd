"""Where a run stands, for Prometheus: text over HTTP."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Self

from prometheus_client import CollectorRegistry, start_wsgi_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedbnsl.channel import split_address
from fedbnsl.errors import SetupError
from fedbnsl.messages import RUN_STATES, RunStatus
from fedbnsl_server.observe.terminal import ZCDP_PER_UNIT

_LOOK_S = 2.0

Look = Callable[[], RunStatus | None]


class RunCollector(Collector):
    """The metrics of one run, made from its status whenever they are asked for.

    Parameters
    ----------
    look
        The present status, or None while there is none; called from threads of its own.
    """

    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterable[Metric]:
        """One sample each, and one a site."""
        status = self._look()
        yield GaugeMetricFamily("fedbnsl_up", "Whether the coordinator answers.", value=float(status is not None))
        if status is None:
            return
        yield GaugeMetricFamily("fedbnsl_round", "The round in progress.", value=status.round)
        yield GaugeMetricFamily("fedbnsl_rounds", "How many rounds the run has.", value=status.rounds)
        yield GaugeMetricFamily("fedbnsl_acyclicity", "h(W) after the last round.", value=status.acyclicity)
        yield GaugeMetricFamily("fedbnsl_edges", "Edges after the last round.", value=status.edges)
        yield GaugeMetricFamily("fedbnsl_elapsed_seconds", "Time since the first round.", value=status.elapsed_s)
        state = GaugeMetricFamily("fedbnsl_run_state", "1 for the state of the run.", labels=["state"])
        for name in RUN_STATES:
            state.add_metric([name], float(name == status.state))
        yield state
        yield from _of_sites(status)


def _of_sites(status: RunStatus) -> Iterable[Metric]:
    sent = CounterMetricFamily(
        "fedbnsl_site_bytes", "Serialised updates (up) and tasks (down).", labels=["site", "direction"]
    )
    last_seen = GaugeMetricFamily("fedbnsl_site_last_seen_seconds", "Time since the site's last call.", labels=["site"])
    online = GaugeMetricFamily("fedbnsl_site_online", "Whether the site is there.", labels=["site"])
    last_round = GaugeMetricFamily("fedbnsl_site_last_round", "The last round the site answered.", labels=["site"])
    spent = GaugeMetricFamily(
        "fedbnsl_site_spent_zcdp",
        "Privacy spent from the site's dataset in this federation, as its ledger told it last.",
        labels=["site"],
    )
    for site in status.sites:
        sent.add_metric([site.site, "up"], site.bytes_up)
        sent.add_metric([site.site, "down"], site.bytes_down)
        last_seen.add_metric([site.site], site.last_seen_s)
        online.add_metric([site.site], float(site.online_s > 0))
        last_round.add_metric([site.site], site.last_round)
        if site.spent_units is not None:
            spent.add_metric([site.site], site.spent_units * ZCDP_PER_UNIT)
    yield from (sent, last_seen, online, last_round, spent)


class MetricsPort:
    """An HTTP server for a scraper, in threads of its own.

    Parameters
    ----------
    address
        host:port; port 0 takes a free one.

    Attributes
    ----------
    look
        Where a status comes from; at first there is none.
    port
        The real one.

    Raises
    ------
    SetupError
        If it cannot listen there.
    """

    def __init__(self, address: str) -> None:
        self.look: Look = lambda: None
        registry = CollectorRegistry()
        registry.register(RunCollector(lambda: self.look()))
        try:
            host, port = split_address(address)
            self._server, self._thread = start_wsgi_server(port, host, registry)
        except (SetupError, OSError) as error:
            raise SetupError(f"--metrics: cannot listen on {address!r}: {error}") from None
        self.port = self._server.server_port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def from_loop(loop: asyncio.AbstractEventLoop, look: Callable[[], RunStatus]) -> Look:
    """Let any thread call `look`, which must run on the event loop; None if the loop has ended or is too busy."""

    def ask() -> RunStatus | None:
        answer: Future[RunStatus] = Future()
        try:
            loop.call_soon_threadsafe(lambda: answer.set_result(look()))
            return answer.result(_LOOK_S)
        except (RuntimeError, TimeoutError):
            return None

    return ask
