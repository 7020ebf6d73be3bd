"""A collector of traces on loopback, which keeps what it is sent (OTLP over HTTP)."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Listens until the end of the context; with `redirect` it sends callers there and keeps nothing."""

    def __init__(self, *, redirect: str = "") -> None:
        self.headers: list[dict[str, str]] = []
        self.paths: set[str] = set()
        self._requests: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.add(self.path)
                if redirect:
                    self.send_response(307)
                    self.send_header("Location", f"{redirect}/v1/traces")
                else:
                    collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                    collector._requests.append(ExportTraceServiceRequest.FromString(body))
                    self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self, service: str = "") -> list[Span]:
        """All spans that came, or those of one service."""
        return [
            span
            for request in self._requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if not service or attributes(resource.resource.attributes)["service.name"] == service
        ]

    def resource(self) -> dict[str, Any]:
        """The attributes of the process that sent the first spans."""
        return attributes(self._requests[0].resource_spans[0].resource.attributes)

    def everything(self) -> str:
        """All that came, as text."""
        return "".join(map(str, self._requests))


def attributes(pairs: Any) -> dict[str, Any]:
    """Names and values."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
