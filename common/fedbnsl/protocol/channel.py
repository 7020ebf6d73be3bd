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
# A site says that it lives when it has said nothing else for so long. Nobody who waits in a long poll, or loses one of
# these calls, is silent for AWAY_S.
ALIVE_EVERY_S = 10.0
ALIVE_TIMEOUT_S = 5.0
AWAY_S = 35.0

# A client that pings more often than the server allows is cut off ("too many pings"). Either side notices after
# interval + timeout that a connection is dead, however silently it died.
SERVER_MIN_PING_INTERVAL_S = 10
CLIENT_PING_INTERVAL_S = 2 * SERVER_MIN_PING_INTERVAL_S
_PING_TIMEOUT_S = 10
_HANDSHAKE_S = 10
_IDLE_S = 300  # without a call; a site of a run makes one every `ALIVE_EVERY_S`
# A pull, its repeat after a cut that only one side has seen, an update, a look at the status, a sign of life.
CALLS_AT_ONCE = 5

_LEAST_PENDING = 1000

# gRPC announces as much of a message in advance. More is only read for a caller who has been identified.
_LEAST_AHEAD_BYTES, _MOST_AHEAD_BYTES = 2**16, 2**20

# Stricter than gRPC, which reads the port as a part of a bare IPv6 address, and takes `unix:` and other schemes.
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

_KEEPALIVE: Options = [
    ("grpc.keepalive_time_ms", CLIENT_PING_INTERVAL_S * 1000),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_S * 1000),
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_S * 1000),  # the one that counts; a minute by default
    ("grpc.http2.max_pings_without_data", 0),  # any number: otherwise the third one in a long call waits for minutes
]


def server_options(*, largest_bytes: int = MAX_MESSAGE_BYTES, connections: int | None = None) -> Options:
    """Options of the coordinator's server, for the largest message of a site and all connections; None: any number."""
    options: Options = [
        ("grpc.max_receive_message_length", largest_bytes),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),  # a second coordinator on the port fails instead of taking half of the calls
        ("grpc.http2.min_recv_ping_interval_without_data_ms", SERVER_MIN_PING_INTERVAL_S * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        *_KEEPALIVE,
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_S * 1000),
        ("grpc.max_connection_idle_ms", _IDLE_S * 1000),
        ("grpc.max_concurrent_streams", CALLS_AT_ONCE),
        ("grpc.http2.bdp_probe", 0),  # would raise the amount that is read in advance
        ("grpc.http2.lookahead_bytes", min(max(largest_bytes, _LEAST_AHEAD_BYTES), _MOST_AHEAD_BYTES)),
    ]
    if connections is not None:
        # gRPC cancels calls at random once 1000 wait to be looked at, as when thousands of sites push at once.
        pending = max(_LEAST_PENDING, connections)
        options += [
            ("grpc.max_allowed_incoming_connections", connections),
            ("grpc.server.max_pending_requests", pending),
            ("grpc.server.max_pending_requests_hard_limit", pending),
        ]
    return options


def client_options() -> Options:
    """Options of a participant's channel."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        *_KEEPALIVE,
        ("grpc.use_local_subchannel_pool", 1),  # several sites in one process: a connection each, as between machines
        ("grpc.max_reconnect_backoff_ms", 5000),  # as long as the longest pause of the caller's own back-off
        ("grpc.enable_retries", 1),
        ("grpc.service_config", json.dumps(_RETRY_BLIPS)),
    ]


def open_channel(address: str, credentials: "Credentials | None" = None) -> grpc.Channel:
    """A channel to host:port; without credentials in plaintext, on loopback only.

    Raises SetupError if the address is malformed, or plaintext would cross a network.
    """
    if credentials is None:
        require_loopback(address)
        # http_proxy in the environment would carry the plaintext to another machine.
        return grpc.insecure_channel(address, options=[*client_options(), ("grpc.enable_http_proxy", 0)])
    split_address(address)
    secure = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.certificate)
    return grpc.secure_channel(address, secure, options=client_options())


def server_credentials(load: "Callable[[], Credentials]") -> grpc.ServerCredentials:
    """TLS for the coordinator's server; callers need a certificate of the federation.

    `load`: called before every new connection, so that a renewed certificate needs no restart. If it fails, the
    previous certificate stays in use.
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
    """Host and port of host:port. Raises SetupError if it is not of that form."""
    parts = _ADDRESS.fullmatch(address)
    if parts is None or int(parts[3]) > 65_535:
        raise SetupError(f"address {address!r}: expected host:port, such as 127.0.0.1:50051 or [::1]:50051")
    return parts[1] or parts[2], int(parts[3])


def require_loopback(address: str) -> None:
    """Refuse plaintext anywhere but on this machine.

    Raises SetupError if host:port is malformed, its host unknown, or not a loopback address.
    """
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SetupError(f"address {address!r}: the host is unknown ({error})") from None
    if not all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found):
        raise SetupError(f"address {address!r} is not on this machine; without TLS it must be (use 127.0.0.1)")
