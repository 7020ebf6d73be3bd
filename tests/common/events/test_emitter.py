"""What happens in a run is told to all who listen, and nobody who listens can hurt the run."""

import logging
import os
import signal

import pytest

from fedbnsl.console.interrupt import interruptible
from fedbnsl.errors import InterruptedRunError
from fedbnsl.events import emitter as events
from fedbnsl.events.emitter import KINDS, Event, Events


def test_the_kinds_are_those_that_the_module_describes() -> None:
    tables = (events.__doc__ or "").split("===============  ===")[1:]
    described = {line[:17].strip() for table in tables[::2] for line in table.splitlines() if line[:1].islower()}
    assert set(KINDS) == described
    assert len(KINDS) == len(described)


def test_an_interruption_is_no_failure_of_a_listener() -> None:
    heard: list[str] = []

    def listener(event: Event) -> None:
        heard.append(event.kind)
        if event.kind == "released":
            os.kill(os.getpid(), signal.SIGINT)

    emit = Events()
    emit.listen(listener)
    with pytest.raises(InterruptedRunError), interruptible():
        emit("released")
    emit("run over")
    assert heard == ["released", "run over"]


def test_a_listener_that_fails_hears_no_more_and_the_others_do(caplog) -> None:
    heard: list[str] = []

    def fails(event: Event) -> None:
        raise ValueError(event.kind)

    emit = Events()
    emit.listen(fails)
    emit.listen(lambda event: heard.append(event.kind))
    with caplog.at_level(logging.ERROR):
        emit("paused")
        emit("goes on")
    assert heard == ["paused", "goes on"]
    assert len(caplog.records) == 1
