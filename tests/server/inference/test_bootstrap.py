"""Draws of moments against the errors that they stand for, and shares against searches whose answer is known."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl_server.inference.bootstrap import Draws, Shares, centre, draw
from fedbnsl_server.search.class_search import ClassSearch
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.linear_network import Accuracy, LinearNetwork, fitted
from fedbnsl_server.search.progress import Progress
from fedbnsl_server.search.score import bic_penalty

COLUMNS = Columns.of(["a", "b", "c"])
DAG = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=bool)
W = np.array([[0, 0.5, 0], [0, 0, 100.0], [0, 0, 0]])
STD = np.array([1.0, 0.1, 5.0])
BACK = np.linalg.inv(np.eye(3) - W)
BACK_AB = np.linalg.inv(np.eye(3) - W * [[1], [0], [0]])
S = BACK.T @ np.diag(STD**2) @ BACK


def network(moments: np.ndarray = S) -> LinearNetwork:
    return fitted(DAG, moments, COLUMNS)


@pytest.mark.parametrize("n", [4, 8, 50])
@pytest.mark.long
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
    said = BACK_AB.T @ np.diag(STD**2) @ BACK_AB  # by the graph, of a private run
    assert centre(fitted(dag, said, COLUMNS), said, Accuracy(2500, 0.001), moments)[0, 2] == pytest.approx(0.01)
    assert centre(fitted(dag, said, COLUMNS), said, Accuracy(2500, 0.5), moments)[0, 2] == 0.0
    unknown = moments.copy()
    unknown[0, 2] = unknown[2, 0] = np.nan
    assert centre(found, unknown, Accuracy(1e12))[0, 2] == 0.0


def test_every_draw_is_positive_definite_however_much_noise_there_is() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        assert np.linalg.eigvalsh(draw(network(), np.eye(3), Accuracy(10, 2.0), rng))[0] > 0.0


class Asked:
    """Moments whose best graph is known beforehand: a stand-in for ClassProblem."""

    def __init__(self, best: np.ndarray) -> None:
        self._best = best

    def found(self, **settings: Any) -> FoundGraph:
        return FoundGraph(self._best, np.zeros((3, 3)), np.ones(3), 0.0)

    def scores(self, dags: Sequence[np.ndarray]) -> np.ndarray:
        return np.array([float((dag != self._best).any()) for dag in dags])


class Answers:
    """A search that asks stand-ins, the same of the same moments, and keeps what it was asked."""

    def __init__(self, best: Sequence[Asked]) -> None:
        self._left, self._asked = list(best), dict[bytes, Asked]()
        self.seen: list[np.ndarray] = []

    def on(self, moments: np.ndarray, accuracy: Accuracy, near: np.ndarray, /) -> Any:
        assert accuracy.n_samples == 100
        assert (near == DAG).all()
        if moments.tobytes() not in self._asked:
            self._asked[moments.tobytes()] = self._left.pop(0)
            self.seen.append(moments)
        return self._asked[moments.tobytes()]


def shares(search: Answers, draws: int, S: np.ndarray = S) -> Shares:
    generators = np.random.default_rng(3).spawn(draws)
    drawn = Draws(network(), S, Accuracy(100), DAG, search, cpdag, generators)
    return drawn.shares(drawn.rivals())


COLLIDER = np.array([[0, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)


def test_shares_count_pairs_and_directions_of_the_class() -> None:
    best = [DAG, COLLIDER, COLLIDER, np.zeros((3, 3), dtype=bool)]
    known = S.copy()
    known[0, 2] = known[2, 0] = np.nan
    search = Answers([Asked(dag) for dag in best])
    found = shares(search, 4, known)
    assert found.adjacent.tolist() == [[0, 3, 0], [3, 0, 3], [0, 3, 0]]
    assert found.directed.tolist() == [[0, 2, 0], [0, 0, 0], [0, 2, 0]]
    assert [dag.tolist() for dag in found.rivals] == [dag.tolist() for dag in (DAG, COLLIDER, best[3])]
    assert all((np.isnan(moments) == np.isnan(known)).all() for moments in search.seen)
    assert len({moments[0, 1] for moments in search.seen}) == 4


@pytest.mark.parametrize("seed", [27, 125, 144])
@pytest.mark.long
def test_graphs_far_apart_that_fit_about_equally_well_share_the_draws_as_full_searches_say(seed: int) -> None:
    """Searches that start at the graph stay near it: by them alone, shares are wrong by 0.3 and more."""
    d, n = 6, 4000
    rng = np.random.default_rng(seed)
    back = np.linalg.inv(np.eye(d) - np.triu((rng.random((d, d)) < 0.5) * rng.normal(0, 0.5, (d, d)), 1))
    X = rng.standard_normal((n, d)) @ np.linalg.cholesky(back.T @ back).T
    S, accuracy, anything = X.T @ X / n, Accuracy(n), EdgeMask(Knowledge(), [f"x{k}" for k in range(d)])
    search = ClassSearch(~np.eye(d, dtype=bool), anything, n, bic_penalty(n), 0.0, 0)
    dag = search.found(S).dag
    near, full, from_graph = fitted(dag, S, anything.columns), np.zeros((d, d)), np.zeros((d, d))
    again = Draws(near, S, accuracy, dag, search, cpdag, np.random.default_rng(3).spawn(100))
    for problem in map(again.problem, range(100)):
        for total, found in (
            (full, problem.found()),
            (from_graph, problem.found(patience=0, start=dag)),
        ):
            marks = cpdag(found.dag)
            total += marks & ~marks.T
    found = again.shares(again.rivals())
    assert np.abs(from_graph - full).max() >= 25
    assert np.abs(found.directed - full).max() <= 5


def test_a_draw_does_not_depend_on_how_many_there_are() -> None:
    def drawn(draws: int) -> list[bytes]:
        search = Answers([Asked(DAG)] * draws)
        shares(search, draws)
        return [moments.tobytes() for moments in search.seen]

    assert drawn(5)[:3] == drawn(3)


def draws_of(draws: int, moments: np.ndarray = S) -> Draws:
    """For full searches in moments of 100 records."""
    anything = EdgeMask(Knowledge(), list("abc"))
    search = ClassSearch(~np.eye(3, dtype=bool), anything, 100, bic_penalty(100), 0.0, 0)
    generators = np.random.default_rng(3).spawn(draws)
    return Draws(network(moments), moments, Accuracy(100), DAG, search, cpdag, generators)


def searched_draws(draws: int, moments: np.ndarray, **settings: Any) -> Shares:
    drawn = draws_of(draws, moments)
    return drawn.shares(drawn.rivals(**settings), **settings)


def test_threads_change_no_share() -> None:
    weak = np.array([[1, 0.3, 0.1], [0.3, 1, 0.25], [0.1, 0.25, 1]])
    alone = searched_draws(40, weak)
    with ThreadPoolExecutor(4) as threads:
        together = searched_draws(40, weak, progress=Progress(threads.map))
    assert (together.adjacent == alone.adjacent).all()
    assert (together.directed == alone.directed).all()
    assert len(alone.rivals) > 1
    assert len(together.rivals) == len(alone.rivals)
    assert all((ours == theirs).all() for ours, theirs in zip(together.rivals, alone.rivals, strict=True))
    assert alone.draws == 40


def test_draws_that_were_enough_are_counted_and_no_others() -> None:
    seen = list[float]()

    def until_half(function: Any, items: Any) -> Any:
        for item in items:
            if progress.done > 0.75:
                progress.enough()
            yield function(item)
            seen.append(progress.done)

    progress = Progress(until_half)
    found = draws_of(40).shares([DAG], progress=progress)
    assert seen == sorted(seen)
    assert progress.part == "bootstrap"
    assert 0 < found.draws < 40
    assert found.adjacent.max() <= found.draws


def test_draws_of_a_pair_that_few_rows_have_together_spread_more() -> None:
    rng, widening, n = np.random.default_rng(3), np.ones((3, 3)), 4000
    widening[0, 2] = widening[2, 0] = 4.0
    widening[0, 1] = widening[1, 0] = np.inf  # in no row: nothing is drawn for it beyond the others
    A = (np.eye(3) - W) / STD
    around = np.eye(3) + 0.1
    drawn = np.stack([A.T @ draw(network(), around, Accuracy(n, widening=widening), rng) @ A for _ in range(2000)])
    assert drawn.mean(axis=0) == pytest.approx(around, abs=0.01)
    expected = np.sqrt(around[0, 0] ** 2 + 0.01) / np.sqrt(n)
    assert drawn.std(axis=0)[[0, 1, 0], [1, 2, 2]] == pytest.approx(expected * np.array([1.0, 1.0, 4.0]), rel=0.1)
