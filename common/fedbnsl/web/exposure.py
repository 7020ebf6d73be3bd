"""Where a run may be looked at over HTTP: in plaintext on loopback, elsewhere over TLS and with a token."""

import hmac
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from fedbnsl.errors import FedbnslError, SetupError

_log = logging.getLogger(__name__)

_SHORTEST_TOKEN = 16


def read_token(file: Path, *, option: str) -> bytes:
    """The token in a file that an option names. Raises SetupError if it cannot be read, or is too short or no word."""
    try:
        token = file.read_bytes().strip()
    except OSError as error:
        raise SetupError(f"{option}: {file} cannot be read: {error.strerror}") from None
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or len(token.split()) != 1:
        raise SetupError(
            f"{option}: {file} must hold one word of at least {_SHORTEST_TOKEN} ASCII characters",
            remedy="Draw one: openssl rand -hex 32 > FILE",
        )
    return token


def bears(authorization: str, token: bytes) -> bool:
    """Whether the header `Authorization` shows the token; compared in constant time."""
    return hmac.compare_digest(authorization.encode("utf-8", "replace"), b"Bearer " + token)


class RenewedContext:
    """TLS under a certificate that may be renewed while it is used: a new one is taken up with the next connection.

    Parameters
    ----------
    seen
        What changes when the certificate does, such as its credentials.
    make
        A context for the certificate as it is now.
    """

    def __init__(self, seen: Callable[[], object], make: Callable[[], ssl.SSLContext]) -> None:
        self._look, self._make = seen, make
        self._seen = seen()
        self._context = make()

    def __call__(self) -> ssl.SSLContext:
        """The context for the next connection."""
        try:
            now = self._look()
            if now != self._seen:
                self._seen, self._context = now, self._make()
        except FedbnslError:
            _log.warning("the renewed certificate cannot be used; the old one stays in use", exc_info=True)
        return self._context
