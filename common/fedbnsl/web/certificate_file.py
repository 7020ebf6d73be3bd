"""TLS under a certificate of its operator's own, from a file: for a side that has none to be called with."""

import ssl
from pathlib import Path

from fedbnsl.errors import SetupError
from fedbnsl.web.exposure import RenewedContext


def renewed_from(file: Path, *, option: str) -> RenewedContext:
    """A context for each connection; a file that was replaced counts from the next one on.

    Raises SetupError if it cannot be read, or does not hold both.

    Parameters
    ----------
    file
        PEM, with a certificate and its key.
    option
        That named it.
    """
    return RenewedContext(lambda: _content(file, option), lambda: _context(file, option))


def _content(file: Path, option: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SetupError(f"{option}: {file} cannot be read: {error.strerror}") from None


def _context(file: Path, option: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(file)
    except (OSError, ssl.SSLError) as error:
        raise SetupError(f"{option}: {file} must hold a certificate and its key, PEM: {error}") from None
    return context
