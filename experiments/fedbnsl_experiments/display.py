"""A run on the terminal: a live view while it goes on, a summary when it is over."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedbnsl.messages import RunStatus, SiteProgress
from fedbnsl_experiments.metrics import Scores

_LINES_WITHOUT_TERMINAL = 10
_EDGES_SHOWN = 40
_SITES_SHOWN = 24


class RunDisplay:
    """Live view of a run; on a pipe or in a file, a line now and then."""

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._console = console
        self._live = Live(Text(title), console=console, refresh_per_second=8, transient=True)
        self._last_line = -1

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
        if self._console.is_terminal:
            self._live.update(_view(self._title, status))
            return
        step = status.round * _LINES_WITHOUT_TERMINAL // status.rounds if status.rounds else 0
        if step != self._last_line:
            self._last_line = step
            self._console.print(_headline(status), highlight=False, soft_wrap=True)


def megabytes(n_bytes: float) -> str:
    """Bytes for people: kB below one MB, both decimal."""
    return f"{n_bytes / 1e6:.2f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.1f} kB"


def _headline(status: RunStatus) -> str:
    if not status.round:
        return f"{status.state}: {len(status.sites)} joined"
    n_bytes = sum(site.bytes_up + site.bytes_down for site in status.sites)
    answered = sum(site.answered for site in status.sites)
    return (
        f"round {status.round}/{status.rounds}  answered {answered}/{len(status.sites)}  h(W) {status.acyclicity:.1e}  "
        f"edges {status.edges}  {megabytes(n_bytes)}  {_time_left(status)}"
    )


def _time_left(status: RunStatus) -> str:
    done = status.round - 1
    if done < 1:
        return f"{status.elapsed_s:.0f} s"
    left = status.elapsed_s / done * (status.rounds - done)
    return f"{status.elapsed_s:.0f} s, about {left:.0f} s left"


def _view(title: str, status: RunStatus) -> Group:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, justify in (("site", "left"), ("this round", "left"), ("up", "right"), ("down", "right")):
        table.add_column(
            column, justify="right" if justify == "right" else "left", style="dim" if column != "site" else ""
        )
    for site in status.sites[:_SITES_SHOWN]:
        table.add_row(Text(site.site), _mark(site), megabytes(site.bytes_up), megabytes(site.bytes_down))
    if len(status.sites) > _SITES_SHOWN:
        table.add_row(f"... {len(status.sites) - _SITES_SHOWN} more", "", "", "")
    bar = Table.grid()  # a bare bar does not end its line
    bar.add_row(ProgressBar(total=max(1, status.rounds), completed=max(0, status.round - 1), width=60))
    return Group(Text(title, style="bold"), bar, Text(_headline(status)), table)


def _mark(site: SiteProgress) -> Text:
    if site.left:
        return Text("left", style="red")
    return Text("answered", style="green") if site.answered else Text("working", style="yellow")


def print_summary(
    result: Mapping[str, Any], folder: Path, console: Console, *, scores: Scores | None = None, seconds: float
) -> None:
    """What was learned, what it cost, and where it is kept.

    Parameters
    ----------
    result
        The content of result.json; with "ledgers", what each site's ledger has spent and has left.
    scores
        Against a known truth, if there is one.
    seconds
        Wall clock of the whole command.
    """
    edges = result["edges"]
    table = Table(title=f"edges learned: {len(edges)}", title_justify="left")
    for name in ("source", "target", "weight"):
        table.add_column(name, justify="right" if name == "weight" else "left")
    for edge in edges[:_EDGES_SHOWN]:
        # Text: a plain string would lose "[mol/l]" of a name as markup.
        table.add_row(Text(edge["source"]), Text(edge["target"]), f"{edge['weight']:+.3f}")
    if len(edges) > _EDGES_SHOWN:
        table.add_row(f"... {len(edges) - _EDGES_SHOWN} more", "in edges.csv", "")
    console.print(table)
    sent = result["bytes"]
    lines = Table.grid(padding=(0, 2))
    if scores is not None:
        lines.add_row(
            "against the truth",
            f"SHD {scores.shd} of {scores.n_reference_edges} edges ({scores.missing} missing, {scores.extra} extra, "
            f"{scores.reversed} reversed)",
        )
    for kind, meaning in (("formula", "as the paper counts"), ("serialised", "real protobuf messages")):
        up, down = sent["up"][kind], sent["down"][kind]
        lines.add_row(
            f"bytes, {kind}", f"{megabytes(up + down)} ({megabytes(up)} up, {megabytes(down)} down): {meaning}"
        )
    for site, of in result.get("ledgers", {}).items():
        spent, left = of["spent"]["epsilon"], of["left"]["epsilon"]
        lines.add_row(
            f"{site}'s ledger",
            f"epsilon {spent:.4g} of {of['max_epsilon']:g} spent (delta {of['delta']:.3g}); room for {left:.4g}",
        )
    if result["privacy"] and result["privacy"]["guarantee"]:
        lines.add_row("guarantee", result["privacy"]["guarantee"])
    if result["dropped_edges"]:
        lines.add_row("cycles", f"{len(result['dropped_edges'])} weak edges left out to break them (see result.json)")
    took = result["seconds"]
    for warning in result["warnings"]:
        lines.add_row("be careful", Text(warning, style="yellow"))
    lines.add_row("seconds", f"{seconds:.1f} in all, {took['total']:.1f} from the first round on")
    console.print(lines)
    # By itself: a table would cut a long path short.
    console.print(Text(f"run folder         {folder}"), soft_wrap=True)
