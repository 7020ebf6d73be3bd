"""Where a run stands, as the metrics that Prometheus asks for."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedbnsl.protocol.messages import RUN_STATES, RunStatus
from fedbnsl_server.observe.terminal import ZCDP_PER_UNIT

Look = Callable[[], Mapping[str, RunStatus] | None]
Totals = Callable[[], Mapping[tuple[str, str], int]]


class RunCollector(Collector):
    """The metrics of runs, made from their statuses whenever they are asked for.

    Parameters
    ----------
    look
        The current statuses by the runs' names, or None if there are none to be had; called from other threads.
    totals
        How often each event was counted in the security log, by event and reason; called likewise.
    """

    def __init__(self, look: Look, totals: Totals = dict) -> None:
        self._look, self._totals = look, totals

    def collect(self) -> Iterable[Metric]:
        """Samples of each run, and of each of its sites, with the run's name."""
        runs = self._look()
        yield from _of_log(self._totals())
        yield GaugeMetricFamily("fedbnsl_up", "Whether the coordinator answers.", value=float(runs is not None))
        if runs is None:
            return
        state = GaugeMetricFamily("fedbnsl_run_state", "1 for the state of the run.", labels=["run", "state"])
        paused = GaugeMetricFamily("fedbnsl_run_paused", "What a paused run waits for.", labels=["run", "reason"])
        for run, status in runs.items():
            for name in RUN_STATES:
                state.add_metric([run, name], float(name == status.state))
            if status.state == "paused":
                paused.add_metric([run, status.reason], 1.0)
        yield from (state, paused)
        yield from _of_phases(runs)
        for name, what, value in _NUMBERS:
            family = GaugeMetricFamily(name, what, labels=["run"])
            for run, status in runs.items():
                family.add_metric([run], value(status))
            yield family
        yield from _of_sites(runs)


_NUMBERS: tuple[tuple[str, str, Callable[[RunStatus], float]], ...] = (
    ("fedbnsl_round", "The round in progress.", lambda status: status.round),
    ("fedbnsl_rounds", "How many rounds the run has.", lambda status: status.rounds),
    ("fedbnsl_acyclicity", "h(W) after the last round.", lambda status: status.acyclicity),
    ("fedbnsl_edges", "Edges after the last round.", lambda status: status.edges),
    ("fedbnsl_undirected_edges", "Edges without a direction among them.", lambda status: status.undirected),
    ("fedbnsl_elapsed_seconds", "Time since the first round.", lambda status: status.elapsed_s),
)


def _of_phases(runs: Mapping[str, RunStatus]) -> Iterable[Metric]:
    """What takes time; a share and a time left only where they are known."""
    one = ["run", "phase"]
    elapsed = GaugeMetricFamily("fedbnsl_phase_seconds", "Time since the present phase began.", labels=one)
    share = GaugeMetricFamily("fedbnsl_phase_share", "Share of the present phase that is done.", labels=one)
    left = GaugeMetricFamily("fedbnsl_phase_left_seconds", "Time that the present phase still takes.", labels=one)
    for run, status in runs.items():
        phase = status.phase
        if phase is None:
            continue
        elapsed.add_metric([run, phase.what], phase.elapsed_s)
        if phase.share is not None:
            share.add_metric([run, phase.what], phase.share)
        if phase.left_s is not None:
            left.add_metric([run, phase.what], phase.left_s)
    yield from (elapsed, share, left)


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


def _of_sites(runs: Mapping[str, RunStatus]) -> Iterable[Metric]:
    one = ["run", "site"]
    sent = CounterMetricFamily(
        "fedbnsl_site_bytes", "Serialised updates (up) and tasks (down).", labels=[*one, "direction"]
    )
    last_seen = GaugeMetricFamily("fedbnsl_site_last_seen_seconds", "Time since the site's last call.", labels=one)
    online = GaugeMetricFamily("fedbnsl_site_online", "Whether the site is there.", labels=one)
    last_round = GaugeMetricFamily("fedbnsl_site_last_round", "The last round the site answered.", labels=one)
    spent = GaugeMetricFamily(
        "fedbnsl_site_spent_zcdp",
        "Privacy spent from the site's dataset in this federation, as its ledger told it last.",
        labels=one,
    )
    for run, status in runs.items():
        for site in status.sites:
            of = [run, site.site]
            sent.add_metric([*of, "up"], site.bytes_up)
            sent.add_metric([*of, "down"], site.bytes_down)
            last_seen.add_metric(of, site.last_seen_s)
            online.add_metric(of, float(site.online_s > 0))
            last_round.add_metric(of, site.last_round)
            if site.spent_units is not None:
                spent.add_metric(of, site.spent_units * ZCDP_PER_UNIT)
    yield from (sent, last_seen, online, last_round, spent)
