"""The network of a run folder as a distribution: families with numbers, whose means are those that the sites told.

Effects are those of the result: lines, curves, odds ratios, or tables of counts. What the result does not tell follows
from draws: an intercept is the one that gives a column the mean that was told.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.optimize import brentq

from fedbnsl.errors import ResultError, SetupError
from fedbnsl.graphs.files import LGBN
from fedbnsl.graphs.graph import topological_order
from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Bend, Count, Family, Grade, Levels, Number, Table
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Entry
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.results.learned_network import LearnedNetwork, learned_from, read_network, weights_and_variances
from fedbnsl_server.store.result_file import read_result

_DRAWS, _SEED = 20_000, 20_240_229  # of the intercepts: fixed, so that a run has one network
_LEAST_SHARE = 1e-4  # of a level: noise of privacy may make shares negative
_LEAST_LEFT = 0.02  # of a number's variance about a curve
_SETTLED, _MOST_STEPS = 1e-7, 200
_BEYOND = 6.0  # standard deviations of noise beyond a range: no mean of values within it lies further out
_CLOSE = 1e-4  # the same: of an intercept
_POINTS = 400  # that stand for the draws where two numbers of a family are looked for
_LOG_SPREADS = math.log(1e-3), math.log(30.0)  # of steps between grades, or of their noise
_LOG_VARIATIONS = math.log(1e-3), math.log(3.0)  # of the rates of rows that are alike: standard deviation by mean
_TIMES, _MOST_TIMES, _NEAR = (0.1, 10.0), 8, 5e-3  # by which effects on a location exceed those on its column
_REACH = 2000.0  # of intercepts, on scales of logarithms and of grades


_Spread = TypeVar("_Spread", Count, Grade)


@dataclass(frozen=True, eq=False)
class NetworkOfRun(FittedNetwork):
    """The network of a run, beside what the run learned."""

    learned: LearnedNetwork = field(kw_only=True)

    @property
    def is_noisy(self) -> bool:
        """Whether the noise of privacy is in its numbers."""
        return _is_noisy(self.learned)


def fitted_network(run: Path) -> NetworkOfRun:
    """The network of a run folder.

    Raises
    ------
    ResultError
        If a file is missing or damaged, or tells no numbers of the network.
    SetupError
        If the run does not tell the means of its columns, or its rows are those of a series.
    """
    result, learned = read_result(run), read_network(run)
    if not (run / "plan.toml").exists():
        raise ResultError(f"{run} has no plan.toml, which says what the variables are", remedy="Copy the whole folder.")
    plan = Plan.load(run / "plan.toml")
    _require_its_plan(run, result, plan, learned)
    return _network_of(result, json.loads((run / LGBN).read_text(encoding="utf-8")), plan, learned)


def network_of(result: Mapping[str, Any], content: Mapping[str, Any], plan: Plan) -> NetworkOfRun:
    """The network of a result, as `read_result` has it, and of the content of the lgbn.json beside it.

    Raises SetupError as `fitted_network` does.
    """
    return _network_of(result, content, plan, learned_from(result, content, plan))


def _network_of(
    result: Mapping[str, Any], content: Mapping[str, Any], plan: Plan, learned: LearnedNetwork
) -> NetworkOfRun:
    if plan.dictionary.rows and plan.dictionary.rows.within == "within":
        raise SetupError("the rows of this run are deviations from the means of their groups, not rows of a table")
    if learned.before:
        raise SetupError("the rows of this run are those of a series (lags), of which no single row is drawn")
    W, variance = weights_and_variances(content, learned.columns)
    means = _means(result, plan, learned.columns)
    fitting = _Fitting(result, learned, plan, W, variance, means)
    network = fitting.network()
    if not network.families:
        raise SetupError("the network of this run says nothing of any variable")
    return NetworkOfRun(
        network,
        learned.columns,
        plan.dictionary,
        means,
        learned.spread,
        fitting.levels,
        fitting.left_out,
        _doubts(learned),
        _promise(result["privacy"]),
        learned=learned,
    )


def _doubts(learned: LearnedNetwork) -> list[str]:
    noisy = ["the noise of privacy is in all numbers, and no interval here counts it"] * _is_noisy(learned)
    lines = [learned.no_curves] * bool(learned.no_curves)
    return [*learned.doubts, *lines, *noisy]


def _is_noisy(learned: LearnedNetwork) -> bool:
    return learned.precision is not None and learned.precision.noise_std > 0.0


def _promise(privacy: Mapping[str, Any] | None) -> str:
    """What drawn rows promise the people in the tables, a clause in one line."""
    if privacy is None:
        return "no privacy is promised: the run had no private plan"
    if privacy["guarantee"]:
        told = f"{privacy['guarantee'].rstrip('.')}; drawing rows costs nothing more"
    else:
        told = f"no privacy is promised: {'; '.join(privacy['no_guarantee_because'])}"
    return " ".join(told.split())


def _require_its_plan(run: Path, result: Mapping[str, Any], plan: Plan, learned: LearnedNetwork) -> None:
    """Raise ResultError if plan.toml is not the one that the result is of."""
    dictionary, columns = plan.dictionary, learned.columns
    fits = (plan.preparation is None) == (result["preparation"] is None)
    if not learned.before:
        fits = fits and (not dictionary or all(name in dictionary for name in columns.variables))
        fits = fits and dictionary.levels(columns.variables) == learned.levels
        nominal = {name: dictionary[name].levels for name in dictionary.references(columns.variables)}
        for name, own in zip(columns.variables, columns.members(), strict=True):
            possible = {f"{name}={level}" for level in nominal[name]} if name in nominal else {name}
            fits = fits and {columns.names[k] for k in own.tolist()} <= possible
    if not fits:
        raise ResultError(
            f"{run / 'plan.toml'} is not the plan of the result beside it: it says other things of the columns",
            remedy="Copy the whole folder again.",
        )


def _means(result: Mapping[str, Any], plan: Plan, columns: Columns) -> Matrix:
    if plan.preparation is None:  # such plans take it that means are zero
        return np.zeros(len(columns.names))
    told = result["preparation"]["means"] or result["preparation"]["centres"]
    if told is None:
        raise SetupError(
            "the run does not tell the means of its columns: its network knows of differences from them alone",
            remedy="Run it again with --set tell_means=true, as the ready plans standard and private have it; a site "
            "whose policy has a least_cell may withhold its means.",
        )
    if missing := [name for name in columns.names if name not in told]:
        raise ResultError(f"result.json tells no mean of {missing[0]!r}", remedy="Copy the whole folder again.")
    return np.array([told[name] for name in columns.names], dtype=np.float64)


class _Fitting:
    """Families one after another, each calibrated on draws of those before it."""

    def __init__(
        self,
        result: Mapping[str, Any],
        learned: LearnedNetwork,
        plan: Plan,
        W: Matrix,
        variance: Matrix,
        means: Matrix,
    ) -> None:
        self._result, self._learned, self._plan = result, learned, plan
        self._W, self._variance, self._means = W, variance, means
        self._columns, self._names = learned.columns, learned.columns.names
        self._members = dict(zip(learned.columns.variables, learned.columns.members(), strict=True))
        self._X, self._rng = np.zeros((_DRAWS, len(W))), np.random.default_rng(_SEED)

    def network(self) -> BayesianNetwork:
        """Families of all variables that numbers are known of."""
        tables, order = self._learned.tables, topological_order(self._columns.joined(self._W != 0.0))
        if tables:  # of the same DAG; a column of zeros and ones may have weight 0 there
            position = self._columns.variables.index
            dag = np.zeros((len(self._members),) * 2, dtype=bool)
            for name, one in tables.items():
                dag[[position(parent) for parent in one.parents], position(name)] = True
            order = topological_order(dag)
        families: dict[str, Family] = {}
        for name in (self._columns.variables[k] for k in order):
            if name in self.left_out:
                continue
            family = self._family(name)
            self._X[:, family.columns] = family.sample(self._X, self._rng)
            families[name] = family
        return BayesianNetwork(len(self._W), families)

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Variables without numbers, and why."""
        unknown = {
            name
            for name, own in self._members.items()
            if not (np.isfinite(self._means[own]).all() and np.isfinite(self._variance[own]).all())
        }
        return dict.fromkeys(sorted(unknown), "no site has a value of it") | dict(self._learned.untold)

    @cached_property
    def levels(self) -> dict[str, list[str]]:
        """By variable with levels, in the order of their positions in the network."""
        found: dict[str, list[str]] = {}
        for name, own in self._members.items():
            entry = self._entry(name)
            if entry.kind == "nominal":
                first = self._result["references"].get(name, entry.levels[0])
                places: list[int] = own.tolist()
                found[name] = [first, *(self._names[k].removeprefix(f"{name}=") for k in places)]
            elif entry.has_levels:
                found[name] = list(entry.levels)
        return found

    def _entry(self, name: str) -> Entry:
        dictionary = self._plan.dictionary
        return dictionary[name] if name in dictionary else Entry()

    def _family(self, name: str) -> Family:
        own, entry = self._members[name], self._entry(name)
        if name in self._learned.tables:
            return self._table(name, own)
        if entry.kind in ("binary", "nominal"):
            return self._of_levels(name, own)
        number = self._number(name, int(own[0]), entry)
        if entry.has_levels:
            return self._grade(name, number, len(entry.levels))
        if entry.kind == "count":
            return self._count(name, number, entry)
        return self._with_mean(number) if math.isfinite(number.low) else number

    def _grade(self, name: str, number: Number, n_levels: int) -> Grade:
        """With the mean, spread and effects that its column has: of the shares of its levels, a run tells no more."""
        steps = np.arange(n_levels - 1, dtype=np.float64) - (n_levels - 2) / 2.0
        if (ratios := self._ratios(name, "odds ratio")) is not None:
            of_odds = Grade(number.column, *self._lines(name, ratios), 0.0, steps)
            return self._with_spread(of_odds, lambda of, step: replace(of, cuts=step * steps), _LOG_SPREADS)
        of_lines = Grade(number.column, number.lines, number.weights, 0.0, steps, bends=number.bends)
        return self._with_effects(of_lines, lambda of, scale: replace(of, scale=scale), _LOG_SPREADS)

    def _count(self, name: str, number: Number, entry: Entry) -> Count:
        """With the mean and the spread that its column has, and its effects."""
        low, high = entry.range or (0.0, math.inf)
        ends = float(math.ceil(low)), float(math.floor(high)) if math.isfinite(high) else math.inf
        if (ratios := self._ratios(name, "rate ratio")) is not None:
            of_rates = Count(number.column, *self._lines(name, ratios), 0.0, entry.applied, True, math.inf, *ends)
            return self._with_spread(of_rates, _varying, _LOG_VARIATIONS)
        of_lines = Count(number.column, number.lines, number.weights, 0.0, entry.applied, False, math.inf, *ends)
        return self._with_effects(replace(of_lines, bends=number.bends), _varying, _LOG_VARIATIONS)

    def _ratios(self, name: str, kind: str) -> dict[tuple[str, str], float] | None:
        """Logarithms of a variable's odds ratios or rate ratios, by columns; None: not all are told."""
        found = {
            (one["source"], one["target"]): one["log_ratio"]
            for told in self._result["regressions"]
            if told["child"] == name and told["kind"] == kind
            for one in told["estimates"]
        }
        return found if found and None not in found.values() else None

    def _lines(self, name: str, ratios: Mapping[tuple[str, str], float]) -> tuple[Index, Matrix]:
        """Parents of a variable with one column, and the logarithms of their ratios."""
        lines = np.flatnonzero(self._W[:, self._members[name][0]])
        return lines, np.array([ratios.get((self._names[k], name), 0.0) for k in lines.tolist()])

    def _with_mean(self, number: Number) -> Number:
        """With the intercept that gives its column its mean, over the draws of its parents; else the nearest."""
        at = number.location(self._X) - number.intercept
        first = number.low - _BEYOND * number.noise_std - float(at.max())
        last = number.high + _BEYOND * number.noise_std - float(at.min())

        def excess(intercept: float) -> float:
            mean = replace(number, intercept=intercept).mean(self._X).mean()
            return float(mean - self._means[number.column])

        if abs(excess(number.intercept)) <= _CLOSE * number.noise_std:
            return number
        return replace(number, intercept=_root(excess, first, last, _CLOSE * number.noise_std))

    def _with_effects(
        self, family: _Spread, of: Callable[[_Spread, float], _Spread], log_spreads: tuple[float, float]
    ) -> _Spread:
        """With an effect on its column that is, in the mean over the draws, the one told; else the nearest.

        Told are lines and curves of the column. They are those of the location times a number above 1: at the first
        and the last grade, and at 0, the column moves less than its location does.
        """
        told, times = self._points(family), 1.0
        found = self._with_spread(family, of, log_spreads)
        if (square := float(told.var())) == 0.0:
            return found
        for _ in range(_MOST_TIMES):
            moved = found.moments(found.intercept + times * told)[0]
            slope = float(((moved - moved.mean()) * told).mean()) / square
            if abs(slope - 1.0) < _NEAR or slope <= 0.0:
                break
            times = float(np.clip(times / slope, *_TIMES))
            found = self._with_spread(_stretched(family, times), of, log_spreads)
        return found

    def _points(self, family: _Spread) -> Matrix:
        """(_POINTS,) sums of the effects, which stand for those of all draws."""
        return np.asarray(np.sort(family.location(self._X)).reshape(_POINTS, -1).mean(axis=1))

    def _with_spread(
        self, family: _Spread, of: Callable[[_Spread, float], _Spread], log_spreads: tuple[float, float]
    ) -> _Spread:
        """Of those that `of` makes of the family, the one whose column has its mean and its spread; else the nearest.

        All have the location of `family`, whose intercept is 0.
        """
        points = self._points(family)
        centre, mean = float(points.mean()), float(self._means[family.column])
        square = mean**2 + float(self._learned.covariance[family.column, family.column])
        reach = _REACH + float(np.ptp(points)) + 4.0 * abs(mean)

        def intercept(spread: _Spread) -> float:
            def excess(at: float) -> float:
                return float(spread.moments(at + points - centre)[0].mean()) - mean

            return _root(excess, -reach, reach) - centre

        def excess(log_spread: float) -> float:
            found = of(family, math.exp(log_spread))
            return float(found.moments(intercept(found) + points)[1].mean()) - square

        found = of(family, math.exp(_root(excess, *log_spreads, xtol=_CLOSE)))
        return replace(found, intercept=intercept(found))

    def _table(self, name: str, own: Index) -> Table:
        told, of_parents = self._learned.tables[name], list[tuple[Index, int]]()
        for parent in told.parents:
            of_parents.append((self._members[parent], len(self.levels[parent])))
        # Counts have levels that occur nowhere, too; the network's columns have not.
        counts = told.counts[np.ix_(*map(self._counted_levels, (*told.parents, name)))]
        rows = counts.sum(axis=-1, keepdims=True)
        whole = counts.reshape(-1, counts.shape[-1]).sum(axis=0)
        # Combinations of levels that no record has: what the variable is like elsewhere.
        shares = np.where(rows > 0.0, counts / np.where(rows > 0.0, rows, 1.0), whole / whole.sum())
        return Table(own, len(self.levels[name]), tuple(of_parents), shares)

    def _counted_levels(self, name: str) -> list[int]:
        """Where the levels of the network are among those of tables of counts."""
        counted = list(self._learned.table_levels[name])
        return [counted.index(level) for level in self.levels[name]]

    def _of_levels(self, name: str, own: Index) -> Levels:
        shares = np.clip(self._means[own], _LEAST_SHARE, 1.0 - _LEAST_SHARE)
        shares = shares * min(1.0, (1.0 - _LEAST_SHARE) / shares.sum())
        odds = self._ratios(name, "odds ratio")
        parents = np.flatnonzero((self._W[:, own] != 0.0).any(axis=1))
        if odds is not None:
            weights = np.array(
                [[odds.get((self._names[p], self._target(name, c)), 0.0) for c in own.tolist()] for p in parents]
            ).reshape(len(parents), len(own))
        else:
            weights = self._W[np.ix_(parents, own)]
        found = Levels(own, parents, weights, np.zeros(len(own)), odds is not None)
        return self._calibrated(found, shares)

    def _target(self, name: str, column: int) -> str:
        """How regressions name a level: that of a binary variable by the variable."""
        return name if len(self._members[name]) == 1 else self._names[column]

    def _calibrated(self, family: Levels, shares: Matrix) -> Levels:
        """With the intercepts that give its levels their shares, over the draws of its parents."""
        eta = self._X[:, family.parents] @ family.weights
        if not family.by_odds:
            return replace(family, intercepts=shares - eta.mean(axis=0))
        if len(shares) == 1:

            def excess(alpha: float) -> float:
                return float((1.0 / (1.0 + np.exp(-np.clip(eta[:, 0] + alpha, -500, 500)))).mean() - shares[0])

            far = 40.0 + float(np.abs(eta).max(initial=0.0))
            alpha = np.array([float(brentq(excess, -far, far))])  # pyright: ignore[reportArgumentType]
            return replace(family, intercepts=alpha)
        alpha, goal = np.zeros(len(shares)), np.array([1.0 - shares.sum(), *shares])
        for _ in range(_MOST_STEPS):
            told = replace(family, intercepts=alpha)
            gap = np.log(goal) - np.log(np.maximum(told.probabilities(self._X).mean(axis=0), 1e-300))
            alpha = alpha + gap[1:] - gap[0]
            if np.abs(gap).max() < _SETTLED:
                break
        return replace(family, intercepts=alpha)

    def _number(self, name: str, column: int, entry: Entry) -> Number:
        bends = tuple(self._bends(name))
        bent = [bend.parent for bend in bends]
        lines = np.array([p for p in np.flatnonzero(self._W[:, column]).tolist() if p not in bent], dtype=np.int64)
        weights, mean = self._W[lines, column], float(self._means[column])
        (described,) = entry.columns(name)
        low, high = (-np.inf, np.inf) if entry.has_levels else (described.low, described.high)
        variance = float(self._variance[column])
        found = Number(column, lines, weights, 0.0, math.sqrt(variance), low, high, bends=bends)
        if not bends:  # of draws, the means are those of the sites but for chance
            return replace(found, intercept=mean - float(weights @ self._means[lines]))
        at, whole = found.location(self._X), float(self._learned.covariance[column, column])
        variance = max(min(variance, whole - float(at.var())), _LEAST_LEFT * whole)
        return replace(found, intercept=mean - float(at.mean()), noise_std=math.sqrt(variance))

    def _bends(self, name: str) -> list[Bend]:
        found: list[Bend] = []
        for one in self._result["curves"]["effects"] if self._result["curves"] else ():
            parent = self._names.index(one["source"])
            # An edge without a direction is told from the end that bends; this DAG may have it from the other one.
            if one["target"] == name and self._W[parent, self._members[name][0]] != 0.0:
                found.append(Bend(parent, np.array(one["at"]) + self._means[parent], np.array(one["change"])))
        return found


def _varying(of: Count, variation: float) -> Count:
    return replace(of, size=variation**-2.0)


def _stretched(family: _Spread, times: float) -> _Spread:
    bends = tuple(bend._replace(adds=times * bend.adds) for bend in family.bends)
    return replace(family, weights=times * family.weights, bends=bends)


def _root(f: Callable[[float], float], low: float, high: float, xtol: float = _SETTLED) -> float:
    """Where it is 0, to xtol; else the end at which it is nearest."""
    at_low, at_high = f(low), f(high)
    if at_low * at_high >= 0.0:
        return low if abs(at_low) <= abs(at_high) else high
    return float(brentq(f, low, high, xtol=xtol))  # pyright: ignore[reportArgumentType]
