"""One site in the secure aggregation of one run."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedbnsl.errors import PeerRefusedError
from fedbnsl.protocol.messages import DIGEST_BYTES, Loss, MaskedSum, Membership
from fedbnsl_client.secure_aggregation.attestation import Attestation
from fedbnsl_client.secure_aggregation.keys import digest, memberships_digest, public_key, statement
from fedbnsl_client.secure_aggregation.masks import check_key, masked

_DOMAIN = "fedbnsl secure aggregation, masks/1"


@dataclass(frozen=True)
class Member:
    """What a site knows of itself and of the run."""

    site: str
    n_samples: int  # its rows
    run: int
    plan_digest: bytes
    # n_sites, n_honest: sites of the plan, and how many of them share the noise (`Plan.n_honest`)
    n_sites: int
    n_honest: int
    attestation: Attestation = field(default_factory=Attestation)  # how keys are signed and checked
    retries: int = 0  # how many sites the run may lose

    def signature(self, memberships: Sequence[Membership], key: bytes) -> bytes:
        """The signature of this site's public key, for these sites.

        Raises PeerRefusedError if the sites are not those of the plan, or not enough of them are confirmed.
        """
        named = next((one.certificate for one in memberships if one.site == self.site), b"")
        # It may have been renewed since this site joined.
        certificate = named if self.attestation.is_own(named) else self.attestation.certificate()
        self._check_sites(memberships, certificate=certificate, goes_on=False)
        return self.attestation.sign(self._statement(memberships, self.site, key), certificate)

    def check(self, memberships: Sequence[Membership], private_key: bytes, *, certificate: bytes) -> None:
        """Refuse memberships whose keys are not those that their sites made for this run.

        `certificate` is the one, DER, with which this site signed its own key: perhaps no longer the one that it has.
        Raises PeerRefusedError, naming the site, and why.
        """
        self._check_sites(memberships, certificate=certificate, goes_on=True)
        for membership in memberships:
            if membership.site != self.site:
                self.attestation.verify(
                    membership, self._statement(memberships, membership.site, membership.public_key)
                )
                check_key(membership, private_key)
            elif membership.public_key != public_key(private_key):
                raise PeerRefusedError("the coordinator passed on another key for this site than the one that it made")
        if len({membership.public_key for membership in memberships}) < len(memberships) or not all(
            membership.public_key for membership in memberships
        ):
            raise PeerRefusedError("two sites have the same key, or one has none")

    def present(self, memberships: Sequence[Membership], lost: Sequence[Loss]) -> tuple[Membership, ...]:
        """Those whose masks are in the sums from now on.

        Raises PeerRefusedError if more sites are gone than the plan allows, this one among them, or too few of the rest
        are confirmed.
        """
        gone = {loss.site for loss in lost}
        if self.site in gone or len(lost) > self.retries:
            raise PeerRefusedError(
                f"the coordinator goes on without {', '.join(sorted(gone))}; the plan allows for {self.retries} lost "
                "sites (privacy.secure_aggregation_retries), and never for this one"
            )
        there = tuple(membership for membership in memberships if membership.site not in gone)
        if len(there) != self.n_sites - len(gone):
            raise PeerRefusedError(f"the coordinator named {len(there)} sites of {self.n_sites}, and {len(gone)} lost")
        if gone:
            self.attestation.require_confirmed(self._others(there), least=self.n_honest - 1, goes_on=True)
        return there

    def masked(
        self,
        numbers: Sequence[int],
        *,
        kind: str,
        t: int,
        task_digest: bytes,
        memberships: Sequence[Membership],
        key: bytes,
    ) -> MaskedSum:
        """What the site sends to the sum of round t: its numbers, noise included, with the masks.

        `task_digest` is that of what was asked (`codec.task_digest`), `memberships` are the sites that are asked
        (`present`), `key` is the private key of this site.
        """
        of_sites = memberships_digest(memberships, with_keys=True)
        context = digest(_DOMAIN, self.run, self.plan_digest, of_sites, kind, t, task_digest)
        words = masked(numbers, site=self.site, private_key=key, memberships=memberships, context=context)
        return MaskedSum(kind, words, task_digest[:DIGEST_BYTES])

    def _check_sites(self, memberships: Sequence[Membership], *, certificate: bytes, goes_on: bool) -> None:
        own = [membership for membership in memberships if membership.site == self.site]
        least = self.n_sites - self.retries
        if not least <= len(memberships) <= self.n_sites or len({membership.site for membership in memberships}) != len(
            memberships
        ):
            raise PeerRefusedError(f"the coordinator named {len(memberships)} sites; the plan has {self.n_sites}")
        if [(one.n_samples, one.certificate) for one in own] != [(self.n_samples, certificate)]:
            raise PeerRefusedError("the coordinator named another certificate or another number of rows for this site")
        self.attestation.require_confirmed(self._others(memberships), least=self.n_honest - 1, goes_on=goes_on)

    def _others(self, memberships: Sequence[Membership]) -> list[Membership]:
        return [membership for membership in memberships if membership.site != self.site]

    def _statement(self, memberships: Sequence[Membership], site: str, key: bytes) -> bytes:
        return statement(
            authority=self.attestation.authority,
            run=self.run,
            plan_digest=self.plan_digest,
            memberships=memberships,
            site=site,
            key=key,
        )
