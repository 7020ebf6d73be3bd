"""gRPC settings that both sides must agree on: sizes, keepalive, retries, plaintext only on loopback."""

import ipaddress
import json
import os
import socket

# Before grpc is imported anywhere. Its fork handlers break processes that start others.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is said by our own errors, in words for people

import grpc

from fedbnsl.errors import SetupError

MAX_MESSAGE_BYTES = 16 * 2**20
LONG_POLL_S = 25.0

# A client that pings more often than the server allows is cut off ("too many pings").
SERVER_MIN_PING_INTERVAL_S = 30
CLIENT_PING_INTERVAL_S = 2 * SERVER_MIN_PING_INTERVAL_S

Options = list[tuple[str, int | str]]

# Blips are retried here, at most 5 attempts by gRPC's own cap; outages are the caller's business.
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
        ("grpc.max_reconnect_backoff_ms", 5000),  # the caller's own back-off goes no further either
        ("grpc.enable_retries", 1),
        ("grpc.service_config", json.dumps(_RETRY_BLIPS)),
    ]


def open_channel(address: str) -> grpc.Channel:
    """A plaintext channel to host:port on loopback.

    Raises
    ------
    SetupError
        If the address is not on loopback, where plaintext would cross a network.
    """
    require_loopback(address)
    return grpc.insecure_channel(address, options=client_options())


def require_loopback(address: str) -> None:
    """Refuse plaintext anywhere but on this machine.

    Raises
    ------
    SetupError
        If host:port is malformed, its host unknown, or not a loopback address.
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise SetupError(f"address {address!r}: expected host:port, such as 127.0.0.1:50051")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise SetupError(f"address {address!r}: the host is unknown ({error})") from None
    if not all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found):
        raise SetupError(
            f"address {address!r} is not on this machine; without TLS the wire may not leave it (use 127.0.0.1)"
        )
