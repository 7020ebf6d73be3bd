"""A single move of the search over orders: what it was judged by is what it changes."""

import math

import numpy as np
import pytest

from fedbnsl_server.search.kernels.family import blocks_of
from fedbnsl_server.search.kernels.order_search import first_families, improve
from fedbnsl_server.search.kernels.order_state import Problem, Room, State
from fedbnsl_server.search.score import Score

# a -> c <- b, and p -> w apart from them.
A, B, C, P, W = range(5)
PENALTY = 0.01


def moments() -> np.ndarray:
    """(5, 5) correlations."""
    weights = np.zeros((5, 5))
    weights[[A, B, P], [C, C, W]] = 1.0
    back = np.linalg.inv(np.eye(5) - weights)
    S = back.T @ back
    size = np.sqrt(S.diagonal())
    return S / size / size[:, None]


def problem() -> Problem:
    apart = ~np.eye(5, dtype=bool)
    return Problem.of(
        moments(),
        blocks_of([np.array([j]) for j in range(5)]),
        candidates=apart,
        required=np.zeros_like(apart),
        score=Score.bic(PENALTY),
        least=1e-6 * PENALTY,
        most=5,
    )


def fitted(order: list[int], room: Room) -> State:
    state = State.of(np.array(order), 20)
    first_families(problem(), room, state)
    return state


def parents_of(state: State, j: int) -> set[int]:
    first = problem().start[j]
    return set(state.parents[first : first + state.n_parents[j]].tolist())


def test_a_move_changes_the_families_that_it_was_judged_by_and_no_other() -> None:
    """Families that were fitted again after a move could undo its gain, and the search went in circles."""
    room = Room.of(5, 5, 20)
    state = fitted([C, A, B, P, W], room)
    assert parents_of(state, B) == {A, C}
    assert parents_of(state, W) == {P}
    # A family that another fit would change: w without its parent, which would be a gain.
    state.n_parents[W], state.scores[W], state.gains[problem().edge[P, W]] = 0, 0.0, True
    room.stale[:] = False
    room.stale[C] = True
    improve(problem(), room, state, np.zeros(1))
    assert state.order.tolist().index(C) > max(state.order.tolist().index(k) for k in (A, B)), "no move was made"
    assert parents_of(state, C) == {A, B}
    assert parents_of(state, W) == set()


def test_after_all_moves_each_score_is_that_of_its_family() -> None:
    room, R = Room.of(5, 5, 20), moments()
    state = fitted([W, C, B, P, A], room)
    before = state.scores.sum()
    improve(problem(), room, state, np.zeros(1))
    assert state.scores.sum() < before - PENALTY / 2
    for j in range(5):
        Z = sorted(parents_of(state, j))
        left = R[j, j] - R[j, Z] @ np.linalg.solve(R[np.ix_(Z, Z)], R[Z, j])
        assert math.isclose(state.scores[j], 0.5 * math.log(left) + PENALTY * len(Z), abs_tol=1e-9)
        assert all(state.place[k] < state.place[j] for k in Z)


def of_columns(seed: int, most: int) -> tuple[np.ndarray, list[np.ndarray], Problem]:
    """Moments of variables of one to four columns."""
    rng = np.random.default_rng(seed)
    sizes = np.array([1, 3, 1, 2, 4, 2, 1])
    members = np.split(rng.permutation(sizes.sum()), np.cumsum(sizes)[:-1])
    Z = rng.standard_normal((300, len(sizes)))
    for j in range(1, len(sizes)):
        Z[:, j] += Z[:, rng.integers(j)] * rng.choice([0.2, 1.0])
    X = np.empty((300, sizes.sum()))
    for j, columns in enumerate(members):
        X[:, columns] = Z[:, [j]] ** np.arange(1, len(columns) + 1)
    R = np.asarray(np.corrcoef(X.T))
    apart = ~np.eye(len(sizes), dtype=bool)
    found = Problem.of(
        R,
        blocks_of(members),
        candidates=apart,
        required=np.zeros_like(apart),
        score=Score.bic(PENALTY),
        least=1e-6 * PENALTY,
        most=most,
    )
    return R, members, found


def left_of(R: np.ndarray, child: np.ndarray, given: list[np.ndarray]) -> float:
    """Logarithm of the determinant of what is left of a child's columns."""
    Z = np.concatenate([np.empty(0, dtype=int), *given])
    left = R[np.ix_(child, child)] - R[np.ix_(child, Z)] @ np.linalg.solve(R[np.ix_(Z, Z)], R[np.ix_(Z, child)])
    return float(np.linalg.slogdet(left)[1])


@pytest.mark.parametrize("most", [4, 12])
@pytest.mark.parametrize("seed", range(6))
def test_between_blocks_of_columns_no_gain_is_missed_and_none_is_only_apparent(seed: int, most: int) -> None:
    R, members, P = of_columns(seed, most)
    V = len(members)
    order = np.random.default_rng(seed).permutation(V)
    state = State.of(order, len(P.source))
    first_families(P, Room.of(V, len(R), len(P.source)), state)
    for j in range(V):
        first = P.start[j]
        parents: list[int] = state.parents[first : first + state.n_parents[j]].tolist()
        given, child = [members[i] for i in parents], members[j]
        columns, before = sum(map(len, given)), left_of(R, child, given)
        assert columns <= most
        assert math.isclose(state.scores[j], 0.5 * before + PENALTY * columns * len(child), abs_tol=1e-9)
        for e in range(first, P.start[j + 1]):
            i = int(P.source[e])
            if i in parents or columns + len(members[i]) > most:
                assert not state.gains[e]
                continue
            after = left_of(R, child, [*given, members[i]])
            gain = 0.5 * (before - after) - PENALTY * len(child) * len(members[i])
            assert state.gains[e] == (gain > 0.0), (i, j, gain)
            assert gain <= 0.0 or state.place[i] > state.place[j], "a parent that lowers the score was left out"
