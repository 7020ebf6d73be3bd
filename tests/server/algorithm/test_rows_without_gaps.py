"""How many rows of a site lack no value, as far as it has told."""

from dataclasses import replace

from fedbnsl_server.algorithm.admm import initial_state
from fedbnsl_server.algorithm.completion import Completion


def test_a_site_that_was_away_when_rows_were_counted_is_none_without_complete_rows() -> None:
    state = initial_state(2, ["a", "b", "c"])
    rows = {"a": 50, "b": 30, "c": 20}
    assert state.without_gaps(rows) == rows, "nobody has told of gaps"
    told = Completion({}, differences={}, complete_rows={"a": 40, "b": 0}, iterations=1)
    assert replace(state, completion=told).without_gaps(rows) == {"a": 40, "b": 0, "c": 20}
