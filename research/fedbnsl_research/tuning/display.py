"""A search's ranking on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbnsl_research.tuning.ranking import Ranked

_SHOWN = 10


def print_ranking(ranking: Sequence[Ranked], metric: str, out: Path, console: Console) -> None:
    """The best configurations, and where the rest is."""
    table = Table(title=Text(f"{len(ranking)} configurations by mean {metric}"), title_justify="left")
    table.add_column("", justify="right", overflow="fold")
    for key in ranking[0].choice:
        table.add_column(Text(key), justify="right", overflow="fold")
    for name in (metric, "worst", "failed", "MB", "seconds"):
        table.add_column(name, justify="right", overflow="fold")
    for place, r in enumerate(ranking[:_SHOWN], start=1):
        spread = "" if r.std is None else f" +- {r.std:.3g}"
        table.add_row(
            str(place),
            *(Text(str(value)) for value in r.choice.values()),
            _number(r.mean) + spread,
            _number(r.worst),
            f"{r.failures}/{r.seeds}",
            _number(r.mb),
            _number(r.seconds),
        )
    console.print(table)
    for place, r in enumerate(ranking[:_SHOWN], start=1):
        if r.error:
            console.print(Text(f"{place}: {r.error}", style="yellow"), soft_wrap=True)
    if len(ranking) > _SHOWN:
        console.print(Text(f"... {len(ranking) - _SHOWN} more in {out / 'ranking.csv'}"), soft_wrap=True)
    console.print(Text(f"best plan  {out / 'best.toml'}"), soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
