"""Curved effects: what becomes of graphs of straight lines, and how often the result says that they are none."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import random_weights

_SITES, _VARIABLES, _SEEDS = 8, 15, range(10)
_ROWS = (1000, 100)

Curve = Callable[[Matrix], Matrix]
_CURVES: Mapping[str, Curve] = {
    "straight lines": lambda z: z,
    "squares": lambda z: (z**2 - 1.0) / 2.0**0.5,
    "thresholds": lambda z: np.where(z > 0.5, 2.0, 0.0),
    "sin 2z": lambda z: 1.3 * np.sin(2.0 * z),
    "tanh 2z": lambda z: 1.2 * np.tanh(2.0 * z),
}

Noise = Callable[[np.random.Generator, int], Matrix]
_NOISES: Mapping[str, Noise] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "t with 3 degrees of freedom": lambda rng, n: rng.standard_t(3, n),
    "exponential": lambda rng, n: rng.exponential(1.0, n) - 1.0,
}


def curved() -> Iterator[Row]:
    """Pairs found by lines, and runs that say that lines do not describe them."""
    for rows in _ROWS:
        for noise in _NOISES:
            yield _row("straight lines", noise, rows, share=1.0)
        for name in list(_CURVES)[1:]:
            yield _row(name, "normal", rows, share=1.0)
        yield _row("squares", "normal", rows, share=0.5)


def _row(curve: str, noise: str, rows: int, *, share: float) -> Row:
    right = found = true = said = either = 0
    for seed in _SEEDS:
        rng = np.random.default_rng(seed)
        W = random_weights(_VARIABLES, _VARIABLES, rng, size=0.5)
        X = sample(W, _CURVES[curve], _NOISES[noise], share, _SITES * rows, rng)
        plan = Plan.load("standard").with_settings(n_participants=_SITES, bootstrap=0)
        tables = {site: rows_for(one, plan) for site, one in site_tables(np.array_split(X, _SITES)).items()}
        with TemporaryDirectory() as scratch:
            result = simulate(plan, tables, Path(scratch, "run"))
        place = {name: k for k, name in enumerate(result["variables"])}
        mine = {frozenset((place[edge["source"]], place[edge["target"]])) for edge in result["edges"]}
        pairs = {frozenset(pair) for pair in np.argwhere(W).tolist()}
        right, found, true = right + len(mine & pairs), found + len(mine), true + len(pairs)
        against = result["verdict"]["contradicted"]
        said += any("straight lines do not" in text for text in against)
        either += any("straight lines with" in text for text in against)
    of_all = "" if share == 1.0 else f" of {share:.0%} of the edges"
    return {
        "figure": f"{curve}{of_all}, {noise} noise; {_SITES} x {rows} rows, {_VARIABLES} variables",
        "skeleton F1": f"{2 * right / (found + true):.3f}",
        "runs that say that lines are not straight": f"{said} of {len(_SEEDS)}",
        "that say so of open edges, or that noise is not Gaussian": f"{either} of {len(_SEEDS)}",
    }


def sample(W: Matrix, curve: Curve, noise: Noise, share: float, n: int, rng: np.random.Generator) -> Matrix:
    """(n, d) rows; effects are curves of standardised parents, with this share of them curved."""
    X, curved_edges = np.zeros((n, len(W))), rng.random(W.shape) < share
    for v in topological_order(W != 0):
        X[:, v] = noise(rng, n)
        for p in np.flatnonzero(W[:, v]).tolist():
            z = (X[:, p] - X[:, p].mean()) / X[:, p].std()
            X[:, v] += W[p, v] * (curve(z) if curved_edges[p, v] else z)
    return X
