"""Draws of moments against the errors that they stand for, and shares against searches whose answer is known."""

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.plan.columns import Columns
from fedbnsl_server.search.bootstrap import bootstrap, centre, draw
from fedbnsl_server.search.fitted_network import Accuracy, FittedNetwork, fitted

COLUMNS = Columns.of(["a", "b", "c"])
DAG = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=bool)
W = np.array([[0, 0.5, 0], [0, 0, 100.0], [0, 0, 0]])
STD = np.array([1.0, 0.1, 5.0])
BACK = np.linalg.inv(np.eye(3) - W)
BACK_AB = np.linalg.inv(np.eye(3) - W * [[1], [0], [0]])
S = BACK.T @ np.diag(STD**2) @ BACK


def network(moments: np.ndarray = S) -> FittedNetwork:
    return fitted(DAG, moments, COLUMNS)


@pytest.mark.parametrize("n", [4, 8, 50])
def test_draws_have_the_mean_and_the_variances_of_moments_of_records(n: int) -> None:
    rng = np.random.default_rng(0)
    drawn = np.stack([draw(network(), np.eye(3), Accuracy(n), rng) for _ in range(3000)])
    size = np.sqrt(S.diagonal())
    R = S / size / size[:, None]
    assert drawn.mean(axis=0) / size / size[:, None] == pytest.approx(R, abs=5 * np.sqrt(2 / n / 3000))
    variance = drawn.var(axis=0) / size**2 / size[:, None] ** 2
    assert variance == pytest.approx((1 + R**2) / n, rel=0.15)


def test_draws_have_the_noise_of_a_private_run_on_moments_of_residuals() -> None:
    rng, noise, scales = np.random.default_rng(1), 0.02, STD * [1.0, 2.0, 0.5]
    A = (np.eye(3) - W) / scales
    accuracy = Accuracy(1e9, noise, scales)
    drawn = np.stack([A.T @ draw(network(), np.eye(3), accuracy, rng) @ A for _ in range(2000)])
    expected = noise**2 * (np.ones((3, 3)) + np.eye(3))
    assert drawn.var(axis=0) == pytest.approx(expected, rel=0.12)


def test_draws_vary_around_what_stands_out_of_the_error_and_not_around_chance() -> None:
    # a and c are correlated given b: by 0.01 of their residuals, more or less than one error.
    dag = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]], dtype=bool)
    residuals = np.diag(STD**2)
    residuals[0, 2] = residuals[2, 0] = 0.01 * STD[0] * STD[2]
    moments = BACK_AB.T @ residuals @ BACK_AB
    found = fitted(dag, moments, COLUMNS)
    assert centre(found, moments, Accuracy(2500))[0, 2] == 0.0  # an error is 0.02
    assert centre(found, moments, Accuracy(40_000))[0, 2] == pytest.approx(0.01 * np.sqrt(3 / 4))  # 0.005
    assert centre(found, moments, Accuracy(1e12))[0, 2] == pytest.approx(0.01)
    assert centre(found, moments, Accuracy(1e12, noise_std=0.02))[0, 2] == 0.0
    unknown = moments.copy()
    unknown[0, 2] = unknown[2, 0] = np.nan
    assert centre(found, unknown, Accuracy(1e12))[0, 2] == 0.0


def test_every_draw_is_positive_definite_however_much_noise_there_is() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        assert np.linalg.eigvalsh(draw(network(), np.eye(3), Accuracy(10, 2.0), rng))[0] > 0.0


def test_shares_count_pairs_and_directions_of_the_class() -> None:
    a_chain, a_collider = DAG, np.array([[0, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)
    answers = iter([a_chain, a_collider, a_collider, np.zeros((3, 3), dtype=bool)])
    seen: list[np.ndarray] = []

    def search(moments: np.ndarray, accuracy: Accuracy, start: np.ndarray) -> np.ndarray:
        assert accuracy.n_samples == 100
        assert (start == DAG).all()
        seen.append(moments)
        return next(answers)

    known = S.copy()
    known[0, 2] = known[2, 0] = np.nan
    shares = bootstrap(
        network(), known, Accuracy(100), dag=DAG, search=search, class_of=cpdag, draws=4, rng=np.random.default_rng(3)
    )
    assert shares.adjacent.tolist() == [[0, 3, 0], [3, 0, 3], [0, 3, 0]]
    assert shares.directed.tolist() == [[0, 2, 0], [0, 0, 0], [0, 2, 0]]
    assert all((np.isnan(moments) == np.isnan(known)).all() for moments in seen)
    assert len({moments[0, 1] for moments in seen}) == 4


def test_a_draw_does_not_depend_on_how_many_there_are() -> None:
    def drawn(draws: int) -> list[bytes]:
        seen: list[bytes] = []

        def search(moments: np.ndarray, accuracy: Accuracy, start: np.ndarray) -> np.ndarray:
            seen.append(moments.tobytes())
            return start

        rng = np.random.default_rng(4)
        bootstrap(network(), S, Accuracy(100), dag=DAG, search=search, class_of=cpdag, draws=draws, rng=rng)
        return seen

    assert drawn(5)[:3] == drawn(3)
