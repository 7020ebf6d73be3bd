"""The learned network of a run folder as a covariance and a class of graphs, for questions about effects."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.class_members import descendants
from fedbnsl.graphs.files import LGBN
from fedbnsl.graphs.graph import topological_order
from fedbnsl.graphs.pag import Marks
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.largest_changes import largest_changes
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.row_groups import BEFORE
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.inference.draws import MAJORITY
from fedbnsl_server.inference.effects import Precision, implied_covariance, moved_by_turning
from fedbnsl_server.inference.interventions import Family
from fedbnsl_server.results.hidden_causes import marks_of
from fedbnsl_server.results.sentences import sentence
from fedbnsl_server.results.unused import unused_notes
from fedbnsl_server.results.warnings import clipped_levels
from fedbnsl_server.store.result_file import columns_of, learned_class, read_result, undecided_edges


@dataclass(frozen=True, eq=False)
class Curve:
    """The total effect of one column on another, given parents of the first: a line between (P,) points."""

    at: Matrix  # (P,) of the source, from the mean of its site
    change: Matrix  # (P,) of the target
    covariance: Matrix  # (P, P) of these


@dataclass(frozen=True, eq=False)
class LearnedNetwork:
    """What a run has learned, of all DAGs of its class alike: d columns of V variables."""

    columns: Columns
    marks: Mask  # (V, V) the class: [i, j] for i -> j, and [j, i] as well for an undirected edge
    undecided: Mask  # (V, V) arrows of it that too few bootstrap draws agree with, or between functions of each other
    covariance: Matrix  # (d, d) that the network implies, in units of the tables
    precision: Precision | None  # what the coefficients were estimated from; None: the run does not say
    assumed: int  # edges whose directions only the assumption of equal variances gives
    units: Mapping[str, str]  # what variables are measured in, where the data dictionary says it
    # What the assumption checks say against the graph: searches that were ended early, and what the data contradict.
    doubts: tuple[str, ...] = ()
    draws: int = 0  # of the bootstrap; 0: none
    majority: float = MAJORITY  # the share of them that an arrow needs not to be undecided
    # By names of source and target: the share of the draws in which directed edges lead there, 0 left out.
    paths: Mapping[str, Mapping[str, float]] | None = None
    functions: tuple[tuple[str, ...], ...] = ()  # of an effect within such a set, the tables tell nothing
    # Columns of source and target of withheld coefficients: the covariance has the nearest possible ones.
    withheld: tuple[tuple[str, str], ...] = ()
    # (d, d) the covariance with 0 in their place; None: there are none. An effect that differs rests on them.
    without_withheld: Matrix | None = None
    largest: Matrix | None = None  # (d, d) sizes beyond which effects are withheld; None: there are none
    # Why nothing is known of a variable's edges, as sentences: noise hides it, or it has one value.
    untold: Mapping[str, str] = field(default_factory=dict[str, str])
    unseen: Mask | None = None  # (V, V) pairs of variables that no row has a value of both of; None: there are none
    levels: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])  # of one column, from 0 on
    # Of nominal variables, the level that the others are compared with.
    references: Mapping[str, str] = field(default_factory=dict[str, str])
    shares: Matrix | None = None  # (V, V) of the draws that have an edge of the class, NaN elsewhere; None: no draws
    # Pairs without an edge that a tenth of the draws or more have one between: their shares of the draws with an edge,
    # and with one directed from the first to the second, and back.
    unsure: Mapping[tuple[int, int], tuple[float, float, float]] = field(
        default_factory=dict[tuple[int, int], tuple[float, float, float]]
    )
    before: tuple[str, ...] = ()  # variables of the row before: what caused them lies further back
    # Columns of which the tables contradict how the second depends on the first, along lines and curves.
    not_described: tuple[tuple[str, str], ...] = ()
    unexplained: tuple[tuple[str, str], ...] = ()  # variables without an edge that depend on each other beyond chance
    no_curves: str = ""  # why no curves were looked for; empty: they were, or it is not said
    bent: tuple[str, ...] = ()  # columns whose effects bend, so that weights are of lines through curves
    # By columns of source and target, and by the parents of the source: where a curve is on the way.
    curves: Mapping[tuple[str, str], Mapping[frozenset[str], Curve]] = field(
        default_factory=dict[tuple[str, str], Mapping[frozenset[str], Curve]]
    )
    # (V, V) the partial ancestral graph, which holds if causes are hidden; None: not told. And whether it is that of
    # some graph: effects are told only then.
    pag: Marks | None = None
    pag_is_legal: bool = False
    none_hidden: bool = False  # the plan says that no common cause is
    clipped: tuple[str, ...] = ()  # variables with levels of a private run: what acts on them is biased
    # In which share of the draws the same variables may be adjusted for, by source and target of the effects that it
    # identifies; None: not counted.
    adjustable: Mapping[tuple[int, int], float] | None = None
    # The same of pairs of which it has no path that may carry an effect; others are in all draws, or not counted.
    no_path: Mapping[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    # By variable, where counts have found the graph: tables given the parents in one DAG of the class, and levels.
    tables: Mapping[str, Family] = field(default_factory=dict[str, Family])
    table_levels: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def function(self, sources: Sequence[int], target: int) -> tuple[str, ...]:
        """The set of variables that are functions of each other with the target and a source in it; empty: none."""
        names = self.columns.variables
        of_sources = {names[k] for k in sources}
        return next((one for one in self.functions if names[target] in one and of_sources & set(one)), ())

    def on_the_way(self, sources: Sequence[int], target: int) -> tuple[Mask, Mask]:
        """(V,) what an effect goes through, its target too; and (V,) what it starts from: sources, possible parents."""
        after = np.any([descendants(self.marks, k) for k in sources], axis=0)
        before = descendants(self.marks.T, target)
        before[target] = True
        start = np.asarray(self.marks[:, list(sources)].any(axis=1))
        start[list(sources)] = True
        return after & before, start

    def ways(self, sources: Sequence[int], target: int) -> tuple[Mask, Mask, Mask]:
        """(V, V) edges that ways from a source to the target may have; (V,) where they reach, and where they come from.

        They neither come back nor go on. Both have sources and target, too.
        """
        onward, sources = self.marks.copy(), list(sources)
        onward[target] = onward[:, sources] = False
        after, before = np.any([descendants(onward, k) for k in sources], axis=0), descendants(onward.T, target)
        after[sources] = before[target] = True
        return onward, after, before

    def bent_between(self, sources: Sequence[int], target: int) -> list[str]:
        """Columns that bend, of a source or of what lies on a way from one to the target: a curve is on this way."""
        _, after, before = self.ways(sources, target)
        on_a_way = after & before
        on_a_way[target] = False
        return [name for name in self.bent if on_a_way[self.columns.variable_of[self.columns.names.index(name)]]]

    def not_described_for(self, sources: Sequence[int], target: int) -> list[tuple[str, str]]:
        """Those of the pairs that an effect rests on, whose error is then not known."""
        through, start = (one[self.columns.variable_of] for one in self.on_the_way(sources, target))
        place = self.columns.names.index
        return [
            (one, other) for one, other in self.not_described if through[place(other)] and (through | start)[place(one)]
        ]

    def moved(self, sources: Sequence[int]) -> Mask:
        """(V,) see `moved_by_turning`; of several sources, which are set together, and by tables all count as moved."""
        if len(sources) > 1 or self.tables:
            return np.ones(len(self.marks), dtype=bool)
        return moved_by_turning(self.covariance, self.marks, self.undecided, sources[0], self.columns)

    def possible(self, low: float, high: float, of: tuple[int, int]) -> tuple[float, float]:
        """The part of an interval, around an effect that is told, that is possible for these columns."""
        largest = math.inf if self.largest is None else float(self.largest[of])
        return max(low, -largest), min(high, largest)

    @property
    def spread(self) -> Matrix:
        """(d,) standard deviations that the network implies: effects without units are in these, wherever shown.

        Scales that a run divided its columns by may be others, such as those within the sites.
        """
        return np.asarray(np.sqrt(self.covariance.diagonal()))


def read_network(run: Path) -> LearnedNetwork:
    """The network of a run folder, from result.json and lgbn.json.

    Raises
    ------
    ResultError
        If one of them is missing or damaged.
    """
    result, path = read_result(run), run / LGBN
    if not path.exists():
        why = result["not_written"].get(LGBN, "the file is missing")
        raise ResultError(f"{run} has no {LGBN}, which effects are computed from: {why}", remedy=_remedy(result))
    plan = Plan.load(run / "plan.toml") if (run / "plan.toml").exists() else None
    try:
        return learned_from(result, json.loads(path.read_text(encoding="utf-8")), plan)
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ResultError(
            f"{path} cannot be read as a network over the run's columns: {_what_is_wrong(error)}",
            remedy="Copy it again from the folder that the run has written; its result.json and it belong together.",
        ) from None


def learned_from(result: Mapping[str, Any], content: Mapping[str, Any], plan: Plan | None) -> LearnedNetwork:
    """The network of what result.json and lgbn.json hold; it raises nearly anything where they are not whole."""
    columns = columns_of(result)
    W, variance = weights_and_variances(content, columns)
    withheld = [(source, target) for source, target in content.get("withheld", ())]
    correlation, told = _correlation(result, columns), W.copy()
    for source, target in withheld:
        told[columns.names.index(source), columns.names.index(target)] = 0.0
    estimation, verdict = result["estimation"], result["verdict"]
    covariance, precision = implied_covariance(W, variance, correlation), None
    if estimation is not None:
        errors, dag = _errors_of_weights(result["edges"], columns), columns.joined(W != 0.0)
        precision = _precision(estimation, columns).with_errors_of(errors, covariance, dag, columns)
    return LearnedNetwork(
        columns,
        learned_class(result),
        undecided_edges(result),
        covariance,
        precision,
        sum(edge["directed_by"] in ("assumption", "") for edge in result["edges"]),
        result["units"],
        doubts=(*verdict["incomplete"], *verdict["contradicted"]),
        draws=verdict["draws"] or 0,
        majority=verdict["majority"],
        paths=result["paths"],
        functions=tuple(map(tuple, verdict["functions"])),
        withheld=tuple(withheld),
        without_withheld=implied_covariance(told, variance, correlation) if withheld else None,
        largest=None if plan is None else largest_changes(plan, columns),
        before=() if plan is None else tuple(n for n in columns.variables if plan.dictionary.slice_of(n) == BEFORE),
        untold={
            one["variable"]: sentence(next(unused_notes([one]))) for one in result["unused"] if one["level"] is None
        },
        unseen=_unseen(result),
        levels=result["levels"],
        references=result["references"],
        shares=_shares(result),
        unsure={
            (result["variables"].index(one["source"]), result["variables"].index(one["target"])): (
                one["adjacent"],
                one["forward"],
                one["backward"],
            )
            for one in result["unsure"]
        },
        not_described=tuple((one, other) for one, other in verdict["not_described"]),
        unexplained=tuple((one, other) for one, other in verdict["unexplained"]),
        no_curves=""
        if result["curves"]
        else next((one["why"] for one in result["taken"].values() if one["form"] == "line"), ""),
        bent=tuple(result["curves"]["variables"]) if result["curves"] else (),
        curves=_curves(result),
        **_of_marks(result),
        none_hidden=plan is not None and plan.hidden_causes == "excluded",
        clipped=() if plan is None else tuple(clipped_levels(plan)),
        tables=_tables(result),
        table_levels={name: one["levels"] for name, one in _categories(result).items()},
    )


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it lacks {error.args[0]!r}, or names it where the run has no such column"
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON ({error})"
    if isinstance(error, OSError | ValueError):
        return str(error)
    return "its parts are not those that a run writes"


def _of_marks(result: Mapping[str, Any]) -> dict[str, Any]:
    if (told := result["hidden_causes"]) is None or told["legal"] is None:
        return {}
    place, drawn = result["variables"].index, told["effects"]
    return {
        "pag": marks_of(told, result["variables"]),
        "pag_is_legal": told["legal"],
        "no_path": {(place(one["source"]), place(one["target"])): one["share"] for one in told["no_path"] or ()},
        "adjustable": None
        if drawn is None
        else {(place(one["source"]), place(one["target"])): one["share"] for one in drawn},
    }


def _categories(result: Mapping[str, Any]) -> dict[str, Any]:
    return result["categories"] or {}


def _tables(result: Mapping[str, Any]) -> dict[str, Family]:
    told = _categories(result)
    found: dict[str, Family] = {}
    for name, one in told.items():
        of_parents = [told[parent]["levels"] for parent in one["parents"]]
        counts = np.zeros((*map(len, of_parents), len(one["levels"])))
        for row in one["rows"]:
            at = tuple(levels.index(level) for levels, level in zip(of_parents, row["given"], strict=True))
            counts[at] = row["records"] * np.array(row["probabilities"])
        found[name] = Family(tuple(one["parents"]), counts)
    return found


def _unseen(result: Mapping[str, Any]) -> Mask | None:
    position = {name: k for k, name in enumerate(result["variables"])}
    found = np.zeros((len(position),) * 2, dtype=bool)
    for one, other in result["gaps"]["never_together"] if result["gaps"] else ():
        i, j = position[one], position[other]
        found[i, j] = found[j, i] = True
    return found if found.any() else None


def _precision(estimation: Mapping[str, Any], columns: Columns) -> Precision:
    widening, place = np.ones((len(columns.names),) * 2), {name: k for k, name in enumerate(columns.names)}
    for one, others in estimation["widened"].items():
        for other, factor in others.items():
            widening[place[one], place[other]] = widening[place[other], place[one]] = factor
    known = widening if estimation["widened"] else None
    found = Precision(estimation["n_samples"], estimation["noise_std"], known)
    if (rows := estimation["dependent_rows"]) is None:
        return found
    of_residuals = np.array([rows["residual_icc"][name] for name in columns.names])
    return replace(found, others=rows["other_rows"], residual_icc=of_residuals)


def _errors_of_weights(edges: Sequence[Mapping[str, Any]], columns: Columns) -> Matrix:
    """(d, d) standard errors of the weights between columns, in units of the tables; NaN where none is told."""
    found, place = np.full((len(columns.names),) * 2, np.nan), {name: k for k, name in enumerate(columns.names)}
    # An edge between variables of one column each has no list of coefficients.
    place |= {name: int(of[0]) for name, of in zip(columns.variables, columns.members(), strict=True) if of.size == 1}
    for edge in edges:
        for one in edge.get("coefficients") or [edge]:
            if one.get("standard_error") is not None:
                found[place[one["source"]], place[one["target"]]] = one["standard_error"]
    return found


def _remedy(result: Mapping[str, Any]) -> str:
    """What gives a run its residual variances; of a run that has them, its file."""
    if LGBN not in result["not_written"]:
        return "Copy the whole folder of the run."
    if result["state"] != "finished":
        return "Continue the run to its end."
    if result["privacy"] and result["estimation"]:
        return (
            "Another run, which costs privacy again, may tell more: with more rows, narrower ranges in the data "
            "dictionary or a larger epsilon."
        )
    return "Run a plan that searches with moments (moments_rounds), to its end."


def _shares(result: Mapping[str, Any]) -> Matrix | None:
    position = {name: k for k, name in enumerate(result["variables"])}
    found = np.full((len(position),) * 2, np.nan)
    for edge in result["edges"]:
        if drawn := edge["bootstrap"]:
            i, j = position[edge["source"]], position[edge["target"]]
            found[i, j] = found[j, i] = drawn["adjacent"]
    return None if np.isnan(found).all() else found


def _correlation(result: Mapping[str, Any], columns: Columns) -> Matrix:
    """(d, d) of the residuals; none where the result does not tell it of a variable's columns."""
    found = np.eye(len(columns.names))
    for name, own in zip(columns.variables, columns.members(), strict=True):
        told = result["fit"].get(name, {}).get("residual_correlation")
        if told is not None:
            found[np.ix_(own, own)] = told
    return found


