"""How a site attests its key in secure aggregation; `keys` has the implementation for sites with certificates."""

from collections.abc import Iterable
from typing import Protocol

from fedbnsl.protocol.messages import Membership


class Attestation(Protocol):
    """How a site attests its key, and finds out who stands behind those of the others."""

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

    def verify(self, membership: Membership, statement: bytes) -> None:
        """Refuse a membership whose certificate is not that of its site.

        Raises
        ------
        PeerRefusedError
            Naming the site, and why.
        """
        ...

    def require_confirmed(self, memberships: Iterable[Membership], *, least: int) -> None:
        """Refuse to rely on sites that nobody here has confirmed.

        Parameters
        ----------
        memberships
            Of the other sites.
        least
            So many of them must be real.

        Raises
        ------
        PeerRefusedError
            If fewer are confirmed, or one has another key than the confirmed one.
        """
        ...


class Unattested:
    """In plaintext nobody attests anybody: keys are taken as they come."""

    authority = ""

    def certificate(self) -> bytes:
        """See `Attestation.certificate`."""
        return b""

    def sign(self, statement: bytes) -> bytes:
        """See `Attestation.sign`."""
        return b""

    def verify(self, membership: Membership, statement: bytes) -> None:
        """See `Attestation.verify`."""

    def require_confirmed(self, memberships: Iterable[Membership], *, least: int) -> None:
        """See `Attestation.require_confirmed`."""
