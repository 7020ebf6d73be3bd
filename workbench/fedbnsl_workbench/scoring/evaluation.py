"""Score a run against a reference graph, beside two controls: the empty graph and random DAGs."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbnsl.console.whole_words import keep_words
from fedbnsl.console.wording import counted, first_few
from fedbnsl.errors import ResultError, SetupError
from fedbnsl.graphs.csv_names import from_cell
from fedbnsl.graphs.graph import extract_dag, is_acyclic, threshold
from fedbnsl.graphs.pag import CIRCLE, Marks
from fedbnsl.protocol.messages import Units, Yields
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl.rounds.kinds import KINDS
from fedbnsl_server.results.hidden_causes import marks_of
from fedbnsl_server.results.result_schema import HiddenCauses
from fedbnsl_server.store.result_file import columns_of as columns_of
from fedbnsl_server.store.result_file import learned_class, undecided_edges
from fedbnsl_server.store.result_file import learned_graph as learned_graph
from fedbnsl_server.store.result_file import read_result as read_result
from fedbnsl_workbench.scoring.class_scores import Known, class_scores, random_class_shd, sid_interval
from fedbnsl_workbench.scoring.mark_scores import as_marks, mark_scores
from fedbnsl_workbench.scoring.marks_reference import MarksReference, of_graph, read_marks
from fedbnsl_workbench.scoring.metrics import empty_graph_scores, random_dag_scores, score, sid
from fedbnsl_workbench.scoring.reference import Reference, read_reference


def evaluate(run: Path, truth: Path, *, tau: float | None, hidden: Sequence[str] = ()) -> dict[str, Any]:
    """Scores of a run folder, ready for JSON; ResultError: the folder or the reference cannot be read.

    `scores` are beside those of the `empty_graph` and of `random_dag` (mean and standard deviation over random DAGs
    with as many edges, without `sid`, which takes long), and `warnings`. `class_scores` has the same of the Markov
    equivalence classes, with the knowledge of the run's plan; there `sid` is the least and the largest value over the
    class, `sid_exact` whether members reach both. It is null if the reference has a cycle. If run and reference have
    other variables, all this is about the subgraphs induced on those in common; `left_out` names the others.

    `mark_scores` has what is right of the marks that hold if common causes may be hidden, and of the class, see
    `mark_scores.mark_scores`; variables that the run does not have are hidden ones there. It is null with `tau`, and
    where neither has marks. Where `truth` is a file of marks, it is all that there is, and the other scores are null.

    Parameters
    ----------
    tau
        Cut the raw W at this absolute weight (and make it acyclic), as the run cuts: without units where the run has
        divided columns by scales, and by the largest weight between the columns of two variables. None takes the run's
        own graph. Without ADMM rounds there is no raw W: the weights of the last searched graph are cut.
    hidden
        Variables of the reference that no table has. The others that it does not name then have no edge.
    """
    result = read_result(run)
    variables: list[str] = result["variables"]
    if (of_marks := read_marks(truth, variables)) is not None:
        if tau is not None or hidden:
            raise SetupError(f"{truth} is a file of marks: a threshold and hidden variables go with a list of edges")
        return _against_marks(run, truth, result, of_marks)
    reference = read_reference(truth, variables, hidden)
    warnings = [reference.left_out] if reference.left_out else []
    if not is_acyclic(reference.edges):
        warnings.append(f"the reference {truth} has a directed cycle: no Bayesian network can match it in full")
    if result["state"] != "finished":
        warnings.append(f"the run is {result['state']}: its graph is scored as it stood ({result['reason']})")
    warnings += result["verdict"]["incomplete"]
    if tau is None:
        estimate = learned_graph(result)
    else:
        columns = columns_of(result)
        W = without_units(read_weights(run / "weights.csv", columns.names), result)
        unknown = int(np.isnan(W).sum())
        if unknown:
            warnings.append(
                f"{counted(unknown, 'weight is', 'weights are')} withheld: whether above the threshold is not known; "
                "the scores take them as no edge"
            )
        estimate = graph_of(columns.largest(np.nan_to_num(W)), tau)
        if not has_raw_weights(result):
            warnings.append(
                "the run had no ADMM rounds and has no raw W: no threshold brings back edges that its search cut"
            )
        elif was_searched(result):
            warnings.append("the run's own graph was searched with moments: raw W, cut anywhere, gives another")
    if reference.directed is not None:
        warnings.append(
            f"the reference {truth} has undirected edges: classes are compared; all other scores are against one DAG"
        )
    estimate, true = reference.of_common(estimate), reference.edges
    undecided = np.zeros_like(estimate) if tau is not None else reference.of_common(undecided_edges(result))
    if undecided.any():
        warnings.append(
            f"{counted(int(undecided.sum()), 'edge')} without a direction, as too few draws agree, count here as "
            "undirected; SHD and SID are of the class, which directs them"
        )
    known = known_in(run, result).of_common(reference.common)
    marks = None if tau is not None else _scores_of_marks(result, reference, known, warnings)
    scores = score(estimate, true)
    return {
        "run": str(run),
        "truth": str(truth),
        "graph_class": result.get("graph_class", "dag-equal-variance"),
        "threshold": tau,
        "raw_weights": has_raw_weights(result),
        "warnings": warnings,
        "cyclic_reference": not is_acyclic(true),
        "n_variables": len(true),
        "left_out": {"truth": list(reference.only_reference), "run": list(reference.only_run)},
        "class_scores": _scores_of_classes(estimate, undecided, reference, known),
        "mark_scores": marks,
        "scores": {**scores.as_dict(), "sid": sid(estimate, true)},
        "empty_graph": {**empty_graph_scores(true).as_dict(), "sid": sid(np.zeros_like(true), true)},
        "random_dag": random_dag_scores(true, scores.n_edges, n_draws=_draws(len(true))),
    }


def _against_marks(run: Path, truth: Path, result: Mapping[str, Any], reference: MarksReference) -> dict[str, Any]:
    """The scores against a file of marks."""
    warnings: list[str] = list(result["verdict"]["incomplete"])
    if reference.only_run:
        warnings.insert(0, f"left out are variables that only the run has: {', '.join(map(repr, reference.only_run))}")
    if result["hidden_causes"] is None:
        warnings.insert(0, "the run tells no marks that hold if common causes may be hidden: its class alone is scored")
    return {
        "run": str(run),
        "truth": str(truth),
        "graph_class": result.get("graph_class", "dag-equal-variance"),
        "threshold": None,
        "raw_weights": has_raw_weights(result),
        "warnings": warnings,
        "cyclic_reference": False,
        "n_variables": len(reference.common),
        "left_out": {"truth": [], "run": list(reference.only_run)},
        "class_scores": None,
        "mark_scores": _compared(result, reference, warnings),
        "scores": None,
        "empty_graph": None,
        "random_dag": None,
    }


def _scores_of_marks(
    result: Mapping[str, Any], reference: Reference, known: Known, warnings: list[str]
) -> dict[str, Any] | None:
    """Against a graph or a class, where the run has marks or the reference hidden variables."""
    if reference.hidden:
        names = ", ".join(map(repr, reference.hidden))
        warnings.append(f"scores of edges and of classes leave {names} and edges there out; those of marks do not")
    if result["hidden_causes"] is None and not (reference.hidden or reference.only_reference):
        return None
    found = of_graph(reference, known)
    if isinstance(found, str):
        warnings.append(f"marks are not scored: {found}")
        return None
    return _compared(result, found, warnings)


def _compared(result: Mapping[str, Any], reference: MarksReference, warnings: list[str]) -> dict[str, Any]:
    """What the run's marks say rightly, and its class, as if no cause were hidden."""
    within, marks = np.ix_(reference.common, reference.common), _marks_read(result, warnings)
    of_class = as_marks(learned_class(result) | undecided_edges(result).T)
    return {
        "reference": reference.kind,
        "hidden": list(reference.hidden),
        "run": None if marks is None else mark_scores(marks[within], reference.true),
        "class": mark_scores(of_class[within], reference.true),
    }


