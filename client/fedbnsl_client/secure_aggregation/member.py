"""One site in the secure sums of one run."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedbnsl.errors import PeerRefusedError
from fedbnsl.protocol.messages import DIGEST_BYTES, Loss, MaskedSum, Seat
from fedbnsl_client.secure_aggregation.attestation import Unvouched, Vouching
from fedbnsl_client.secure_aggregation.keys import digest, public_key, seats_digest, statement
from fedbnsl_client.secure_aggregation.masks import check_key, masked

_DOMAIN = "fedbnsl secure sum, masks/1"


@dataclass(frozen=True)
class Member:
    """What a site knows of itself and of the run.

    Attributes
    ----------
    n_samples
        Its rows.
    n_sites, n_honest
        Sites of the plan, and how many of them share the noise (`Plan.n_honest`).
    vouching
        How keys are signed and checked.
    retries
        How many sites the run may lose.
    """

    site: str
    n_samples: int
    run: int
    plan_digest: bytes
    n_sites: int
    n_honest: int
    vouching: Vouching = field(default_factory=Unvouched)
    retries: int = 0

    def signature(self, seats: Sequence[Seat], key: bytes) -> bytes:
        """The signature of this site's public key, for these sites.

        Raises
        ------
        PeerRefusedError
            If the sites are not those of the plan, or not enough of them are confirmed.
        """
        self._check_sites(seats)
        return self.vouching.sign(self._statement(seats, self.site, key))

    def check(self, seats: Sequence[Seat], private_key: bytes) -> None:
        """Refuse seats whose keys are not those that their sites made for this run.

        Raises
        ------
        PeerRefusedError
            Naming the site, and why.
        """
        self._check_sites(seats)
        for seat in seats:
            if seat.site != self.site:
                self.vouching.verify(seat, self._statement(seats, seat.site, seat.public_key))
                check_key(seat, private_key)
            elif seat.public_key != public_key(private_key):
                raise PeerRefusedError("the coordinator passed on another key for this site than the one that it made")
        if len({seat.public_key for seat in seats}) < len(seats) or not all(seat.public_key for seat in seats):
            raise PeerRefusedError("two sites have the same key, or one has none")

    def present(self, seats: Sequence[Seat], lost: Sequence[Loss]) -> tuple[Seat, ...]:
        """Those whose masks are in the sums from now on.

        Raises
        ------
        PeerRefusedError
            If more sites are gone than the plan allows, this one among them, or too few of the rest are confirmed.
        """
        gone = {loss.site for loss in lost}
        if self.site in gone or len(lost) > self.retries:
            raise PeerRefusedError(
                f"the coordinator goes on without {', '.join(sorted(gone))}; the plan allows for {self.retries} lost "
                "sites (privacy.secure_sum_retries), and never for this one"
            )
        there = tuple(seat for seat in seats if seat.site not in gone)
        if len(there) != self.n_sites - len(gone):
            raise PeerRefusedError(f"the coordinator named {len(there)} sites of {self.n_sites}, and {len(gone)} lost")
        if gone:
            self.vouching.require_confirmed(self._others(there), least=self.n_honest - 1)
        return there

    def masked(
        self, numbers: Sequence[int], *, kind: str, t: int, task_digest: bytes, seats: Sequence[Seat], key: bytes
    ) -> MaskedSum:
        """What the site sends to the sum of round t.

        Parameters
        ----------
        numbers
            What it adds, noise included.
        kind
            Of the round.
        task_digest
            Of what was asked, see `codec.task_digest`.
        seats
            Of the sites that are asked, see `present`.
        key
            The private key of this site.
        """
        of_sites = seats_digest(seats, with_keys=True)
        context = digest(_DOMAIN, self.run, self.plan_digest, of_sites, kind, t, task_digest)
        words = masked(numbers, site=self.site, private_key=key, seats=seats, context=context)
        return MaskedSum(kind, words, task_digest[:DIGEST_BYTES])

    def _check_sites(self, seats: Sequence[Seat]) -> None:
        own = [seat for seat in seats if seat.site == self.site]
        least = self.n_sites - self.retries
        if not least <= len(seats) <= self.n_sites or len({seat.site for seat in seats}) != len(seats):
            raise PeerRefusedError(f"the coordinator named {len(seats)} sites; the plan has {self.n_sites}")
        if [(one.n_samples, one.certificate) for one in own] != [(self.n_samples, self.vouching.certificate())]:
            raise PeerRefusedError("the coordinator named another certificate or another number of rows for this site")
        self.vouching.require_confirmed(self._others(seats), least=self.n_honest - 1)

    def _others(self, seats: Sequence[Seat]) -> list[Seat]:
        return [seat for seat in seats if seat.site != self.site]

    def _statement(self, seats: Sequence[Seat], site: str, key: bytes) -> bytes:
        return statement(
            authority=self.vouching.authority,
            run=self.run,
            plan_digest=self.plan_digest,
            seats=seats,
            site=site,
            key=key,
        )
