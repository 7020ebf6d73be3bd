"""A study's comparison with the paper, on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbnsl_research.reproduce.study import Comparison
from fedbnsl_research.reproduce.study_page import with_spread
from fedbnsl_workbench.pages.render import number


def print_comparisons(comparisons: Sequence[Comparison], out: Path, console: Console, *, quick: bool) -> None:
    """One row for each number of the paper."""
    table = Table(title="quick version: not the paper's experiment" if quick else None, title_justify="left")
    table.add_column("", overflow="fold")
    for name in ("paper", "ours", "difference"):
        table.add_column(name, justify="right", overflow="fold")
    for c in comparisons:
        paper = number(c.paper) + (f" +- {number(c.paper_spread)}" if c.paper_spread is not None else "")
        ours, difference = with_spread(c.ours, c.spread, "+-"), with_spread(c.difference, None)
        table.add_row(Text(c.what), paper, ours, difference)
    console.print(table)
    console.print(Text(f"page  {out / 'index.html'}"), soft_wrap=True)
