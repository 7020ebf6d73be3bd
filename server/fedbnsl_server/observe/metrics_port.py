"""The metrics of a coordinator's runs, for Prometheus (`--metrics`)."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedbnsl.web import metrics_port
from fedbnsl_server.observe.prometheus import Look, RunCollector, Totals

if TYPE_CHECKING:
    from fedbnsl_server.identity.enrolment import Federation


class MetricsPort(metrics_port.MetricsPort):
    """The port of the metrics of runs.

    Parameters
    ----------
    address, token_file
        See `fedbnsl.web.metrics_port.MetricsPort`.
    federation
        Whose server certificate a scraper sees; needed with a token.

    Attributes
    ----------
    look
        Gives the current statuses by the runs' names; at first None.
    totals
        Where the counts of the security log come from; at first there are none.
    """

    def __init__(self, address: str, *, token_file: Path | None = None, federation: "Federation | None" = None) -> None:
        self.look: Look = lambda: None
        self.totals: Totals = dict
        collector = RunCollector(lambda: self.look(), lambda: self.totals())
        secure = None if federation is None else federation.server_tls()
        super().__init__(address, collector, token_file=token_file, secure=secure, needs="--federation")
