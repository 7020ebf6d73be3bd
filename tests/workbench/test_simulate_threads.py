"""Sites that compute at the same time: the same bits, the same errors, the same end."""

import json
import threading

import numpy as np
import pytest

from fedbnsl.errors import DivergenceError
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_research.private_plans import private_plan, steps_alone
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

SITES = 6


@pytest.fixture(scope="module")
def tables():
    drawn = synthesise(7, 8, SITES, 120, 100)
    return {f"site-{k}": Dataset(drawn.variables, X) for k, X in enumerate(drawn.tables)}


PLANS = {
    "default": Plan(n_participants=SITES, rounds=8, refit_rounds=2),
    "frank-wolfe": Plan(n_participants=SITES, rounds=3, local_solver="frank-wolfe", local_steps=100),
    "private": private_plan(10.0).with_settings(n_participants=SITES, rounds=6),
    "laplace": steps_alone(10.0).with_settings(n_participants=SITES, rounds=3, local_solver="dp-pgcd-laplace"),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_results_are_the_same_bits_whatever_the_number_of_threads(plan, tables, tmp_path):
    private = plan.privacy is not None
    for threads in (1, 2, 5):
        simulate(plan, tables, tmp_path / f"{threads}", noise_seed=3 if private else None, threads=threads)
    with np.load(tmp_path / "1" / "checkpoint.npz") as one:
        for threads in (2, 5):
            with np.load(tmp_path / f"{threads}" / "checkpoint.npz") as other:
                for name in set(one.files) - {"run", "header"}:
                    assert one[name].tobytes() == other[name].tobytes(), name
    first, *others = (json.loads((tmp_path / f"{k}" / "result.json").read_text("utf-8")) for k in (1, 2, 5))
    for other in others:
        for key in ("edges", "bytes", "acyclicity"):
            assert other[key] == first[key]


def end(tables, folder, threads, handle, monkeypatch, error):
    monkeypatch.setattr(Participant, "handle", handle)
    with pytest.raises(error) as caught:
        simulate(PLANS["default"], tables, folder, threads=threads)
    result = json.loads((folder / "result.json").read_text("utf-8"))
    return str(caught.value), result["state"], result["reason"], len(result["rounds"])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_of_several_errors_the_one_of_the_first_site_counts(threads, tables, tmp_path, monkeypatch):
    last_failed = threading.Event()
    genuine = Participant.handle

    def handle(self, task):
        if task.round < 3 or self.site in ("site-0", "site-2"):
            return genuine(self, task)
        if self.site == "site-1":  # the later site's error comes first, where both compute at once
            last_failed.wait(5.0 if threads == 5 else 0.0)
        last_failed.set()
        raise DivergenceError(f"{self.site} fell over")

    ended = end(tables, tmp_path / "run", threads, handle, monkeypatch, DivergenceError)
    assert ended == ("site-1 fell over", "failed", "site-1 fell over", 2)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interruption_ends_the_run_before_sites_that_have_not_begun(threads, tables, tmp_path, monkeypatch):
    begun = []
    genuine = Participant.handle
    released = threading.Event()

    def handle(self, task):
        if task.round == 3:
            begun.append(self.site)
            if self.site == "site-0":
                raise KeyboardInterrupt
            released.wait(0.3)  # still at work when the main thread is interrupted
        return genuine(self, task)

    _, state, _, rounds = end(tables, tmp_path / "run", threads, handle, monkeypatch, KeyboardInterrupt)
    assert (state, rounds) == ("interrupted", 2)
    assert len(begun) <= threads + 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("site")]


def test_settings_of_floating_point_errors_reach_the_sites(tables, tmp_path, monkeypatch):
    seen = set()
    genuine = Participant.handle

    def handle(self, task):
        seen.add(np.geterr()["under"])
        return genuine(self, task)

    monkeypatch.setattr(Participant, "handle", handle)
    with np.errstate(under="warn"):
        simulate(PLANS["default"].with_settings(rounds=1), tables, tmp_path / "run", threads=2)
    assert seen == {"warn"}
