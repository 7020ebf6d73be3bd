"""gRPC settings that both sides must agree on: sizes, keepalive, retries, TLS; plaintext only on loopback."""

import ipaddress
import json
import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import grpc

from fedbnsl.errors import FedbnslError, SetupError

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Credentials

DEFAULT_PORT = 50051
MAX_MESSAGE_BYTES = 16 * 2**20
LONG_POLL_S = 25.0

# A client that pings more often than the server allows is cut off ("too many pings").
SERVER_MIN_PING_INTERVAL_S = 30
CLIENT_PING_INTERVAL_S = 2 * SERVER_MIN_PING_INTERVAL_S

# What gRPC takes for host and port: a bare IPv6 address would swallow the port, `unix:` and its like are no host.
_ADDRESS = re.compile(r"(?:\[([^][]+)\]|([^][:/\s]+)):([0-9]{1,5})")

Options = list[tuple[str, int | str]]

# gRPC retries short failures (it allows at most 5 attempts). Longer outages are left to the caller.
_RETRY_BLIPS = {
    "methodConfig": [
        {
            "name": [{"service": "fedbnsl.wire.Federation"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}

_SIZES: Options = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]


def server_options() -> Options:
    """Options of the coordinator's server."""
    return [
        *_SIZES,
        ("grpc.so_reuseport", 0),  # a second coordinator on the port fails instead of taking half of the calls
        ("grpc.http2.min_recv_ping_interval_without_data_ms", SERVER_MIN_PING_INTERVAL_S * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def client_options() -> Options:
    """Options of a participant's channel."""
    return [
        *_SIZES,
        ("grpc.keepalive_time_ms", CLIENT_PING_INTERVAL_S * 1000),
        ("grpc.use_local_subchannel_pool", 1),  # several sites in one process: a connection each, as between machines
        ("grpc.max_reconnect_backoff_ms", 5000),  # the caller's own back-off goes no further either
        ("grpc.enable_retries", 1),
        ("grpc.service_config", json.dumps(_RETRY_BLIPS)),
    ]


def open_channel(address: str, credentials: "Credentials | None" = None) -> grpc.Channel:
    """A channel to host:port; without credentials in plaintext, on loopback only.

    Raises
    ------
    SetupError
        If the address is malformed, or plaintext would cross a network.
    """
    if credentials is None:
        require_loopback(address)
        # http_proxy in the environment would carry the plaintext to another machine.
        return grpc.insecure_channel(address, options=[*client_options(), ("grpc.enable_http_proxy", 0)])
    split_address(address)
    secure = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate)
    return grpc.secure_channel(address, secure, options=client_options())


def server_credentials(load: "Callable[[], Credentials]") -> grpc.ServerCredentials:
    """TLS for the coordinator's server; a caller without a certificate of the federation is not let in.

    Parameters
    ----------
    load
        Asked before every new connection, so that a renewed certificate needs no restart. If it fails then, the last
        one stays in use.
    """
    in_use = load()

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(in_use.key, in_use.certificate)], in_use.ca)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        # Return a configuration only if it has changed. gRPC replaces its handshaker without a lock against handshakes
        # that have begun: replacing it at every connection crashes when two connect at once.
        nonlocal in_use
        try:
            now = load()
        except FedbnslError:
            return None
        if now == in_use:
            return None
        in_use = now
        return configuration()

    fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], renewed)  # None is allowed: nothing new
    return grpc.dynamic_ssl_server_credentials(configuration(), fetch, require_client_authentication=True)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of host:port.

    Raises
    ------
    SetupError
        If it is not of that form.
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None or int(parts[3]) > 65_535:
        raise SetupError(f"address {address!r}: expected host:port, such as 127.0.0.1:50051 or [::1]:50051")
    return parts[1] or parts[2], int(parts[3])


def require_loopback(address: str) -> None:
    """Refuse plaintext anywhere but on this machine.

    Raises
    ------
    SetupError
        If host:port is malformed, its host unknown, or not a loopback address.
    """
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SetupError(f"address {address!r}: the host is unknown ({error})") from None
    if not all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found):
        raise SetupError(
            f"address {address!r} is not on this machine; without TLS the wire may not leave it (use 127.0.0.1)"
        )
