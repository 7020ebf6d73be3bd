"""The search over orders, against every graph there is."""

import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from fedbnsl.graphs.graph import is_acyclic
from fedbnsl_server.search.order_search import best_dag, canonical_order
from fedbnsl_server.search.progress import UNWATCHED, Progress
from fedbnsl_server.search.score import bic_penalty, extended_penalty
from fedbnsl_server.search.space import Space

N = 2000.0
PENALTY = 0.5 * math.log(N) / N


def network(d: int, seed: int) -> np.ndarray:
    """(d, d) moments of a random network with noise variances that differ by a factor of up to 10,000."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(d)
    W = np.zeros((d, d))
    for a, b in itertools.combinations(order.tolist(), 2):
        if rng.random() < 0.5:
            W[a, b] = rng.uniform(0.5, 2.0) * rng.choice([-1, 1])
    back = np.linalg.inv(np.eye(d) - W)
    units = 10 ** rng.uniform(-1, 1, d)
    return (back.T @ np.diag(rng.uniform(0.5, 2.0, d)) @ back) * units * units[:, None]


def score(S: np.ndarray, dag: np.ndarray) -> float:
    """By determinants."""
    total = PENALTY * float(dag.sum())
    for j in range(len(S)):
        given = np.flatnonzero(dag[:, j]).tolist()
        whole = [j, *given]
        below = np.linalg.det(S[np.ix_(given, given)]) if given else 1.0
        total += 0.5 * math.log(np.linalg.det(S[np.ix_(whole, whole)]) / below)
    return total


def found(
    S: np.ndarray,
    required: np.ndarray,
    *,
    penalty: float = PENALTY,
    seed: int = 0,
    progress: Progress = UNWATCHED,
) -> np.ndarray:
    everything = ~np.eye(len(S), dtype=bool) & ~required.T
    return best_dag(S, Space(everything, required), penalty=penalty, seed=seed, progress=progress)


def least_of_all(S: np.ndarray, required: np.ndarray) -> float:
    pairs = [pair for pair in itertools.permutations(range(4), 2) if not required[pair]]
    best = math.inf
    for edges in itertools.product([False, True], repeat=len(pairs)):
        dag = required.copy()
        for (i, j), there in zip(pairs, edges, strict=True):
            dag[i, j] = there
        if not (dag & dag.T).any() and is_acyclic(dag):
            best = min(best, score(S, dag))
    return best


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.long
def test_the_best_of_all_graphs_is_found(seed: int):
    S, nothing = network(4, seed), np.zeros((4, 4), dtype=bool)
    dag = found(S, nothing, seed=seed)
    assert is_acyclic(dag)
    assert score(S, dag) == pytest.approx(least_of_all(S, nothing), abs=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_required_edges_are_there_and_the_rest_is_the_best(seed: int):
    S, required = network(4, seed), np.zeros((4, 4), dtype=bool)
    required[2, 0] = required[3, 1] = True
    dag = found(S, required)
    assert dag[2, 0]
    assert dag[3, 1]
    assert is_acyclic(dag)
    assert score(S, dag) == pytest.approx(least_of_all(S, required), abs=1e-9)


def test_only_candidates_become_edges_and_units_change_nothing():
    S = network(6, 3)
    candidates = np.zeros((6, 6), dtype=bool)
    candidates[0, 1] = candidates[1, 0] = candidates[2, 3] = candidates[3, 2] = True
    graphs = [
        best_dag(S * unit * np.reshape(unit, (-1, 1)), Space(candidates), penalty=PENALTY, seed=1)
        for unit in (np.ones(6), 10.0 ** np.arange(6))
    ]
    assert not (graphs[0] & ~candidates).any()
    assert np.array_equal(*graphs)


def test_no_family_has_two_columns_whose_moment_is_unknown():
    S, nothing = network(5, 2), np.zeros((5, 5), dtype=bool)
    assert score(S, found(S, nothing)) < score(S, np.zeros((5, 5), dtype=bool))
    dag = found(S, nothing)
    i, j = np.argwhere(dag)[0]
    S[i, j] = S[j, i] = np.nan
    without = found(S, nothing)
    assert not without[i, j]
    assert not without[j, i]
    assert not (without[i] & without[j]).any()


@pytest.mark.long
def test_the_same_seed_gives_the_same_graph():
    S, nothing = network(12, 5), np.zeros((12, 12), dtype=bool)
    assert np.array_equal(found(S, nothing, seed=3), found(S, nothing, seed=3))


def test_no_write_leaves_its_array_where_variables_have_several_columns():
    """As plain Python, whose arrays check their bounds; five columns of two variables, all of them dependent."""
    program = (
        "import numpy as np\n"
        "from fedbnsl.plan.columns import Columns\n"
        "from fedbnsl_server.search.order_search import best_dag\n"
        "from fedbnsl_server.search.space import Space\n"
        "rng = np.random.default_rng(0)\n"
        "X = rng.standard_normal((50, 1)) + 0.5 * rng.standard_normal((50, 5))\n"
        "columns = Columns(tuple('abcde'), tuple('xy'), np.array([0, 0, 0, 1, 1]))\n"
        "space = Space(~np.eye(2, dtype=bool), columns=columns)\n"
        "print(best_dag(X.T @ X / 50, space, penalty=0.001, seed=0).sum())"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=100)
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize("seed", [15, *range(8)])
@pytest.mark.long
def test_a_column_that_is_a_sum_of_others_in_single_precision_ends_the_search(seed):
    """Rounding leaves it less than no variance, where an added and a dropped parent seem to be gains in turn."""
    rng = np.random.default_rng(seed)
    V, n = int(rng.integers(5, 12)), int(rng.choice([200, 2000]))
    X = rng.standard_normal((n, V)) @ (np.eye(V) + np.triu(rng.standard_normal((V, V)), 1) * (rng.random((V, V)) < 0.5))
    for _ in range(int(rng.integers(1, 3))):
        t = rng.permutation(V)
        X[:, t[0]] = X[:, t[1]] + X[:, t[2]] + (X[:, t[3]] if rng.random() < 0.5 else 0)
    X -= X.mean(axis=0)
    X /= X.std(axis=0)
    S = (X.T @ X / n).astype(np.float32).astype(np.float64)
    S += 1e-9 * np.diag(S.diagonal())
    dag = found(S, np.zeros((V, V), dtype=bool), penalty=0.5 * np.log(n) / n)
    assert is_acyclic(dag)


def test_a_search_that_is_asked_to_end_tries_no_shuffle_but_improves_its_first_order():
    S, nothing = network(12, 5), np.zeros((12, 12), dtype=bool)
    progress = Progress()
    progress.enough()
    asked = found(S, nothing, progress=progress)
    assert progress.done == 0.0, "no shuffle was tried"
    everything = ~np.eye(12, dtype=bool)
    unshuffled = best_dag(S, Space(everything), penalty=PENALTY, seed=0, patience=0)
    assert np.array_equal(asked, unshuffled)


@pytest.mark.long
def test_after_the_warm_up_no_search_compiles_anything():
    """In a process of its own, for in this one other tests have compiled what they needed."""
    program = (
        "import numpy as np\n"
        "from numba.core.registry import CPUDispatcher\n"
        "from fedbnsl_server.search.kernels import grow_shrink, order_search\n"
        "from fedbnsl.plan.columns import Columns\n"
        "from fedbnsl_server.search.order_search import best_dag, warm_up\n"
        "from fedbnsl_server.search.space import Space\n"
        "def compiled():\n"
        "    loops = [*vars(order_search).values(), *vars(grow_shrink).values()]\n"
        "    kernels = [each for each in loops if isinstance(each, CPUDispatcher)]\n"
        "    return {f'{kernel.__name__}{signature}' for kernel in kernels for signature in kernel.signatures}\n"
        "warm_up()\n"
        "before = compiled()\n"
        "S = np.asfortranarray(np.eye(3) + 0.5)\n"
        "S.flags.writeable = False\n"
        "columns = Columns(tuple('abc'), tuple('xy'), np.array([0, 0, 1]))\n"
        "required = np.triu(np.ones((2, 2), dtype=bool), 1)\n"
        "space = Space(~np.eye(2, dtype=bool), required, columns=columns)\n"
        "best_dag(S, space, penalty=np.float64(0.1), seed=2**40, start=[0, 1])\n"
        "best_dag(S, Space(required, required, columns=columns), penalty=0.1, seed=0)\n"
        "print(len(before) > 0, *sorted(compiled() - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("n", [1e-3, 0.5, 1.0, 2.0, 1e6])
@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_an_edge_always_costs_more_than_nothing(n: float, gamma: float):
    """Noise may be larger than one record's moments: less than nothing would keep the search adding and dropping."""
    assert extended_penalty(n, 1, gamma) > 0.0
    assert bic_penalty(n) > 0.0


@pytest.mark.parametrize("penalty", [0.0, -1.0, math.nan])
def test_a_price_of_nothing_is_refused(penalty: float):
    with pytest.raises(ValueError, match="must cost more than nothing"):
        best_dag(np.eye(2), Space(~np.eye(2, dtype=bool)), penalty=penalty, seed=0)


@pytest.mark.parametrize("seed", range(10))
def test_no_reference_level_changes_the_order_that_a_search_begins_with(seed: int) -> None:
    """Correlations with indicators hang on which level has none: those with the whole variable do not."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((300, 5)) @ rng.uniform(-1.0, 1.0, (5, 5))
    codes = [np.digitize(column, np.quantile(column, [0.1, 0.7])) for column in z.T]
    members = [np.array([2 * v, 2 * v + 1]) for v in range(5)]
    orders = set[tuple[int, ...]]()
    for reference in range(3):
        levels = [level for level in range(3) if level != reference]
        R = np.corrcoef(np.column_stack([of == level for of in codes for level in levels]).T)
        orders.add(tuple(canonical_order(R, members).tolist()))
    assert len(orders) == 1
