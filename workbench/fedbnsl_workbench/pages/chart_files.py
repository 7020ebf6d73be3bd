"""How the project's charts look, and how they are kept: SVG for screens and documents, PNG for slides."""

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure as _Figure

from fedbnsl.files.durable import write_file, write_text

# Without types: matplotlib's stubs are incomplete.
Chart = Any
"""matplotlib's Axes: one chart of a figure."""
Figure = Any
"""matplotlib's Figure."""
_mpl: Any = matplotlib
_new_figure: Any = _Figure

# Okabe and Ito's colours: told apart by people with any colour vision, and in grey print by their line styles.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":", "-", "--", ":")

# Any: the stubs list every key that there is.
_SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: small files, and words that can be searched and copied
    "svg.hashsalt": "fedbnsl",  # the same chart gives the same bytes
}


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Chart]]:
    """A figure of rows x columns charts, width and height in inches, without a window; axes row by row."""
    with _mpl.rc_context(_SETTINGS):
        figure = _new_figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def as_svg(figure: Figure) -> str:
    """The figure as one <svg> element, without a date."""
    file = io.StringIO()
    with _mpl.rc_context(_SETTINGS):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()[file.getvalue().index("<svg") :]


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write name.svg and name.png; returns the <svg> element.

    Raises
    ------
    ResultError
        If a file cannot be written.
    """
    picture, svg = io.BytesIO(), as_svg(figure)
    with _mpl.rc_context(_SETTINGS):
        figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
    write_text(folder / f"{name}.svg", '<?xml version="1.0" encoding="UTF-8"?>\n' + svg)
    write_file(folder / f"{name}.png", lambda file: file.write(picture.getvalue()))
    return svg
