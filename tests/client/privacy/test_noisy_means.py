"""A site's own means in a private run, corrected by what it has released."""

from typing import cast

import numpy as np
import pytest

from fedbnsl.errors import LocalProtocolError
from fedbnsl.graphs.family_moments import symmetric
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RoundTask, SiteState, Units
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds.residual_moments import Answer, Task
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import private_moments, randomness
from fedbnsl_client.privacy.noisy_means import NoisyMeans

D, ROWS = 3, 4000
NAMES = ("a", "b", "c")
RANGE = (-20.0, 20.0)
PLAN = Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=3.0).with_settings(
    n_participants=1, moments_rounds=3, dictionary={name: {"range": list(RANGE)} for name in NAMES}
)
W = np.zeros((D, D))
W[0, 1] = 0.9


def moments_of(Z: Matrix, constant: float = 1.0) -> Matrix:
    """(d + 1,) mean products with the constant."""
    records = np.column_stack([Z, np.full(len(Z), constant)])
    return (records.T @ records / len(Z))[-1]


def test_knowledge_is_combined_by_precision() -> None:
    known = NoisyMeans(np.zeros(2), np.diag([0.04, 4.0]))
    released = moments_of(np.tile([1.0, 2.0], (5, 1)))
    after = known.after(released, np.eye(2), noise_std=0.2, constant=1.0)
    assert after.means == pytest.approx([0.5, 2.0 * 4.0 / 4.04])
    assert after.error == pytest.approx(np.diag([0.02, 1.0 / (1.0 / 4.0 + 25.0)]))
    again = after.after(moments_of(np.zeros((5, 2))), np.eye(2), noise_std=0.2, constant=1.0)
    assert again.means == pytest.approx(after.means), "records about the mean that is known"
    assert again.error == pytest.approx(np.diag([1.0 / 75.0, 1.0 / (1.0 / 4.0 + 50.0)]))


def test_a_larger_constant_tells_means_with_less_noise() -> None:
    known, Z = NoisyMeans(np.zeros(2), np.eye(2)), np.tile([1.0, 2.0], (5, 1))
    after = known.after(moments_of(Z, constant=2.0), np.eye(2), noise_std=0.2, constant=2.0)
    assert after.means == pytest.approx(np.array([1.0, 2.0]) / 1.01)
    assert after.error == pytest.approx(np.eye(2) * 0.01 / 1.01)


def test_means_of_residuals_tell_means_of_columns() -> None:
    A = (np.eye(D) - W) / np.array([1.0, 0.1, 3.0])
    means = np.array([0.3, -0.2, 1.0])
    known = NoisyMeans(np.zeros(D), np.eye(D)).after(moments_of((means @ A)[None]), A, noise_std=1e-6, constant=1.0)
    assert known.means == pytest.approx(means, abs=1e-6)


def test_clipped_records_tell_the_same_mean() -> None:
    weight, z = 0.25, np.array([0.4, -0.4])
    record = 0.5 * np.append(z, 1.0)
    released = record * record[-1]
    assert released[-1] == weight
    known = NoisyMeans(np.zeros(2), np.eye(2)).after(released, np.eye(2), noise_std=1e-9, constant=1.0)
    assert known.means == pytest.approx(z)


@pytest.mark.parametrize(
    ("released", "A"),
    [
        (np.array([0.0, 0.0, 0.1]), np.eye(2)),  # a weight within its noise
        (np.array([0.0, 0.0, np.nan]), np.eye(2)),
        (np.ones(3), np.full((2, 2), 1e300)),
        (np.ones(3), np.full((2, 2), np.nan)),
    ],
)
def test_what_tells_nothing_changes_nothing(released: Matrix, A: Matrix) -> None:
    known = NoisyMeans(np.zeros(2), np.eye(2))
    assert known.after(released, A, noise_std=0.1, constant=1.0) is known


# ---- at a site -----------------------------------------------------------------------------------------------------


