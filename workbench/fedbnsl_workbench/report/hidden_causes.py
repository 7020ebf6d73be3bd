"""What holds if common causes may be hidden, as a report shows it: the drawing with marks at both ends, and words."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from fedbnsl.console.wording import counted
from fedbnsl.graphs.graph import cyclic_edges
from fedbnsl_server.results.numbers import percent
from fedbnsl_server.results.result_schema import HiddenCauses, Link
from fedbnsl_server.results.sentences import OF_MARKS
from fedbnsl_workbench.report.dag_drawing import Arrow, draw, sample_of_marks
from fedbnsl_workbench.report.learned import MOST_DRAWN, before_of, kind_of, learned_edges
from fedbnsl_workbench.report.nodes import words_of_variables
from fedbnsl_workbench.report.run_files import ReportedRun


def hidden_causes(run: ReportedRun) -> HiddenCauses | None:
    """What holds if common causes may be hidden; None: it is not told."""
    told = run.result["hidden_causes"]
    return None if told is None else HiddenCauses.model_validate(told)


def marks_of_edges(run: ReportedRun) -> Mapping[tuple[str, str], tuple[str, str]]:
    """By source and target, either way round: the marks from source to target, as people draw them, and in words.

    A question mark stands after marks that too few draws agree with.
    """
    told = hidden_causes(run)
    if told is None:
        return {}
    majority = run.result["verdict"]["majority"]
    but = f" (less than {percent(majority)} of the draws have the link with the same marks: take them for circles)"
    found = {
        pair: (f"{one.marks}?", one.says + but) if one.is_doubtful(majority) else (one.marks, one.says)
        for pair, one in told.by_pair().items()
    }
    for a, b in told.gone:
        words = f"{a} and {b} are not linked if common causes may be hidden"
        found[a, b] = found[b, a] = "no link", words
    return found


def unsupported(run: ReportedRun) -> set[tuple[str, str]]:
    """Source and target of edges whose weight the marks do not allow: they lack the edge, or its one arrowhead."""
    told = hidden_causes(run)
    if told is None:
        return set()
    allowed = {pair for pair, one in told.by_pair().items() if one.points}
    return {(edge["source"], edge["target"]) for edge in run.result["edges"]} - allowed


def drawing_of_marks(run: ReportedRun) -> str:
    """The links as SVG; empty where they are not told, there are none or too many, or rows before are among them."""
    told, rows = hidden_causes(run), learned_edges(run)
    if told is None or before_of(run) or not 0 < len(told.links) <= MOST_DRAWN:
        return ""
    position = {name: k for k, name in enumerate(run.variables)}
    acts = np.zeros((len(position),) * 2, dtype=bool)
    for one in told.links:
        acts[position[one.source], position[one.target]] = one.marks == "-->"
    acts &= ~cyclic_edges(acts)  # the drawing has no place for a cycle: it points somewhere
    of_pair = {frozenset((row.source, row.target)): row for row in rows}
    strongest = max((row.strength for row in rows), default=0.0) or 1.0
    arrows: list[Arrow] = []
    for one in told.links:
        row, i, j = of_pair.get(frozenset((one.source, one.target))), position[one.source], position[one.target]
        arrows.append(
            Arrow(
                i,
                j,
                "positive" if row is None or row.verdict else kind_of(row),
                0.0 if row is None else row.strength / strongest,
                _words(one),
                bool(acts[i, j]),
                None if one.bootstrap is None else one.bootstrap.adjacent,
                (one.mark_source, one.mark_target),
            )
        )
    title = f"{_title(told)}. The table of links below lists them all."
    return draw(run.variables, arrows, title=title, words=words_of_variables(run))


def legend_of_marks(told: HiddenCauses | None) -> list[dict[str, str]]:
    """The marks that the drawing has, and what they say."""
    counts = Counter(one.marks for one in told.links) if told else Counter[str]()
    return [
        {"sample": sample_of_marks(marks), "meaning": words, "count": str(counts[marks])}
        for marks, words in OF_MARKS.items()
        if counts[marks]
    ]


def _title(told: HiddenCauses) -> str:
    return f"What holds if common causes may be hidden: {counted(len(told.links), 'link')}"


def _words(one: Link) -> str:
    lines = [f"{one.source} {one.marks} {one.target}", one.says]
    if one.bootstrap is not None:
        of = one.bootstrap
        lines.append(
            f"linked in {percent(of.adjacent)} of the draws, with the same mark at {one.source} in "
            f"{percent(of.mark_source)} and at {one.target} in {percent(of.mark_target)}, with a hidden cause in "
            f"{percent(of.hidden_cause)}"
        )
    return "\n".join(lines)
