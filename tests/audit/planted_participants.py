"""Participants with a bug that breaks the guarantee: one change of the real code, or noise that is not fresh."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest import mock

from audit.planted import Plant, rewritten
from fedbnsl.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl.plan.plan import Plan
from fedbnsl_client import participant
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness


@contextmanager
def a_participant(folder: Path, *changes: tuple[str, str]) -> Iterator[None]:
    changed = rewritten(participant, folder, *changes)
    with mock.patch.object(participant, "Participant", changed.Participant):
        yield


def changed_participant(name: str, old: str, new: str) -> Plant:
    """A bug that is one change of the participant module."""

    def plant(folder: Path) -> AbstractContextManager[None]:
        return a_participant(folder, (old, new))

    plant.__name__ = name
    return plant


_RELEASE = "kept = self._journal.release(task.round, draw)"
moments_without_the_journal = changed_participant(
    "moments_without_the_journal", _RELEASE, f"{_RELEASE} if task.kind is not TaskKind.MOMENTS else draw()"
)
scales_without_the_journal = changed_participant(
    "scales_without_the_journal", _RELEASE, f"{_RELEASE} if task.kind is not TaskKind.SCALES else draw()"
)
scales_drawn_anew = changed_participant(
    "scales_drawn_anew",
    "return self._sending(self._setup, task)",
    "return self._sending(release_setup(self._plan, self._plan.privacy, self._price, self._X, self._randbelow), task)",
)
moments_drawn_twice = changed_participant(
    "moments_drawn_twice",
    "        released = release_residual_moments(",
    "        release_residual_moments(self._X, W, task.scales, bound, variance, self._randbelow)\n"
    "        released = release_residual_moments(",
)
moments_computed_before_they_are_paid = changed_participant(
    "moments_computed_before_they_are_paid",
    f"        {_RELEASE}",
    f"        early = answer(task)\n        answer = lambda task: early\n        {_RELEASE}",
)
any_kind_in_any_round = changed_participant("any_kind_in_any_round", "kind is not plan.stage(t).kind", "False")
moments_without_scales = changed_participant("moments_without_scales", "task.scales.size != self._X.shape[1]", "False")


# ---- participants whose noise is not fresh --------------------------------------------------------------------------


def the_same_noise_every_round(site: str, dataset: Dataset, plan: Plan, snapshot: SiteState | None) -> Participant:
    class Forgetful(Participant):
        def handle(self, task: RoundTask) -> LocalUpdate:
            self._solvers.clear()  # bound to their source when they were made
            self._randbelow = randomness.seeded(f"{site} {snapshot}")
            return super().handle(task)

    return Forgetful(site, dataset, plan, snapshot)


def the_same_noise_at_every_site(site: str, dataset: Dataset, plan: Plan, snapshot: SiteState | None) -> Participant:
    start = snapshot.local_weights.nnz if snapshot else 0
    return Participant(site, dataset, plan, snapshot, randbelow=randomness.seeded(f"start {start > 0}"))


def the_same_noise_after_a_restart(site: str, dataset: Dataset, plan: Plan, snapshot: SiteState | None) -> Participant:
    return Participant(site, dataset, plan, snapshot, randbelow=randomness.seeded(site))


STALE_NOISE = [the_same_noise_every_round, the_same_noise_at_every_site, the_same_noise_after_a_restart]
