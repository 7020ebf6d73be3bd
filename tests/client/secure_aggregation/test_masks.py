"""Masks: they cancel in the sum over all sites of one task, and in nothing else; one site's numbers are noise."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedbnsl.errors import PeerRefusedError
from fedbnsl.protocol.messages import Membership
from fedbnsl_client.secure_aggregation import keys
from fedbnsl_client.secure_aggregation.masks import Words, masked
from fedbnsl_client.secure_aggregation.member import Member

TASK = bytes(range(32))


class Ring:
    """P sites with keys."""

    def __init__(self, n_sites: int) -> None:
        names = [f"site-{k}" for k in range(n_sites)]
        self.keys = {name: keys.new_private_key() for name in names}
        self.memberships = tuple(
            Membership(name, 10, public_key=keys.public_key(key)) for name, key in self.keys.items()
        )

    def masked(self, site: str, numbers: Sequence[int], *, context: bytes = b"context") -> Words:
        return masked(numbers, site=site, private_key=self.keys[site], memberships=self.memberships, context=context)

    def of_member(
        self,
        site: str,
        numbers: Sequence[int],
        *,
        run: int = 1,
        plan: bytes = b"plan",
        t: int = 3,
        task: bytes = TASK,
        kind: str = "scales",
        memberships: Sequence[Membership] | None = None,
    ) -> Words:
        member = Member(site, 10, run, plan, len(self.keys), 2)
        return member.masked(
            numbers, kind=kind, t=t, task_digest=task, memberships=memberships or self.memberships, key=self.keys[site]
        ).numbers


def added(words: Sequence[Words]) -> list[int]:
    total = np.zeros(len(words[0]), dtype=np.uint64)
    for one in words:
        total = total + one
    return total.view(np.int64).tolist()


@pytest.mark.parametrize("n_sites", [3, 4, 8, 50])
def test_masks_cancel_in_the_sum_of_all_sites_exactly(n_sites: int) -> None:
    rng = np.random.default_rng(n_sites)
    ring = Ring(n_sites)
    for repeat in range(40 if n_sites < 50 else 3):
        size = int(rng.integers(1, 40))
        # Of any sign; the sum of 50 stays within 64 bits.
        numbers = {site: rng.integers(-(2**57), 2**57, size).tolist() for site in ring.keys}
        context = f"sum {repeat}".encode()
        parts = [ring.masked(site, of_site, context=context) for site, of_site in numbers.items()]
        assert added(parts) == [sum(column) for column in zip(*numbers.values(), strict=True)]


def test_one_site_sends_bytes_that_nobody_can_tell_from_random_ones() -> None:
    ring, n = Ring(3), 40_000
    for numbers in ([0] * n, [-1] * n, list(range(n))):
        sent = ring.masked("site-1", numbers)
        counts = np.bincount(np.frombuffer(sent.tobytes(), dtype=np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
        assert abs(np.corrcoef(sent.astype(float), np.arange(n))[0, 1]) < 5 / np.sqrt(n)


def test_the_difference_of_two_vectors_shows_in_no_part_but_in_the_sum() -> None:
    ring = Ring(3)
    parts = {site: ring.masked(site, [7, 7]) for site in ring.keys}
    assert added(list(parts.values())) == [21, 21]
    for left_out in ring.keys:  # the coordinator together with all sites but two learns no more than their sum
        rest = added([words for site, words in parts.items() if site != left_out])
        assert max(map(abs, rest)) > 2**40


DIFFERENT = [
    {"run": 2}, {"plan": b"other"}, {"t": 4}, {"kind": "statistics"}, {"task": bytes(32)}, {"task": TASK[:-1] + b"!"},
]  # fmt: skip


@pytest.mark.parametrize("asked", DIFFERENT, ids=[next(iter(one)) + str(k) for k, one in enumerate(DIFFERENT)])
def test_sites_that_are_asked_differently_add_up_to_noise(asked: dict[str, object]) -> None:
    ring = Ring(3)
    for other in ring.keys:
        parts = [ring.of_member(site, [1, 2], **(asked if site == other else {})) for site in ring.keys]  # type: ignore[arg-type]
        assert max(map(abs, added(parts))) > 2**40
    assert added([ring.of_member(site, [1, 2], **asked) for site in ring.keys]) == [3, 6]  # type: ignore[arg-type]


def test_sites_that_are_told_of_different_sites_add_up_to_noise() -> None:
    ring = Ring(3)
    others = (replace(ring.memberships[0], n_samples=11), *ring.memberships[1:])
    parts = [
        ring.of_member(site, [1], memberships=others if site == "site-2" else ring.memberships) for site in ring.keys
    ]
    assert abs(added(parts)[0]) > 2**40


def test_no_two_rounds_have_the_same_masks() -> None:
    ring = Ring(3)
    seen = {ring.of_member("site-0", [0] * 4, t=t).tobytes() for t in range(100)}
    assert len(seen) == 100


def test_a_key_that_shares_no_secret_is_refused() -> None:
    ring = Ring(3)
    weak = (ring.memberships[0], replace(ring.memberships[1], public_key=bytes(32)), ring.memberships[2])
    with pytest.raises(PeerRefusedError, match="site-1"):
        masked([1], site="site-0", private_key=ring.keys["site-0"], memberships=weak, context=b"")
