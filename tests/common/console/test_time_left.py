"""Time left from the share of a piece of work that is done, and when a line says so."""

from itertools import pairwise

import pytest

from fedbnsl.console.time_left import SparseLines, TimeLeft, in_words
from fedbnsl.protocol.messages import Phase


def left(shares: list[float], *, step_s: float = 1.0) -> list[float | None]:
    """The time left at each of these shares, one a step."""
    time_left = TimeLeft("work", 0.0)
    return [time_left.phase(share, k * step_s).left_s for k, share in enumerate(shares)]


def test_steady_work_takes_as_long_as_its_time_left_says():
    found = left([k / 100 for k in range(100)])
    assert found[2:] == pytest.approx([100.0 - k for k in range(2, 100)])


def test_no_time_is_told_before_there_is_a_basis_for_it():
    assert left([0.0, 0.5]) == [None, None], "a second is too little"
    assert left([0.0, 0.0, 0.001, 0.01]) == [None] * 4, "so is a hundredth"
    assert TimeLeft("work", 0.0).phase(None, 60.0) == Phase("work", None, 60.0, None)


def test_whoever_begins_to_look_late_takes_the_time_left_since_then():
    time_left = TimeLeft("work", 0.0)
    assert time_left.phase(0.5, 1000.0).left_s is None
    assert time_left.phase(0.6, 1010.0).left_s == pytest.approx(40.0)


def test_a_time_left_does_not_jump_where_the_share_does():
    steady = [k / 100 for k in range(30)]
    found = left([*steady, *(0.6 for _ in range(5))])
    assert found[29] == pytest.approx(71.0)
    assert found[30] == pytest.approx(61.0, abs=5.0), "the time_left alone says 20 s"
    steps = [a - b for a, b in pairwise(found[29:])]
    assert all(-1.0 < step < 12.0 for step in steps)


def test_a_share_that_falls_back_gives_more_time_and_no_nonsense():
    found = left([0.0, 0.2, 0.4, 0.6, 0.3, 0.3, 0.3])
    assert found[3] == pytest.approx(2.0)
    assert 2.0 < found[6] < 14.0


def test_at_the_end_nothing_is_left():
    assert left([0.0, 0.3, 0.6, 1.0])[-1] == 0.0


def test_lines_become_sparse_and_another_phase_has_its_own():
    lines = SparseLines()
    told = [t for t in range(200) if lines.is_due(Phase("search", None, float(t)))]
    assert told == [2, 4, 8, 16, 32, 64, 124, 184]
    assert not lines.is_due(Phase("bootstrap", None, 1.0)), "work of less than two seconds is not worth a line"
    assert lines.is_due(Phase("bootstrap", None, 2.0))


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (Phase("bootstrap", 0.439, 20.4, 27.2), "bootstrap: 43 %, 20 s, about 27 s left"),
        (Phase("loading", None, 3.0), "loading: 3 s"),
        (Phase("search", 0.0, 75.0), "search: 0 %, 1 min 15 s"),
    ],
)
def test_a_phase_in_words(phase, words):
    assert in_words(phase) == words