def weights_and_variances(content: Mapping[str, Any], columns: Columns) -> tuple[Matrix, Matrix]:
    """(d, d) weights and (d,) residual variances of the content of lgbn.json."""
    position = {name: k for k, name in enumerate(columns.names)}
    W, variance = np.zeros((len(position), len(position))), np.zeros(len(position))
    for name in content.get("not_known", ()):
        variance[position[name]] = 1.0  # any number: it has no edge, and `untold` says so
    for name, of_node in content["cpds"].items():
        for parent in of_node["parents"]:
            (W[position[parent], position[name]],) = of_node["coefficients"][parent]
        (variance[position[name]],) = of_node["variance"]
    if not (np.isfinite(W).all() and (variance > 0).all() and np.isfinite(variance).all()):
        raise ValueError("a variance is not positive, or a number not finite")
    topological_order(columns.joined(W != 0.0))  # ValueError if there is a cycle
    return W, variance


def _curves(result: Mapping[str, Any]) -> dict[tuple[str, str], dict[frozenset[str], Curve]]:
    found: dict[tuple[str, str], dict[frozenset[str], Curve]] = {}
    for one in result["curves"]["total"] if result["curves"] else ():
        source, given, at = one["source"], frozenset(one["adjusted_for"]), np.array(one["at"])
        covariance = np.array(one["covariance"])
        for each in one["below"]:
            curve = Curve(at, np.array(each["change"]), covariance * each["residual_variance"])
            found.setdefault((source, each["target"]), {})[given] = curve
    return found
