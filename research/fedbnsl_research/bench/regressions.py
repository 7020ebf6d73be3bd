"""Odds ratios and rate ratios of runs: how often their 95 % intervals hold the truth, and how often equal sites differ.

Four sites of one law with other means and shares of levels; the graph is given, so that each family is that of the law.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.simulate import simulate

_SITES, _TABLES, _ROWS = 4, 300, (100, 500)
_LEVEL = 0.05  # of the score test
_DICTIONARY = Dictionary.model_validate(
    {
        "age": {},
        "sex": {"kind": "binary", "levels": ["f", "m"]},
        "smoker": {"kind": "binary", "levels": ["no", "yes"]},
        "ward": {"kind": "nominal", "levels": ["a", "b", "c"]},
        "visits": {"kind": "count"},
    }
)
_PLAN = Plan.load("standard").with_settings(
    n_participants=_SITES,
    dictionary=_DICTIONARY.model_dump(),
    bootstrap=0,
    knowledge={
        "tiers": [["age", "sex"], ["smoker", "ward", "visits"]],
        "required": [[parent, child] for child in ("smoker", "ward", "visits") for parent in ("age", "sex")],
        "forbidden": [[a, b] for a in ("smoker", "ward", "visits") for b in ("smoker", "ward", "visits") if a != b],
    },
)
_TRUE = {
    "smoker": {"age": 0.5, "sex": 1.0},
    "ward=b": {"age": -0.5, "sex": 0.7},
    "ward=c": {"age": 0.4, "sex": -0.6},
    "visits": {"age": 0.3, "sex": -0.4},
}


def regressions() -> Iterator[Row]:
    """A row for each size of table and kind of child."""
    names = [column.name for column in _DICTIONARY.columns()]
    for rows in _ROWS:
        inside: dict[str, list[bool]] = {"smoker": [], "ward": [], "visits": []}
        alarms: dict[str, list[bool]] = {child: [] for child in inside}
        for seed in range(_TABLES):
            rng = np.random.default_rng((seed, rows))
            tables = {
                f"site-{k}": Dataset(tuple(names), _drawn(rows, rng), dictionary=_DICTIONARY) for k in range(_SITES)
            }
            with TemporaryDirectory() as scratch:
                result = simulate(_PLAN, tables, Path(scratch, "run"))
            for one in result["regressions"]:
                if one["kind"] == "mean difference":
                    continue
                inside[one["child"]] += map(_holds, one["estimates"])
                alarms[one["child"]].append(one["agreement"]["p"] < _LEVEL)
        for child, held in inside.items():
            yield {
                "figure": f"{_DICTIONARY[child].kind} child of a number and a level; {_SITES} sites of {rows} rows, "
                f"{_TABLES} tables",
                "95 % intervals that hold the truth": f"{100 * np.mean(held):.1f} %",
                "sites differ at 5 %": f"{100 * np.mean(alarms[child]):.1f} %",
            }


def _holds(one: dict[str, Any]) -> bool:
    low, high = one["interval"]
    return bool(low <= np.exp(_TRUE[one["target"]][one["source"]]) <= high)


def _drawn(n: int, rng: np.random.Generator) -> Matrix:
    """(n, 6) columns of a site, with intercepts of its own."""
    shift = rng.normal(0.0, 0.5, 5)
    age, sex = rng.normal(shift[0], 1.0, n), (rng.random(n) < 0.5 + shift[1] / 5).astype(np.float64)
    eta = {name: of["age"] * age + of["sex"] * sex for name, of in _TRUE.items()}
    smoker = rng.random(n) < 1.0 / (1.0 + np.exp(1.0 - shift[2] - eta["smoker"]))
    odds = np.exp(np.stack([np.zeros(n), eta["ward=b"] + shift[3], eta["ward=c"] - shift[3]], axis=1))
    ward = ((odds / odds.sum(axis=1, keepdims=True)).cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    rates: Matrix = np.exp(0.5 + shift[4] + eta["visits"])
    visits = np.array([rng.poisson(rate) for rate in rates.tolist()], dtype=np.float64)
    return np.column_stack([age, sex, smoker, ward == 1, ward == 2, np.log1p(visits)]).astype(np.float64)
