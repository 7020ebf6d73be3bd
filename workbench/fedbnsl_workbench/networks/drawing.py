"""The drawing of a network for a notebook: interactive where scripts run, and with nothing to fetch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedbnsl.console.wording import first_few
from fedbnsl.errors import SetupError
from fedbnsl.files import durable
from fedbnsl_workbench.pages.render import render
from fedbnsl_workbench.report.hidden_causes import drawing_of_marks, hidden_causes, legend_of_marks
from fedbnsl_workbench.report.learned import drawing, isolated, legend
from fedbnsl_workbench.report.run_files import ReportedRun

_HEAD = '<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,"><title>{}</title>'


@dataclass(frozen=True)
class Drawing:
    """What a notebook shows.

    Attributes
    ----------
    html
        All of it, to stand in a page.
    svg
        The first drawing of it alone; empty where there is none.
    """

    html: str
    svg: str
    title: str

    def save(self, out: Path | str) -> Path:
        """Write it as a page, or the still drawing alone: `out` ends with .html or .svg.

        Raises
        ------
        SetupError
            If it ends otherwise, or there is no drawing.
        ResultError
            If the file cannot be written.
        """
        out = Path(out).expanduser()
        if out.suffix not in (".html", ".svg"):
            raise SetupError(f"{out}: a drawing is written as .html or .svg")
        if out.suffix == ".svg" and not self.svg:
            raise SetupError("there is no drawing: the network has no edge, or too many to draw")
        page = f"{_HEAD.format(escape(self.title))}</head><body>{self.html}</body></html>"
        durable.write_text(out, self.svg if out.suffix == ".svg" else page)
        return out

    def _repr_html_(self) -> str:
        return self.html


def drawn(
    run: ReportedRun, red: Sequence[str] = (), warned: Sequence[str] = (), *, none_hidden: bool = False
) -> Drawing:
    """The drawing of a run, below what contradicts it (`red`), and above what else to know.

    With the marks that hold if common causes may be hidden where the run tells them, unless `none_hidden`.
    """
    marks = "" if none_hidden else drawing_of_marks(run)
    of_class = drawing(run, with_unsure=False)
    content: Mapping[str, Any] = {
        "drawing": of_class,
        "legend": legend(run),
        "drawing_of_marks": marks,
        "legend_of_marks": legend_of_marks(hidden_causes(run)) if marks else [],
        "isolated": first_few(isolated(run)),
        "n_edges": len(run.result["edges"]),
        "red": red,
        "warned": warned,
    }
    return Drawing(render("network.html.j2", **content), marks or of_class, run.plan.name)
