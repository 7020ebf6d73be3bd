"""Under secure aggregation a site pays for its own means, takes them off, and sends moments about them."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from fedbnsl.errors import LocalProtocolError, RemoteProtocolError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import LATTICE, WHOLE_SHARE, constant_residual, own_means_sensitivity, price_of
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import MaskedSum, Membership, RoundTask, Units
from fedbnsl.protocol.sparse import Index, Matrix, SparseMatrix
from fedbnsl.rounds.keys import Answer as Key
from fedbnsl.rounds.keys import Task as Keys
from fedbnsl.rounds.residual_moments import Task
from fedbnsl.rounds.statistics import Task as Statistics
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import private_moments, randomness
from fedbnsl_client.privacy.noisy_means import square_of_means
from fedbnsl_client.privacy.private_moments import Shared, Whole, residual_sums
from fedbnsl_client.secure_aggregation import masks

NAMES = ("age", "dose", "mass")
D, ROWS = len(NAMES), 2000
SITES = ("east", "north", "west")
PLAN = Plan.load("private", ["privacy.secure_aggregation=true", "privacy.delta=1e-7"], epsilon=3.0).with_settings(
    n_participants=3, moments_rounds=3, dictionary={name: {"range": [-20.0, 20.0]} for name in NAMES}
)
PRICE = price_of(PLAN, n_samples=ROWS, n_variables=D)


@pytest.fixture
def _without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_moments, "rounded_gaussian", lambda variance, randbelow: 0)
    monkeypatch.setattr(private_moments, "rounded_gaussians", lambda variances, which, randbelow: 0 * which)


without_noise = pytest.mark.usefixtures("_without_noise")


AS_THEY_ARE = Whole(np.zeros(D), np.ones(D), np.ones(D))


# ---- the release ---------------------------------------------------------------------------------------------------


def own_means(record: Matrix, norm_bound: float) -> Matrix:
    """What one record adds."""
    d = len(record)
    by = Whole(np.zeros(d), np.ones(d), np.ones(d))
    asked = record[None], np.zeros((d, d)), np.ones(d), norm_bound
    return residual_sums(*asked, 1, randomness.system, by, Shared(1))[1]


@without_noise
@pytest.mark.parametrize("d", [1, 3, 40])
@pytest.mark.parametrize("times", [0.5, 1.0, 1.5, 4.0])
def test_no_record_moves_the_own_means_further_than_is_paid_for(d: int, times: float) -> None:
    norm_bound = times * constant_residual(d)
    along = np.eye(d)[0]
    lengths = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.1, 1.5, 3.0, 100.0, 1e200, math.inf, math.nan]
    rng = np.random.default_rng(d)
    directions = [along, -along, np.ones(d) / math.sqrt(d), *rng.standard_normal((4, d))]
    with np.errstate(invalid="ignore"):
        records = [norm_bound * length * direction for length in lengths for direction in directions]
    found = [own_means(record, norm_bound) for record in records]
    furthest = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(found, 2))
    bound = own_means_sensitivity(norm_bound, d)
    assert furthest <= bound
    if times >= 1.5:
        assert furthest >= 0.7 * bound, "little of the budget is wasted"


@without_noise
@pytest.mark.parametrize("share", [0, 1, 100, WHOLE_SHARE - 1, WHOLE_SHARE])
@pytest.mark.parametrize("d", [1, 3, 40])
def test_no_record_moves_a_scaled_sum_further_than_is_paid_for(d: int, share: int) -> None:
    """One record more or another one among 50: rounding down moves each number by at most 1."""
    rng = np.random.default_rng(d)
    X = rng.standard_normal((50, d))
    furthest = 0.0
    for record in (10.0 * np.eye(d)[0], -10.0 * np.eye(d)[0], 10.0 * np.ones(d), np.full(d, np.nan), np.zeros(d)):
        both = []
        for first in (X[0], record):
            asked = np.vstack([first, X[1:]]), np.zeros((d, d)), np.ones(d), 2.0, 1, randomness.system
            both.append(residual_sums(*asked, Whole(np.zeros(d), np.ones(d), np.ones(d)), Shared(1, share))[0])
        furthest = max(furthest, float(np.linalg.norm(both[0] - both[1])))
    assert furthest <= (math.sqrt(2.0) * LATTICE + d + 1) * (1.0 if share == WHOLE_SHARE else (share + 1) / WHOLE_SHARE)
    assert furthest >= 0.3 * share / WHOLE_SHARE * LATTICE


@without_noise
def test_a_share_scales_the_sum_and_not_what_the_site_learns_of_its_means() -> None:
    X = np.random.default_rng(1).standard_normal((200, D))
    asked = X, np.zeros((D, D)), np.ones(D), 2.0, 1, randomness.system, AS_THEY_ARE
    (whole, own), (part, same) = residual_sums(*asked, Shared(1)), residual_sums(*asked, Shared(1, 64))
    assert (part == whole // 4).all()
    assert (own == same).all()


def test_each_release_has_the_noise_of_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def draw(variance: int, randbelow: Callable[[int], int]) -> int:
        drawn.append(variance)
        return 0

    def draw_many(variances: Sequence[int], which: Index, randbelow: Callable[[int], int]) -> Index:
        return np.array([draw(variances[k], randbelow) for k in which.tolist()])

    monkeypatch.setattr(private_moments, "rounded_gaussian", draw)
    monkeypatch.setattr(private_moments, "rounded_gaussians", draw_many)
    asked = np.ones((5, D)), np.zeros((D, D)), np.ones(D), 1.0, PRICE.moments_variance, randomness.system
    residual_sums(*asked, AS_THEY_ARE, Shared(PRICE.means_variance))
    k = D + 1
    assert sorted(drawn) == sorted(
        [PRICE.means_variance] * k + [PRICE.moments_variance] * k + [PRICE.moments_variance // 2] * (k * (k - 1) // 2)
    )


def test_the_parts_of_a_round_cost_no_more_than_the_round() -> None:
    privacy = PLAN.privacy
    assert privacy is not None
    means = own_means_sensitivity(privacy.residual_norm_bound(D), D) ** 2 / (2.0 * PRICE.means_variance)
    of_matrix = (math.sqrt(2.0) * LATTICE + D + 1) ** 2 / (2.0 * PRICE.n_honest * PRICE.moments_variance)
    assert (means + of_matrix) * 1e12 <= PRICE.moments_units
    assert (means + of_matrix) * 1e12 >= 0.9999 * PRICE.moments_units
    a_round = 2 * (PRICE.moments_units - PRICE.means_units) + PRICE.means_units
    assert PRICE.share_units == PRICE.setup_units + (3 + PRICE.retries) * a_round


def test_what_a_site_takes_off_is_the_square_of_its_means_without_that_of_the_noise() -> None:
    mean, weight = np.array([3.0, -1.0]), 2.0
    found = square_of_means(np.append(mean, weight), 0.1)
    np.testing.assert_allclose(found, np.array([[9.0 - 0.01, -3.0], [-3.0, 1.0 - 0.01]]) / 2.0)
    assert not square_of_means(np.append(mean, 0.29), 0.1).any(), "a weight within its noise tells nothing"


# ---- at the sites --------------------------------------------------------------------------------------------------


class Kept:
    """A journal in memory."""

    head = None

    def __init__(self, site: str) -> None:
        self.kept: dict[int, bytes] = {}
        self.randbelow = randomness.seeded(site)

    def release(self, t: int, draw: Callable[[], bytes], *, attempt: int = 0) -> bytes:
        if t not in self.kept:
            self.kept[t] = draw()
        return self.kept[t]

    def stored(self, t: int, *, attempt: int = 0) -> bytes | None:
        return self.kept.get(t)


def tables(*, apart: float = 5.0) -> dict[str, Matrix]:
    """Sites that differ in their means by many standard deviations."""
    found: dict[str, Matrix] = {}
    for k, site in enumerate(SITES):
        X = np.random.default_rng(k).normal([0.0, 0.0, 0.0], [1.0, 0.3, 0.5], (ROWS, D))
        X[:, 1] += 0.8 * X[:, 0]
        found[site] = X + apart * k
    return found


class Federation:
    """Three sites that are asked as a coordinator asks."""

    def __init__(self, X: dict[str, Matrix]) -> None:
        self.X = X
        self.journals = {site: Kept(site) for site in SITES}
        self.sites = {site: self.made(site) for site in SITES}
        answers = self.asked(RoundTask(1, Keys(tuple(Membership(site, ROWS) for site in SITES)), contributed=False))
        self.memberships = tuple(
            Membership(site, ROWS, public_key=cast(Key, answers[site].content).public_key) for site in SITES
        )  # fmt: skip

    def made(self, site: str) -> Participant:
        journal = self.journals[site]
        return Participant(
            site, Dataset(NAMES, self.X[site]), PLAN, journal=journal, run=1, randbelow=journal.randbelow
        )

    def asked(self, task: RoundTask) -> dict[str, object]:
        return {site: one.handle(task) for site, one in self.sites.items()}

    def total(self, task: RoundTask) -> list[int]:
        words = np.zeros(1, dtype=np.uint64)
        for update in self.asked(task).values():
            words = words + cast(MaskedSum, update.content).numbers  # type: ignore[attr-defined]
        return words.view(np.int64).tolist()

    def moments(self, t: int) -> Matrix:
        """(d, d) total of a round, as a mean over all records."""
        privacy = PLAN.privacy
        assert privacy is not None
        unit = privacy.residual_norm_bound(D) ** 2 / (LATTICE * ROWS * len(SITES))
        task = RoundTask(t, Task(SparseMatrix.zeros(D), np.ones(D), np.ones(D)), contributed=True)
        S = np.zeros((D, D))
        S[np.triu_indices(D)] = np.array(self.total(task)[:-1]) * unit
        return S + np.triu(S, 1).T

    def begin(self) -> None:
        self.total(RoundTask(2, Statistics(), contributed=True, memberships=self.memberships))
        units = Units(np.empty(0), np.array([1.0, 0.85, 0.5]))
        task = RoundTask(3, Task(SparseMatrix.zeros(D), np.ones(D), np.ones(D)), contributed=True, units=units)
        self.total(task)


def test_sites_with_other_means_add_up_to_the_moments_about_them() -> None:
    together, apart = Federation(tables(apart=0.0)), Federation(tables())
    together.begin()
    apart.begin()
    correlations = []
    for federation in (together, apart):
        S = federation.moments(4)
        size = np.sqrt(S.diagonal())
        correlations.append(S / size / size[:, None])
    assert correlations[0] == pytest.approx(correlations[1], abs=0.05)
    true = 0.8 / math.sqrt(0.64 + 0.09)
    assert correlations[1][0, 1] == pytest.approx(true, abs=0.08)  # clipping takes 0.05 off, and there is noise
    assert abs(correlations[1][0, 2]) < 0.05, "no common cause appears"


def test_what_is_taken_off_follows_from_the_own_means_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """All else that enters the sum is what the shared noise protects: with another table it is that table's."""
    monkeypatch.setattr(masks, "_stream", lambda shared, info, n: np.zeros(n, dtype=np.uint64))
    seen: list[tuple[bytes, bytes]] = []
    genuine = square_of_means

    def noted(own: Matrix, noise_std: float) -> Matrix:
        square = genuine(own, noise_std)
        seen.append((own.tobytes(), square.tobytes()))
        return square

    monkeypatch.setattr("fedbnsl_client.rounds.residual_moments.square_of_means", noted)
    sums: list[Matrix] = []
    released = residual_sums

    def shown(*args: object) -> tuple[Matrix, Matrix]:
        found = released(*args)  # type: ignore[arg-type]
        sums.append(found[0])
        return found

    monkeypatch.setattr("fedbnsl_client.rounds.residual_moments.residual_sums", shown)
    federation = Federation(tables())
    federation.begin()
    task = RoundTask(4, Task(SparseMatrix.zeros(D), np.ones(D), np.ones(D)), contributed=True)
    sent = cast(MaskedSum, federation.sites["east"].handle(task).content).numbers.view(np.int64)
    square = np.frombuffer(seen[-1][1]).reshape(D, D)[np.triu_indices(D)]
    assert (sent[:-1] + np.rint(square)).tolist() == sums[-1][:D, :D][np.triu_indices(D)].tolist()


