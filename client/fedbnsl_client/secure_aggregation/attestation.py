"""How a site vouches for its key in secure sums; `keys` has the implementation for sites with certificates."""

from collections.abc import Iterable
from typing import Protocol

from fedbnsl.protocol.messages import Seat


class Vouching(Protocol):
    """How a site vouches for its key, and finds out who stands behind those of the others."""

    def certificate(self) -> bytes:
        """The site's own certificate, DER; empty if it has none."""
        ...

    @property
    def authority(self) -> str:
        """Fingerprint of the federation's authority; empty if there is none."""
        ...

    def sign(self, statement: bytes) -> bytes:
        """A signature that `verify` of every other site accepts."""
        ...

    def verify(self, seat: Seat, statement: bytes) -> None:
        """Refuse a seat whose certificate is not that of its site.

        Raises
        ------
        PeerRefusedError
            Naming the site, and why.
        """
        ...

    def require_confirmed(self, seats: Iterable[Seat], *, least: int) -> None:
        """Refuse to rely on sites that nobody here has confirmed.

        Parameters
        ----------
        seats
            Of the other sites.
        least
            So many of them must be real.

        Raises
        ------
        PeerRefusedError
            If fewer are confirmed, or one has another key than the confirmed one.
        """
        ...


class Unvouched:
    """In plaintext nobody vouches for anybody: keys are taken as they come."""

    authority = ""

    def certificate(self) -> bytes:
        """See `Vouching.certificate`."""
        return b""

    def sign(self, statement: bytes) -> bytes:
        """See `Vouching.sign`."""
        return b""

    def verify(self, seat: Seat, statement: bytes) -> None:
        """See `Vouching.verify`."""

    def require_confirmed(self, seats: Iterable[Seat], *, least: int) -> None:
        """See `Vouching.require_confirmed`."""
