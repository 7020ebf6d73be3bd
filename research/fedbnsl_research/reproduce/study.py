"""A study: the trials behind one table or figure of the paper, and the page that puts both side by side.

A study's folder holds

trials.jsonl        the outcome of every trial, to continue after an interruption
runs.csv            tidy: one row a method, setting and seed
comparison.csv      the paper's numbers, ours, the difference
NAME.svg, NAME.png  the figure
index.html          all of it on one page, with the settings and how they were chosen
"""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedbnsl import __version__
from fedbnsl.errors import ResultError
from fedbnsl.files.durable import write_text
from fedbnsl.files.toml_text import parse_toml
from fedbnsl_research.reproduce.study_page import study_page
from fedbnsl_research.tables.csv_rows import as_csv
from fedbnsl_research.trials.harness import Row
from fedbnsl_research.trials.trials import Function, Trial, run_trials
from fedbnsl_workbench.pages import chart_files as figures
from fedbnsl_workbench.pages.chart_files import Figure

_WORDS = Path(__file__).parent / "words"

TUNING_SEEDS = (1, *range(100, 130), 400)
"""Seeds of the generated graphs on which settings were searched; see the grids of `fedbnsl tune`."""


@dataclass(frozen=True)
class Settings:
    """The settings of one method in a study, and where they come from.

    Attributes
    ----------
    method
        As in the rows.
    values
        By name of the plan; what is not named is the plan's default.
    chosen
        One sentence: by which search, on which seeds, or by whom.
    """

    method: str
    values: Mapping[str, Any]
    chosen: str


@dataclass(frozen=True)
class Comparison:
    """One number of the paper beside ours.

    Attributes
    ----------
    what
        Method, setting and quantity, in words.
    paper
        The paper's mean; None where it shows a curve without numbers.
    ours
        Our mean over the seeds, and its standard deviation `spread` (None for a single run).
    paper_spread
        The paper's standard deviation, if given.
    note
        What a reader must know to compare the two.
    """

    what: str
    paper: float | None
    ours: float
    spread: float | None = None
    paper_spread: float | None = None
    note: str = ""

    @classmethod
    def of(
        cls,
        what: str,
        rows: Sequence[Row],
        column: str,
        *,
        paper: tuple[float | None, float | None] = (None, None),
        note: str = "",
    ) -> "Comparison":
        """The mean of a column over rows beside the paper's mean and standard deviation."""
        mean, spread = mean_and_spread(rows, column)
        return cls(what, paper[0], mean, spread, paper[1], note)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.ours - self.paper


@dataclass(frozen=True)
class PageTable:
    """One more table on a study's page.

    Attributes
    ----------
    title, note
        What it shows, and what to read off it.
    columns
        Names; the first is that of the rows.
    rows
        Cells as text, or as numbers.
    """

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float | None]]


def _no_tables(rows: Sequence[Row]) -> Sequence[PageTable]:
    return ()


@dataclass(frozen=True)
class Study:
    """One table or figure of the paper.

    Attributes
    ----------
    name
        On the command line, and of the figure's files.
    title, source, claim
        What is compared, which table or figure of the paper, and what the paper says of it.
    trials
        Seeds and whether the quick version is wanted to the trials; every trial names its "seed".
    run
        One trial to rows, each with its "method" and "seed".
    compare
        All rows to the numbers beside the paper's.
    draw
        All rows to the figure.
    settings
        Of every method, for the quick version or the full one.
    quick
        What the quick version leaves out, in one sentence.
    notes
        Paragraphs for the page: what is done otherwise than in the paper, and what to be careful about.
    tables
        All rows to more tables for the page.
    tuning_seeds
        Seeds whose graphs were used to search for settings: the page warns of them.
    repeats
        What differs from seed to seed, for the line under the table of comparisons.
    """

    name: str
    title: str
    source: str
    claim: str
    trials: Callable[[Sequence[int], bool], Sequence[Trial]]
    run: Function
    compare: Callable[[Sequence[Row]], Sequence[Comparison]]
    draw: Callable[[Sequence[Row]], Figure]
    settings: Callable[[bool], Sequence[Settings]]
    quick: str
    notes: Sequence[str] = ()
    tables: Callable[[Sequence[Row]], Sequence[PageTable]] = _no_tables
    tuning_seeds: Collection[int] = TUNING_SEEDS
    repeats: str = (
        "The graphs are drawn anew by this program: the paper's own, drawn with the same seeds by other code, are "
        "other graphs."
    )


def words(name: str) -> dict[str, Any]:
    """What words/NAME.toml holds: the texts of a study, and under "chosen" how settings were found."""
    return parse_toml((_WORDS / f"{name}.toml").read_text(encoding="utf-8"))


def described(name: str, *, numbers: Mapping[str, Any] | None = None, **parts: Any) -> Study:
    """The study with the texts of words/NAME.toml, whose {names} are filled from `numbers`; `parts`: other fields."""
    content = words(name)
    notes = [note.format_map(numbers or {}) for note in content.pop("notes")]
    texts = {key: text.format_map(numbers or {}) for key, text in content.items() if key != "chosen"}
    return Study(name=name, notes=notes, **texts, **parts)


def reproduce(
    study: Study, seeds: Sequence[int], out: Path, *, quick: bool, jobs: int, console: Console
) -> list[Comparison]:
    """Run what is missing of a study and write its folder.

    Raises
    ------
    ResultError
        If a trial failed: the rest is kept, and the same command tries only that one again.
    """
    trials = study.trials(seeds, quick)
    title = f"{study.name}, quick version" if quick else study.name
    store, work = out / "trials.jsonl", f"reproduce {study.name}"
    outcomes = run_trials(study.run, trials, store, work=work, title=title, console=console, jobs=jobs)
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        raise ResultError(
            f"{len(failed)} of {len(trials)} trials failed, first {dict(failed[0].trial)}: {failed[0].error}"
        )
    rows = [row for outcome in outcomes for row in outcome.rows]
    comparisons = list(study.compare(rows))
    write_text(out / "runs.csv", as_csv(rows))
    write_text(out / "comparison.csv", as_csv([_comparison_row(c) for c in comparisons]))
    svg = figures.save(study.draw(rows), out, study.name)
    page = study_page(
        study=replace(study, notes=(*_not_held_out(study, seeds), *study.notes)),
        seeds=seeds,
        quick=study.quick if quick else "",
        comparisons=comparisons,
        settings=study.settings(quick),
        tables=study.tables(rows),
        figure=svg,
        n_trials=len(trials),
        seconds=sum(outcome.seconds for outcome in outcomes),
        version=__version__,
    )
    write_text(out / "index.html", page)
    return comparisons


def _not_held_out(study: Study, seeds: Sequence[int]) -> tuple[str, ...]:
    """A warning paragraph, if settings were searched on some of these seeds; otherwise empty."""
    used = [str(seed) for seed in seeds if seed in study.tuning_seeds]
    if not used:
        return ()
    return (
        f"Not held out: settings were searched on generated graphs of seed {', '.join(used)}. Methods that "
        "were tuned on them look better here than on new graphs; evaluate on other seeds.",
    )


def select(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def mean_and_spread(rows: Sequence[Row], column: str) -> tuple[float, float | None]:
    """Mean of a column and its standard deviation (None for a single row)."""
    values = [float(row[column]) for row in rows]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def _comparison_row(c: Comparison) -> Row:
    return {
        "what": c.what,
        "paper": c.paper,
        "paper_std": c.paper_spread,
        "ours": c.ours,
        "ours_std": c.spread,
        "difference": c.difference,
        "note": c.note,
    }
