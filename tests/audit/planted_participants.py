"""Participants with a bug that breaks the guarantee: one change of the real code each."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest import mock

from audit.planted import Plant, rewritten
from fedbnsl_client import participant
from fedbnsl_client.solvers import dp_pgcd, local_solver


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


# ---- noise that is not the system's --------------------------------------------------------------------------------

_MOMENTS = "task.scales, bound, variance, self._randbelow)"
_SETUP = "release_setup(plan, privacy, self._price, self._X, self._randbelow).tobytes()"


def seeded_moments(name: str, seed: str) -> Plant:
    """Noise of residual moments from a seeded source."""
    return changed_participant(name, _MOMENTS, _MOMENTS.replace("self._randbelow", f'randomness.seeded(f"{seed}")'))


def seeded_setup(name: str, seed: str) -> Plant:
    """Noise of the setup from a seeded source."""
    return changed_participant(name, _SETUP, _SETUP.replace("self._randbelow", f'randomness.seeded(f"{seed}")'))


_UPDATES = "B = self._solver_of(self._plan"


def seeded_updates(name: str, seed: str) -> Plant:
    """All noise of a round's private steps from a seeded source."""
    source = f'self._randbelow = randomness.seeded(f"{seed}")'
    return changed_participant(
        name, f"        {_UPDATES}", f"        self._solvers.clear()\n        {source}\n        {_UPDATES}"
    )


REPEATED_UPDATES: list[Plant] = [
    seeded_updates("updates_seeded_by_the_round", "{task.round}"),
    seeded_updates("updates_seeded_by_site_and_round", "{self.site} {task.round}"),
]
REPEATED_MOMENTS: list[Plant] = [
    seeded_moments("moments_seeded_by_the_round", "{task.round}"),
    seeded_moments("moments_seeded_by_the_site", "{self.site}"),
    seeded_moments("moments_seeded_by_site_run_and_round", "{self.site} {self._run} {task.round}"),
]
a_source_seeded_by_the_site_at_every_start = changed_participant(
    "a_source_seeded_by_the_site_at_every_start", "= randbelow\n", '= randomness.seeded(f"{site} {run}")\n'
)
REPEATED_SETUPS: list[Plant] = [
    seeded_setup("setups_seeded_by_the_site", "{self.site}"),
    seeded_setup("setups_seeded_by_site_and_run", "{self.site} {self._run}"),
]

# Other noise for every release of one process, and the same again in the next process.
one_seeded_source_for_the_whole_process = changed_participant(
    "one_seeded_source_for_the_whole_process",
    "randbelow: Randbelow = randomness.system",
    'randbelow: Randbelow = randomness.seeded("noise")',
)
moments_seeded_by_the_clock = changed_participant(
    "moments_seeded_by_the_clock",
    _MOMENTS,
    _MOMENTS.replace("self._randbelow", "randomness.seeded(str(__import__('time').time_ns()))"),
)
bound_from_the_table_of_the_site = changed_participant(
    "bound_from_the_table_of_the_site",
    "privacy.residual_norm_bound(d)\n",
    "float(np.linalg.norm((self._X - self._X @ task.global_weights.to_dense()) / task.scales, axis=1).max())\n",
)


def changed_solver(name: str, old: str, new: str) -> Plant:
    """A bug that is one change of the module of private steps."""

    @contextmanager
    def plant(folder: Path) -> Iterator[None]:
        with mock.patch.object(local_solver, "DpPgcd", rewritten(dp_pgcd, folder, (old, new)).DpPgcd):
            yield

    plant.__name__ = name
    return plant


_SEEDED = "__import__('fedbnsl_client.privacy.randomness').privacy.randomness.seeded"
updates_seeded_by_their_coordinate = changed_solver(
    "updates_seeded_by_their_coordinate", "self._noise(self._randbelow)", f"self._noise({_SEEDED}(f'{{i}} {{j}}'))"
)
updates_from_one_seeded_source = changed_solver(
    "updates_from_one_seeded_source",
    "self._noise(self._randbelow)",
    f"self._noise(globals().setdefault('all_updates', {_SEEDED}('all')))",
)
selections_seeded_alike = changed_solver(
    "selections_seeded_alike", "self._selection.draw(self._randbelow)", f"self._selection.draw({_SEEDED}('pick'))"
)
steps_seeded_at_every_start = changed_solver(
    "steps_seeded_at_every_start",
    "self._randbelow = selection, noise, randbelow",
    f"self._randbelow = selection, noise, {_SEEDED}('start')",
)
