"""A round of noise: which answers are refused."""

import numpy as np
import pytest

from fedbnsl.graphs.directed_pair import DirectedPair
from fedbnsl.plan.plan import Plan
from fedbnsl.rounds.noise import Answer, Task
from fedbnsl_client.losses.noise import noise_sums
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.noise import _shares_of_rows, fault

PLAN = Plan.load("standard")
RUN = Run(PLAN, PLAN.edge_mask(("a", "b")), {"north": 400, "south": 300})
TASK = Task((DirectedPair(0, 1, ()), DirectedPair(1, 0, ())))


def sums(n: int = 400) -> np.ndarray:
    rng = np.random.default_rng(0)
    a = rng.exponential(size=n)
    return noise_sums(np.column_stack([a, a + rng.standard_t(3, n)]), TASK.pairs)


def test_sums_over_rows_are_taken() -> None:
    assert sums().any()
    assert fault(Answer(sums()), TASK, RUN) == ""
    assert fault(Answer(np.zeros((2, 21))), TASK, RUN) == ""


def test_sums_of_more_rows_than_a_site_has_are_refused() -> None:
    assert "no records" in fault(Answer(sums(401)), TASK, RUN)


@pytest.mark.parametrize("rows", [30.0, 400.0])
def test_variances_that_no_scaled_residuals_have_are_refused(rows: float) -> None:
    """A site of few rows would else turn the directions that all others tell."""
    i, j = np.triu_indices(5)
    lie = np.zeros((2, 21))
    lie[:, 0] = rows
    lie[:, 6 + np.flatnonzero(i == j)] = 1e6
    lie[0, 1:6] = 0.99 * np.sqrt(rows * 1e6)
    assert "no records" in fault(Answer(lie), TASK, RUN)


def test_another_number_of_pairs_is_refused() -> None:
    assert "1 pairs" in fault(Answer(sums()[:1]), TASK, RUN)


def test_a_pair_counts_the_rows_of_sites_that_tell_of_it() -> None:
    first_alone = sums(300)
    first_alone[1] = 0.0
    answers = {"north": Answer(sums()), "south": Answer(first_alone)}
    assert _shares_of_rows(answers, RUN.n_samples).tolist() == [1.0, 4 / 7]
    del answers["north"]
    assert _shares_of_rows(answers, RUN.n_samples).tolist() == [3 / 7, 0.0]
