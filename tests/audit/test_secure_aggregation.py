"""What would void secure aggregation, planted: each bug is flagged by the check that is there for it."""

import hmac
import math
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from scipy import stats

import secure_sites
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy import calibration
from fedbnsl.privacy.calibration import LATTICE, Price, price_of
from fedbnsl.protocol.messages import MaskedSum, Membership
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.budget.journal import RunHere, RunJournal
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.policy import DatasetPolicy
from fedbnsl_client.privacy import private_moments, randomness
from fedbnsl_client.privacy.private_moments import release_statistics, residual_sums
from fedbnsl_client.rounds import residual_moments
from fedbnsl_client.secure_aggregation import keys, masks, member
from fedbnsl_client.secure_aggregation.masks import Words
from fedbnsl_client.secure_aggregation.member import Member
from private_site import NAMES, rows
from secure_sites import GONE, LossyExchange, played, sites_of

Plant = Callable[[], AbstractContextManager[object]]
SITES = ("east", "north", "west")
D = 3


def plan_of(*, sites: int, colluding: int) -> Plan:
    settings = ["privacy.secure_aggregation=true", "privacy.delta=1e-6", f"privacy.colluding={colluding}"]
    return Plan.load("private-moments", [f"n_participants={sites}", *settings])


# ---- the noise: what the honest sites leave is what the price asks for ----------------------------------------------


def check_noise() -> None:
    for sites, colluding in ((3, 1), (8, 2), (8, 6), (50, 12)):
        plan = plan_of(sites=sites, colluding=colluding)
        price = price_of(plan, n_samples=500, n_variables=D)
        left = sites - colluding
        of_matrix = (math.sqrt(2.0) * LATTICE + D) ** 2 / (2.0 * left * price.moments_variance)
        assert of_matrix * 1e12 <= price.moments_units, (sites, colluding)
        of_squares = D * LATTICE**2 / (2.0 * left * price.setup_variance)
        assert of_squares * 1e12 <= price.setup_units, (sites, colluding)


def _divided_by_all() -> AbstractContextManager[object]:
    genuine = calibration._shared

    def shared(price: Price, plan: Plan) -> Price:
        with mock.patch.object(Plan, "n_honest", plan.n_participants):
            return genuine(price, plan)

    return mock.patch.object(calibration, "_shared", shared)


# ---- the statistics of prepared columns: each site takes them off its own records, with noise of its own


def check_statistics() -> None:
    """A value that jumps from one bound to the other, as released by the site itself: told no better than is paid."""
    ranges = {name: {"range": [-1.0, 1.0]} for name in NAMES}
    settings = ["privacy.secure_aggregation=true", "privacy.delta=1e-6", "n_participants=8"]
    plan = Plan.load("private", settings, epsilon=1.0).with_settings(dictionary=ranges)
    price = price_of(plan, n_samples=500, n_variables=D)
    bounds = -np.ones(D), np.ones(D)
    worlds = [np.vstack([end, np.zeros((9, D))]) for end in (np.ones(D), -np.ones(D))]
    with mock.patch.object(private_moments, "rounded_gaussian", return_value=0):
        one, other = (
            release_statistics(X, *bounds, np.arange(D), price.setup_variance, randomness.system) for X in worlds
        )
    source = randomness.seeded("statistics")
    noise = np.array(
        [release_statistics(worlds[0], *bounds, np.arange(D), price.setup_variance, source) - one for _ in range(400)]
    )
    unit = noise.std()
    told = ((one - other) ** 2).sum() / unit**2
    assert told <= 2e-12 * price.setup_units * 1.1
    assert told >= 2e-12 * price.setup_units * 0.8, "and no more noise than that"
    assert price.share_units_of(0) == price.setup_units


