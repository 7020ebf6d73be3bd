"""Values that are far away: errors in cells, which count as missing, and laws with heavy tails, which do not.

Generated tables of linear effects. Errors are drawn for each cell by itself; what they hit is missing at random. Then
variables of which many values are the same: below what a device can tell, or zeros among counts. At last alarms about
sites: false ones where sites are alike in law, and how often the one wrong site is named.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import random_weights

_SITES, _ROWS, _VARIABLES, _SEEDS = 8, 1000, 15, range(10)
_MEAN = 10.0  # of every variable, in standard deviations of its noise: slips of a decimal point need one

Noise = Callable[[np.random.Generator, int], Matrix]
_LAWS: Mapping[str, Noise] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "t with 3 degrees of freedom": lambda rng, n: rng.standard_t(3, n),
    "t with 2 degrees of freedom": lambda rng, n: rng.standard_t(2, n),
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "lognormal": lambda rng, n: rng.lognormal(0.0, 1.0, n),
}

Errors = Callable[[Matrix, np.random.Generator], Matrix]


def _shifted(X: Matrix, rng: np.random.Generator) -> Matrix:
    """1 % of cells ten standard deviations away."""
    signs = rng.choice([-1.0, 1.0], X.shape)
    return np.asarray(X + (rng.random(X.shape) < 0.01) * signs * 10.0 * X.std(axis=0))


def _slips(X: Matrix, rng: np.random.Generator) -> Matrix:
    """One cell in 300 with its decimal point a digit too far to the right."""
    return np.where(rng.random(X.shape) < 1 / 300, 10.0 * X, X)


def _one_each(X: Matrix, rng: np.random.Generator) -> Matrix:
    """One cell of each column, such as a date in its place."""
    X = X.copy()
    X[rng.integers(len(X), size=X.shape[1]), np.arange(X.shape[1])] = 20261127.0
    return X


_ERRORS: Mapping[str, Errors] = {
    "1 % of cells 10 sd away": _shifted,
    "decimal point slipped in 1 of 300 cells": _slips,
    "one date in each column": _one_each,
}


_MANY = 0.4  # of a variable's values are its least one


def _below_detection(W: Matrix, rng: np.random.Generator) -> Matrix:
    """Rows of linear effects, each variable read as the quantile of `_MANY` where it is less."""
    X = _sample(W, _LAWS["normal"], rng, _SITES * _ROWS)
    return np.maximum(X, np.quantile(X, _MANY, axis=0))


def _with_zeros(W: Matrix, rng: np.random.Generator) -> Matrix:
    """Poisson counts whose log rates are linear in log1p of other counts, `_MANY` of them set to 0 and then acting."""
    X = np.zeros((_SITES * _ROWS, len(W)))
    for v in topological_order(W != 0):
        logs = np.log1p(X)
        z = (logs - logs.mean(axis=0)) / np.where(X.any(axis=0), logs.std(axis=0), 1.0)
        X[:, v] = rng.poisson(np.exp(np.clip(1.0 + 0.7 * z @ W[:, v], -3.0, 4.0)))
        X[rng.random(len(X)) < _MANY, v] = 0.0
    return X


def _read_with_zeros(W: Matrix, rng: np.random.Generator) -> Matrix:
    """Poisson counts, each by a hidden rate of its own; the hidden rates act on each other, not the counts."""
    X = _sample(W, _LAWS["normal"], rng, _SITES * _ROWS)
    X[:] = rng.poisson(np.exp(1.0 + 0.7 * (X - _MEAN) / X.std(axis=0)))
    X[rng.random(X.shape) < _MANY] = 0.0
    return X


_SAME: Mapping[str, Callable[[Matrix, np.random.Generator], Matrix]] = {
    f"values below the {_MANY:.0%} quantile not told apart": _below_detection,
    f"counts that act on counts, {_MANY:.0%} more zeros": _with_zeros,
    f"counts of hidden rates that act on each other, {_MANY:.0%} more zeros": _read_with_zeros,
}

Wrong = Callable[[Matrix, int, np.random.Generator], None]


def _turned(X: Matrix, v: int, rng: np.random.Generator) -> None:
    X[:, v] = 2.0 * _MEAN - X[:, v]


def _in_inches(X: Matrix, v: int, rng: np.random.Generator) -> None:
    X[:, v] /= 2.54


def _ten_times(X: Matrix, v: int, rng: np.random.Generator) -> None:
    X[:, v] *= 10.0


def _shuffled(X: Matrix, v: int, rng: np.random.Generator) -> None:
    X[:, v] = rng.permutation(X[:, v])


_WRONG: Mapping[str, Wrong] = {
    "turned around": _turned,
    "in another unit (inches for centimetres)": _in_inches,
    "ten times as large": _ten_times,
    "shuffled": _shuffled,
}
_WRONG_SITE = 2  # the third of the sites has one variable that is wrong, the one with most edges
_ALARM_LAWS = ("normal", "t with 3 degrees of freedom", "t with 2 degrees of freedom", "exponential")
_ALARM_ROWS, _ALARM_VARIABLES, _ALARM_SEEDS, _WRONG_SEEDS = (1000, 5000), 20, range(20), range(10)


class _Seen(NamedTuple):
    """Of one run."""

    pairs: tuple[int, int, int]  # right, found, true
    distance: int
    left_out: int
    sites_differ: bool
    site_named: bool


def robust_tails() -> Iterator[Row]:
    """Skeletons and classes with errors and heavy tails; outlying values left out and kept."""
    for law, noise in _LAWS.items():
        yield _row(f"noise {law}", noise, lambda X, rng: X)
    for name, errors in _ERRORS.items():
        yield _row(f"normal noise, {name}", _LAWS["normal"], errors)
    yield _row(
        f"noise t with 3 degrees of freedom, {next(iter(_ERRORS))}", _LAWS["t with 3 degrees of freedom"], _shifted
    )
    for name, sample in _SAME.items():
        yield _row_of_same(name, sample)
    for law in _ALARM_LAWS:
        for rows in _ALARM_ROWS:
            yield _alarms(law, rows)


def _alarms(law: str, rows: int) -> Row:
    """Runs that say that sites differ, and that name a site; with the fewest rows, also where one site is wrong."""
    figure = f"alarms, noise {law}; {_SITES} x {rows} rows, {_ALARM_VARIABLES} variables"
    alike = [_judged(law, rows, seed, None) for seed in _ALARM_SEEDS]
    row: Row = {
        "figure": figure,
        f"sites alike, {len(alike)} graphs: differ, name a site": f"{sum(differ for differ, _ in alike)}, "
        f"{sum(bool(named) for _, named in alike)}",
    }
    wrong_site = f"site-{_WRONG_SITE + 1}"
    for name, wrong in _WRONG.items() if rows == _ALARM_ROWS[0] else ():
        seen = [_judged(law, rows, seed, wrong) for seed in _WRONG_SEEDS]
        row[f"one variable of a site {name}, {len(seen)} graphs: differ, name it, name another"] = (
            f"{sum(differ for differ, _ in seen)}, {sum(wrong_site in named for _, named in seen)}, "
            f"{sum(bool(named - {wrong_site}) for _, named in seen)}"
        )
    return row


def _judged(law: str, rows: int, seed: int, wrong: Wrong | None) -> tuple[bool, set[str]]:
    """Whether a run says that sites differ, and the sites that it names."""
    rng = np.random.default_rng(seed)
    W = random_weights(_ALARM_VARIABLES, _ALARM_VARIABLES, rng, size=0.5)
    X = _sample(W, _LAWS[law], rng, _SITES * rows)
    if wrong is not None:
        v = int(((W != 0) | (W != 0).T).sum(axis=0).argmax())
        wrong(X[_WRONG_SITE * rows : (_WRONG_SITE + 1) * rows], v, rng)
    result = _result(X)
    return _says_that_sites_differ(result), _named(result)


def _named(result: Mapping[str, Any]) -> set[str]:
    """Sites that a result names as other than the others."""
    scores = result["influence"]
    above = {site for site, of in scores["sites"].items() if of["largest"] > scores["limit"]}
    odd = {scores["odd"]["site"]} if scores.get("odd") else set[str]()
    findings = (one for told in result["rounds"] for one in told.get("findings", []))
    return above | odd | {one["site"] for one in findings if one["code"] == "other_spread"}


def _says_that_sites_differ(result: Mapping[str, Any]) -> bool:
    return any("sites differ" in text for text in result["verdict"]["contradicted"])


def _row(name: str, noise: Noise, errors: Errors) -> Row:
    row: Row = {"figure": f"{name}; {_SITES} x {_ROWS} rows, {_VARIABLES} variables, {len(_SEEDS)} graphs"}
    for outlying, way in (("missing", "outlying = missing"), ("keep", "outlying = keep")):
        seen, wrong = list[_Seen](), 0
        for seed in _SEEDS:
            rng = np.random.default_rng(seed)
            W = random_weights(_VARIABLES, _VARIABLES, rng, size=0.5)
            clean = _sample(W, noise, rng, _SITES * _ROWS)
            X = errors(clean, rng)
            seen.append(_seen(_result(X, outlying), W != 0))
            wrong += int((clean != X).sum())
        row |= {
            f"{way}: skeleton F1, class distance": _f1_and_distance(seen),
            f"{way}: runs that say that sites differ, that name a site": f"{sum(one.sites_differ for one in seen)}, "
            f"{sum(one.site_named for one in seen)}",
        }
        if outlying == "missing":
            row["cells left out, cells with errors"] = f"{sum(one.left_out for one in seen)}, {wrong}"
    return row


def _row_of_same(name: str, sample: Callable[[Matrix, np.random.Generator], Matrix]) -> Row:
    row: Row = {"figure": f"{name}; {_SITES} x {_ROWS} rows, {_VARIABLES} variables, {len(_SEEDS)} graphs"}
    for look, way in ((False, "by lines alone"), (True, "with curves")):
        seen = list[_Seen]()
        for seed in _SEEDS:
            rng = np.random.default_rng(seed)
            W = random_weights(_VARIABLES, _VARIABLES, rng, size=0.5)
            seen.append(_seen(_result(sample(W, rng), look_for_curves=look), W != 0))
        row[f"{way}: skeleton F1, class distance"] = _f1_and_distance(seen)
    return row


def _f1_and_distance(seen: Sequence[_Seen]) -> str:
    right, found, true = (sum(one.pairs[k] for one in seen) for k in range(3))
    return f"{2 * right / (found + true):.3f}, {np.mean([one.distance for one in seen]):.1f}"


def _sample(W: Matrix, noise: Noise, rng: np.random.Generator, n: int) -> Matrix:
    """(n, d) rows of a linear model, each variable with the mean `_MEAN`."""
    X = np.zeros((n, len(W)))
    for v in topological_order(W != 0):
        X[:, v] = X @ W[:, v] + noise(rng, len(X))
    return np.asarray(X - X.mean(axis=0) + _MEAN)


def _result(X: Matrix, outlying: str = "missing", *, look_for_curves: bool = True) -> dict[str, Any]:
    plan = Plan.load("standard").with_settings(
        n_participants=_SITES,
        bootstrap=0,
        preparation={"missing": "em", "outlying": outlying},
        look_for_curves=look_for_curves,
    )
    tables = {site: rows_for(one, plan) for site, one in site_tables(np.array_split(X, _SITES)).items()}
    with TemporaryDirectory() as scratch:
        return simulate(plan, tables, Path(scratch, "run"))


def _seen(result: Mapping[str, Any], truth: Mask) -> _Seen:
    names = result["variables"]
    marks = np.zeros_like(truth)
    for edge in result["edges"]:
        i, j = names.index(edge["source"]), names.index(edge["target"])
        marks[i, j], marks[j, i] = True, not edge["directed"]
    mine, true = np.triu(marks | marks.T), np.triu(truth | truth.T)
    return _Seen(
        (int((mine & true).sum()), int(mine.sum()), int(true.sum())),
        class_distance(marks, cpdag(truth)),
        sum(n for one in result["outlying"].values() for n in one["values"].values()),
        _says_that_sites_differ(result),
        bool(_named(result)),
    )
