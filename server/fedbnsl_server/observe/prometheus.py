"""Where a run stands, as the metrics that Prometheus asks for."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedbnsl.privacy.zcdp import zcdp_of
from fedbnsl.protocol.messages import RUN_STATES, Phase, RunStatus, SiteProgress
from fedbnsl.web import metrics_port

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation

Look = Callable[[], Mapping[str, RunStatus] | None]
Totals = Callable[[], Mapping[tuple[str, str], int]]


class RunCollector(Collector):
    """The metrics of runs, made whenever they are asked for, in other threads.

    `look` gives the runs' statuses by name, or None if the coordinator does not answer; `totals` the counts of the
    security log, by event and reason.
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
        states = [([run, name], float(name == one.state)) for run, one in runs.items() for name in RUN_STATES]
        yield _gauge("fedbnsl_run_state", "1 for the state of the run.", ("run", "state"), states)
        paused = [([run, one.reason], 1.0) for run, one in runs.items() if one.state == "paused"]
        yield _gauge("fedbnsl_run_paused", "What a paused run waits for.", ("run", "reason"), paused)
        phases = [([run, one.phase.what], one.phase) for run, one in runs.items() if one.phase is not None]
        for name, what, of_phase in _OF_PHASE:
            yield _gauge(name, what, ("run", "phase"), [(labels, of_phase(phase)) for labels, phase in phases])
        for name, what, of_run in _OF_RUN:
            yield _gauge(name, what, ("run",), [([run], of_run(one)) for run, one in runs.items()])
        sites = [([run, site.site], site) for run, one in runs.items() for site in one.sites]
        sent = CounterMetricFamily(
            "fedbnsl_site_bytes", "Serialised updates (up) and tasks (down).", labels=["run", "site", "direction"]
        )
        for labels, site in sites:
            sent.add_metric([*labels, "up"], site.bytes_up)
            sent.add_metric([*labels, "down"], site.bytes_down)
        yield sent
        for name, what, of_site in _OF_SITE:
            yield _gauge(name, what, ("run", "site"), [(labels, of_site(site)) for labels, site in sites])


def _gauge(
    name: str, what: str, labels: Sequence[str], samples: Iterable[tuple[list[str], float | None]]
) -> GaugeMetricFamily:
    """A family with these samples, but for those that are not known."""
    family = GaugeMetricFamily(name, what, labels=labels)
    for values, number in samples:
        if number is not None:
            family.add_metric(values, number)
    return family


_OF_RUN: tuple[tuple[str, str, Callable[[RunStatus], float]], ...] = (
    ("fedbnsl_round", "The round in progress.", lambda run: run.round),
    ("fedbnsl_rounds", "How many rounds the run has.", lambda run: run.rounds),
    ("fedbnsl_acyclicity", "h(W) after the last round.", lambda run: run.acyclicity),
    ("fedbnsl_edges", "Edges after the last round.", lambda run: run.edges),
    ("fedbnsl_undirected_edges", "Edges without a direction among them.", lambda run: run.undirected),
    ("fedbnsl_elapsed_seconds", "Time since the first round.", lambda run: run.elapsed_s),
)
_OF_PHASE: tuple[tuple[str, str, Callable[[Phase], float | None]], ...] = (
    ("fedbnsl_phase_seconds", "Time since the present phase began.", lambda phase: phase.elapsed_s),
    ("fedbnsl_phase_share", "Share of the present phase that is done.", lambda phase: phase.share),
    ("fedbnsl_phase_left_seconds", "Time that the present phase still takes.", lambda phase: phase.left_s),
)
_OF_SITE: tuple[tuple[str, str, Callable[[SiteProgress], float | None]], ...] = (
    ("fedbnsl_site_last_seen_seconds", "Time since the site's last call.", lambda site: site.last_seen_s),
    ("fedbnsl_site_online", "Whether the site is there.", lambda site: float(site.online_s > 0)),
    ("fedbnsl_site_last_round", "The last round the site answered.", lambda site: site.last_round),
    (
        "fedbnsl_site_spent_zcdp",
        "Privacy spent from the site's dataset in this federation, as its ledger told it last.",
        lambda site: None if site.spent_units is None else zcdp_of(site.spent_units),
    ),
)


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


class MetricsPort(metrics_port.MetricsPort):
    """The port of the metrics of runs, over TLS under the federation's server certificate if there is a token."""

    def __init__(self, address: str, *, token_file: Path | None = None, federation: "Federation | None" = None) -> None:
        self.look: Look = lambda: None  # the current statuses by the runs' names; set once there are runs
        self.totals: Totals = dict  # the counts of the security log
        self.of_page: Totals = dict  # those whom the page refused
        collector = RunCollector(lambda: self.look(), lambda: Counter(self.totals()) + Counter(self.of_page()))
        secure = None if federation is None else federation.server_tls()
        super().__init__(address, collector, token_file=token_file, secure=secure, needs="--federation")
