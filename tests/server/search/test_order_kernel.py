"""A single move of the search over orders: what it was judged by is what it changes."""

import math

import numpy as np

from fedbnsl_server.search.order_kernel import Problem, Room, State, fit, improve

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
    one, apart = np.arange(5), ~np.eye(5, dtype=bool)
    return Problem(moments(), one, np.ones(5, np.int64), one, apart, np.zeros_like(apart), PENALTY, 1e-6 * PENALTY)


def fitted(order: list[int], room: Room) -> State:
    """A state whose families are as good as the order allows: every gain is taken for possible at first."""
    state = State.of(np.array(order))
    state.scores[:], state.gains[:] = 0.0, 1.0
    fit(problem(), room, state)
    return state


def parents_of(state: State, j: int) -> set[int]:
    return set(state.parents[j, : state.n_parents[j]].tolist())


def test_a_move_changes_the_families_that_it_was_judged_by_and_no_other() -> None:
    """Families that were fitted again after a move could undo its gain, and the search went in circles."""
    room = Room.of(5, 5)
    state = fitted([C, A, B, P, W], room)
    assert parents_of(state, B) == {A, C}
    assert parents_of(state, W) == {P}
    # A family that another fit would change: w without its parent, which would be a gain.
    state.n_parents[W], state.scores[W], state.gains[W, P] = 0, 0.0, 1.0
    room.stale[:] = False
    room.stale[C] = True
    improve(problem(), room, state)
    assert state.order.tolist().index(C) > max(state.order.tolist().index(k) for k in (A, B)), "no move was made"
    assert parents_of(state, C) == {A, B}
    assert parents_of(state, W) == set()


def test_after_all_moves_each_score_is_that_of_its_family() -> None:
    room, R = Room.of(5, 5), moments()
    state = fitted([W, C, B, P, A], room)
    before = state.scores.sum()
    improve(problem(), room, state)
    assert state.scores.sum() < before - PENALTY / 2
    for j in range(5):
        Z = sorted(parents_of(state, j))
        left = R[j, j] - R[j, Z] @ np.linalg.solve(R[np.ix_(Z, Z)], R[Z, j])
        assert math.isclose(state.scores[j], 0.5 * math.log(left) + PENALTY * len(Z), abs_tol=1e-9)
        assert all(state.place[k] < state.place[j] for k in Z)
