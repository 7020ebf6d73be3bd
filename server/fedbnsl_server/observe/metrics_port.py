"""The metrics of a coordinator's runs, for Prometheus (`--metrics`)."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedbnsl.web import metrics_port
from fedbnsl_server.observe.prometheus import Look, RunCollector, Totals

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation


class MetricsPort(metrics_port.MetricsPort):
    """The port of the metrics of runs, over TLS under the federation's server certificate if there is a token."""

    def __init__(self, address: str, *, token_file: Path | None = None, federation: "Federation | None" = None) -> None:
        self.look: Look = lambda: None  # the current statuses by the runs' names; set once there are runs
        self.totals: Totals = dict  # the counts of the security log
        collector = RunCollector(lambda: self.look(), lambda: self.totals())
        secure = None if federation is None else federation.server_tls()
        super().__init__(address, collector, token_file=token_file, secure=secure, needs="--federation")
