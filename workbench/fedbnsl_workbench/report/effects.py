"""The total effects between all variables of a run, for a table of its report: `fedbnsl effect` all at once.

Only pairs with a possible effect are of interest: those in which a directed path leads from one to the other in some
graph of the class. Both the rows of the table and the work for it are bounded, the work by counts and not by a clock,
so that a page is the same whenever it is made.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.files import LGBN
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.inference.effects import Effect, certainty, effects_on_all, rests_on
from fedbnsl_server.results.effect_report import draws_have_others
from fedbnsl_server.results.hidden_effects import EffectsIfHidden
from fedbnsl_server.results.learned_network import LearnedNetwork, read_network
from fedbnsl_server.results.withheld_effects import all_missing_edges, missing_edges, told_effects, unseen_pairs
from fedbnsl_workbench.report.run_files import ReportedRun

MOST_SHOWN = 200
# Of one variable. One in a large undirected clique has very many, and so wide a range that it tells nothing.
_MOST_PARENT_SETS = 64
# About as many (variable, set of its parents, variable) as ten seconds allow.
_MOST_WORK = 200_000
_NORMAL_95 = 1.959963984540054
Interval = tuple[float, float]

_IN_WORDS = {"identified": "identified", "range": "a range, of one sign", "not identified": "not identified"}

BECAUSE = {
    "draws": "too few draws agree",
    "functions": "functions of each other",
    "illegal": "the marks contradict each other",
    "unseen": "no row has values of all that it rests on",
    "missing_edges": "a link is missing",
    "open": "a mark is open",
    "invisible": "a hidden cause may add to it",
    "no_set": "no set of variables suffices",
}


@dataclass(frozen=True)
class EffectRow:
    """The effect of one variable on another over all graphs of the class; of that pair of columns with the largest."""

    source: str
    target: str
    # The least and the largest effect, in units of the target for one of the source.
    low: float
    high: float
    interval: Interval | None  # 95 %: from the lower end at the least effect to the upper end at the largest
    # The same in standard deviations of the target for one of the source.
    standardised_low: float
    standardised_high: float
    standardised_interval: Interval | None
    said: str  # how far the class tells it, and whether it is that of a line through a curve
    if_hidden: str = ""  # how far it is told if common causes may be hidden; empty: not told of any
    # What adjustment gives then, and its 95 % interval; None: not identified.
    value_if_hidden: float | None = None
    interval_if_hidden: Interval | None = None

    @property
    def largest(self) -> float:
        """The effect furthest from 0."""
        return max(self.low, self.high, key=abs)

    @property
    def largest_standardised(self) -> float:
        """The effect without units that is furthest from 0."""
        return max(self.standardised_low, self.standardised_high, key=abs)


@dataclass(frozen=True)
class EffectTable:
    """Rows by falling strength without units, and what is not among them."""

    rows: Sequence[EffectRow] = ()
    n_possible: int = 0  # ordered pairs with a possible effect, of the sources that were looked at
    not_looked_at: Sequence[str] = ()  # sources with too many sets of parents, or after the bound on the work
    by_assumption: int = 0  # edges whose direction rests on equal variances alone
    withheld: int = 0  # pairs with a possible effect of which nothing is told: noise took them beyond what is possible
    unseen: int = 0  # such pairs whose effect rests on variables that no row has together
    missing: Sequence[tuple[str, str]] = ()  # pairs without an edge that depend on each other all the same
    has_intervals: bool = False
    has_hidden: bool = False  # rows say what holds if common causes may be hidden
    why_not: str = ""  # a reason where there can be no table


def effect_table(run: ReportedRun) -> EffectTable:
    """The strongest effects of a run."""
    if run.residual_variance is None:
        return EffectTable(why_not=run.result["not_written"].get(LGBN, f"{LGBN} has no residual variances"))
    try:
        network = read_network(run.path)
    except ResultError:
        return EffectTable(why_not=f"{LGBN} is not a network over the columns of the run")
    try:
        return _table(network)
    except (ValueError, np.linalg.LinAlgError):
        return EffectTable(why_not="the marks of its edges are no equivalence class, or its covariance has no inverse")


def _table(network: LearnedNetwork) -> EffectTable:
    spread, rows, skipped, work = network.spread, list[EffectRow](), list[str](), 0
    members, withheld, unseen = network.columns.members(), 0, 0
    for source, name in enumerate(network.columns.variables):
        if name in network.before:  # its causes lie further back than the rows of the run
            continue
        found = others = None
        if work < _MOST_WORK:
            found, others = (
                _on_all(network, network.covariance, source),
                _on_all(network, network.without_withheld, source),
            )
        if found is None:
            skipped.append(name)
            continue
        moved = network.moved([source])
        for target, effects in found.items():
            if unseen_pairs(network, [source], target, effects):
                unseen += 1
                continue
            of = members[source], members[target]
            told = told_effects(network, effects, None if others is None else others[target], *of)
            if np.isnan(told[0].value).all():
                withheld += 1
                continue
            is_open = rests_on(network.marks, network.undecided, [source], target, moved).any()
            rows.append(_row(network, spread, source, target, told, is_open=bool(is_open)))
        work += len(network.marks) + sum(len(one.adjusted_for) for effects in found.values() for one in effects)
    rows.sort(key=lambda row: -abs(row.largest_standardised))
    shown = rows[:MOST_SHOWN]
    if network.pag is not None:
        if_hidden = EffectsIfHidden(network, network.pag)
        shown = [_with_hidden(network, if_hidden, row) for row in shown]
    return EffectTable(
        shown,
        len(rows),
        skipped,
        network.assumed,
        withheld,
        unseen,
        all_missing_edges(network),
        any(row.interval for row in shown),
        network.pag is not None,
    )


def _with_hidden(network: LearnedNetwork, if_hidden: EffectsIfHidden, row: EffectRow) -> EffectRow:
    """The row with what holds if common causes may be hidden."""
    columns = network.columns
    i, j = columns.names.index(row.source), columns.names.index(row.target)
    source, target = int(columns.variable_of[i]), int(columns.variable_of[j])
    found = if_hidden.of([source], target)
    uncounted = found.verdict in ("identified", "no path") and found.share is None
    verdict = f"{found.verdict}, draws not counted" if uncounted else found.verdict
    if found.because:
        verdict = f"{found.verdict}: {BECAUSE[found.because]}"
    if found.verdict != "identified" or network.tables:
        return replace(row, if_hidden=verdict)
    effect, members = if_hidden.value([source], target, found.given), columns.members()
    at = members[source].tolist().index(i), members[target].tolist().index(j)
    value, interval = float(effect.value[at]), None
    if math.isnan(value):
        return replace(row, if_hidden="withheld")
    if row.interval is not None and effect.standard_error is not None and np.isfinite(effect.standard_error[at]):
        half = _NORMAL_95 * float(effect.standard_error[at])
        interval = network.possible(value - half, value + half, (i, j))
    return replace(row, if_hidden=verdict, value_if_hidden=value, interval_if_hidden=interval)


def _on_all(network: LearnedNetwork, covariance: Matrix | None, source: int) -> dict[int, list[Effect]] | None:
    """See `effects_on_all`; None also without a covariance."""
    if covariance is None:
        return None
    return effects_on_all(covariance, network.marks, source, network.columns, network.precision, most=_MOST_PARENT_SETS)


def _row(
    network: LearnedNetwork, spread: Matrix, source: int, target: int, effects: Sequence[Effect], *, is_open: bool
) -> EffectRow:
    columns = network.columns
    i, j = columns.members()[source], columns.members()[target]
    scale = spread[i][:, None] / spread[j]
    values = np.array([one.value for one in effects])
    a, b = divmod(int(np.nanargmax(np.abs(values * scale).max(axis=0))), scale.shape[1])
    of_pair, factor = values[:, a, b], float(scale[a, b])
    interval = None
    errors = [one.standard_error[a, b] for one in effects if one.standard_error is not None]
    tied, bent = network.function([source], target), network.bent_between([source], target)
    marks = network.marks
    missing = missing_edges(network, [source], target, effects, marks, marks | marks.T)
    misleading = tied or bent or missing or network.not_described_for([source], target)
    if not misleading and len(errors) == len(effects) and np.isfinite(errors).all():
        half = _NORMAL_95 * np.array(errors)
        ends = float((of_pair - half).min()), float((of_pair + half).max())
        interval = network.possible(*ends, (int(i[a]), int(j[b])))
    low, high = float(of_pair.min()), float(of_pair.max())
    said = _IN_WORDS[certainty(of_pair.tolist())]
    if tied or is_open or draws_have_others(network, [source], target, effects):
        said = "not identified: a direction is open"
    elif missing:
        said = "not identified: an edge is missing"
    return EffectRow(
        columns.names[int(i[a])],
        columns.names[int(j[b])],
        low,
        high,
        interval,
        low * factor,
        high * factor,
        None if interval is None else (interval[0] * factor, interval[1] * factor),
        f"{said}; a line through a curve" if bent else said,
    )
