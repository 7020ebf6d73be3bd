"""Curved effects: graphs by straight lines alone, with curves and under privacy, and what results say of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.graphs.directed_by import Source
from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_research.bench.missing import lacking_cells
from fedbnsl_research.bench.networks import class_found
from fedbnsl_research.bench.private_tables import outward_range
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import random_weights

# Who directed an edge.
_NOISE: Source = "noise"
_SITES, _SEEDS, _EPSILONS = 8, range(10), (1.0, 5.0)
# Curves of the rows in which tables differ otherwise.
_FEW = ("straight lines", "squares", "thresholds")

Curve = Callable[[Matrix], Matrix]
_CURVES: Mapping[str, Curve] = {
    "straight lines": lambda z: z,
    "squares": lambda z: (z**2 - 1.0) / 2.0**0.5,
    "thresholds": lambda z: np.where(z > 0.5, 2.0, 0.0),
    "sin 2z": lambda z: 1.3 * np.sin(2.0 * z),
    "tanh 2z": lambda z: 1.2 * np.tanh(2.0 * z),
    "exp z": lambda z: np.exp(np.minimum(z, 3.0)) / 1.5,  # of curves of curves no table holds the numbers
}

Noise = Callable[[np.random.Generator, int], Matrix]
_NOISES: Mapping[str, Noise] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "t with 3 degrees of freedom": lambda rng, n: rng.standard_t(3, n),
    "exponential": lambda rng, n: rng.exponential(1.0, n) - 1.0,
}


class _Case(NamedTuple):
    curve: str
    share: float = 0.5  # of the edges whose effects are curves
    noise: str = "normal"
    rows: int = 1000  # of each site
    variables: int = 15  # and as many edges
    incomplete: float = 0.0  # of the rows, with cells missing completely at random


_ROWS = (
    *(_Case("straight lines", noise=noise) for noise in _NOISES),
    *(_Case(name, share=share) for name in list(_CURVES)[1:] for share in (0.5, 1.0)),
    *(_Case(name, rows=100) for name in _FEW),
    *(_Case(name, variables=50) for name in _CURVES),
    *(_Case(name, incomplete=share) for name in _FEW for share in (0.3, 0.9)),
)


def curved(cases: Sequence[str] = (), seeds: Sequence[int] | None = None) -> Iterator[Row]:
    """Graphs by lines alone, with curves and under privacy, and what results say of curves.

    Parameters
    ----------
    cases
        Patterns of what rows are called, such as "*50 variables"; empty: all rows.
    seeds
        Of the graphs, in place of the usual ten.

    Raises
    ------
    ResultError
        If no row is called so.
    """
    named = [(_figure(case), _row, case) for case in _ROWS]
    named += [(f"{_figure(case)}, private", _private_row, case) for case in map(_Case, _FEW)]
    chosen = [one for one in named if any(fnmatch(one[0], pattern) for pattern in cases or ("*",))]
    if not chosen:
        raise ResultError(
            f"no row is called {', '.join(cases)}", remedy=f"Choose from: {'; '.join(name for name, *_ in named)}."
        )
    for name, row, case in chosen:
        yield {"figure": name, **row(case, seeds or _SEEDS)}


def _row(case: _Case, seeds: Sequence[int]) -> Row:
    truths = [_truth(case, seed) for seed in seeds]
    plan = Plan.load("standard").with_settings(bootstrap=0)
    lines, curves = ([_run(plan.with_settings(look_for_curves=look), X) for _, X in truths] for look in (False, True))
    found = [result["curves"] for result in curves]
    return {
        "skeleton F1, lines alone": _f1(lines, truths),
        "skeleton F1": _f1(curves, truths),
        "mean CPDAG SHD, lines alone": _distance(lines, truths),
        "mean CPDAG SHD": _distance(curves, truths),
        "directions by noise, right": _by_noise(curves, truths),
        "variables that bend": sum(len(one["variables"]) for one in found if one) / len(found),
        "runs that curves contradict": sum(
            any("do not describe" in text for text in one["verdict"]["contradicted"]) for one in curves
        ),
        "runs with 'sites differ'": sum(
            any("sites differ" in text for text in one["verdict"]["contradicted"]) for one in curves
        ),
        "runs that look for no curves": found.count(None),
    }


def _private_row(case: _Case, seeds: Sequence[int]) -> Row:
    """`private`, which looks for parabolas where noise is small, with a range for each variable."""
    truths = [_truth(case, seed) for seed in seeds]
    row: Row = {}
    for epsilon in _EPSILONS:
        plan = Plan.load("private", epsilon=epsilon)
        found = [_run(plan.with_dictionary(_ranges(X), origin="the bench"), X, noise_seed=0) for _, X in truths]
        row[f"skeleton F1, epsilon {epsilon:g}"] = _f1(found, truths)
        row[f"mean CPDAG SHD, epsilon {epsilon:g}"] = _distance(found, truths)
        bent = [one["curves"]["variables"] for one in found if one["curves"]]
        row[f"variables that bend, epsilon {epsilon:g}"] = sum(map(len, bent)) / len(bent) if bent else "not looked for"
    return row


def _figure(case: _Case) -> str:
    of = "" if case.share == 1.0 or case.curve == "straight lines" else f" for {case.share:.0%} of the edges"
    gaps = f", {case.incomplete:.0%} of them with a gap" if case.incomplete else ""
    return f"{case.curve}{of}, {case.noise} noise; {_SITES} x {case.rows} rows{gaps}, {case.variables} variables"


def _ranges(X: Matrix) -> Dictionary:
    entries = {f"X{k}": {"range": outward_range(values)} for k, values in enumerate(X.T.tolist(), start=1)}
    return Dictionary.from_plain(entries, origin="the bench")


def _truth(case: _Case, seed: int) -> tuple[Matrix, Matrix]:
    """Weights, and rows."""
    rng = np.random.default_rng(seed)
    W = random_weights(case.variables, case.variables, rng, size=0.5)
    X = sample(W, _CURVES[case.curve], _NOISES[case.noise], case.share, _SITES * case.rows, rng)
    if case.incomplete:
        share = 1.0 - (1.0 - case.incomplete) ** (1.0 / case.variables)
        X = lacking_cells([X], share, "MCAR", np.random.default_rng((seed, 1)))[0]
    return W, X


def _run(plan: Plan, X: Matrix, *, noise_seed: int | None = None) -> dict[str, Any]:
    plan = plan.with_settings(n_participants=_SITES)
    parts = site_tables(np.array_split(X, _SITES), dictionary=plan.dictionary)
    tables = {site: rows_for(one, plan) for site, one in parts.items()}
    with TemporaryDirectory() as scratch:
        return simulate(plan, tables, Path(scratch, "run"), noise_seed=noise_seed)


def _f1(results: Sequence[Mapping[str, Any]], truths: Sequence[tuple[Matrix, Matrix]]) -> str:
    right = found = true = 0
    for result, (W, _) in zip(results, truths, strict=True):
        marks, links = class_found(result), (W != 0) | (W != 0).T
        right += int(((marks | marks.T) & links).sum())
        found, true = found + int((marks | marks.T).sum()), true + int(links.sum())
    return f"{2 * right / (found + true):.3f}"


def _distance(results: Sequence[Mapping[str, Any]], truths: Sequence[tuple[Matrix, Matrix]]) -> float:
    """Of classes: directions that only the shape of noise tells are in none."""
    apart = list[int]()
    for result, (W, _) in zip(results, truths, strict=True):
        marks = class_found(result)
        for i, j in _told_by_noise(result):
            marks[j, i] = True
        apart.append(class_distance(marks, cpdag(W != 0)))
    return sum(apart) / len(apart)


def _by_noise(results: Sequence[Mapping[str, Any]], truths: Sequence[tuple[Matrix, Matrix]]) -> str:
    """Of edges that the shape of noise directs, those that the true graph has."""
    told = [W[edge] != 0 for result, (W, _) in zip(results, truths, strict=True) for edge in _told_by_noise(result)]
    return f"{sum(told)} of {len(told)}"


def _told_by_noise(result: Mapping[str, Any]) -> list[tuple[int, int]]:
    place = {name: k for k, name in enumerate(result["variables"])}
    return [(place[edge["source"]], place[edge["target"]]) for edge in result["edges"] if edge["directed_by"] == _NOISE]


def sample(W: Matrix, curve: Curve, noise: Noise, share: float, n: int, rng: np.random.Generator) -> Matrix:
    """(n, d) rows; effects are curves of standardised parents, with this share of them curved."""
    X, curved_edges = np.zeros((n, len(W))), rng.random(W.shape) < share
    for v in topological_order(W != 0):
        X[:, v] = noise(rng, n)
        for p in np.flatnonzero(W[:, v]).tolist():
            z = (X[:, p] - X[:, p].mean()) / X[:, p].std()
            X[:, v] += W[p, v] * (curve(z) if curved_edges[p, v] else z)
    return X
