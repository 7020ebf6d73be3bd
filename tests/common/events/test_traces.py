"""`--traces`: the course of a run as spans, and nothing of a table in them."""

import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fedbnsl.errors import SetupError
from fedbnsl.events import traces
from fedbnsl.events.emitter import Event
from fedbnsl.events.traces import Traces, checked_endpoint
from otlp_collector import Collector

START_S = 1_790_000_000.0


class Told:
    """Tells events of one run, a second after each other."""

    def __init__(self, listener: Traces, run: str = "cohort-1") -> None:
        self._listener, self._run, self._now_s = listener, run, START_S

    def __call__(self, kind: str, **fields: object) -> None:
        self._listener(Event(kind, self._run, fields, self._now_s))
        self._now_s += 1


class Kept:
    """Traces that are kept, and the spans of them that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.listener = Traces(SimpleSpanProcessor(self._exporter), service="fedbnsl-test")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()


@pytest.fixture
def kept() -> Kept:
    return Kept()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return {name.removeprefix("fedbnsl."): value for name, value in (span.attributes or {}).items()}


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time / 1e9 - START_S, span.end_time / 1e9 - START_S


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_a_run_at_the_coordinator_is_a_span_with_its_rounds_and_these_with_their_sites(kept: Kept) -> None:
    tell = Told(kept.listener)
    tell("site joined", site="north", n_samples=500)
    tell("run started", plan="ab12", rounds=2, variables=("age",), sites=["north", "south"], after_round=0)
    tell("round asked", round=1, stage="admm", sites=["north", "south"])
    tell("site answered", site="south", round=1, n_bytes=120)
    tell("site answered", site="north", round=1, n_bytes=130)
    over = {"acyclicity": 0.5, "edges": 7, "undirected": 1, "n_bytes": 900, "contributed": ("north", "south")}
    tell("round over", round=1, stage="admm", **over, local_s=1.0, global_s=0.1)
    tell("run over", outcome="finished", reason="")

    (run,), (one,) = kept.spans("run"), kept.spans("round")
    south, north = kept.spans("site")
    assert attributes(run) == {"run": "cohort-1", "plan": "ab12", "rounds": 2, "finished": True}
    assert attributes(one) == {
        "round": 1, "stage": "admm", "acyclicity": 0.5, "edges": 7, "undirected": 1, "bytes": 900,
        "contributed": 2,
    }  # fmt: skip
    assert attributes(north) == {"round": 1, "stage": "admm", "site": "north", "bytes": 130, "answered": True}
    assert (seconds(run), seconds(one), seconds(south), seconds(north)) == ((0, 6), (2, 5), (2, 3), (2, 4))
    assert parent_of(run) is None
    assert run.context is not None
    assert one.context is not None
    assert parent_of(one) == run.context.span_id
    assert parent_of(north) == parent_of(south) == one.context.span_id
    assert [mark.name for mark in run.events] == ["site joined", "run started"]
    assert dict(run.resource.attributes).keys() == {"service.name", "service.version"}


def test_a_round_at_a_site_goes_from_the_question_to_what_is_released(kept: Kept) -> None:
    tell = Told(kept.listener)
    tell("run joined", plan="ab12", rounds=1, dataset="secret-cohort")
    tell("round asked", round=1, stage="moments")
    tell("released", round=1, stage="moments", n_bytes=99, zcdp=0.25, again=False)
    tell("budget low", dataset="secret-cohort", spent_epsilon=4.5, max_epsilon=5.0)
    tell("run over", outcome="finished", reason="")
    (one,) = kept.spans("round")
    assert attributes(one) == {"round": 1, "stage": "moments", "bytes": 99, "again": False}
    assert seconds(one) == (1, 2)


def test_no_text_no_dataset_and_no_spent_privacy_reaches_a_collector(kept: Kept) -> None:
    tell = Told(kept.listener)
    tell("run joined", plan="ab12", rounds=1, dataset="secret-dataset")
    tell("site joined", site="north", n_samples=987_654)
    tell("round asked", round=1, stage="moments")
    tell("paused", reason="secret-reason")
    tell("notice", text="secret-text")
    tell("released", round=1, stage="moments", n_bytes=99, zcdp=0.123456, again=False)
    tell("budget low", dataset="secret-dataset", spent_epsilon=0.123456, max_epsilon=5.0)
    tell("not taken part", why="secret-rule")
    tell("run over", outcome="PolicyRefusal", reason="secret-reason")
    told = "".join(span.to_json() for span in kept.all())
    assert '"paused"' in told
    for secret in ("secret", "0.123456", "987654", "PolicyRefusal"):
        assert secret not in told


def test_a_site_that_does_not_answer_ends_with_its_round(kept: Kept) -> None:
    tell = Told(kept.listener)
    tell("round asked", round=1, stage="admm", sites=["north", "south"])
    tell("site answered", site="north", round=1, n_bytes=1)
    tell("site away", site="south")
    tell("round over", round=1, stage="admm", contributed=("north",))
    tell("site answered", site="south", round=1, n_bytes=1)  # too late
    answered = {attributes(span)["site"]: (attributes(span)["answered"], seconds(span)) for span in kept.spans("site")}
    assert answered == {"north": (True, (0, 1)), "south": (False, (0, 3))}


def test_a_round_that_is_asked_again_is_a_span_for_each_time(kept: Kept) -> None:
    tell = Told(kept.listener)
    tell("round asked", round=1, stage="admm", sites=["north"])
    tell("round asked", round=1, stage="admm", sites=["north"])
    tell("site answered", site="north", round=1, n_bytes=1)
    tell("round over", round=1, stage="admm", contributed=("north",))
    assert [seconds(span) for span in kept.spans("round")] == [(0, 1), (1, 3)]
    assert [attributes(span)["answered"] for span in kept.spans("site")] == [False, True]


@pytest.mark.parametrize(
    ("outcome", "is_error"),
    [("finished", False), ("interrupted", False), ("InterruptedRunError", False), ("failed", True)],
)
def test_only_a_run_that_fails_is_an_error(kept: Kept, outcome: str, *, is_error: bool) -> None:
    tell = Told(kept.listener)
    tell("run started", plan="ab12", rounds=1)
    tell("run over", outcome=outcome, reason="")
    (run,) = kept.spans("run")
    assert (run.status.is_ok, attributes(run)["finished"]) == (not is_error, outcome == "finished")


def test_runs_that_are_played_at_once_are_traces_of_their_own(kept: Kept) -> None:
    one, other = Told(kept.listener, "one"), Told(kept.listener, "other")
    one("run started", plan="a", rounds=1)
    other("run started", plan="b", rounds=1)
    one("round asked", round=1, stage="admm", sites=["north"])
    other("run over", outcome="finished", reason="")
    one("run over", outcome="interrupted", reason="")
    assert [attributes(span)["run"] for span in kept.spans("run")] == ["other", "one"]
    assert len({span.context.trace_id for span in kept.all() if span.context}) == 2
    (site,) = kept.spans("site")
    assert site.context is not None
    assert site.context.trace_id == kept.spans("run")[1].get_span_context().trace_id  # type: ignore[union-attr]


def test_what_is_open_at_the_end_of_the_process_is_ended(kept: Kept) -> None:
    tell = Told(kept.listener)
    tell("round asked", round=1, stage="admm", sites=["north"])
    kept.listener.close()
    assert [span.name for span in kept.all()] == ["site", "round", "run"]


# ---- where they are sent -------------------------------------------------------------------------------------------


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def tell_a_round(listener: Traces) -> None:
    now = Told(listener)
    now("run started", plan="ab12", rounds=1)
    now("round asked", round=1, stage="admm", sites=["north"])
    now("site answered", site="north", round=1, n_bytes=1)
    now("round over", round=1, stage="admm", contributed=("north",))
    now("run over", outcome="finished", reason="")


def test_a_collector_gets_the_spans_without_a_proxy_and_with_the_token_of_the_environment(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=inherited")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token")
    with Traces.sent_to(collector.url, service="fedbnsl-test") as listener:
        tell_a_round(listener)
    assert sorted(span.name for span in collector.spans()) == ["round", "run", "site"]
    assert {header["authorization"] for header in collector.headers} == {"Bearer token"}
    assert collector.paths == {"/v1/traces"}
    assert set(collector.resource()) == {"service.name", "service.version"}


def test_a_collector_that_redirects_is_not_followed(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    with Collector(redirect=collector.url) as redirecting:
        with Traces.sent_to(redirecting.url, service="fedbnsl-test") as listener:
            tell_a_round(listener)
        assert redirecting.paths
    assert collector.spans() == []


def test_a_collector_that_is_away_is_said_once_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traces, "_LAST_WAIT_S", 60.0)  # the test waits for the end of the attempts
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Traces.sent_to(f"http://127.0.0.1:{port}", service="fedbnsl-test") as listener:
        tell_a_round(listener)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"traces cannot be sent to http://127.0.0.1:{port}/v1/traces; the run goes on, and what was not sent is lost"
    ]


@pytest.mark.long
def test_a_collector_that_never_answers_does_not_keep_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traces, "_LAST_WAIT_S", 0.2)
    monkeypatch.setattr(traces, "_ANSWER_WITHIN_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        listener = Traces.sent_to(f"http://127.0.0.1:{silent.getsockname()[1]}", service="fedbnsl-test")
        tell_a_round(listener)
        listener.close()
        assert "the last traces may be lost" in caplog.text
        assert all(thread.daemon for thread in threading.enumerate() if "Otel" in thread.name)
    until = time.monotonic() + 60  # the connection is cut: the library's thread ends
    while any("Otel" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("url", "called"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
        ("https://collector.example", "https://collector.example:443/v1/traces"),
        ("HTTPS://Collector.example:8443/otlp/v1/traces", "https://collector.example:8443/otlp/v1/traces"),
    ],
)
def test_an_endpoint_is_on_this_machine_or_behind_tls(url: str, called: str) -> None:
    assert checked_endpoint(url) == called


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.1:4318",
        "http://127.0.0.1:4318@192.0.2.1/",
        "http://127.0.0.1:4318\\@192.0.2.1/",
        "https://user:password@collector.example",
        "grpc://127.0.0.1:4317",
        "127.0.0.1:4318",
        "https://",
        "https://a b",
        "https://collector.example:99999",
        "https://collector.example/?to=elsewhere",
        "http://[::1",
        "",
    ],
)
def test_any_other_endpoint_is_refused(url: str) -> None:
    with pytest.raises(SetupError, match="--traces") as refused:
        checked_endpoint(url)
    assert "password@" not in str(refused.value)
