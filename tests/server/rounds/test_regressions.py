"""Rounds of regressions at the coordinator: answers that no records give are refused, and sites may stay away."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.regressions import Answer, Family, Task
from fedbnsl_server.inference.regressions import RIDGE, Regression, SiteSums, advanced, begun
from fedbnsl_server.rounds import regressions
from fedbnsl_server.rounds.kinds import Run

DICTIONARY = Dictionary.model_validate(
    {"x": {}, "z": {}, "sick": {"kind": "binary", "levels": ["no", "yes"]}, "n": {"kind": "count"}}
)
PLAN = Plan.load("standard").with_settings(dictionary=DICTIONARY.model_dump())
RUN = Run(PLAN, PLAN.edge_mask(("x", "z", "sick", "n")), {"a": 50, "b": 50})
TASK = Task((Family((2,), (0, 1)), Family((3,), (0,))), np.zeros(3))
HONEST = Answer(
    np.array([50, 40]),
    np.array([-20.0, 3.0]),
    np.array([1.0, -2.0, 0.5]),
    np.array([4.0, 1.0, 3.0, 9.0]),
    np.array([0.0, 45.0]),
)


def changed(part: str, place: int, value: float) -> Answer:
    numbers = getattr(HONEST, part).copy()
    numbers[place] = value
    return replace(HONEST, **{part: numbers})


def test_an_honest_answer_is_accepted() -> None:
    assert regressions.fault(HONEST, TASK, RUN) == ""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (replace(HONEST, gradient=np.ones(2)), "has not the sums of the 2 regressions"),
        (replace(HONEST, rows=np.array([50])), "has not the sums of the 2 regressions"),
        (changed("gradient", 0, -1e31), "beyond 1e+30"),
        (changed("log_likelihood", 0, 0.5), "'sick' that no records have"),  # of levels: at most 0
        (changed("information", 1, 9.0), "'sick' that no records have"),  # a negative eigenvalue
        (changed("information", 3, -1.0), "'n' that no records have"),
        (changed("information", 0, 0.0), "'sick' that no records have"),  # no variance, and a covariance
        (changed("dispersion", 0, 1.0), "'sick' that no records have"),
        (changed("dispersion", 1, -1.0), "'n' that no records have"),
        (changed("rows", 0, 0), "'sick' that no records have"),
        (changed("rows", 0, 10**12), "'sick' that no records have"),
    ],
)
def test_an_answer_that_no_records_give_is_refused(answer: Answer, why: str) -> None:
    assert why in regressions.fault(answer, TASK, RUN)


# Families in one coefficient: logistic regression of sites whose records are known, without intercepts.
def site(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Callable[[float], SiteSums]:
    def told(beta: float) -> SiteSums:
        p = 1 / (1 + np.exp(-beta * x))
        log_likelihood = float(np.log(np.where(y == 1, p, 1 - p)).sum())
        return SiteSums(len(x), log_likelihood, np.array([x @ (y - p)]), np.array([[(x * x * p * (1 - p)).sum()]]), 0.0)

    return told


X = np.random.default_rng(0).normal(size=400)
Y = (np.random.default_rng(1).random(400) < 1 / (1 + np.exp(-1.5 * X))).astype(float)
A, B = site(X[:150], Y[:150]), site(X[150:], Y[150:])


def played(told: Callable[[int, float], dict[str, SiteSums]], rounds: int = 12) -> Regression:
    state = begun((1,), (0,), np.ones(1))
    for t in range(rounds):
        state = advanced(state, told(t, float(state.asked[0])), rounds_left=rounds - t - 1)
        if not state.goes_on:
            return state
    raise AssertionError("it goes on after its last round")


def maximum(*sites: Callable[[float], SiteSums]) -> float:
    grid = np.linspace(0.5, 3.0, 25_001)
    return float(grid[np.argmax([sum(one(b).log_likelihood for one in sites) for b in grid])])


def test_it_settles_at_the_maximum_of_all_sites() -> None:
    found = played(lambda t, beta: {"a": A(beta), "b": B(beta)})
    assert found.standing == "settled"
    assert found.at[0] == pytest.approx(maximum(A, B), abs=2e-4)


def test_a_step_that_goes_too_far_is_shortened() -> None:
    far = np.array([-3.0] * 30 + [3.0] * 30 + [40.0])
    wild = site(far, np.array([0.0] * 29 + [1.0] * 31 + [0.0]))
    found = played(lambda t, beta: {"a": wild(beta)}, 40)
    assert found.standing == "settled"
    assert abs(found.gradients.sum()) < 1e-5


@pytest.mark.parametrize("away", [0, 1, 2, 3])
def test_a_site_that_misses_rounds_is_in_all_sums_or_in_none(away: int) -> None:
    def told(t: int, beta: float) -> dict[str, SiteSums]:
        return {"a": A(beta)} | ({} if t == away else {"b": B(beta)})

    found = played(told)
    assert found.sites == ("a", "b")
    assert found.at[0] == pytest.approx(maximum(A, B), abs=2e-4)


def test_what_one_site_alone_knows_is_told_once_it_answers() -> None:
    def two(first: SiteSums, second: SiteSums | None) -> SiteSums:
        """Of two coefficients with records of their own; None: no record tells of the second."""
        other = second or SiteSums(0, 0.0, np.zeros(1), np.zeros((1, 1)), 0.0)
        gradient = np.concatenate([first.gradient, other.gradient])
        information = np.diag([first.information[0, 0], other.information[0, 0]])
        return SiteSums(first.rows, first.log_likelihood + other.log_likelihood, gradient, information, 0.0)

    state = begun((1,), (0, 2), np.ones(2))
    for t in range(12):
        x, y = state.asked.tolist()
        told = {"a": two(A(x), None)} | ({"b": two(A(x), B(y))} if t else {})
        if state.goes_on:
            state = advanced(state, told, rounds_left=11 - t)
    assert state.sites == ("a", "b")
    assert state.identified.all()
    assert state.at == pytest.approx([maximum(A), maximum(B)], abs=2e-4)


def test_a_site_that_leaves_for_good_is_in_nothing_that_is_told() -> None:
    found = played(lambda t, beta: {"a": A(beta)} | ({"b": B(beta)} if t < 2 else {}))
    assert (found.sites, found.rows) == (("a",), 150)
    assert found.at[0] == pytest.approx(maximum(A), abs=2e-4)


@pytest.mark.parametrize(
    "lie",
    [
        lambda one, beta: one._replace(log_likelihood=one.log_likelihood - 50 * (beta > 0)),
        lambda one, beta: one._replace(log_likelihood=min(one.log_likelihood + 90 * (beta > 0), 0.0)),
        lambda one, beta: one._replace(gradient=-one.gradient),
        lambda one, beta: one._replace(gradient=one.gradient * 1e9),
        # So that every step is next to nothing.
        lambda one, beta: one._replace(information=one.information * 100),
        lambda one, beta: one._replace(
            log_likelihood=5 * beta - 500, gradient=np.full(1, 5.0), information=1e6 * np.eye(1)
        ),
    ],
)
def test_a_site_whose_numbers_contradict_each_other_is_named(lie: Callable[[SiteSums, float], SiteSums]) -> None:
    found = played(lambda t, beta: {"a": A(beta), "b": lie(B(beta), beta)})
    assert (found.standing, found.odd) == ("inconsistent", "b")


def test_numbers_without_any_sense_end_no_run() -> None:
    drawn = np.random.default_rng(3)
    for size in (1e-30, 1.0, 1e30):
        found = played(
            lambda t, beta, size=size: {
                "a": A(beta),
                "b": SiteSums(9, -size, drawn.normal(size=1) * size, drawn.random((1, 1)) * size, 0.0),
            }
        )
        assert found.standing in ("settled", "unsettled", "inconsistent")


def nearly_always(n: int, exceptions: int) -> Callable[[float], SiteSums]:
    """Records with x = 1, of which all but some have the level."""
    return site(np.ones(n), np.arange(n) >= exceptions)


def test_the_prior_of_levels_that_only_look_separated_is_taken_away_again() -> None:
    found = played(lambda t, beta: {"a": nearly_always(100_000, 34)(beta)}, 40)
    assert (found.standing, found.penalty) == ("settled", 0.0)
    assert found.at[0] == pytest.approx(np.log((100_000 - 34) / 34), abs=1e-9)


def test_the_prior_of_separated_levels_stays() -> None:
    found = played(lambda t, beta: {"a": nearly_always(1000, 0)(beta)}, 40)
    assert (found.standing, found.penalty, found.degrees) == ("settled", RIDGE, 0.0)
    assert found.rounds < 20, "it is not taken away only to come back"
    assert 1000 / (1 + np.exp(found.at[0])) == pytest.approx(RIDGE * found.at[0])


def test_a_gradient_beside_hardly_any_information_is_named_and_asks_for_no_impossible_step() -> None:
    found = advanced(begun((1,), (0,), np.ones(1)), {
        "a": SiteSums(100, -70.0, np.zeros(1), np.zeros((1, 1)), 0.0),
        "b": SiteSums(100, -70.0, np.array([1e29]), np.array([[1e-300]]), 0.0),
    }, rounds_left=5)  # fmt: skip
    assert (found.standing, found.odd) == ("inconsistent", "b")
    assert np.isfinite(found.asked).all()


def test_the_dispersion_is_that_of_the_sites_whose_rows_count() -> None:
    nothing = SiteSums(900, -300.0, np.zeros(1), np.zeros((1, 1)), 9000.0)
    found = played(lambda t, beta: {"a": A(beta)._replace(dispersion=150.0), "b": nothing})
    assert (found.rows, found.dispersion) == (150, 150.0)