def _marks_read(result: Mapping[str, Any], warnings: list[str]) -> Marks | None:
    """(V, V) the run's marks as its tables say to read them: circles where too few draws agree; None: it has none."""
    if result["hidden_causes"] is None:
        return None
    told, place = HiddenCauses.model_validate(result["hidden_causes"]), result["variables"].index
    marks = marks_of(result["hidden_causes"], result["variables"])
    doubtful = [one for one in told.links if one.is_doubtful(result["verdict"]["majority"])]
    for one in doubtful:
        i, j = place(one.source), place(one.target)
        marks[i, j] = marks[j, i] = CIRCLE
    if doubtful:
        warnings.append(f"{counted(len(doubtful), 'link')} with a ? after the marks: these count as circles here")
    return marks


def _scores_of_classes(estimate: Mask, undecided: Mask, reference: Reference, known: Known) -> dict[str, Any] | None:
    """Of the run's class, beside the empty graph and random DAGs; an `undecided` edge has no direction in the run."""
    if not is_acyclic(reference.edges):
        return None
    true, found = known.class_of(reference.edges, reference.directed), known.class_of(estimate)
    least_and_largest = sid_interval(found, reference.edges)
    scores, n_open = class_scores(found, true), int((found & ~found.T & undecided).sum())
    scores = replace(scores, n_directed=scores.n_directed - n_open, n_undirected=scores.n_undirected + n_open)
    n_edges, n_draws = int(estimate.sum()), min(100, _draws(len(true)))
    return {
        "run": {
            **scores.as_dict(),
            "sid": None if least_and_largest is None else list(least_and_largest[:2]),
            "sid_exact": least_and_largest is not None and least_and_largest[2],
        },
        "empty_graph": class_scores(np.zeros_like(true), true).as_dict(),
        "random_dag": {"shd": random_class_shd(true, n_edges, known, n_draws=n_draws)},
    }


