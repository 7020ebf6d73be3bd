"""What takes time in a run, for those that watch it: read now and then, on one thread, while another works."""

import math
from dataclasses import replace

from fedbnsl.console.time_left import TimeLeft
from fedbnsl.protocol.messages import COMPLETING, ROUNDS, Phase
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.search.progress import Progress

ENDING = (
    "ending this search with the best so far, and going on with the run; Ctrl-C again at once interrupts the run, and "
    "later ends the search of a later round"
)


class Phases:
    """The phase that a run is in, and how long it still takes."""

    def __init__(self, n_rounds: int) -> None:
        self.progress: Progress | None = None  # of the search that goes on; set by the thread of the rounds
        self.completion: Completion | None = None  # of rows with gaps, after the last round; set by the same thread
        self.n_rounds = n_rounds
        self._rounds: TimeLeft | None = None
        self._other: tuple[tuple[Progress | None, str], TimeLeft] | None = None

    def follow(self, progress: Progress | None) -> None:
        """Follow a search that may begin; None: it is over."""
        self.progress = progress

    def look(self, t: int, now: float, *, first: tuple[str, float | None] | None = None) -> Phase:
        """Where the run stands, in round t at `now` (monotonic seconds).

        `first` is what the rounds wait for, and the share of it that is there; None: nothing.
        """
        progress, completion, detail = self.progress, self.completion, ""
        if first is not None:
            progress, (what, share) = None, first
        elif completion is not None and completion.iterations and not completion.done:
            what, share, detail = COMPLETING, _share_of(completion), _stands(completion)
        elif progress is not None and progress.part:
            what, share = progress.part, progress.done
        else:
            if self._rounds is None:  # one from the first round to the last: a search between two is part of it
                self._rounds = TimeLeft(ROUNDS, now)
            return self._rounds.phase(max(t - 1, 0) / self.n_rounds if self.n_rounds else None, now)
        if self._other is None or self._other[0] != (progress, what):
            self._other = (progress, what), TimeLeft(what, now)
        return replace(self._other[1].phase(share, now), detail=detail)

    def end_search(self) -> bool:
        """Ask the search that goes on to end with the best that it has; whether there is one that was not asked."""
        progress = self.progress
        if progress is None or not progress.part or progress.is_enough:
            return False
        progress.enough()
        return True


def _share_of(completion: Completion) -> float:
    """How far EM is, on the logarithmic scale on which its changes shrink: from 1, a whole variance, to their limit."""
    return 0.0 if completion.change >= 1.0 else math.log(completion.change) / math.log(completion.tolerance)


def _stands(completion: Completion) -> str:
    """Which iteration is over, and how far its change is from where EM ends."""
    limit = f"ends below {completion.tolerance:.2g}"
    if math.isinf(completion.change):  # the first compares with nothing
        return f"iteration {completion.iterations}, {limit}"
    return f"iteration {completion.iterations}, change {completion.change:.2g}, {limit}"
