"""Predictions as a CSV file."""

import csv
import io
import math
from pathlib import Path

import numpy as np

from fedbnsl.files import durable
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.network.predictions import Predictions
from fedbnsl.protocol.sparse import Matrix


def write_predictions(found: Predictions, X: Matrix, fitted: FittedNetwork, target: str, out: Path) -> None:
    """Write a CSV file: a row for each of the table, with its number and what the table has of the target.

    See `durable.write_file` for errors.
    """
    own = fitted.members(target)
    known = ~np.isnan(X[:, own]).any(axis=1)
    actual = np.full(len(X), "", dtype=object)
    if known.any():
        actual[known] = fitted.cells(target, X[known])
    head = [f"probability of {level}" for level in found.levels] or ["predicted", "low", "high"]
    numbers = found.probabilities if found.levels else np.column_stack([found.mean, found.low, found.high])
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", target, *head])
    for k, (value, row) in enumerate(zip(actual, numbers.tolist(), strict=True), start=1):
        writer.writerow([k, value, *("" if math.isnan(number) else f"{number:.6g}" for number in row)])
    durable.write_text(out, text.getvalue())
