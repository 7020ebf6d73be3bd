"""Sites with different columns, of which no site has all, beside fedCI: which pairs of variables are adjacent.

Sizes are those of the simulations in fedCI's repository (github.com/maxhahn/IODClient, commit a4394c0,
run_fixed_effect_comparison_full_run_with_iod.py): five variables with six adjacent pairs, two of them by a hidden
common cause; every other site lacks one variable of a pair, the rest the other one; 500 to 5000 rows on 4 to 12 sites,
each with effects of its own; coefficients of 0.2 to 1. There variables are of mixed kinds and graphs from a list of
PAGs; here all are continuous, and graphs are drawn.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_research.bench.networks import class_found
from fedbnsl_research.comparators.fedci_adapter import fedci_adjacent, fedci_installed
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.simulate import simulate

_D, _PAIRS, _SITES, _SEEDS = 5, 6, 4, range(10)
_ROWS, _HIDDEN = (500, 5000), (0, 2)


@dataclass(frozen=True, eq=False)
class Overlapping:
    """Tables of sites that lack a column each.

    Attributes
    ----------
    tables
        One (n, d) table a site, NaN in the column that it lacks.
    adjacent
        (d, d) pairs that no set of the other variables separates.
    together
        (d, d) pairs that some site has.
    """

    tables: tuple[Matrix, ...]
    adjacent: Mask
    together: Mask


def overlapping() -> Iterator[Row]:
    """Adjacent pairs that are found, of those that some site has, in sums over the graphs."""
    for hidden in _HIDDEN:
        for n_rows in _ROWS:
            yield _row(n_rows, hidden)


def _row(n_rows: int, hidden: int) -> Row:
    drawn = [draw(n_rows, hidden, np.random.default_rng((seed, n_rows, hidden))) for seed in _SEEDS]
    row: Row = {
        "figure": f"{_D} variables, {_PAIRS} adjacent pairs, {hidden} of them by a hidden cause; {_SITES} sites, each "
        f"without one variable, {n_rows} rows in all, graphs of seeds {_SEEDS.start}..{_SEEDS.stop - 1}",
    }
    row |= _judged("fedbnsl", drawn, _adjacent)
    if not fedci_installed():
        return row | {"fedCI": "not run (python-fedci is not installed)"}
    return row | _judged("fedCI", drawn, fedci_adjacent)


def draw(n_rows: int, hidden: int, rng: np.random.Generator) -> Overlapping:
    """Tables of a linear Gaussian network.

    Parameters
    ----------
    n_rows
        Of all sites together.
    hidden
        Pairs that have a common cause that no site knows in place of an edge.
    """
    pairs = rng.permutation(list(combinations(rng.permutation(_D).tolist(), 2)))[:_PAIRS].tolist()
    d = _D + hidden
    W = np.zeros((d, d))
    sizes = rng.uniform(0.2, 1.0, (_PAIRS, 2)) * rng.choice([-1.0, 1.0], (_PAIRS, 2))
    for k, ((i, j), size) in enumerate(zip(pairs, sizes, strict=True)):
        if k < hidden:
            W[_D + k, [i, j]] = size
        else:
            W[i, j] = size[0]
    inverse = np.linalg.inv(np.eye(d) - W)
    lacks = rng.permutation(_D)[:2]
    tables = list[Matrix]()
    for k, noise in enumerate(np.array_split(rng.standard_normal((n_rows, d)), _SITES)):
        X = ((noise + rng.uniform(-1.0, 1.0, d)) @ inverse)[:, :_D]
        X[:, lacks[k % 2]] = np.nan
        tables.append(X)
    together = np.ones((_D, _D), dtype=bool)
    together[lacks[0], lacks[1]] = together[lacks[1], lacks[0]] = False
    return Overlapping(tuple(tables), _inseparable((inverse.T @ inverse)[:_D, :_D]), together)


def _inseparable(S: Matrix) -> Mask:
    """(d, d) pairs whose partial correlation is zero given no set of the others."""
    found = np.zeros(S.shape, dtype=bool)
    for i, j in combinations(range(len(S)), 2):
        others = [k for k in range(len(S)) if k not in (i, j)]
        sets = [[i, j, *given] for size in range(len(S) - 1) for given in combinations(others, size)]
        found[i, j] = found[j, i] = all(abs(np.linalg.inv(S[np.ix_(some, some)])[0, 1]) > 1e-9 for some in sets)
    return found


def _adjacent(tables: Sequence[Matrix]) -> Mask:
    plan = Plan.load("standard").with_settings(n_participants=_SITES, bootstrap=0)
    with TemporaryDirectory() as scratch:
        marks = class_found(simulate(plan, site_tables(tables), Path(scratch, "run")))
    return marks | marks.T


def _judged(name: str, drawn: Sequence[Overlapping], find: Callable[[Sequence[Matrix]], Mask]) -> Row:
    counts = np.zeros(3, dtype=np.int64)
    for one in drawn:
        told, true = (np.triu(pairs & one.together, k=1) for pairs in (find(one.tables), one.adjacent))
        counts += [(told & true).sum(), (told & ~true).sum(), (true & ~told).sum()]
    both, more, less = counts.tolist()
    return {
        f"pairs found, {name}": f"{both} of {both + less}",
        f"false pairs, {name}": more,
        f"skeleton F1, {name}": round(2 * both / (2 * both + more + less), 3),
    }
