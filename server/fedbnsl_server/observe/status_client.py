"""Asks a running coordinator where it stands."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import grpc

from fedbnsl.console.shown import shown
from fedbnsl.errors import IdentityError, RemoteProtocolError
from fedbnsl.protocol import codec
from fedbnsl.protocol.channel import open_channel
from fedbnsl.protocol.messages import RunOffer, RunStatus
from fedbnsl.protocol.offer_codec import decode_offers
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl.wire import federation_pb2_grpc as federation_grpc

if TYPE_CHECKING:
    from fedbnsl.identity.certificates import Credentials

_TIMEOUT_S = 2.0

_Reply = TypeVar("_Reply")


class Observer:
    """A channel to one coordinator."""

    def __init__(self, address: str, credentials: "Credentials | None" = None) -> None:
        self._channel = open_channel(address, credentials)
        self._stub = federation_grpc.FederationStub(self._channel)
        self.silence = ""  # why the last call had no answer; empty if it had one

    def status(self, run: int = 0) -> RunStatus | None:
        """The status of the run with this tag (0: the one that goes on); None if the coordinator does not answer.

        Raises IdentityError if it refuses the caller's certificate, RemoteProtocolError if another program answers.
        """
        reply = self._answer(lambda: self._stub.Status(federation.StatusRequest(run=run), timeout=_TIMEOUT_S))
        return None if reply is None else codec.decode_status(reply)

    def runs(self) -> tuple[RunOffer, ...] | None:
        """All runs of the coordinator; see `status`."""
        reply = self._answer(lambda: self._stub.Runs(federation.RunsRequest(), timeout=_TIMEOUT_S))
        return None if reply is None else decode_offers(reply)[1]

    def _answer(self, call: Callable[[], _Reply]) -> _Reply | None:
        try:
            reply = call()
        except grpc.RpcError as error:
            failed = cast(grpc.Call, error)  # what grpc raises is both
            code, details = failed.code(), shown(failed.details() or failed.code().name)
            if code is grpc.StatusCode.UNAUTHENTICATED:
                raise IdentityError(f"the coordinator refused: {details}") from None
            if code is grpc.StatusCode.UNIMPLEMENTED:
                raise RemoteProtocolError(
                    "the program that answers there is not a fedbnsl coordinator, or one of another version"
                ) from None
            self.silence = details
            return None
        self.silence = ""
        return reply

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
