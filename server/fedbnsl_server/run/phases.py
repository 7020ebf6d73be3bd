"""What takes time in a run, for those that watch it: read now and then, on one thread, while another works."""

from fedbnsl.console.time_left import TimeLeft
from fedbnsl.protocol.messages import ROUNDS, Phase
from fedbnsl_server.search.progress import Progress

ENDING = (
    "ending this search with the best so far, and going on with the run; Ctrl-C again at once interrupts the run, and "
    "later ends the search of a later round"
)


class Phases:
    """The phase that a run is in, and how long it still takes."""

    def __init__(self, n_rounds: int) -> None:
        self.progress: Progress | None = None  # of the search that goes on; set by the thread of the rounds
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
        progress = self.progress
        if first is not None:
            progress, (what, share) = None, first
        elif progress is not None and progress.part:
            what, share = progress.part, progress.done
        else:
            if self._rounds is None:  # one from the first round to the last: a search between two is part of it
                self._rounds = TimeLeft(ROUNDS, now)
            return self._rounds.phase(max(t - 1, 0) / self.n_rounds if self.n_rounds else None, now)
        if self._other is None or self._other[0] != (progress, what):
            self._other = (progress, what), TimeLeft(what, now)
        return self._other[1].phase(share, now)

    def end_search(self) -> bool:
        """Ask the search that goes on to end with the best that it has; whether there is one that was not asked."""
        progress = self.progress
        if progress is None or not progress.part or progress.is_enough:
            return False
        progress.enough()
        return True
