"""Directions that the class of learned graphs leaves open, told by something else: how many, and how many wrongly.

Noise: generated graphs of 15 variables and as many edges, linear effects and independent noise of one shape, or that
and curved effects or hidden causes. `standard` learns the class, so that its errors count, too.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_research.trials.harness import Row
from fedbnsl_server.inference.noise import REJECTED
from fedbnsl_workbench.simulate import simulate

_SITES, _SEEDS, _VARIABLES, _HIDDEN = 8, range(10), 15, 3

Noise = Callable[[np.random.Generator, int], Matrix]
_SHAPES: Mapping[str, Noise] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "uniform": lambda rng, n: rng.uniform(-(3.0**0.5), 3.0**0.5, n),
    "Laplace": lambda rng, n: rng.laplace(0.0, 0.5**0.5, n),
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "gamma": lambda rng, n: rng.gamma(2.0, 0.5**0.5, n),
    "t with 5 degrees of freedom": lambda rng, n: rng.standard_t(5, n) * 0.6**0.5,
    "logistic": lambda rng, n: rng.logistic(0.0, 3.0**0.5 / np.pi, n),
    "log-normal": lambda rng, n: rng.lognormal(0.0, 0.5, n) * 1.65,
}


class _Case(NamedTuple):
    shape: str
    rows: int = 1000  # of each site
    bends: bool = False  # effects are squares as much as lines
    hidden: int = 0  # causes of two variables each
    changed: str = ""  # what is done to the columns


class _Truth(NamedTuple):
    leads: Mask  # [i, j]: a directed path leads from i to j
    X: Matrix


def noise_directions(seeds: Sequence[int] | None = None) -> Iterator[Row]:
    """Open edges that the shape of noise directs, rightly or not, and that it fits in neither direction.

    `seeds`: of the graphs, in place of the usual ten.
    """
    for shape in _SHAPES:
        for rows in (125, 1000):
            yield _row(_Case(shape, rows), seeds or _SEEDS)
    for shape in ("normal", "Laplace"):
        yield _row(_Case(shape, bends=True), seeds or _SEEDS)
        yield _row(_Case(shape, hidden=_HIDDEN), seeds or _SEEDS)
    for changed in ("rounded to half a standard deviation", "a tenth at a limit of detection"):
        yield _row(_Case("Laplace", changed=changed), seeds or _SEEDS)


def _row(case: _Case, seeds: Sequence[int]) -> Row:
    found = [_counted(case, seed) for seed in seeds]
    of = case.changed and f", {case.changed}"
    of += ", effects that bend" * case.bends + f", {case.hidden} hidden causes" * (case.hidden > 0)
    return {
        "figure": f"noise: {case.shape}{of}; {_SITES} x {case.rows} rows",
        **{name: sum(one[name] for one in found) for name in found[0]},
    }


def _counted(case: _Case, seed: int) -> dict[str, int]:
    truth = _truth(case, seed)
    edges = _run(truth.X)["edges"]
    place = {f"X{k + 1}": k for k in range(_VARIABLES)}
    by: defaultdict[str, list[Any]] = defaultdict(list)
    for edge in edges:
        by[edge["directed_by"]].append(edge)
    told = [bool(truth.leads[place[edge["source"]], place[edge["target"]]]) for edge in by["noise"]]
    tested = [e["noise"] for e in edges if "noise" in e]
    return {
        "edges that the class leaves open": len(told) + len(by["nobody"]),
        "looked at": len(tested),
        "directed rightly": sum(told),
        "directed wrongly": len(told) - sum(told),
        "fit neither direction": sum(max(p.values()) < REJECTED for p in tested),
    }


def _truth(case: _Case, seed: int) -> _Truth:
    rng, d, n = np.random.default_rng(seed), _VARIABLES, _SITES * case.rows
    order, W = rng.permutation(d), np.zeros((d, d))
    later = np.argwhere(np.triu(np.ones((d, d), dtype=bool), k=1))
    for i, j in order[later[rng.choice(len(later), d, replace=False)]].tolist():
        W[i, j] = rng.uniform(0.3, 0.9) * rng.choice([-1.0, 1.0])
    X: Matrix = np.column_stack([_SHAPES[case.shape](rng, n) for _ in range(d)]) * np.sqrt(rng.uniform(0.5, 1.5, d))
    for _ in range(case.hidden):
        pair = rng.choice(d, 2, replace=False)
        X[:, pair] += _SHAPES[case.shape](rng, n)[:, None]
    for j in topological_order(W != 0.0):
        for i in np.flatnonzero(W[:, j]).tolist():
            z = (X[:, i] - X[:, i].mean()) / X[:, i].std()
            X[:, j] += W[i, j] * (z + 0.5 * z**2 if case.bends else X[:, i])
    if case.changed.startswith("rounded"):
        X = np.rint(2.0 * X / np.sqrt(np.var(X, axis=0)))
    elif case.changed:
        X = np.maximum(X, np.quantile(X, 0.1, axis=0))
    return _Truth(arrows_lead(W != 0.0), X)


def _run(X: Matrix) -> dict[str, Any]:
    plan = Plan.load("standard").with_settings(n_participants=_SITES, bootstrap=0)
    tables = {site: rows_for(one, plan) for site, one in site_tables(np.array_split(X, _SITES)).items()}
    with TemporaryDirectory() as scratch:
        return simulate(plan, tables, Path(scratch, "run"))