def table(seed: int = 1) -> Matrix:
    """A large range, small residuals: a small error of a mean in shares of the range is large in units of these."""
    X = np.random.default_rng(seed).normal([3.0, -2.0, 5.0], [1.0, 0.2, 0.5], (ROWS, D))
    X[:, 1] += 0.9 * (X[:, 0] - 3.0)
    return X


class Kept:
    """A journal in memory, with noise that depends on the round alone."""

    head = None

    def __init__(self, seed: str = "") -> None:
        self.kept: dict[int, bytes] = {}
        self.seed = seed
        self.source = randomness.seeded(seed)

    def release(self, t, draw, *, attempt=0):
        if t not in self.kept:
            self.source = randomness.seeded(f"{self.seed}{t}")
            self.kept[t] = draw()
        return self.kept[t]

    def stored(self, t, *, attempt=0):
        return self.kept.get(t)

    def randbelow(self, n: int) -> int:
        return self.source(n)


def tasks() -> list[RoundTask]:
    units = Units(np.empty(0), np.array([1.0, 1.0, 0.5]))
    nothing, found = SparseMatrix.zeros(D), SparseMatrix.from_dense(W)
    return [
        RoundTask(2, Task(nothing, np.ones(D), np.ones(D)), contributed=True, units=units),
        RoundTask(3, Task(found, np.array([1.0, 0.2, 1.0]), np.ones(D)), contributed=True),
        RoundTask(4, Task(found, np.array([1.0, 0.2, 1.0]), np.ones(D)), contributed=True),
    ]


def participant(journal: Kept, X: Matrix, units: Units | None = None) -> Participant:
    zero = SparseMatrix.zeros(D)
    snapshot = SiteState(zero, zero, units=units)
    return Participant("north", Dataset(NAMES, X), PLAN, snapshot, journal=journal, run=1, randbelow=journal.randbelow)


def taken_off(monkeypatch: pytest.MonkeyPatch) -> list[Matrix]:
    """The centres that releases were made with."""
    seen: list[Matrix] = []
    release = private_moments.release_residual_moments

    def noted(X, W, scales, norm_bound, variance, randbelow, prepared_by):
        seen.append(prepared_by.centre)
        return release(X, W, scales, norm_bound, variance, randbelow, prepared_by)

    monkeypatch.setattr("fedbnsl_client.rounds.residual_moments.release_residual_moments", noted)
    return seen


def means_shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NoisyMeans, Matrix, float]]:
    """What was known before a release, the release, and its noise; nothing is learnt from it."""
    seen: list[tuple[NoisyMeans, Matrix, float]] = []

    def noted(self: NoisyMeans, released: Matrix, A: Matrix, noise_std: float, constant: float) -> NoisyMeans:
        seen.append((self, released, noise_std))
        return self

    monkeypatch.setattr(NoisyMeans, "after", noted)
    return seen


def test_every_round_takes_off_better_means(monkeypatch: pytest.MonkeyPatch) -> None:
    X, seen = table(), taken_off(monkeypatch)
    site = participant(Kept(), X)
    for task in tasks():
        site.handle(task)
    error = [np.abs((centre - X.mean(axis=0)) @ (np.eye(D) - W) / [1.0, 0.2, 0.5]).max() for centre in seen]
    assert len(error) == 3
    assert error[0] > 0.15, "what the statistics tell is far off in units of small residuals"
    assert error[1] < error[0] / 2
    assert error[2] < error[0] / 3


