"""Where a run stands, as the metrics that Prometheus asks for."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedbnsl.messages import RUN_STATES, RunStatus
from fedbnsl_server.observe.terminal import ZCDP_PER_UNIT

_LOOK_S = 2.0

Look = Callable[[], RunStatus | None]
Totals = Callable[[], Mapping[tuple[str, str], int]]


class RunCollector(Collector):
    """The metrics of one run, made from its status whenever they are asked for.

    Parameters
    ----------
    look
        The current status, or None while there is none; called from other threads.
    totals
        How often each event was counted in the security log, by event and reason; called likewise.
    """

    def __init__(self, look: Look, totals: Totals = dict) -> None:
        self._look, self._totals = look, totals

    def collect(self) -> Iterable[Metric]:
        """One sample each, and one a site."""
        status = self._look()
        yield from _of_log(self._totals())
        yield GaugeMetricFamily("fedbnsl_up", "Whether the coordinator answers.", value=float(status is not None))
        if status is None:
            return
        yield GaugeMetricFamily("fedbnsl_round", "The round in progress.", value=status.round)
        yield GaugeMetricFamily("fedbnsl_rounds", "How many rounds the run has.", value=status.rounds)
        yield GaugeMetricFamily("fedbnsl_acyclicity", "h(W) after the last round.", value=status.acyclicity)
        yield GaugeMetricFamily("fedbnsl_edges", "Edges after the last round.", value=status.edges)
        yield GaugeMetricFamily(
            "fedbnsl_undirected_edges", "Edges without a direction among them.", value=status.undirected
        )
        yield GaugeMetricFamily("fedbnsl_elapsed_seconds", "Time since the first round.", value=status.elapsed_s)
        state = GaugeMetricFamily("fedbnsl_run_state", "1 for the state of the run.", labels=["state"])
        for name in RUN_STATES:
            state.add_metric([name], float(name == status.state))
        yield state
        paused = GaugeMetricFamily("fedbnsl_run_paused", "What a paused run waits for.", labels=["reason"])
        if status.state == "paused":
            paused.add_metric([status.reason], 1.0)
        yield paused
        yield from _of_sites(status)


def _of_log(totals: Mapping[tuple[str, str], int]) -> Iterable[Metric]:
    """Nothing for one who watches from elsewhere: the log is the coordinator's."""
    if not totals:
        return
    refused = CounterMetricFamily("fedbnsl_refused_calls", "Calls that were refused, by reason.", labels=["why"])
    others = CounterMetricFamily("fedbnsl_security_events", "Other entries of the security log.", labels=["event"])
    by_event: dict[str, int] = {}
    for (event, why), times in sorted(totals.items()):
        if event == "refused":
            refused.add_metric([why], times)
        else:
            by_event[event] = by_event.get(event, 0) + times
    for event, times in by_event.items():
        others.add_metric([event], times)
    yield from (refused, others)


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
