"""Run folders whose result.json says which class a graph is of and how sure its numbers are, filled in by hand."""

import csv
import json
import pickle
from collections.abc import Callable
from functools import partial
from inspect import isfunction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl_workbench.report import charts
from report_runs import make_run

SEARCH = {"rounds": 5, "refit_rounds": 0, "moments_rounds": 1, "graph_class": "cpdag", "threshold": 0.0}
ASSUMED = ["Relations are linear with Gaussian noise, of any variance", "no common cause of two variables was left out"]

# The learned class over six variables: a -> c <- b and c -> d are directed by the data, e -> d by knowledge; nobody
# knows about d - f. In the truth e - d lacks a direction, d - f has one, a -> b was missed, and c -> d points back.
NAMES = ("a", "b", "c", "d", "e", "f")


def edge(source: str, target: str, weight: float, share: float, by: str, **more: Any) -> dict[str, Any]:
    """An entry of `edges`: half of the draws that have the pair point its way, a quarter the other."""
    return {
        "source": source,
        "target": target,
        "weight": weight,
        "directed": by != "nobody",
        "directed_by": by,
        "standard_error": 0.05,
        "interval": [weight - 0.098, weight + 0.098],
        "standardised_interval": None,
        "bootstrap": {"adjacent": share, "forward": share / 2, "backward": share / 4},
        "sites": {
            "q": 3.0,
            "p": 0.22,
            "i2": 0.33,
            "estimates": {"site-1": [weight - 0.1, 0.08], "site-2": [weight, 0.1]},
        },
        "without_a_site": {"adjacent": 2, "of": 3},
        **more,
    }


SMALL = {
    "graph_class": "cpdag",
    "edges": [
        edge("a", "c", 0.9, 1.0, "data"),
        edge("b", "c", -0.7, 0.96, "data", sites=None),
        edge("c", "d", 0.5, 0.8, "data", bootstrap=None),
        edge("e", "d", 0.4, 0.62, "knowledge", interval=None, standard_error=None),
        edge("d", "f", 0.25, 0.44, "nobody", without_a_site=None),
    ],
    "unsure": [
        {"source": "a", "target": "b", "adjacent": 0.41, "forward": 0.11, "backward": 0.3},
        {"source": "a", "target": "f", "adjacent": 0.12, "forward": 0.0, "backward": 0.0},
    ],
    "hidden_causes": None,
    "taken": {},
    "fit": {
        "a": {"r2": 0.0, "intercept": 1.25, "residual_variance": 1.0},
        "c": {"r2": 0.57, "intercept": None, "residual_variance": 0.43},
        "d": {"r2": None, "intercept": None, "residual_variance": None},
    },
    "verdict": {
        "assumed": ASSUMED,
        "tested": ["whether the sites' coefficients differ"],
        "contradicted": [],
        "not_testable": ["common causes that no table has", "effects that are not linear"],
        "directed_by": {"data": 3, "knowledge": 1, "assumption": 0, "nobody": 1},
    },
    "estimation": {"n_samples": 900, "noise_std": 0.0, "draws": 100},
}


def complete(run: Path, **keys: Any) -> dict[str, Any]:
    """Write these keys into the run's result.json, and its edges into edges.csv; returns the whole result."""
    result: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    result |= keys
    with (run / "edges.csv").open("w", encoding="utf-8", newline="") as file:
        rows = [[edge["source"], edge["target"], edge["weight"]] for edge in result["edges"]]
        csv.writer(file).writerows([["source", "target", "weight"], *rows])
    (run / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return result


def small_run(folder: Path, **keys: Any) -> Path:
    """The run over NAMES."""
    run = make_run(folder, NAMES, rows=200, **SEARCH)
    complete(run, **{**SMALL, "warnings": [], "dropped_edges": [], **keys})
    return run


def large_run(folder: Path, names: tuple[str, ...], *, seed: int = 3, n_unsure: int = 12) -> Path:
    """A class over many variables with random numbers: a third of the edges without a direction."""
    rng = np.random.default_rng(seed)
    run = make_run(folder, names, rows=200, seed=seed, **SEARCH)
    order = rng.permutation(len(names))
    pairs = sorted({tuple(sorted(rng.choice(len(names), 2, replace=False))) for _ in range(int(1.2 * len(names)))})
    edges = []
    for i, j in pairs:
        by = ("data", "knowledge", "nobody", "data")[int(rng.integers(4))]
        i, j = order[i], order[j]
        share = round(float(rng.uniform(0.3, 1.0)), 2)
        sites = {f"site-{k}": [float(rng.normal(0.5, 0.1)), 0.08] for k in (1, 2, 3)}
        edges.append(
            edge(
                names[i],
                names[j],
                float(rng.normal(0, 1)),
                share,
                by,
                sites={"q": 2.0, "p": float(rng.random()), "i2": float(rng.random()), "estimates": sites},
            )
        )
    free = [(i, j) for i in range(len(names)) for j in range(i + 1, len(names)) if (i, j) not in pairs]
    unsure = [
        {"source": names[order[i]], "target": names[order[j]], "adjacent": s, "forward": s / 2, "backward": s / 3}
        for s, (i, j) in zip(
            sorted(rng.uniform(0.1, 0.5, n_unsure).round(2).tolist(), reverse=True),
            [free[k] for k in rng.choice(len(free), n_unsure, replace=False)],
            strict=True,
        )
    ]
    counts = {by: sum(e["directed_by"] == by for e in edges) for by in ("data", "knowledge", "assumption", "nobody")}
    verdict = {"assumed": ASSUMED, "tested": ["whether a, or b"], "contradicted": [], "directed_by": counts}
    fit = {name: {"r2": 0.5, "intercept": None, "residual_variance": 1.0} for name in names}
    complete(run, **{**SMALL, "edges": edges, "unsure": unsure, "verdict": verdict, "fit": fit})
    return run


def copied_without_charts(made: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run to write into; charts, which take most of a page's time, are drawn once for the same numbers."""
    monkeypatch.setattr("fedbnsl_workbench.report.charts.as_svg", lambda figure: "<svg></svg>")
    for name, draw in _CHARTS.items():
        monkeypatch.setattr(charts, name, partial(_drawn_once, draw))
    copy.mkdir()
    for path in made.glob("*.*"):
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


_CHARTS = {
    name: value
    for name, value in vars(charts).items()
    if isfunction(value) and value.__module__ == charts.__name__ and not name.startswith("_")
}
_DRAWN: dict[tuple[str, bytes], str] = {}


def _drawn_once(draw: Callable[..., str], *arguments: Any) -> str:
    key = (draw.__name__, pickle.dumps(arguments))
    if key not in _DRAWN:
        _DRAWN[key] = draw(*arguments)
    return _DRAWN[key]
