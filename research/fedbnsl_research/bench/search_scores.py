"""The search over orders beside FLOP and BOSS: all get the same moments and the same penalty, and the score decides.

Whose graph is nearer to the truth is another question (`networks`): here nothing but the search differs.
"""

import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fedbnsl.graphs.class_members import consistent_extension
from fedbnsl.sparse import Mask, Matrix
from fedbnsl_research.comparators.class_searches import CLASS_SEARCHES
from fedbnsl_research.comparators.moment_rows import gaussian_score, rows_with_moments
from fedbnsl_research.trials.harness import Row, timed
from fedbnsl_server.search.order_search import best_dag, bic_penalty
from fedbnsl_workbench.tables.synthetic import synthesise

OURS = "fedbnsl"
PEERS = ("FLOP", "BOSS")

SAME = 1e-9
"""Scores that differ by no more than this, relative to their size, count as equal."""

_SEEDS = range(10)
# Variables, expected edges, rows: few rows and many edges make many classes nearly as good as the best.
_SETTINGS = (
    (20, 20, 40_000),
    (20, 40, 500),
    (50, 50, 40_000),
    (50, 50, 500),
    (50, 200, 40_000),
    (100, 100, 40_000),
    (500, 500, 40_000),
)
# On more variables, fewer seeds and no BOSS, which takes minutes.
_MANY, _FEW_SEEDS = 200, range(3)


def search_scores() -> Iterator[Row]:
    """How often each search ends with a higher score, which is worse, than the other on the same moments."""
    _ours(np.eye(2), 100, seed=0)  # compiles
    for d, edges, n in _SETTINGS:
        seeds = _SEEDS if d <= _MANY else _FEW_SEEDS
        found = [searched(correlations(d, edges, n, seed), n, seed=seed) for seed in seeds]
        row: Row = {
            "figure": f"ER d={d}, degree {2 * edges / d:g}, noise sd 0.5 to 2, {n} rows, "
            f"seeds {seeds.start}..{seeds.stop - 1}"
        }
        for peer in PEERS:
            pairs = [(scores[OURS], scores[peer]) for scores, _ in found if peer in scores]
            if not pairs:
                row[peer] = _not_run(peer, d)
                continue
            row[f"{OURS} worse than {peer}"] = f"{sum(worse(*pair) for pair in pairs)} of {len(pairs)}"
            row[f"{peer} worse than {OURS}"] = f"{sum(worse(*pair[::-1]) for pair in pairs)} of {len(pairs)}"
            times = [seconds[OURS] / seconds[peer] for _, seconds in found]
            row[f"seconds, {OURS} / {peer}, median"] = float(f"{statistics.median(times):.2g}")
        for name in found[0][1]:
            row[f"s a search, {name}"] = float(f"{statistics.mean(seconds[name] for _, seconds in found):.3g}")
        yield row


def correlations(d: int, expected_edges: int, n: int, seed: int) -> Matrix:
    """(d, d) correlations in n rows of a generated network with unequal noise."""
    (X,) = synthesise(d, expected_edges, 1, n, seed, noise_range=(0.5, 2.0)).tables
    return np.asarray(np.corrcoef(X.T))


def searched(R: Matrix, n: int, *, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """Score and seconds of each search that is installed, with the penalty of BIC for n rows."""
    X, penalty = rows_with_moments(R), 0.5 * math.log(n)
    searches: dict[str, Callable[[], Mask]] = {OURS: partial(_ours, R, n, seed=seed)}
    for name in PEERS:
        if not _not_run(name, len(R)):
            searches[name] = partial(_theirs, name, X, penalty * len(X) / n)
    scores, seconds = dict[str, float](), dict[str, float]()
    for name, search in searches.items():
        seconds[name], dag = timed(search)
        scores[name] = gaussian_score(R, dag, n_samples=n, penalty=penalty)
    return scores, seconds


def _ours(R: Matrix, n: int, *, seed: int) -> Mask:
    everything = ~np.eye(len(R), dtype=bool)
    return best_dag(
        R,
        penalty=bic_penalty(n),
        candidates=everything,
        required=np.zeros_like(everything),
        seed=seed,
    )


def _not_run(peer: str, d: int) -> str:
    slow = peer != "FLOP" and d > _MANY
    return "not run (slow)" if slow else CLASS_SEARCHES[peer].not_run(d)


def _theirs(name: str, X: Matrix, penalty: float) -> Mask:
    return consistent_extension(CLASS_SEARCHES[name].classes(X, penalty=penalty))


def worse(score: float, other: float) -> bool:
    """Whether a score is higher than another one by more than rounding."""
    return score - other > SAME * abs(other)
