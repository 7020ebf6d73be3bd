"""Published networks of categories, from which tables of levels are drawn.

They are not part of the project: FEDBNSL_DATA names a folder that holds discrete/<name>.json, with `variables`: of each
its name, levels, parents, and probabilities, a row for each combination of the parents' levels, those of the last
parent changing fastest.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.sparse import Mask, Matrix


@dataclass(frozen=True, eq=False)
class DiscreteNetwork:
    """Conditional probability tables.

    Attributes
    ----------
    variables
        V names.
    levels
        Of each variable.
    parents
        Positions of each variable's parents, in the order of its table.
    probabilities
        (rows, levels) of each variable.
    """

    variables: tuple[str, ...]
    levels: tuple[tuple[str, ...], ...]
    parents: tuple[tuple[int, ...], ...]
    probabilities: tuple[Matrix, ...]

    @property
    def graph(self) -> Mask:
        """(V, V) DAG."""
        found = np.zeros((len(self.variables),) * 2, dtype=bool)
        for x, parents in enumerate(self.parents):
            found[list(parents), x] = True
        return found

    def dictionary(self, kind: Literal["nominal", "ordinal"] = "nominal") -> Dictionary:
        """The data dictionary of its tables, with a kind for variables of more than two levels."""
        named = zip(self.variables, self.levels, strict=True)
        entries = {name: {"kind": "binary" if len(levels) == 2 else kind, "levels": levels} for name, levels in named}
        return Dictionary.from_plain(entries, origin="the network")

    def tables(self, rows: Sequence[int], rng: np.random.Generator) -> list[Matrix]:
        """One (n, V) table of positions of levels for each number of rows."""
        n = sum(rows)
        codes = np.zeros((n, len(self.variables)), dtype=np.int64)
        for x in topological_order(self.graph):
            row = np.zeros(n, dtype=np.int64)
            for p in self.parents[x]:
                row = row * len(self.levels[p]) + codes[:, p]
            below = np.cumsum(self.probabilities[x], axis=1)[:, :-1]
            codes[:, x] = (rng.random(n)[:, None] >= below[row]).sum(axis=1)
        return np.split(codes.astype(np.float64), np.cumsum(rows)[:-1])


def read_discrete(name: str) -> DiscreteNetwork:
    """The network in FEDBNSL_DATA/discrete/<name>.json.

    Raises
    ------
    ResultError
        If it is not there, or is none.
    """
    root = os.environ.get("FEDBNSL_DATA", "")
    path = Path(root, "discrete", f"{name}.json")
    remedy = f"Set FEDBNSL_DATA to a folder that holds discrete/{name}.json (see the figures in the documentation)."
    if not root or not path.is_file():
        lacking = f"there is no {path}" if root else "FEDBNSL_DATA is not set"
        raise ResultError(f"the network {name} is needed, but {lacking}", remedy=remedy)
    try:
        variables = json.loads(path.read_text(encoding="utf-8"))["variables"]
        names = [one["name"] for one in variables]
        return DiscreteNetwork(
            tuple(names),
            tuple(tuple(one["levels"]) for one in variables),
            tuple(tuple(names.index(parent) for parent in one["parents"]) for one in variables),
            tuple(np.array(one["probabilities"], dtype=np.float64) for one in variables),
        )
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ResultError(f"{path} cannot be read as a network: {error}", remedy=remedy) from None