def test_a_restarted_site_takes_off_the_same_means(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, units = taken_off(monkeypatch), tasks()[0].units
    answers = []
    for anew in (False, True):
        journal = Kept()
        site = participant(journal, table())
        for task in tasks():
            if anew:
                site = participant(journal, table(), units)
            answers.append(cast(Answer, site.handle(task).content).moments.tobytes())
    assert answers[:3] == answers[3:]
    assert [centre.tobytes() for centre in seen[:3]] == [centre.tobytes() for centre in seen[3:]]


def test_the_means_follow_from_released_and_public_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another table behind the same releases: the same means are taken off."""
    seen, journal, units = taken_off(monkeypatch), Kept(), tasks()[0].units
    first, second, third = tasks()
    site = participant(journal, table())
    site.handle(first)
    site.handle(second)
    site.handle(third)
    other = Kept()
    other.kept = {t: kept for t, kept in journal.kept.items() if t < 4}
    participant(other, table(seed=2), units).handle(third)
    assert seen[3].tobytes() == seen[2].tobytes()


def test_a_release_is_kept_with_its_task_and_sent_without() -> None:
    journal = Kept()
    answer = participant(journal, table()).handle(tasks()[0])
    released = symmetric(cast(Answer, answer.content).moments, np.triu(np.ones((D + 1, D + 1), dtype=bool)))
    assert np.isfinite(released).all()
    again = participant(journal, table(seed=2), tasks()[0].units).handle(tasks()[0])
    assert cast(Answer, again.content).moments.tobytes() == cast(Answer, answer.content).moments.tobytes()


def test_answers_of_other_kinds_are_not_read_again() -> None:
    """A plan may have rounds of ADMM before: a site that starts anew has their answers in its journal."""
    journal, units = Kept(), tasks()[0].units
    journal.kept[1] = b"an answer to the scales round"
    first, second, _ = tasks()
    participant(journal, table(), units).handle(first)
    assert isinstance(participant(journal, table(), units).handle(second).content, Answer)


@pytest.mark.long
def test_the_noise_of_statistics_counts_as_large_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many sites with the same rows."""
    X, centres, known = table(), taken_off(monkeypatch), means_shown(monkeypatch)
    for seed in range(300):
        site = participant(Kept(str(seed)), X)
        for task in tasks()[:2]:
            site.handle(task)
    error = np.sqrt(known[0][0].error.diagonal()) * [1.0, 1.0, 0.5]  # in units of the table
    assert np.std(centres[::2], axis=0) == pytest.approx(error, rel=0.15)


def test_means_get_better_though_half_of_the_cells_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap is completed by the mean that was taken off: taken at its word, it says that this mean is right."""
    X, centres = table(), taken_off(monkeypatch)
    X[np.random.default_rng(2).random(X.shape) < 0.5] = np.nan
    for seed in range(12):
        site = participant(Kept(str(seed)), X)
        for task in tasks():
            site.handle(task)
    first, _, last = (np.sqrt(np.square(centres[k::3] - np.nanmean(X, axis=0)).mean(axis=0)) for k in range(3))
    assert (last < 0.4 * first).all()


def test_means_of_fewer_values_are_known_less_well(monkeypatch: pytest.MonkeyPatch) -> None:
    known, gaps = means_shown(monkeypatch), table()
    gaps[::2, 1] = np.nan
    for X in (table(), gaps):
        site = participant(Kept(), X)
        for task in tasks():
            site.handle(task)
    whole, halved = (known[k][0].error.diagonal() for k in (0, -1))
    assert np.sqrt(halved / whole) == pytest.approx([1.0, 2.0, 1.0], rel=0.1)


def test_statistics_of_an_earlier_version_are_not_misread() -> None:
    journal = Kept()
    journal.kept[0] = np.zeros(1 + 2 * D).tobytes()
    with pytest.raises(LocalProtocolError, match="an earlier version of fedbnsl has released other statistics"):
        participant(journal, table()).handle(tasks()[0])


@pytest.mark.long
def test_the_noise_of_a_release_counts_as_large_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over many second releases of one site."""
    X, known, first, units = table(), means_shown(monkeypatch), Kept(), tasks()[0].units
    participant(first, X).handle(tasks()[0])
    for seed in range(300):
        journal = Kept(str(seed))
        journal.kept.update(first.kept)
        site = participant(journal, X, units)
        for task in tasks()[1:]:
            site.handle(task)
    second = np.array([released for _, released, _ in known[1::2]])
    assert len(second) == 300
    assert second[:, 1].std() == pytest.approx(known[1][2], rel=0.15)
    assert second[:, -1].std() == pytest.approx(np.sqrt(2.0) * known[1][2], rel=0.15)