def known_in(run: Path, result: Mapping[str, Any]) -> Known:
    """What the plan in a run folder knows of the edges between the run's variables; nothing where there is no plan."""
    path = run / "plan.toml"
    if not path.exists():
        return Known.nothing(len(result["variables"]))
    from fedbnsl.plan.plan import Plan  # here: a result by itself needs no plan

    known = Plan.from_toml(path.read_text(encoding="utf-8")).edge_mask(columns_of(result).names).of_variables
    return Known(known.allowed, known.required)


def _draws(n_variables: int) -> int:
    """Random DAGs to draw: fewer where one takes long."""
    return 1000 if n_variables <= 100 else 100


def scales_of(result: Mapping[str, Any]) -> Matrix | None:
    """(d,) what each column was divided by; None: the run did not scale its columns."""
    preparation: Mapping[str, Any] | None = result.get("preparation")
    scales: Mapping[str, float] | None = None if preparation is None else preparation["scales"]
    return None if scales is None else np.array([scales[name] for name in columns_of(result).names])


def without_units(W: Matrix, result: Mapping[str, Any]) -> Matrix:
    """(d, d) weights between columns as the run compares them with its threshold, from weights in their own units."""
    scales = scales_of(result)
    return W if scales is None else Units(np.empty(0), scales).weights_of_columns(W)


def learned_weights(result: Mapping[str, Any]) -> Matrix:
    """(V, V) weights of the edges of a result's DAG between its variables, zero elsewhere; NaN: not known."""
    position = {name: k for k, name in enumerate(result["variables"])}
    W = np.zeros((len(position), len(position)))
    for edge in result["edges"]:
        weight = edge["weight"]
        W[position[edge["source"]], position[edge["target"]]] = np.nan if weight is None else weight
    return W


def was_searched(result: Mapping[str, Any]) -> bool:
    """Whether the graph of a result was searched with moments, not cut from W."""
    return any(KINDS[entry["kind"]].YIELDS is Yields.GRAPH for entry in result["rounds"])


def has_raw_weights(result: Mapping[str, Any]) -> bool:
    """Whether weights.csv holds the W of an ADMM round; otherwise the weights of the last searched graph."""
    return any(KINDS[entry["kind"]].YIELDS is Yields.W for entry in result["rounds"])


def graph_of(W: Matrix, tau: float) -> Mask:
    """(d, d) graph of weights as results have it: |W_ij| > tau, without the weakest edges of its cycles."""
    return extract_dag(threshold(W, tau), W)[0]


