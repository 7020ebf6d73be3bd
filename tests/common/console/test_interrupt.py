import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fedbnsl.console.interrupt import interruptible
from fedbnsl.errors import InterruptedRunError
from heeded_signals import heed_signals

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*HEEDED, signal.SIGCHLD)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.parametrize("number", HEEDED)
def test_a_signal_that_the_parent_ignores_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with interruptible():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_IGN


@pytest.mark.parametrize("number", HEEDED)
def test_a_signal_that_the_parent_blocks_is_heard(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    with pytest.raises(InterruptedRunError) as interrupted, interruptible():
        os.kill(os.getpid(), number)
    assert interrupted.value.signal_number == number
    assert number in signal.pthread_sigmask(signal.SIG_BLOCK, []), "as before"


@pytest.mark.parametrize("number", [*HEEDED, signal.SIGCHLD])
def test_a_handler_that_was_not_set_from_python_is_left_in_place(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python knows such a handler as None, and cannot set it again."""
    handlers: dict[signal.Signals, object] = dict.fromkeys((*HEEDED, signal.SIGCHLD), signal.SIG_DFL) | {number: None}

    def set_handler(which: signal.Signals, handler: object) -> object:
        if handler is None:
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
        before, handlers[which] = handlers[which], handler
        return before

    before = dict(handlers)
    with monkeypatch.context() as patched:
        patched.setattr(signal, "signal", set_handler)
        patched.setattr(signal, "getsignal", lambda which: handlers[which])
        with interruptible():
            assert handlers[number] is None
    assert handlers == before


def test_what_a_signal_raises_passes_whoever_catches_errors_and_is_one_outside() -> None:
    with pytest.raises(InterruptedRunError, match="interrupted by SIGTERM"), interruptible(), suppress(Exception):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_child_that_fails_is_seen_where_the_parent_ignores_ended_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with interruptible():
        assert subprocess.run([sys.executable, "-S", "-c", "raise SystemExit(3)"], check=False).returncode == 3
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN


def test_tests_hear_ctrl_c_where_whoever_runs_them_ignores_or_blocks_it() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    heed_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not {signal.SIGINT, signal.SIGTERM} & signal.pthread_sigmask(signal.SIG_BLOCK, [])
