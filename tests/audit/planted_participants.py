"""Participants with a bug that breaks the guarantee: one change of the real code each."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

from audit.planted import Plant, private_steps_by, rewritten
from fedbnsl_client import participant
from fedbnsl_client.rounds import admm, residual_moments, scales
from fedbnsl_client.solvers import dp_pgcd


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


def changed_rounds(name: str, module: ModuleType, *changes: tuple[str, str]) -> Plant:
    """A bug that is a change of how one kind of round is answered."""

    @contextmanager
    def plant(folder: Path) -> Iterator[None]:
        with mock.patch.object(module, "Rounds", rewritten(module, folder, *changes).Rounds):
            yield

    plant.__name__ = name
    return plant


_RELEASE = "kept = problem.journal.release(task.round, draw, attempt=problem.attempt(task.round))"
moments_without_the_journal = changed_participant(
    "moments_without_the_journal", _RELEASE, f"{_RELEASE} if task.content.kind != 'residual_moments' else draw()"
)
scales_without_the_journal = changed_participant(
    "scales_without_the_journal", _RELEASE, f"{_RELEASE} if task.content.kind != 'scales' else draw()"
)
scales_drawn_anew = changed_rounds(
    "scales_drawn_anew",
    scales,
    (
        "from fedbnsl.protocol.messages",
        "from fedbnsl_client.solvers.local_solver import release_setup\nfrom fedbnsl.protocol.messages",
    ),
    (
        "setup = self.problem.setup\n",
        "p = self.problem\n        setup = release_setup(p.plan, p.plan.privacy, p.price, p.X, p.randbelow)\n",
    ),
)
moments_drawn_twice = changed_rounds(
    "moments_drawn_twice",
    residual_moments,
    (
        "            released = release_residual_moments(",
        "            for _ in (1, 2): released = release_residual_moments(",
    ),
)
moments_computed_before_they_are_paid = changed_participant(
    "moments_computed_before_they_are_paid",
    f"        {_RELEASE}",
    "        early = rounds.answer(task)\n"
    "        rounds = type('Early', (), {'answer': lambda self, task: early, 'keeps_task': rounds.keeps_task,"
    " 'private_key': b'', 'own_means': rounds.own_means})()\n"
    f"        {_RELEASE}",
)
any_kind_in_any_round = changed_participant(
    "any_kind_in_any_round", "if not may_be(self._plan, task.round, kind):", "if False:"
)
moments_without_scales = changed_rounds(
    "moments_without_scales", residual_moments, ("if numbers.shape != (d,) or", "if numbers.shape == (d,) and")
)
weights_of_any_size = changed_rounds("weights_of_any_size", admm, ("        check_size(task, sent.value)\n", ""))


# ---- noise that is not the system's --------------------------------------------------------------------------------

_ANSWER = "            update = LocalUpdate("


def seeded_answers(name: str, seed: str) -> Plant:
    """All noise of a round from a seeded source."""
    source = f'object.__setattr__(problem, "randbelow", randomness.seeded(f"{seed}"))'
    anew = 'getattr(rounds, "_solvers", {}).clear()'
    return changed_participant(name, _ANSWER, f"            {source}; {anew}\n{_ANSWER}")


def seeded_setup(name: str, seed: str) -> Plant:
    """Noise of the setup from a seeded source."""
    first = "        self._rounds: dict[str, LocalRounds] = {}\n"
    held = 'object.__setattr__(self._problem, "randbelow", '
    early = f"{held}randomness.seeded(f'{seed}')); _ = plan.privacy and self._problem.setup; {held}randbelow)"
    return changed_participant(name, first, f"{first}        {early}\n")


REPEATED_UPDATES: list[Plant] = [
    seeded_answers("updates_seeded_by_the_round", "{task.round}"),
    seeded_answers("updates_seeded_by_site_and_round", "{self.site} {task.round}"),
]
REPEATED_MOMENTS: list[Plant] = [
    seeded_answers("moments_seeded_by_the_round", "{task.round}"),
    seeded_answers("moments_seeded_by_the_site", "{self.site}"),
    seeded_answers("moments_seeded_by_site_run_and_round", "{self.site} {self._run} {task.round}"),
]
a_source_seeded_by_the_site_at_every_start = changed_participant(
    "a_source_seeded_by_the_site_at_every_start",
    "            randbelow,\n",
    '            randomness.seeded(f"{site} {run}"),\n',
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
moments_seeded_by_the_clock = seeded_answers("moments_seeded_by_the_clock", "{__import__('time').time_ns()}")
bound_from_the_table_of_the_site = changed_rounds(
    "bound_from_the_table_of_the_site",
    residual_moments,
    (
        "privacy.residual_norm_bound(d),\n",
        "float(np.linalg.norm((problem.X - problem.X @ content.weights.to_dense()) / content.scales, axis=1).max()),\n",
    ),
)


def changed_solver(name: str, old: str, new: str) -> Plant:
    """A bug that is one change of the module of private steps."""

    @contextmanager
    def plant(folder: Path) -> Iterator[None]:
        with private_steps_by(rewritten(dp_pgcd, folder, (old, new)).DpPgcd):
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
