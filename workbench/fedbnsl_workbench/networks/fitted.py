"""The network of a run folder as a distribution: families with numbers, whose means are those that the sites told.

Effects are those of the result: lines, curves, odds ratios, or tables of counts. What the result does not tell follows
from draws: an intercept is the one that gives a column the mean that was told.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from fedbnsl.console.wording import first_few
from fedbnsl.errors import ResultError, SetupError
from fedbnsl.graphs.graph import topological_order
from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Bend, Family, Grade, Levels, Number, Table, coded
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Dictionary, Entry
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.results.learned_network import LearnedNetwork, read_network, weights_and_variances
from fedbnsl_server.store.result_file import read_result

_DRAWS, _SEED = 20_000, 20_240_229  # of the intercepts: fixed, so that a run has one network
_LEAST_SHARE = 1e-4  # of a level: noise of privacy may make shares negative
_LEAST_LEFT = 0.02  # of a number's variance about a curve
_SETTLED, _MOST_STEPS = 1e-7, 200
_BEYOND = 6.0  # standard deviations of noise beyond a range: no mean of values within it lies further out
_CLOSE = 1e-4  # the same: of an intercept


@dataclass(frozen=True, eq=False)
class FittedNetwork:
    """A run's network, and what its columns mean.

    Attributes
    ----------
    levels
        By variable with levels, in the order of their positions.
    left_out
        Variables of the run that the network says nothing about, and why.
    """

    result: Mapping[str, Any]
    learned: LearnedNetwork
    dictionary: Dictionary
    network: BayesianNetwork
    means: Matrix
    levels: Mapping[str, Sequence[str]]
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def columns(self) -> Columns:
        """Of the network."""
        return self.learned.columns

    @property
    def doubts(self) -> list[str]:
        """What says against the network, and what no interval of it counts."""
        precision = self.learned.precision
        noisy = precision is not None and precision.noise_std > 0.0
        of_noise = "the noise of privacy is in all numbers, and no interval here counts it"
        return [*self.learned.doubts, *[of_noise] * noisy]

    def rough(self, names: Iterable[str]) -> list[str]:
        """What is rough about the families of these variables, a clause each."""
        words = {
            "count": "is a count, and taken as a normal value that rows round: near 0, intervals and what it says of "
            "others are rough",
            "ordinal": "has grades, which are taken as cut from a normal value at equal steps: their shares are rough",
        }
        kinds = {name: self.entry(name).kind for name in names if name not in self.learned.tables}
        return [f"{name!r} {words[kind]}" for name, kind in kinds.items() if kind in words]

    def entry(self, name: str) -> Entry:
        """What the dictionary says of a variable."""
        return _entry(self.dictionary, name)

    def members(self, name: str) -> Index:
        """The columns of a variable."""
        return self._members[name]

    @cached_property
    def _members(self) -> dict[str, Index]:
        return dict(zip(self.columns.variables, self.columns.members(), strict=True))

    def require(self, name: str) -> None:
        """Raise SetupError for a name of no variable of the network."""
        if name in self.network.families:
            return
        if name in self.left_out:
            raise SetupError(f"nothing is known of {name!r}: {self.left_out[name]}")
        raise SetupError(f"{name!r} is not a variable of the network, which has {first_few(map(repr, self.variables))}")

    def coded(self, name: str, text: str) -> list[float]:
        """The values of a variable's columns, from a level or a number in the dictionary's unit.

        Raises
        ------
        SetupError
            If the network has no such variable, or the variable no such value.
        """
        self.require(name)
        entry, own = self.entry(name), self.members(name)
        if name in self.levels:
            if text not in self.levels[name]:
                has = first_few(map(repr, self.levels[name]))
                raise SetupError(f"{text!r} is no level of {name!r}, which has {has}")
            at = np.array([self.levels[name].index(text)])
            return list(map(float, coded(at, len(own), len(self.levels[name]))[0]))
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        unit = f" in {entry.unit}" if entry.unit else ""
        if not math.isfinite(number):
            raise SetupError(f"{name} = {text!r}: expected a number{unit}")
        low, high = entry.range or (-math.inf, math.inf)
        if not low <= number <= high:
            raise SetupError(f"{name} = {text}: the data dictionary has values from {low:g} to {high:g}")
        if not number > entry.formula.least:
            raise SetupError(f"{name} = {text}: values must be {entry.formula.rule}")
        return [float(entry.formula.forth(np.array([number]))[0])]

    @property
    def variables(self) -> list[str]:
        """Those that have families, in the order of the run."""
        return [name for name in self.columns.variables if name in self.network.families]


def _entry(dictionary: Dictionary, name: str) -> Entry:
    """What it says of a variable; a plain number where it says nothing."""
    return dictionary[name] if name in dictionary else Entry()


def fitted_network(run: Path) -> FittedNetwork:
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
    if plan.dictionary.rows and plan.dictionary.rows.within == "within":
        raise SetupError("the rows of this run are deviations from the means of their groups, not rows of a table")
    if learned.before:
        raise SetupError("the rows of this run are those of a series (lags), of which no single row is drawn")
    W, variance = weights_and_variances(run, learned.columns)
    means = _means(result, plan, learned.columns)
    fitting = _Fitting(result, learned, plan, W, variance, means)
    network = fitting.network()
    if not network.families:
        raise SetupError("the network of this run says nothing of any variable")
    return FittedNetwork(result, learned, plan.dictionary, network, means, fitting.levels, fitting.left_out)


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
            entry = _entry(self._plan.dictionary, name)
            if entry.kind == "nominal":
                first = self._result["references"].get(name, entry.levels[0])
                places: list[int] = own.tolist()
                found[name] = [first, *(self._names[k].removeprefix(f"{name}=") for k in places)]
            elif entry.has_levels:
                found[name] = list(entry.levels)
        return found

    def _family(self, name: str) -> Family:
        own, entry = self._members[name], _entry(self._plan.dictionary, name)
        if name in self._learned.tables:
            return self._table(name, own)
        if entry.kind in ("binary", "nominal"):
            return self._of_levels(name, own)
        number = self._number(name, int(own[0]), entry)
        if entry.has_levels:
            n_levels = len(entry.levels)
            return self._with_mean(
                lambda at: Grade(replace(number, intercept=at), n_levels), number, -0.5, n_levels - 0.5
            )
        if not math.isfinite(number.low):
            return number
        return self._with_mean(lambda at: replace(number, intercept=at), number, number.low, number.high)

    def _with_mean(self, of: Callable[[float], Family], number: Number, low: float, high: float) -> Family:
        """With the intercept that gives its column its mean, over the draws of its parents; else the nearest."""
        at = number.location(self._X) - number.intercept
        first = low - _BEYOND * number.noise_std - float(at.max())
        last = high + _BEYOND * number.noise_std - float(at.min())

        def excess(intercept: float) -> float:
            return float(of(intercept).mean(self._X).mean() - self._means[number.column])

        if abs(excess(number.intercept)) <= _CLOSE * number.noise_std:
            return of(number.intercept)
        if excess(first) >= 0.0 or excess(last) <= 0.0:
            return of(first if excess(first) >= 0.0 else last)
        found = brentq(excess, first, last, xtol=_CLOSE * number.noise_std)
        return of(float(found))  # pyright: ignore[reportArgumentType]

    def _table(self, name: str, own: Index) -> Table:
        told, of_parents = self._learned.tables[name], list[tuple[Index, int]]()
        for parent in told.parents:
            of_parents.append((self._members[parent], len(self.levels[parent])))
        rows = told.counts.sum(axis=-1, keepdims=True)
        whole = told.counts.reshape(-1, told.counts.shape[-1]).sum(axis=0)
        # Combinations of levels that no record has: what the variable is like elsewhere.
        shares = np.where(rows > 0.0, told.counts / np.where(rows > 0.0, rows, 1.0), whole / whole.sum())
        return Table(own, len(self.levels[name]), tuple(of_parents), shares)

    def _of_levels(self, name: str, own: Index) -> Levels:
        shares = np.clip(self._means[own], _LEAST_SHARE, 1.0 - _LEAST_SHARE)
        shares = shares * min(1.0, (1.0 - _LEAST_SHARE) / shares.sum())
        odds = {
            (one["source"], one["target"]): one["log_ratio"]
            for told in self._result["regressions"]
            if told["child"] == name and told["kind"] == "odds ratio"
            for one in told["estimates"]
        }
        parents = np.flatnonzero((self._W[:, own] != 0.0).any(axis=1))
        by_odds = bool(odds) and None not in odds.values()
        if by_odds:
            weights = np.array(
                [[odds.get((self._names[p], self._target(name, c)), 0.0) for c in own.tolist()] for p in parents]
            ).reshape(len(parents), len(own))
        else:
            weights = self._W[np.ix_(parents, own)]
        found = Levels(own, parents, weights, np.zeros(len(own)), by_odds)
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
        found = Number(column, lines, weights, 0.0, math.sqrt(variance), bends, low, high)
        at = found.location(self._X)
        if bends:
            whole = float(self._learned.covariance[column, column])
            variance = max(min(variance, whole - float(at.var())), _LEAST_LEFT * whole)
        return replace(found, intercept=mean - float(at.mean()), noise_std=math.sqrt(variance))

    def _bends(self, name: str) -> list[Bend]:
        found: list[Bend] = []
        for one in self._result["curves"]["effects"] if self._result["curves"] else ():
            if one["target"] == name:
                parent = self._names.index(one["source"])
                found.append(Bend(parent, np.array(one["at"]) + self._means[parent], np.array(one["change"])))
        return found
