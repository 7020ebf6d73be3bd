"""Ctrl-C where whoever runs the tests ignores it, as a shell does for a background job of a script."""

import signal


def heed_signals() -> None:
    """Let SIGINT and SIGTERM reach this process and those that it starts; children inherit what is ignored or blocked.

    SIGHUP stays ignored under nohup, which asks for this.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
