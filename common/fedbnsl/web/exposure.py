"""Who may look at a run over HTTP: in plaintext on loopback, elsewhere over TLS and with a token."""

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


class RenewedContext:
    """TLS under a certificate that may be renewed while it is used: a new one is taken up with the next connection.

    `seen` gives what changes with the certificate, such as its credentials; `make` a context for it as it is now.
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


def renewed_from(file: Path, *, option: str) -> RenewedContext:
    """TLS under the certificate in a PEM file, with its key, for a side whose enrolment gives none to be called with.

    A replaced file counts from the next connection on. Raises SetupError if it cannot be read, or does not hold both.
    """

    def content() -> bytes:
        try:
            return file.read_bytes()
        except OSError as error:
            raise SetupError(f"{option}: {file} cannot be read: {error.strerror}") from None

    def context() -> ssl.SSLContext:
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            made.load_cert_chain(file)
        except (OSError, ssl.SSLError) as error:
            raise SetupError(f"{option}: {file} must hold a certificate and its key, PEM: {error}") from None
        return made

    return RenewedContext(content, context)
