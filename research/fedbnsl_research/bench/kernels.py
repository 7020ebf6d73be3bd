"""The compiled step of the search over orders, beside the same step in plain numpy, on the same moments in one run.

The step gives each variable parents among those before it in an order: the best one is added after the other, then
needless ones are dropped (`fedbnsl_server.search.kernels.grow_shrink`). In numpy, each candidate costs a determinant.
"""

import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl.rounds.hinges import KNOTS
from fedbnsl.rounds.hinges import with_hinges as of_hinges
from fedbnsl_client.losses.hinges import with_hinges
from fedbnsl_research.trials.harness import Row
from fedbnsl_server.search.hinges import HingeMoments
from fedbnsl_server.search.kernels.family import blocks_of
from fedbnsl_server.search.kernels.order_search import first_families
from fedbnsl_server.search.kernels.order_state import Problem, Room, State
from fedbnsl_server.search.score import Score, extended_penalty

VARIABLES = {"one column": 60, "a column and its hinges": 20}
_ROWS, _REPEATS, _LEAST_GAIN = 2000, 3, 1e-6


def kernels() -> Iterator[Row]:
    """A row for single columns, and one for columns with hinges."""
    for what, n in VARIABLES.items():
        R, members = _moments(n, hinges="hinges" in what)
        order = np.random.default_rng(1).permutation(n)
        penalty = extended_penalty(float(_ROWS), n)
        compiled(R, members, order, penalty)  # compiles
        seconds, alike = {"compiled": list[float](), "numpy": list[float]()}, 0
        for _ in range(_REPEATS):
            found = list[list[set[int]]]()
            for name, step in (("compiled", compiled), ("numpy", plain)):
                started = time.perf_counter()
                found.append(step(R, members, order, penalty))
                seconds[name].append(time.perf_counter() - started)
            alike = sum(one == other for one, other in zip(*found, strict=True))
        yield {
            "figure": f"parents of {n} variables of {what} in a random order, penalty of the extended BIC",
            "families alike": f"{alike} of {n}",
            **{f"ms {name}": float(f"{1e3 * statistics.median(told):.3g}") for name, told in seconds.items()},
            "times as fast": float(
                f"{statistics.median(b / a for a, b in zip(seconds['compiled'], seconds['numpy'], strict=True)):.2g}"
            ),
        }


def compiled(R: Matrix, members: Sequence[Index], order: Index, penalty: float) -> list[set[int]]:
    """By variable its parents, as the search finds them in an order."""
    V, apart = len(members), ~np.eye(len(members), dtype=bool)
    problem = Problem.of(
        R,
        blocks_of(members),
        candidates=apart,
        required=np.zeros_like(apart),
        score=Score.bic(penalty),
        least=_LEAST_GAIN * penalty,
        most=len(R),
    )
    state = State.of(order.copy(), len(problem.source))
    first_families(problem, Room.of(V, len(R), len(problem.source)), state)
    ends = zip(problem.start.tolist(), state.n_parents.tolist(), strict=False)
    return [set(state.parents[first : first + n].tolist()) for first, n in ends]


def plain(R: Matrix, members: Sequence[Index], order: Index, penalty: float) -> list[set[int]]:
    """The same by determinants."""
    found = [set[int]() for _ in members]
    for place, j in enumerate(order.tolist()):
        found[j] = _family(R, members, j, order[:place].tolist(), penalty)
    return found


def _family(R: Matrix, members: Sequence[Index], j: int, before: list[int], penalty: float) -> set[int]:
    own, parents, least = members[j], set[int](), _LEAST_GAIN * penalty

    def score(parents: set[int]) -> float:
        given = np.concatenate([members[i] for i in sorted(parents)] or [np.empty(0, dtype=np.int64)])
        cross = R[np.ix_(given, own)]
        left = R[np.ix_(own, own)] - cross.T @ np.linalg.solve(R[np.ix_(given, given)], cross)
        return 0.5 * float(np.linalg.slogdet(left)[1]) + penalty * len(own) * len(given)

    best, shrunk = score(parents), True
    while shrunk:
        for shrinks in (False, True):
            shrunk = False
            while tried := [parents ^ {i} for i in before if (i in parents) == shrinks]:
                scores = [score(one) for one in tried]
                if min(scores) >= best - least:
                    break
                best, parents, shrunk = min(scores), tried[int(np.argmin(scores))], shrinks
    return parents


def _moments(n: int, *, hinges: bool) -> tuple[Matrix, list[Index]]:
    """Correlations of variables, each a curve of one before it and a line of another; and the columns of each."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((_ROWS, n))
    for v in range(2, n):
        i, k = rng.choice(v, 2, replace=False)
        Z[:, v] += 0.5 * Z[:, k] + 0.3 * (Z[:, i] ** 2 - 1.0)
        Z[:, v] = (Z[:, v] - Z[:, v].mean()) / Z[:, v].std()
    asked = np.arange(n if hinges else 0)
    rows, columns = with_hinges(Z, asked, np.array(KNOTS)), Columns.of([f"v{v}" for v in range(n)])
    base = np.append(np.arange(n), np.repeat(asked, len(KNOTS)))
    found = HingeMoments.of(np.asarray(np.cov(rows.T)), of_hinges(columns, asked), base)
    size = np.sqrt(found.S.diagonal())
    return np.asarray(found.S / size / size[:, None]), [np.flatnonzero(found.base == v) for v in range(n)]
