"""Predictions as a CSV file, and what is said of them."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.files import durable
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.network.predictions import Predictions, scored
from fedbnsl.protocol.sparse import Matrix


def write_predictions(found: Predictions, X: Matrix, fitted: FittedNetwork, target: str, out: Path) -> None:
    """Write a CSV file: a row for each of the table, with its number and what the table has of the target.

    See `durable.write_file` for errors.
    """
    own = fitted.members(target)
    known = ~np.isnan(X[:, own]).any(axis=1)
    actual = np.full(len(X), "", dtype=object)
    if known.any() and found.levels:
        actual[known] = fitted.cells(target, X[known])
    elif known.any():
        actual[known] = [f"{value:.10g}" for value in fitted.entry(target).formula.back(X[known, own[0]]).tolist()]
    head = [f"probability of {level}" for level in found.levels] or ["predicted", "low", "high"]
    numbers = found.probabilities if found.levels else np.column_stack([found.mean, found.low, found.high])
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", target, *head])
    for k, (value, row) in enumerate(zip(actual, numbers.tolist(), strict=True), start=1):
        writer.writerow([k, value, *("" if math.isnan(number) else f"{number:.6g}" for number in row)])
    durable.write_text(out, text.getvalue(), mode=durable.OWNER_ONLY)  # it tells of single persons


def told_of(
    found: Predictions, X: Matrix, fitted: FittedNetwork, target: str, common_means: Sequence[str]
) -> dict[str, Any]:
    """JSON-ready: of how many rows, how they were predicted, how near predictions come, and what to know of them.

    `common_means`: variables with the means of all sites, and not those of the rows.
    """
    return {
        "target": target,
        "rows": len(X),
        "not_in_the_table": [
            name for name in fitted.variables if name != target and np.isnan(X[:, fitted.members(name)]).all()
        ],
        "common_means": list(common_means),
        "by_draws": int(found.by_draws.sum()),
        "few_draws": int(found.few.sum()),
        "impossible": int(found.is_unknown.sum()),
        "scores": scored(fitted, found, X, target),
        "notes": fitted.rough([target]),
        "doubts": list(fitted.doubts),
    }


def lines_of(told: Mapping[str, Any]) -> list[str]:
    """In words, without what is doubted of the network and its families."""
    lines = list[str]()
    if lacking := told["not_in_the_table"]:
        lines.append(f"the table has no value of {first_few(map(repr, lacking))}: predicted from the others")
    if common := told["common_means"]:
        lines.append(f"means of {first_few(map(repr, common))} are those of all sites: where others are, these are off")
    if told["by_draws"]:
        few = f"; of {told['few_draws']:,} of them too few count, and they are rough" * bool(told["few_draws"])
        lines.append(f"{told['by_draws']:,} rows lack a value that counts: predicted from draws of it{few}")
    if told["impossible"]:
        lines.append(f"{told['impossible']:,} rows have values that never occur together in the network: no prediction")
    if (scores := told["scores"]) is not None:
        lines.append(f"of {scores['rows']:,} rows that have {told['target']}:")
        lines += [f"  {text}: {scores[key]:.3f}" for key, text in _SCORES.items() if key in scores]
    return lines


_SCORES = {
    "r2": "share of the variance that is told (R^2)",
    "within": "values within their 95 % interval",
    "auc": "area under the ROC curve",
    "log_probability": "mean logarithm of the true level's probability",
    "log_probability_of_shares": "the same by shares of levels alone",
}
