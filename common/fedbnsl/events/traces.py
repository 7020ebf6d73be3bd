"""The course of runs as OpenTelemetry traces, for a collector that the operator names (extra `otel`).

At the coordinator a run is a span, in it are its rounds, and in each of them its sites: from the question to the site's
answer. At a site a run is a span, and in it are its rounds: from the question to what is released.

A collector gets names, numbers of rounds, bytes and edges, and times. It gets no text, no name of a dataset, no spent
privacy and nothing of a table. One that is away costs the run nothing but what it would have been told.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, set_span_in_context
from opentelemetry.trace.status import StatusCode

from fedbnsl import __version__
from fedbnsl.console.shown import shown
from fedbnsl.errors import InterruptedRunError, SetupError
from fedbnsl.events.emitter import Event
from fedbnsl.protocol.channel import require_loopback, split_address

_log = logging.getLogger(__name__)

_PATH = "/v1/traces"
_PORTS = {"http": 80, "https": 443}
_ANSWER_WITHIN_S = 3.0
_LAST_WAIT_S = 5.0
_EVERY_S = 5.0
_MOST_WAITING = 8192  # spans; those of a round of a thousand sites come at once
_AT_ONCE = 512


def checked_endpoint(url: str) -> str:
    """The address that spans are sent to: a URL over TLS, or on this machine; without a path, OTLP's own is added.

    Raises SetupError for any other address.
    """
    expected = "expected https://host[:port], or http://127.0.0.1:4318 for a collector on this machine"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SetupError(f"--traces {url!r}: {expected}") from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment:
        raise SetupError(f"--traces {url!r}: {expected}")
    if "@" in parts.netloc:
        raise SetupError(
            "--traces: an address holds no password: others on this machine can read it",
            remedy="Put a token into the variable OTEL_EXPORTER_OTLP_HEADERS, such as Authorization=Bearer%20TOKEN.",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = f"{host}:{_PORTS[parts.scheme] if port is None else port}"
    try:
        split_address(address)
        if parts.scheme == "http":
            require_loopback(address)
    except SetupError as error:
        raise SetupError(f"--traces {url!r}: {error}", remedy=f"{expected.capitalize()}.") from None
    # Put together again: what was checked is what is called, whatever else a library reads in a URL.
    return f"{parts.scheme}://{address}{parts.path if parts.path.strip('/') else _PATH}"


@dataclass
class _RunSpans:
    """The spans of a run that have not ended; `asked` is the number of the open round."""

    run: Span
    round: Span | None = None
    asked: int = 0
    sites: dict[str, Span] = field(default_factory=dict[str, Span])


class Traces:
    """Listens to events and makes spans of them, for a processor that does not wait."""

    def __init__(self, processor: SpanProcessor, *, service: str) -> None:
        # No default of the library's: it would read them from variables that this process may just have inherited,
        # and a resource detector could add the command line.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource({"service.name": service, "service.version": __version__}),
            shutdown_on_exit=False,
            meter_provider=NoOpMeterProvider(),
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("fedbnsl", __version__)
        self._lock = threading.Lock()
        self._runs: dict[str, _RunSpans] = {}
        self._heard: dict[str, Callable[[_RunSpans, Event], None]] = {
            "run started": self._run_started,
            "run joined": self._run_started,
            "round asked": self._round_asked,
            "site answered": self._site_answered,
            "released": self._released,
            "round over": self._round_over,
            "run over": self._run_over,
            **dict.fromkeys(("site joined", "site away", "site back", "site left", "paused", "goes on"), self._mark),
        }

    @classmethod
    def sent_to(cls, url: str, *, service: str) -> Self:
        """Traces for the collector at this address; see `checked_endpoint` for the errors."""
        exporter = _exporter(checked_endpoint(url))
        processor = BatchSpanProcessor(
            exporter,
            max_queue_size=_MOST_WAITING,
            schedule_delay_millis=_EVERY_S * 1000,
            max_export_batch_size=_AT_ONCE,
            export_timeout_millis=_ANSWER_WITHIN_S * 1000,
            meter_provider=NoOpMeterProvider(),
        )
        return cls(processor, service=service)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        """Begin, end or mark the spans that this event is about."""
        heard = self._heard.get(event.kind)
        if heard is None:
            return
        with self._lock:
            spans = self._runs.get(event.run)
            if spans is None:
                run = self._tracer.start_span(
                    "run", attributes={"fedbnsl.run": shown(event.run)}, start_time=_ns(event.time_unix_s)
                )
                spans = self._runs[event.run] = _RunSpans(run)
            heard(spans, event)

    def close(self) -> None:
        """End what is open, and wait a while until the collector has it."""
        with self._lock:
            for spans in self._runs.values():
                _end_round(spans, None)
                spans.run.end()
            self._runs.clear()
        # Of its own, for the library waits 30 s where a collector is away.
        last = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        last.start()
        last.join(_LAST_WAIT_S)
        if last.is_alive():
            _log.warning("the last traces may be lost: their collector does not answer")

    def _run_started(self, spans: _RunSpans, event: Event) -> None:
        spans.run.set_attributes(_attributes(event.fields, plan="plan", rounds="rounds"))
        spans.run.add_event(event.kind, timestamp=_ns(event.time_unix_s))

    def _round_asked(self, spans: _RunSpans, event: Event) -> None:
        _end_round(spans, event)  # one that is asked again, after sites could not take part
        now = _ns(event.time_unix_s)
        names = [str(name) for name in event.fields.get("sites", ())]
        about = _attributes(event.fields, round="round", stage="stage")
        spans.round = self._tracer.start_span("round", set_span_in_context(spans.run), attributes=about, start_time=now)
        spans.asked = int(event.fields["round"])
        for name in names:
            spans.sites[name] = self._tracer.start_span(
                "site",
                set_span_in_context(spans.round),
                attributes={**about, "fedbnsl.site": name},
                start_time=now,
            )

    def _site_answered(self, spans: _RunSpans, event: Event) -> None:
        if event.fields["round"] != spans.asked:
            return
        span = spans.sites.pop(event.fields["site"], None)  # None: it answered before
        if span is not None:
            span.set_attributes({**_attributes(event.fields, n_bytes="bytes"), "fedbnsl.answered": True})
            span.end(_ns(event.time_unix_s))

    def _released(self, spans: _RunSpans, event: Event) -> None:
        if spans.round is not None and event.fields["round"] == spans.asked:
            spans.round.set_attributes(_attributes(event.fields, n_bytes="bytes", again="again"))
            _end_round(spans, event)

    def _round_over(self, spans: _RunSpans, event: Event) -> None:
        if spans.round is None or event.fields["round"] != spans.asked:
            return
        spans.round.set_attributes(
            _attributes(event.fields, acyclicity="acyclicity", edges="edges", undirected="undirected", n_bytes="bytes")
        )
        spans.round.set_attribute("fedbnsl.contributed", len(event.fields.get("contributed", ())))
        _end_round(spans, event)

    def _run_over(self, spans: _RunSpans, event: Event) -> None:
        _end_round(spans, event)
        # The outcome alone: a reason is a text, and that of a site's refusal is the site's own.
        outcome = str(event.fields.get("outcome", ""))
        finished = outcome == "finished"
        spans.run.set_attribute("fedbnsl.finished", finished)
        if not finished and outcome not in ("interrupted", InterruptedRunError.__name__):  # it is neither's fault
            spans.run.set_status(StatusCode.ERROR)
        spans.run.end(_ns(event.time_unix_s))
        del self._runs[event.run]

    def _mark(self, spans: _RunSpans, event: Event) -> None:
        spans.run.add_event(event.kind, _attributes(event.fields, site="site"), _ns(event.time_unix_s))


def _end_round(spans: _RunSpans, event: Event | None) -> None:
    """End the open round and the spans of the sites that have not answered; None: now."""
    now = None if event is None else _ns(event.time_unix_s)
    for span in spans.sites.values():
        span.set_attribute("fedbnsl.answered", value=False)
        span.end(now)
    spans.sites.clear()
    if spans.round is not None:
        spans.round.end(now)
    spans.round, spans.asked = None, 0


def _attributes(fields: Mapping[str, Any], **names: str) -> dict[str, str | int | float | bool]:
    """Those of the named fields that are there, under our own prefix."""
    found = {f"fedbnsl.{attribute}": fields[name] for name, attribute in names.items() if name in fields}
    return {name: value for name, value in found.items() if isinstance(value, str | int | float)}


def _ns(time_unix_s: float) -> int:
    return int(time_unix_s * 1e9)


def _exporter(endpoint: str) -> SpanExporter:
    session = requests.Session()
    session.trust_env = False  # a proxy of the environment would carry plaintext to another machine
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # a line for each attempt; `_Told` says it once
    return _Told(OTLPSpanExporter(endpoint, timeout=_ANSWER_WITHIN_S, session=session), endpoint)


class _Told(SpanExporter):
    """Says once that a collector is away, and once that it is back."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._away = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        away = result is not SpanExportResult.SUCCESS
        if away and not self._away:
            _log.warning("traces cannot be sent to %s; the run goes on, and what was not sent is lost", self._endpoint)
        elif self._away and not away:
            _log.warning("traces can be sent to %s again", self._endpoint)
        self._away = away
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
