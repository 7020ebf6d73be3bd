"""How a site attests its key in secure aggregation; `keys` has the implementation for sites with certificates."""

from collections.abc import Iterable

from fedbnsl.protocol.messages import Membership


class Attestation:
    """How a site attests its key, and finds out who stands behind those of the others.

    This one is for plaintext, where nobody attests anybody: keys are taken as they come.
    """

    @property
    def authority(self) -> str:
        """Fingerprint of the federation's authority; empty if there is none."""
        return ""

    def certificate(self) -> bytes:
        """The site's own certificate, DER; empty if it has none."""
        return b""

    def sign(self, statement: bytes) -> bytes:
        """A signature that `verify` of every other site accepts."""
        return b""

    def verify(self, membership: Membership, statement: bytes) -> None:
        """Refuse a membership whose certificate is not that of its site.

        Raises PeerRefusedError, naming the site, and why.
        """

    def require_confirmed(self, memberships: Iterable[Membership], *, least: int) -> None:
        """Refuse to rely on other sites of which fewer than `least` are confirmed here.

        Raises PeerRefusedError if fewer are confirmed, or one has another key than the confirmed one.
        """