def _statistics_with_shared_noise() -> AbstractContextManager[object]:
    genuine = calibration._shared

    def shared(price: Price, plan: Plan) -> Price:
        done = genuine(price, plan)
        return replace(done, setup_variance=done.setup_variance // plan.n_honest)

    return mock.patch.object(calibration, "_shared", shared)


# ---- the sum in two worlds: with and without a record that is as far as one can be ---------------------------------


def totals(worlds: int, *, turned: bool, price: Price) -> np.ndarray:
    """The first entry of the total of three sites, of which one may collude: what the noise of two leaves of it."""
    source = randomness.seeded(f"worlds {turned}")
    X = np.zeros((4, D))
    X[0] = (1.0, -1.0, 0.0) if turned else (1.0, 1.0, 0.0)
    asked = np.zeros((D, D)), np.ones(D), math.sqrt(2.0)
    found = []
    for _ in range(worlds):
        east, _ = residual_sums(X, *asked, price.moments_variance, source)
        north, _ = residual_sums(np.zeros((4, D)), *asked, price.moments_variance, source)
        found.append(east[0, 1] + north[0, 1])
    return np.array(found)


def check_two_worlds() -> None:
    """Two sums of products that differ by 1 are told apart no better than the price allows."""
    price = price_of(plan_of(sites=3, colluding=1), n_samples=500, n_variables=D)
    apart, worlds = LATTICE, 3000  # of one entry off the diagonal: 0.5 LATTICE and -0.5 LATTICE
    one, other = totals(worlds, turned=False, price=price), totals(worlds, turned=True, price=price)
    told = (one.mean() - other.mean()) / math.sqrt((one.var() + other.var()) / 2.0)
    allowed = apart / math.sqrt(2 * price.moments_variance / 2)
    assert abs(told - allowed) < 5.0 * math.sqrt(2.0 / worlds)
    assert stats.kstest((one - one.mean()) / one.std(), "norm").pvalue > 1e-6


# ---- the masks: those of the standards, of this task and no other --------------------------------------------------


def chacha20(key: bytes, n_bytes: int) -> bytes:
    """RFC 8439, with counter and nonce 0."""

    def quarter(state: list[int], a: int, b: int, c: int, d: int) -> None:
        for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) % 2**32
            turned = state[z] ^ state[x]
            state[z] = (turned << by | turned >> (32 - by)) % 2**32

    out = b""
    for block in range(-(-n_bytes // 64)):
        start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), block, 0, 0, 0]
        state = start.copy()
        for _ in range(10):
            for place in (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15):
                quarter(state, *place)
            for place in (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14):
                quarter(state, *place)
        out += struct.pack("<16I", *((a + b) % 2**32 for a, b in zip(state, start, strict=True)))
    return out[:n_bytes]


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869, SHA-256, 32 bytes, without salt."""
    return hmac.digest(hmac.digest(bytes(32), secret, "sha256"), info + b"\x01", "sha256")


def check_masks() -> None:
    private = {site: keys.new_private_key() for site in SITES}
    memberships = tuple(Membership(site, 9, public_key=keys.public_key(key)) for site, key in private.items())
    n = 20
    for site, key in private.items():
        expected = [5] * n
        for membership in memberships:
            if membership.site == site:
                continue
            secret = X25519PrivateKey.from_private_bytes(key).exchange(
                X25519PublicKey.from_public_bytes(membership.public_key)
            )
            by_name = sorted(((site, keys.public_key(key)), (membership.site, membership.public_key)))
            stream = chacha20(hkdf(secret, b"context" + by_name[0][1] + by_name[1][1]), 8 * n)
            sign = 1 if site < membership.site else -1
            expected = [x + sign * m for x, m in zip(expected, struct.unpack(f"<{n}Q", stream), strict=True)]
        found = masks.masked([5] * n, site=site, private_key=key, memberships=memberships, context=b"context")
        assert found.tolist() == [x % 2**64 for x in expected]


def check_tasks() -> None:
    """Whatever differs between what two sites are asked, their masks do not cancel."""
    private = {site: keys.new_private_key() for site in SITES}
    memberships = tuple(Membership(site, 9, public_key=keys.public_key(key)) for site, key in private.items())

    def total(**of_east: object) -> int:
        words = np.zeros(1, dtype=np.uint64)
        for site, key in private.items():
            asked = {"run": 1, "plan": b"p", "kind": "scales", "t": 2, "task": bytes(32), "memberships": memberships}
            asked |= of_east if site == "east" else {}
            one = Member(site, 9, asked["run"], asked["plan"], 3, 2)  # type: ignore[arg-type]
            part = one.masked(
                [1],
                kind=asked["kind"],
                t=asked["t"],
                task_digest=asked["task"],
                memberships=asked["memberships"],
                key=key,
            )  # type: ignore[arg-type]
            words = words + part.numbers
        return int(words.view(np.int64)[0])

    assert total() == 3
    others: Sequence[dict[str, object]] = (
        {"run": 2}, {"plan": b"q"}, {"kind": "statistics"}, {"t": 3}, {"task": b"\x01" + bytes(31)},
        {"memberships": (Membership("east", 8, public_key=memberships[0].public_key), *memberships[1:])},
    )  # fmt: skip
    for other in others:
        assert abs(total(**other)) > 2**40, other


# ---- a round that is asked anew: nothing of the noise that was drawn for the first attempt --------------------------


def check_fresh_noise() -> None:
    """Without the masks, what one site sends twice differs by noise alone, of the full variance of both."""
    with mock.patch.object(masks, "_stream", lambda shared, info, n: np.zeros(n, dtype=np.uint64)):
        played(exchange := LossyExchange(sites_of(), lost_in=3))
    price = price_of(secure_sites.PLAN, n_samples=400, n_variables=5)
    apart = []
    for site in set(secure_sites.SITES) - {GONE}:
        first, again = (exchange.sent[site, 3, k].content for k in (0, 1))
        assert isinstance(first, MaskedSum)
        assert isinstance(again, MaskedSum)
        apart.append((first.numbers - again.numbers).view(np.int64).astype(float))
    assert 0.5 < np.concatenate(apart).var() / price.moments_variance < 2.0


def _same_noise_on_retry() -> AbstractContextManager[object]:
    """Noise that follows from the round alone, as if it were kept and masked anew."""
    genuine = residual_moments.residual_sums

    def sums(X: Matrix, W: Matrix, *rest: Any) -> Any:
        seed = f"{X.sum()} {W.sum()}"
        return genuine(X, W, *(randomness.seeded(seed) if callable(one) else one for one in rest))

    return mock.patch.object(residual_moments, "residual_sums", sums)


def _seeds_of_32_bits() -> AbstractContextManager[object]:
    genuine = masks._stream

    def stream(shared: bytes, info: bytes, n: int) -> Words:
        return genuine(shared[:4], b"", n)

    return mock.patch.object(masks, "_stream", stream)


def _context_without(place: int) -> Plant:
    genuine = member.digest

    def digest(*parts: object) -> bytes:
        return genuine(*(part for k, part in enumerate(parts) if k != place))

    return lambda: mock.patch.object(member, "digest", digest)


def _both_add() -> AbstractContextManager[object]:
    genuine = masks.masked

    def masked(
        numbers: Sequence[int], *, site: str, private_key: bytes, memberships: Sequence[Membership], context: bytes
    ) -> Words:
        renamed = tuple(
            Membership(one.site if one.site == site else f"z{one.site}", 1, public_key=one.public_key)
            for one in memberships
        )
        return genuine(numbers, site=site, private_key=private_key, memberships=renamed, context=context)

    return mock.patch.object(masks, "masked", masked)


CHECKS = (check_noise, check_statistics, check_two_worlds, check_masks, check_tasks, check_fresh_noise)
PLANTED: list[tuple[Callable[[], None], str, Plant]] = [
    (check_noise, "noise divided by all sites", _divided_by_all),
    (check_statistics, "statistics with shared noise", _statistics_with_shared_noise),
    (check_masks, "seeds of 32 bits", _seeds_of_32_bits),
    (check_masks, "both add the mask", _both_add),
    (check_fresh_noise, "the same noise on retry", _same_noise_on_retry),
    *[
        (check_tasks, f"masks without {what}", _context_without(place))
        for place, what in enumerate(("the run", "the plan", "the sites", "the kind", "the round", "the task"), start=1)
    ],
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.long
def test_the_check_passes(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(("check", "name", "plant"), PLANTED, ids=[name for _, name, _ in PLANTED])
def test_a_planted_bug_is_flagged(check: Callable[[], None], name: str, plant: Plant) -> None:
    with plant(), pytest.raises(AssertionError):
        check()


def test_a_retry_of_the_same_round_never_draws_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts send what the ledger keeps; tests/network/test_secure_aggregation.py kills real sites."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plan = plan_of(sites=3, colluding=1)
    dataset = DatasetPolicy(
        id="a", path=Path("a"), max_epsilon=50.0, max_delta=1e-6, max_epsilon_per_run=50.0, max_epsilon_against_all=99.0
    )
    with Ledger.create(tmp_path / "ledger.db") as ledger:
        ledger.registrations.register("a", NAMES, rows())
        price = price_of(plan, n_samples=120, n_variables=3)
        journal = RunJournal(ledger.payments, dataset, plan, price, RunHere(1, "east", NAMES))
        first = journal.release(3, lambda: b"noise")
        assert journal.release(3, lambda: pytest.fail("drawn twice")) == first
