"""Coordinator and sites are killed at random moments, many times a run: every run ends as it would have without.

FEDBNSL_KILLS says how many kills in all (default 50; 1000 take 20 minutes), FEDBNSL_KILL_SEED chooses others:
`make faults PYTEST_ARGS="-k random_kills --log-cli-level=INFO"`.
"""

import logging
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from faults import invariants
from faults.scene import COORDINATOR, SITES, Scene, guarded_plan, public_plan

KILLS = int(os.environ.get("FEDBNSL_KILLS", "50"))
SEED = int(os.environ.get("FEDBNSL_KILL_SEED", "1"))
KILLS_A_RUN = 10
ROUNDS = 12
LONGEST_PAUSE_S = 0.6
# Killed often, a private site pays often for what it never sends: the cap must not be what ends the run.
MAX_EPSILON = 500.0
LONG_S = 300.0


def harassed(scene: Scene, rng: random.Random) -> Counter[str]:
    """Play a run, killing and restarting; how often each process was killed."""
    kills: Counter[str] = Counter()
    due = time.monotonic() + rng.uniform(0, LONGEST_PAUSE_S)

    def over() -> bool:
        nonlocal due
        scene._follow()
        codes = {name: commands[-1].returncode for name, commands in scene.commands.items()}
        for name, code in codes.items():
            assert code in (None, 0, -signal.SIGKILL), f"{name} ended with {code}\n{scene.said}"
            if code == -signal.SIGKILL:
                scene.start(name)
        done = all(code == 0 for code in codes.values())
        if codes[COORDINATOR] == 0 and not done:  # a site has not heard the end: it is told again
            scene.start(COORDINATOR)
        elif not done and kills.total() < KILLS_A_RUN and time.monotonic() > due:
            name = rng.choice([COORDINATOR, *scene.sites])
            command = scene.commands[name][-1]
            if command.returncode is None:
                command.signal(signal.SIGKILL)
                command._process.join(10)
                kills[name] += command.returncode == -signal.SIGKILL
            due = time.monotonic() + rng.uniform(0, LONGEST_PAUSE_S)
        return done

    scene.patience_s = LONG_S
    scene.open()
    for site in scene.sites:
        scene.start(site)
    scene.until(over, "the end of a run with random kills")
    return kills


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Scene(tmp_path_factory.mktemp("undisturbed"), public_plan(rounds=ROUNDS)) as scene:
        scene.perform()
        return scene.run


@pytest.mark.timeout(120 + 10 * KILLS)
def test_kills_at_random_moments_change_no_bit_and_overspend_nothing(undisturbed: Path, tmp_path: Path) -> None:
    rng, kills, runs = random.Random(SEED), Counter[str](), 0
    while kills.total() < KILLS:
        private = runs % 2 == 1
        plan = guarded_plan(rounds=ROUNDS, run_deadline_s=LONG_S) if private else public_plan(rounds=ROUNDS)
        with Scene(tmp_path / f"{runs}", plan, max_epsilon=MAX_EPSILON) as scene:
            killed = harassed(scene, rng)
            invariants.everybody_contributed(scene)
            if private:
                invariants.budgets_held(scene, {site: killed[site] for site in SITES})
                invariants.what_was_used_is_what_was_paid_for(scene)
            else:
                invariants.is_the_undisturbed_result(scene, undisturbed)
        kills += killed
        runs += 1
    logging.info(
        "%d kills in %d runs: %s; all finished, equal bits, nothing overspent", kills.total(), runs, dict(kills)
    )
