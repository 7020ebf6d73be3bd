"""A run on the terminal while it goes on: a live view, or on a pipe a line now and then."""

from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedbnsl.console.phase_display import bar_of
from fedbnsl.console.time_left import SparseLines, in_words
from fedbnsl.console.wording import counted_edges, duration
from fedbnsl.privacy.zcdp import zcdp_of
from fedbnsl.protocol.messages import ENDED_STATES, RunOffer, RunStatus, SiteProgress
from fedbnsl_server.sites.why_left import WHY_LEFT

_LINES_WITHOUT_TERMINAL = 10
_SITES_SHOWN = 24
_WIDER_THAN_ANY = 10_000
_COLUMNS = ("site", "state", "online since", "last seen", "last round", "spent zCDP", "up", "down")
_STYLES = {"left": "red", "away": "red", "working": "yellow"}  # all other states: green
_LEFT_ALIGNED = ("site", "state")
_LEFT_OUT_FIRST = ("down", "up", "online since", "spent zCDP", "last round", "last seen")


class RunDisplay:
    """Live view of a run; on a pipe or in a file, a line now and then."""

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._console = console
        self._live = Live(Text(title), console=console, refresh_per_second=8, transient=True)
        self._last_step: tuple[str, str, int] | None = None
        self._last_status: RunStatus | None = None
        self._last_trouble = ""
        self._lines = SparseLines()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, status: RunStatus) -> None:
        """Bring the view up to date."""
        self._last_status, back = status, bool(self._last_trouble)
        self._last_trouble = ""
        if self._console.is_terminal:
            self._live.update(view(self._title, status))
            return
        step = (
            status.state,
            status.reason,
            status.round * _LINES_WITHOUT_TERMINAL // status.rounds if status.rounds else 0,
        )
        if step != self._last_step or back:
            self._last_step = step
            self.say(headline(status))
        if status.phase is not None and status.phase.is_work and self._lines.is_due(status.phase):
            self.say(in_words(status.phase))

    def show_trouble(self, trouble: str) -> None:
        """Show, above the last status, why it is out of date."""
        if self._console.is_terminal:
            seen = (
                Text(self._title, style="bold") if self._last_status is None else view(self._title, self._last_status)
            )
            self._live.update(Group(Text(trouble, style="red"), seen))
        elif trouble != self._last_trouble:
            self.say(trouble)
        self._last_trouble = trouble

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(Text(line), soft_wrap=True)


def megabytes(n_bytes: float) -> str:
    """Bytes for people: kB below one MB, both decimal."""
    return f"{n_bytes / 1e6:.2f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.1f} kB"


def seconds_left(status: RunStatus) -> float | None:
    """How long the remaining rounds take, at the pace of those done.

    None before one is done, after the end, and while the coordinator works: the phase then says how long that takes.
    """
    done = status.round - 1
    if status.state != "running" or done < 1 or (status.phase is not None and status.phase.is_work):
        return None
    return status.elapsed_s / done * (status.rounds - done)


def headline(status: RunStatus) -> str:
    """A run in one line."""
    state = f"{status.state} ({status.reason})" if status.reason else status.state
    if not status.round:
        return f"{state}: {len(status.sites)} joined"
    n_bytes = sum(site.bytes_up + site.bytes_down for site in status.sites)
    answered = sum(site.answered for site in status.sites)
    note, left = (status.reason if status.state == "running" else state), seconds_left(status)
    return (
        f"{note}{'  ' if note else ''}round {status.round}/{status.rounds}  answered {answered}/{len(status.sites)}  "
        f"h(W) {status.acyclicity:.1e}  {counted_edges(status.edges, status.undirected)}  {megabytes(n_bytes)}  "
        f"{duration(status.elapsed_s)}" + ("" if left is None else f", about {duration(left)} left")
    )


def view(title: str, status: RunStatus) -> Group:
    """A run with its progress and its sites."""
    done = status.rounds if status.state == "finished" else max(0, status.round - 1)
    bar = Table.grid()  # a bare bar does not end its line
    bar.add_row(ProgressBar(total=max(1, status.rounds), completed=done, width=60))
    parts: list[RenderableType] = [Text(title, style="bold"), bar, Text(headline(status))]
    if status.phase is not None and status.phase.is_work:
        parts.append(bar_of(status.phase))
    parts.append(_Sites(status))
    if any(site.spent_units is not None for site in status.sites):
        parts.append(
            Text("spent zCDP: from this dataset in this federation, as each site's ledger told it last", style="dim")
        )
    return Group(*parts)


def runs_table(offers: Sequence[RunOffer]) -> RenderableType:
    """The runs of a coordinator, a line each."""
    if not offers:
        return Text("no runs")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("run", "state", "plan", "round", "sites"):
        table.add_column(column, justify="right" if column == "round" else "left", overflow="fold")
    for one in offers:
        rounds = f"{one.round}/{one.rounds}" if one.round else "-"
        sites = ", ".join(one.sites) or f"{one.memberships}, whoever joins first"
        table.add_row(*map(Text, (one.name, one.state, one.plan_name, rounds, sites)))
    return table


class _Sites:
    """The sites by their whole names, and as many columns as there is room for."""

    def __init__(self, status: RunStatus) -> None:
        self._status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        chosen, left_out = list(_COLUMNS), list[str]()
        for column in _LEFT_OUT_FIRST:
            needed = Measurement.get(console, options.update(max_width=_WIDER_THAN_ANY), _table(self._status, chosen))
            if needed.maximum <= options.max_width:
                break
            chosen.remove(column)
            left_out.insert(0, column)
        yield _table(self._status, chosen)
        if left_out:
            columns = "columns" if len(left_out) > 1 else "column"
            yield Text(f"{columns} not shown: {', '.join(left_out)} (see --json)", style="dim")


def _table(status: RunStatus, columns: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(
            column,
            justify="left" if column in _LEFT_ALIGNED else "right",
            style="" if column in _LEFT_ALIGNED else "dim",
            no_wrap=column != "site",
            overflow="fold",
        )
    for site in status.sites[:_SITES_SHOWN]:
        cells: dict[str, RenderableType] = {
            "site": Text(site.site),
            "state": Text(state := state_of(site, status), style=_STYLES.get(state, "green")),
            "online since": _moment(status.time_unix_s - site.online_s, status.time_unix_s) if site.online_s else "-",
            "last seen": f"{duration(site.last_seen_s)} ago",
            "last round": str(site.last_round or "-"),
            "spent zCDP": "-" if site.spent_units is None else f"{zcdp_of(site.spent_units):.4g}",
            "up": megabytes(site.bytes_up),
            "down": megabytes(site.bytes_down),
        }
        table.add_row(*(cells[column] for column in columns))
    if len(status.sites) > _SITES_SHOWN:
        table.add_row(f"... {len(status.sites) - _SITES_SHOWN} more")
    return table


def _moment(unix_s: float, now_unix_s: float) -> str:
    """A time in this machine's time zone, with the day unless it is today."""
    moment, now = datetime.fromtimestamp(unix_s), datetime.fromtimestamp(now_unix_s)
    return f"{moment:%H:%M:%S}" if moment.date() == now.date() else f"{moment:%m-%d %H:%M}"


def state_of(site: SiteProgress, status: RunStatus) -> str:
    """What a site of a run does at present, in a word or two."""
    if site.left:
        why = WHY_LEFT[site.why_left]
        return f"left: {why.word}" if why.text else "left"
    if status.state in ENDED_STATES:
        return "run has ended"
    if not site.online_s:
        return "away"
    if not status.round:
        return "joined"
    return "answered" if site.answered else "working"
