"""What a page costs: the viewers of the measurement, and how its rows are made."""

import time

import pytest
from starlette.routing import Route

from fedbnsl.web.board import Board
from fedbnsl.web.port import WebPort
from fedbnsl.web.stream import StreamedBoard
from fedbnsl_research.bench import pages
from fedbnsl_research.bench.viewers import Viewers

_LONG_S = 20.0


@pytest.mark.parametrize("hang", [False, True])
def test_viewers_look_and_only_those_that_do_not_hang_read(hang):
    board = Board()
    board.show("now", lambda: "here")
    with WebPort("127.0.0.1:0", package="fedbnsl.web") as port:
        port.add_routes([Route("/events", StreamedBoard(port.streams, lambda request: board))])
        with Viewers(("127.0.0.1", port.port), "/events", 5, hang=hang) as viewers:
            until = time.monotonic() + _LONG_S
            while port.n_viewers < 5 or (not hang and viewers.n_bytes < 500):
                assert time.monotonic() < until
                time.sleep(0.02)
        assert (viewers.n_bytes == 0) == hang
        assert viewers.n_cut == 0


def test_rounds_with_viewers_are_compared_with_rounds_without(monkeypatch):
    class Run:
        def __init__(self) -> None:
            self.n = 0

        def cost(self, seconds):
            self.n += 1  # none, 10, 50, 50 that hang
            return {1: (0.1, 0.5, 0.05), 2: (0.1, 0.53, 0.05), 3: (0.2, 0.5, 0.1), 0: (0.1, 0.5, 0.05)}[self.n % 4]

    monkeypatch.setattr(pages, "_SETTLE_S", 0.0)
    monkeypatch.setattr(pages, "Viewers", lambda *arguments, **settings: pages.nullcontext())
    rows = list(pages._viewers(20, "http://127.0.0.1:1/runs/run", Run(), 0.0, 2))
    assert [row["ratio to no viewers"] for row in rows] == [1.0, 1.0, 2.0, 1.0]
    assert [row["% of a processor beside the rounds"] for row in rows] == [0.0, 3.0, 25.0, 0.0]
