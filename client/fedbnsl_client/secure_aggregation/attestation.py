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

    def is_own(self, certificate: bytes) -> bool:
        """Whether a certificate, DER, is one that this site can sign for; it may have been renewed since."""
        return not certificate

    def sign(self, statement: bytes, certificate: bytes) -> bytes:
        """A signature by the key of one of the site's certificates that `verify` of every other site accepts."""
        return b""

    def verify(self, membership: Membership, statement: bytes) -> None:
        """Refuse a membership whose certificate is not that of its site.

        Raises PeerRefusedError, naming the site, and why.
        """

    def require_confirmed(self, memberships: Iterable[Membership], *, least: int, goes_on: bool = False) -> None:
        """Refuse to rely on other sites of which fewer than `least` are confirmed here.

        `goes_on`: whether this site has signed its own key for the run; the others may have renewed theirs since.
        Raises PeerRefusedError if fewer are confirmed, or one has another key than the confirmed one.
        """