def read_weights(path: Path, variables: Sequence[str]) -> Matrix:
    """(d, d) raw W from a weights.csv over these columns, in the units of the tables; NaN: withheld.

    ResultError: the file cannot be read, or is not a square of numbers over them.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        W = np.array([[float(x or 0.0) for x in row[1:]] for row in rows])
        withheld = np.array([[not x for x in row[1:]] for row in rows])
    except (OSError, ValueError, csv.Error) as error:
        raise ResultError(f"{path} cannot be read as a matrix of weights: {error}") from None
    names = list(variables)
    sides = ([from_cell(cell) for cell in header[1:]], [from_cell(cell) for row in rows for cell in row[:1]])
    if sides != (names, names) or W.shape != (len(names),) * 2:
        raise ResultError(f"{path} is not a square over the variables of the run")
    if not np.isfinite(W).all():
        raise ResultError(f"{path} holds a weight that is no finite number")
    return np.where(withheld, np.nan, W)


def _cut_weights(report: Mapping[str, Any]) -> str:
    return "raw W, not refitted" if report["raw_weights"] else "weights of the searched graph"


_ROWS = (
    ("SHD", "shd"),
    ("SHD, reversals twice", "shd_double"),
    ("SID", "sid"),
    ("edges", "n_edges"),
    ("TPR (recall)", "tpr"),
    ("FDR", "fdr"),
    ("precision", "precision"),
    ("F1", "f1"),
    ("skeleton precision", "skeleton_precision"),
    ("skeleton recall", "skeleton_recall"),
    ("skeleton hits", "skeleton_hits"),
    ("v-structures in common", "v_structures_common"),
    ("v-structures", "v_structures_estimated"),
)


# What the DAG among its class does that was kept says nothing of the others.
_OF_ONE_DAG = {"shd", "shd_double", "sid", "n_edges", "tpr", "fdr", "precision", "f1"}


def print_report(report: Mapping[str, Any], console: Console) -> None:
    """The report as tables for people."""
    scores = report["scores"]
    if scores is not None:
        _print_scores(report, scores, console)
    if report["mark_scores"] is not None:
        console.print(keep_words(_table_of_marks(report), console.width, fewest=3))
    for warning in report["warnings"]:
        console.print(Text(f"warning: {warning}"), style="yellow", soft_wrap=True)


def _print_scores(report: Mapping[str, Any], scores: Mapping[str, Any], console: Console) -> None:
    reference = f"{scores['n_reference_edges']} edges, {scores['v_structures_reference']} v-structures"
    # Text: paths and names may hold what looks like markup.
    tau = report["threshold"]
    estimate = "the run's graph" if tau is None else f"{_cut_weights(report)}, cut at {tau:g},"
    title = Text(f"{estimate} against {report['truth']} ({reference})", style="table.title")
    table = Table(title=title, title_justify="left")
    table.add_column("")
    of_classes = report["class_scores"]
    classes_first = report["graph_class"] == "cpdag" and of_classes is not None
    for name in ("this run", "empty graph", "random DAG, as dense"):
        table.add_column(name, justify="right", overflow="fold")
    if of_classes is not None:
        for row in _class_rows(of_classes, all_of_them=classes_first):
            table.add_row(*row)
    for label, key in _ROWS:
        if classes_first and key in _OF_ONE_DAG:
            continue
        mean, spread = (report["random_dag"][part].get(key) for part in ("mean", "std"))
        chance = "-" if mean is None else f"{mean:.2f} +- {spread:.2f}"
        table.add_row(label, _shown(scores[key]), _shown(report["empty_graph"][key]), chance)
    console.print(keep_words(table, console.width))


_MARKS = (
    ("links", "links"),
    ("arrowheads", "arrowheads"),
    ("tails", "tails"),
    ("--> acts on", "acts_on"),
    ("<-> a hidden cause", "hidden_cause"),
)


def _table_of_marks(report: Mapping[str, Any]) -> Table:
    told: Mapping[str, Any] = report["mark_scores"]
    hidden = f"; hidden: {first_few(told['hidden'])}" if told["hidden"] else ""
    title = Text(f"if common causes may be hidden, against {report['truth']}{hidden}", style="table.title")
    table = Table(title=title, title_justify="left")
    table.add_column("")
    sides = [(name, told[key]) for name, key in (("marks", "run"), ("class", "class")) if told[key] is not None]
    for name, of_side in sides:
        for head in ("right", *["open in the truth"] * any(one["open"] for one in of_side.values()), "found"):
            table.add_column(f"{name}:\n{head}", justify="right", overflow="fold")
    for label, kind in _MARKS:
        cells = [label]
        for _, of_side in sides:
            one = of_side[kind]
            cells.append(f"{one['right']} of {one['told']}")
            cells += [str(one["open"])] * any(each["open"] for each in of_side.values())
            cells.append(f"{one['found']} of {one['of_reference']}")
        table.add_row(*map(Text, cells))
    return table


def _class_rows(of_classes: Mapping[str, Any], *, all_of_them: bool) -> Iterator[tuple[str, str, str, str]]:
    """Rows on the classes; of a run whose graph is a DAG, the distance alone."""
    run, empty, chance = of_classes["run"], of_classes["empty_graph"], of_classes["random_dag"]["shd"]
    by_chance = f"{chance['mean']:.2f} +- {chance['std']:.2f}"
    yield "SHD of the classes", _shown(run["shd"]), _shown(empty["shd"]), by_chance
    if all_of_them:
        yield "SID, over the class", _between(run["sid"], exact=run["sid_exact"]), "", ""
        yield "directed edges", _shown(run["n_directed"]), "", ""
        yield "undirected edges", _shown(run["n_undirected"]), "", ""
        yield "skeleton F1", _shown(run["skeleton_f1"]), _shown(empty["skeleton_f1"]), ""


def _between(least_and_largest: Sequence[int] | None, *, exact: bool) -> str:
    if least_and_largest is None:
        return "-"
    least, largest = least_and_largest
    return f"{'' if exact else 'within '}{least} to {largest}" if least < largest else _shown(least)


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.2f}"
