"""Asks a running coordinator where it stands."""

from typing import TYPE_CHECKING, cast

import grpc

from fedbnsl import codec
from fedbnsl.channel import open_channel
from fedbnsl.errors import IdentityError, RemoteProtocolError
from fedbnsl.messages import RunStatus
from fedbnsl.shown import shown
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Credentials

_TIMEOUT_S = 2.0


class Observer:
    """A channel to one coordinator.

    Attributes
    ----------
    silence
        Why the last call had no answer; empty if it had one.
    """

    def __init__(self, address: str, credentials: "Credentials | None" = None) -> None:
        self._channel = open_channel(address, credentials)
        self._stub = federation_grpc.FederationStub(self._channel)
        self.silence = ""

    def status(self) -> RunStatus | None:
        """The current status, or None if the coordinator does not answer.

        Raises
        ------
        IdentityError
            If the coordinator refuses the caller's certificate.
        RemoteProtocolError
            If another program answers, or the answer cannot be read.
        """
        try:
            reply = self._stub.Status(federation.StatusRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            call = cast(grpc.Call, error)  # what grpc raises is both
            code, details = call.code(), shown(call.details() or call.code().name)
            if code is grpc.StatusCode.UNAUTHENTICATED:
                raise IdentityError(f"the coordinator refused: {details}") from None
            if code is grpc.StatusCode.UNIMPLEMENTED:
                raise RemoteProtocolError("the program that answers there is not a fedbnsl coordinator") from None
            self.silence = details
            return None
        self.silence = ""
        return codec.decode_status(reply)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
