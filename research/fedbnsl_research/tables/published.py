"""Published linear Gaussian networks, from which tables are drawn: unequal noise variances, means far from zero.

They are not part of the project: FEDBNSL_DATA names a folder that holds networks/<name>/ with variables.csv
(variable,intercept,noise_variance) and edges.csv (source,target,coefficient).
"""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_workbench.tables.synthetic import sample


@dataclass(frozen=True, eq=False)
class PublishedNetwork:
    """A variable is its intercept, plus coefficients times its parents, plus Gaussian noise.

    Attributes
    ----------
    variables
        d names.
    W
        (d, d) coefficients, W[i, j] for i -> j.
    intercept, noise_std
        (d,) of each variable.
    """

    variables: tuple[str, ...]
    W: Matrix
    intercept: Matrix
    noise_std: Matrix

    @property
    def mean(self) -> Matrix:
        """(d,) mean of the variables: m = W' m + intercept."""
        return np.asarray(np.linalg.inv(np.eye(len(self.W)) - self.W.T) @ self.intercept, dtype=np.float64)

    @property
    def std(self) -> Matrix:
        """(d,) standard deviations of the variables: the covariance is B' diag(noise variances) B, B = (I - W)^-1."""
        B = np.linalg.inv(np.eye(len(self.W)) - self.W)
        return np.asarray(np.sqrt((self.noise_std[:, None] ** 2 * B**2).sum(axis=0)))

    def tables(self, rows: Sequence[int], rng: np.random.Generator) -> list[Matrix]:
        """One (n, d) table for each number of rows."""
        return [sample(self.W, n, rng, noise_std=self.noise_std) + self.mean for n in rows]


def network_names() -> list[str]:
    """Names of the networks in FEDBNSL_DATA/networks; none if there is no such folder."""
    root = os.environ.get("FEDBNSL_DATA", "")
    return sorted(path.parent.name for path in Path(root, "networks").glob("*/variables.csv")) if root else []


def read_network(name: str) -> PublishedNetwork:
    """The network in FEDBNSL_DATA/networks/<name>.

    Raises
    ------
    ResultError
        If it is not there, or is none.
    """
    root = os.environ.get("FEDBNSL_DATA", "")
    folder = Path(root, "networks", name)
    remedy = (
        f"Set FEDBNSL_DATA to a folder that holds networks/{name}/ with variables.csv "
        "(variable,intercept,noise_variance) and edges.csv (source,target,coefficient)."
    )
    if not root or not (folder / "variables.csv").is_file():
        lacking = f"there is no {folder / 'variables.csv'}" if root else "FEDBNSL_DATA is not set"
        raise ResultError(f"the network {name} is needed, but {lacking}", remedy=remedy)
    try:
        nodes, edges = _rows(folder / "variables.csv"), _rows(folder / "edges.csv")
        names = tuple(node["variable"] for node in nodes)
        W = np.zeros((len(names), len(names)))
        for edge in edges:
            W[names.index(edge["source"]), names.index(edge["target"])] = float(edge["coefficient"])
        intercept = np.array([float(node["intercept"]) for node in nodes])
        variance = np.array([float(node["noise_variance"]) for node in nodes])
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise ResultError(f"{folder} cannot be read as a network: {error}", remedy=remedy) from None
    return PublishedNetwork(names, W, intercept, np.sqrt(variance))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
