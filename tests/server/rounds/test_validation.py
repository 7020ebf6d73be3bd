"""The round that scores the network, at the coordinator: what it refuses, and what is left without a site."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client.rounds.test_validation import FAMILIES, NAMES, PLAN, network, rows
from fedbnsl.network.sums import N_BINS, N_SCORES
from fedbnsl.network.validation import both_of
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate
from fedbnsl.rounds.validation import Answer, Task
from fedbnsl_server.algorithm.admm import initial_state, without
from fedbnsl_server.results.validation import validation_of
from fedbnsl_server.rounds import validation
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.store.checkpoint import load, save

RUN = Run(PLAN, PLAN.edge_mask(NAMES), {"a": 400}, network=network().to_json)
TASK = Task(network().to_json())


def answer(n: int = 400, seed: int = 0) -> Answer:
    return Answer.of(list(both_of(network().network, rows(n)[seed:], network().means).values()))


def changed(field: str, at: int, value: float) -> Answer:
    numbers = getattr(answer(), field).copy()
    numbers[at] = value
    return replace(answer(), **{field: numbers})


def test_the_network_of_the_run_is_what_is_sent() -> None:
    state = initial_state(3, ["a"])
    assert validation.ask(state, RUN) == (state, TASK)


def test_sums_that_were_not_asked_for_or_that_no_rows_have_are_refused() -> None:
    assert validation.fault(answer(), TASK, RUN) == ""
    assert "has not the sums of the 3 variables" in validation.fault(Answer.of(()), TASK, RUN)
    for part in ("rows", "counts", "numbers", "own"):
        short = replace(answer(), **{part: getattr(answer(), part)[:-1]})
        assert "has not the sums" in validation.fault(short, TASK, RUN), part
    places = [("log_likelihood", 0, 1e60), ("numbers", 1, -1.0), ("counts", 0, 500), ("rows", 0, 10**9)]
    places += [("counts", 2, 1000), ("counts", 4 + N_BINS, 1000), ("left_out", 0, 1), ("numbers", 3, 500.0)]
    places += [("numbers", 2 * (3 + N_BINS) + 9, 500.0), ("counts", 4 + 2 * N_BINS, 390)]
    for field, at, value in places:
        assert "that no rows have" in validation.fault(changed(field, at, value), TASK, RUN), field
    turned = answer().counts.copy()
    turned[-N_SCORES:][:4] += 2**62  # together 2^64, which is 0 in 64 bits
    assert "that no rows have" in validation.fault(replace(answer(), counts=turned), TASK, RUN)
    nothing = replace(answer(), rows=np.zeros(6, dtype=np.int64), left_out=np.zeros(6, dtype=np.int64))
    assert "that no rows have" in validation.fault(nothing, TASK, RUN)


def test_an_answer_is_the_same_after_the_wire() -> None:
    update = LocalUpdate("a", 9, answer())
    data = codec.update_to_bytes(update, run=1, value_type="float32", dense=False)
    assert codec.update_from_bytes(data, n_variables=3, dense=False) == update


def test_sums_survive_the_disk_and_a_site_that_is_taken_out_takes_its_own_along(tmp_path: Path) -> None:
    state = validation.advance(initial_state(3, ["a", "b"]), {"a": answer(), "b": answer(300, 7)}, TASK, RUN)
    save(tmp_path / "c", state, plan_digest=b"1")
    loaded = load(tmp_path / "c", plan_digest=b"1")
    assert loaded.validation is not None
    assert state.validation is not None
    assert loaded.validation.content() == state.validation.content()
    told = validation_of(without(loaded, ["a"]).validation)
    assert told is not None
    assert list(told["variables"]["x"]["sites"]) == ["b"]
    assert told["variables"]["x"]["own_means"]["rows"] == 293
    both = validation_of(loaded.validation)
    assert both is not None
    assert both["variables"]["x"]["own_means"]["rows"] == 693
    json.dumps(both, allow_nan=False)


def test_a_site_that_did_not_answer_is_not_told_of_by_the_others_numbers() -> None:
    run = replace(RUN, n_samples={"a": 400, "b": 400})
    drawn = {site: network().network.sample(400, np.random.default_rng(k)) for k, site in enumerate("ab")}
    moments = {site: np.cov(X.T, bias=True) for site, X in drawn.items()}
    state = replace(initial_state(3, ["a", "b"]), moments=moments)
    both = validation.advance(state, {"a": answer(), "b": answer()}, TASK, run).validation
    one = validation.advance(state, {"a": answer()}, TASK, run).validation
    assert both is not None
    assert one is not None
    assert {site for of in both.left_out.values() for site in of} == {"a", "b"}
    assert {site for of in one.left_out.values() for site in of} == {"a"}


def test_without_numbers_nothing_is_kept() -> None:
    state = validation.advance(initial_state(3, ["a"]), {"a": Answer.of(())}, Task(""), RUN)
    assert state.validation is None
    assert validation.fault(Answer.of(()), Task(""), RUN) == ""
    assert "has not the sums" in validation.fault(answer(), Task(""), RUN)


def test_a_private_plan_sends_no_exact_sums() -> None:
    assert Plan.load("private").validation == "at_site"
    with pytest.raises(Exception, match="at_site"):
        Plan.load("private", ["validation=sums"])
    assert list(FAMILIES) == list(NAMES)