def test_a_restarted_site_knows_its_own_means_and_sends_the_same_bytes() -> None:
    federation = Federation(tables())
    federation.begin()
    first = RoundTask(4, Task(SparseMatrix.zeros(D), np.ones(D), np.ones(D)), contributed=True)
    sent = federation.sites["east"].handle(first)
    learnt = codec.own_means_in(federation.journals["east"].kept[4])
    assert learnt.size == D + 1
    units = Units(np.empty(0), np.array([1.0, 0.85, 0.5]))
    again = federation.made("east")
    assert again.handle(RoundTask(4, first.content, True, units, federation.memberships)) == sent


def with_squares(t: int, n_columns: int = 2 * D) -> RoundTask:
    ones, units = np.ones(n_columns), Units(np.empty(0), np.array([1.0, 0.85, 0.5]))
    return RoundTask(t, Task(SparseMatrix.zeros(n_columns), ones, ones), contributed=True, units=units)


def test_with_squares_a_site_has_more_means_the_noise_of_as_many_columns_and_no_other_columns_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[float, int, int]] = []

    def noted(X: Matrix, W: Matrix, scales: Matrix, bound: float, variance: int, *rest: Any) -> tuple[Matrix, Matrix]:
        seen.append((bound, variance, rest[2].means_variance))
        return residual_sums(X, W, scales, bound, variance, *rest)

    monkeypatch.setattr("fedbnsl_client.rounds.residual_moments.residual_sums", noted)
    federation, privacy = Federation(tables()), PLAN.privacy
    assert privacy is not None
    federation.total(RoundTask(2, Statistics(), contributed=True, memberships=federation.memberships))
    federation.asked(with_squares(3))
    sent = federation.sites["east"].handle(with_squares(4))
    price = price_of(PLAN, n_samples=ROWS, n_variables=D, n_squares=D)
    assert price.units == PRICE.units
    assert price.means_variance > PRICE.means_variance or price.moments_variance > PRICE.moments_variance
    assert set(seen) == {(privacy.residual_norm_bound(2 * D), price.moments_variance, price.means_variance)}
    learnt = codec.own_means_in(federation.journals["east"].kept[4])
    assert learnt.size == 2 * D + 1
    units = Units(np.empty(0), np.array([1.0, 0.85, 0.5]))
    again = federation.made("east").handle(RoundTask(4, with_squares(4).content, True, units, federation.memberships))
    assert again == sent
    for n_columns, east in ((D, federation.sites["east"]), (2 * D - 1, federation.sites["north"])):
        with pytest.raises(RemoteProtocolError, match="nothing was released"):
            east.handle(with_squares(5, n_columns))
    assert all(5 not in journal.kept for journal in federation.journals.values())


def test_a_sum_before_all_keys_are_known_is_refused_and_nothing_is_paid_for_it() -> None:
    federation = Federation(tables())
    east = federation.sites["east"]
    with pytest.raises(RemoteProtocolError, match="before all sites have keys"):
        east.handle(RoundTask(2, Statistics(), contributed=True))
    with pytest.raises(RemoteProtocolError, match="before all sites have keys"):
        east.handle(RoundTask(3, Task(SparseMatrix.zeros(D), np.ones(D), np.ones(D)), contributed=True))
    assert set(federation.journals["east"].kept) == {1}, "the key alone"


def test_a_table_of_more_rows_than_a_sum_holds_is_refused_and_nothing_is_paid_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation = Federation(tables())
    monkeypatch.setattr("fedbnsl_client.rounds.kinds._MOST_SUMMED_ROWS", ROWS - 1)
    with pytest.raises(LocalProtocolError, match="secure aggregation takes at most 1999"):
        federation.sites["east"].handle(
            RoundTask(2, Statistics(), contributed=True, memberships=federation.memberships)
        )
    assert set(federation.journals["east"].kept) == {1}
