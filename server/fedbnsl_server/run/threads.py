"""Do several parts of a search at the same time, in threads: compiled code lets others run.

What comes out does not depend on how many threads there are: each part has its own draws, and results are in the order
of the parts.
"""

import os
import threading
from collections.abc import Iterable
from typing import Any

from fedbnsl_server.search.progress import Each, in_turn


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def at_once(n_threads: int) -> Each:
    """So many at a time, in daemon threads, which do not keep an interrupted process alive."""
    if n_threads == 1:
        return in_turn

    def each(function: Any, items: Iterable[Any], /) -> Iterable[Any]:
        parts = list(items)
        results: list[Any] = [None] * len(parts)
        failures: list[BaseException] = []
        left, lock = iter(range(len(parts))), threading.Lock()

        def work() -> None:
            while not failures:
                with lock:
                    k = next(left, None)
                if k is None:
                    return
                try:
                    results[k] = function(parts[k])
                except BaseException as failure:  # raised below, in the thread that waits
                    failures.append(failure)

        workers = [threading.Thread(target=work, name="search", daemon=True) for _ in range(min(n_threads, len(parts)))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if failures:
            raise failures[0]
        return results

    return each
