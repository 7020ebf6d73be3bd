"""What takes time, beside the lines that a command prints: a bar on a terminal, on a pipe a line now and then."""

from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedbnsl.console.shown import shown
from fedbnsl.console.time_left import SparseLines, in_words
from fedbnsl.protocol.messages import Phase


class PhaseDisplay:
    """The phases of several runs, or of one, whose name is empty. `say`: prints a line that stays."""

    def __init__(self, console: Console, say: Callable[[str], None]) -> None:
        self._console, self._say = console, say
        self._live: Live | None = None
        self._phases: dict[str, Phase] = {}
        self._lines: dict[str, SparseLines] = {}

    def show(self, run: str, phase: Phase | None) -> None:
        """Bring a run up to date; a wait for others is not shown, and None ends it."""
        if phase is None or not phase.is_work:
            self._phases.pop(run, None)
        else:
            self._phases[run] = phase
            if not self._console.is_terminal and self._lines.setdefault(run, SparseLines()).is_due(phase):
                self._say(f"{run}: {in_words(phase)}" if run else in_words(phase))
        if self._console.is_terminal:
            self._draw()

    def _draw(self) -> None:
        if self._phases and self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        if self._live is not None:
            self._live.update(Group(*(bar_of(phase, run) for run, phase in self._phases.items())))
            if not self._phases:
                self._live.stop()
                self._live = None


def bar_of(phase: Phase, run: str = "") -> RenderableType:
    """A phase with its bar."""
    line = Table.grid(padding=(0, 2))
    unknown = phase.share is None
    bar = ProgressBar(total=None if unknown else 1.0, completed=phase.share or 0.0, width=24, pulse=unknown)
    line.add_row(*[Text(run)] * bool(run), bar, Text(shown(in_words(phase))))
    return line
