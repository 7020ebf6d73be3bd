"""What takes time in a run, as those see it that look now and then."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedbnsl.console.time_left import in_words
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.run.phases import Phases
from fedbnsl_server.search.progress import Progress


def test_each_part_of_each_search_has_a_time_left_of_its_own() -> None:
    phases = Phases(5)
    for began in (0.0, 100.0):  # two searches with parts of the same name
        progress = Progress()
        progress.begin("bootstrap")
        phases.follow(progress)
        assert (phases.look(2, began).what, phases.look(2, began).elapsed_s) == ("bootstrap", 0.0)
        progress.at(0.5)
        assert phases.look(2, began + 10.0).left_s == 10.0
        phases.follow(None)
        del progress
        assert phases.look(3, began + 20.0).what == "rounds"


def test_a_step_of_a_part_has_the_same_end_and_tells_no_share() -> None:
    progress = Progress()
    progress.begin("bootstrap")
    progress.at(0.25)
    step = progress.step()
    step.at(0.9)
    assert progress.done == 0.25
    progress.enough()
    assert step.is_enough
    assert progress.ended_in == "bootstrap"


def test_em_tells_its_iteration_and_how_far_its_change_is_from_where_it_ends() -> None:
    phases, rows = Phases(12), {"a": np.full((2, 2), 300.0), "b": np.full((2, 2), 100.0)}
    phases.completion = one = Completion(rows, iterations=1)
    first = phases.look(3, 10.0)
    assert in_words(first) == "EM for rows with gaps (iteration 1, ends below 0.001): 0 %, 0 s"
    assert first.is_work
    assert not first.is_search
    shares: list[float | None] = []
    for k, change in enumerate((0.3, 0.0316, 0.002), start=2):
        phases.completion = replace(one, iterations=k, change=change)
        phase = phases.look(2 + k, 10.0 + k)
        assert phase.detail == f"iteration {k}, change {change:.2g}, ends below 0.001"
        assert phase.elapsed_s == float(k), "one phase from the first iteration to the last"
        shares.append(phase.share)
    assert shares == pytest.approx([math.log(change) / math.log(0.001) for change in (0.3, 0.0316, 0.002)])
    phases.completion = replace(one, iterations=5, change=0.0005, done=True)
    assert phases.look(7, 20.0).what == "rounds"
