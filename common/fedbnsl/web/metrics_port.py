"""The port behind `--metrics`: the one route `/metrics`, for those who may ask a page."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedbnsl.web.port import WebPort

_AT_ONCE = 16  # connections; a scraper needs one


class MetricsPort(WebPort):
    """The HTTP server that Prometheus asks."""

    def __init__(
        self,
        # address, token_file, secure, needs: see `WebPort`
        address: str,
        collector: Collector,  # gives the metrics, from other threads
        *,
        token_file: Path | None,
        secure: Callable[[], ssl.SSLContext] | None,
        needs: str,
    ) -> None:
        super().__init__(
            address, token_file=token_file, secure=secure, needs=needs, option="--metrics", at_once=_AT_ONCE
        )
        registry = CollectorRegistry()
        registry.register(collector)

        async def metrics(request: Request) -> Response:
            # A collector may wait for the loop of the run, which must not hold up the other connections.
            return Response(await asyncio.to_thread(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)

        self.add_routes([Route("/metrics", metrics)])
