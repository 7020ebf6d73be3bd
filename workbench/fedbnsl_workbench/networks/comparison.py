"""How near drawn rows come to their network: means, spreads, shares of levels, and correlations of all columns.

Means, and shares of levels but grades, are those that the run tells. Spreads and correlations are those of the network
by straight lines: what bends, or is bounded, is drawn otherwise.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from fedbnsl.network.families import positions
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.results.network_of_run import NetworkOfRun

_LEAST_SHARE = 1e-9  # of a variance: less is rounding
MOST_PAIRS = 20_000


@dataclass(frozen=True, eq=False)
class Tally:
    """What is counted of rows while they are drawn.

    Attributes
    ----------
    sums, squares
        (d,) and (d, d) of deviations from the means that the run tells.
    levels
        By variable with levels, how many rows have each.
    """

    fitted: NetworkOfRun
    rows: int
    sums: Matrix
    squares: Matrix
    levels: Mapping[str, Index]

    @classmethod
    def of(cls, fitted: NetworkOfRun) -> Self:
        """Of no row yet."""
        d = fitted.network.n_columns
        levels = {name: np.zeros(len(fitted.levels[name]), dtype=np.int64) for name in _with_levels(fitted)}
        return cls(fitted, 0, np.zeros(d), np.zeros((d, d)), levels)

    def plus(self, X: Matrix) -> Self:
        """With (n, d) more rows."""
        deviations = np.nan_to_num(X - self.fitted.means)  # columns without a family have no mean
        levels = {
            name: before + np.bincount(positions(X, self.fitted.members(name), len(before)), minlength=len(before))
            for name, before in self.levels.items()
        }
        return replace(
            self,
            rows=self.rows + len(X),
            sums=self.sums + deviations.sum(axis=0),
            squares=self.squares + deviations.T @ deviations,
            levels=levels,
        )

    def compared(self) -> dict[str, Any]:
        """JSON-ready: by column, by level and by pair of columns, what the network has and what was drawn.

        Pairs are ordered by how far they are off, the `MOST_PAIRS` furthest; `pairs_left_out`: how many there are more.
        `columns` has means and spreads after the data dictionary's transforms.
        """
        fitted = self.fitted
        own = np.concatenate([fitted.members(name) for name in fitted.variables])
        shift, places = self.sums / self.rows, [int(k) for k in own]
        names = [fitted.columns.names[k] for k in places]
        told = fitted.learned.covariance[np.ix_(own, own)]
        found: Matrix = (self.squares / self.rows - np.outer(shift, shift))[np.ix_(own, own)]
        pairs, more = _pairs(names, told, found)
        return {
            "columns": {
                name: {"mean": m, "drawn_mean": m + s, "spread": a, "drawn_spread": b}
                for name, m, s, a, b in zip(
                    names,
                    fitted.means[own].tolist(),
                    shift[own].tolist(),
                    np.sqrt(told.diagonal()).tolist(),
                    np.sqrt(np.maximum(found.diagonal(), 0.0)).tolist(),
                    strict=True,
                )
            },
            "levels": {name: self._shares(name) for name in self.levels},
            "correlations": pairs,
            "pairs_left_out": more,
        }

    def _shares(self, name: str) -> dict[str, dict[str, float | None]]:
        """Of a grade, the run tells no shares."""
        fitted, levels = self.fitted, self.fitted.levels[name]
        told: list[float | None] = [None] * len(levels)
        if fitted.entry(name).kind != "ordinal":
            others: list[float] = fitted.means[fitted.members(name)].tolist()
            told = [1.0 - sum(others), *others]
        drawn = (self.levels[name] / self.rows).tolist()
        return {
            level: {"share": share, "drawn": of_drawn}
            for level, share, of_drawn in zip(levels, told, drawn, strict=True)
        }


def _with_levels(fitted: NetworkOfRun) -> list[str]:
    return [name for name in fitted.variables if name in fitted.levels]


def _pairs(names: list[str], told: Matrix, found: Matrix) -> tuple[list[dict[str, Any]], int]:
    """Of columns that vary in the drawn rows: of too few rows, all may have one value. And how many more there are."""
    varies = found.diagonal() > _LEAST_SHARE * told.diagonal()
    i, j = np.tril_indices(len(names), k=-1)
    kept = varies[i] & varies[j]
    i, j = i[kept], j[kept]
    of_network, of_drawn = _correlations(told)[i, j], _correlations(found)[i, j]
    order = np.argsort(-np.abs(of_drawn - of_network), kind="stable")[:MOST_PAIRS]
    pairs: list[dict[str, Any]] = [
        {"one": names[int(b)], "other": names[int(a)], "of_network": float(x), "drawn": float(y)}
        for a, b, x, y in zip(i[order], j[order], of_network[order], of_drawn[order], strict=True)
    ]
    return pairs, len(i) - len(pairs)


def _correlations(S: Matrix) -> Matrix:
    size = np.sqrt(np.maximum(S.diagonal(), 1e-300))
    return np.asarray(S / np.outer(size, size))


def as_csv(told: Mapping[str, Any]) -> str:
    """What `Tally.compared` tells as a table: `what`, of `one` (and of `other`), `network`, `drawn`."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["what", "one", "other", "network", "drawn"])
    writer.writerows(_rows(told))
    return text.getvalue()


def _rows(told: Mapping[str, Any]) -> Iterator[list[Any]]:
    for name, of in told["columns"].items():
        yield ["mean", name, "", of["mean"], of["drawn_mean"]]
        yield ["standard deviation", name, "", of["spread"], of["drawn_spread"]]
    for name, levels in told["levels"].items():
        for level, of in levels.items():
            yield ["share of level", name, level, "" if of["share"] is None else of["share"], of["drawn"]]
    for pair in told["correlations"]:
        yield ["correlation", pair["one"], pair["other"], pair["of_network"], pair["drawn"]]
