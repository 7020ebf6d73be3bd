"""Requests to a port of this machine, as a test words them."""

import http.client
import ssl
from typing import Any, NamedTuple

_LONG_S = 20.0


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def ask(
    port: int,
    path: str,
    *,
    method: str = "GET",
    body: str | bytes | None = None,
    context: ssl.SSLContext | None = None,
    **headers: str,
) -> Reply:
    """The answer, over TLS with a context; names of headers have _ for -."""
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LONG_S)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=_LONG_S, context=context)
    try:
        named: dict[str, Any] = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=body, headers=named)
        reply = connection.getresponse()
        return Reply(reply.status, reply.headers, reply.read())
    finally:
        connection.close()
