"""Asks a running coordinator where it stands."""

import grpc

from fedbnsl import codec
from fedbnsl.channel import open_channel
from fedbnsl.messages import RunStatus
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc

_TIMEOUT_S = 2.0


class Observer:
    """A channel to one coordinator."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self._stub = federation_grpc.FederationStub(self._channel)

    def status(self) -> RunStatus | None:
        """The present status, or None if the coordinator does not answer."""
        try:
            return codec.decode_status(self._stub.Status(federation.StatusRequest(), timeout=_TIMEOUT_S))
        except grpc.RpcError:
            return None

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
