"""What own parameters of a site add to the likelihood, beside the likelihood of its rows."""

import numpy as np
import pytest

from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.losses.squared_residuals import products_of_squares
from fedbnsl_server.inference.site_mechanisms import Mechanisms
from fedbnsl_server.search.linear_network import Accuracy, SiteMoments
from fedbnsl_server.search.squared_residuals import SquaredResiduals


def moments(X: Matrix, *, fourth: bool = False) -> SiteMoments:
    W = np.zeros((X.shape[1],) * 2)
    squares = SquaredResiduals(W, products_of_squares(X, W)) if fourth else None
    return SiteMoments(X.T @ X / len(X), Accuracy(float(len(X))), squares)


def mechanisms(tables: list[Matrix], *, fourth: bool = False) -> Mechanisms:
    S = np.concatenate(tables)
    return Mechanisms(S.T @ S / len(S), [moments(X, fourth=fourth) for X in tables])


def log_likelihood(rows: Matrix) -> float:
    """Of the last column given the others, at its maximum, by every single row."""
    x, y = rows[:, :-1], rows[:, -1]
    left = y - x @ np.linalg.lstsq(x, y, rcond=None)[0] if x.shape[1] else y
    v = float(np.mean(left**2))
    return float(sum(-0.5 * np.log(2 * np.pi * v) - one**2 / (2 * v) for one in left))


def tables(rng: np.random.Generator, rows: tuple[int, ...] = (300, 500, 200, 400)) -> list[Matrix]:
    X = [rng.standard_normal((n, 3)) for n in rows]
    for one in X:
        one[:, 2] += 0.5 * one[:, 0] - 0.3 * one[:, 1]
    return X


@pytest.mark.parametrize("parents", [(), (0,), (0, 1)])
def test_the_gain_is_the_difference_of_the_log_likelihoods_of_all_rows(parents: tuple[int, ...]) -> None:
    X = tables(np.random.default_rng(1))
    found = mechanisms(X).of([(2, parents)])[2, parents]
    family = [one[:, [*parents, 2]] for one in X]
    assert not found.is_own.any()
    for p, own in enumerate(family):
        rest = np.concatenate([one for k, one in enumerate(family) if k != p])
        gain = log_likelihood(own) + log_likelihood(rest) - log_likelihood(np.concatenate([own, rest]))
        assert found.gain[p] == pytest.approx(gain, rel=1e-9, abs=1e-8)


def test_the_others_are_compared_without_a_site_that_has_parameters_of_its_own() -> None:
    X = tables(np.random.default_rng(2))
    X[1][:, 2] *= 3.0
    found = mechanisms(X).of([(2, (0,))])[2, (0,)]
    assert found.is_own.tolist() == [False, True, False, False]
    others = np.concatenate([X[k] for k in (0, 2, 3)])[:, [0, 2]]
    own = X[1][:, [0, 2]]
    gain = log_likelihood(own) + log_likelihood(others) - log_likelihood(np.concatenate([own, others]))
    assert found.gain[1] == pytest.approx(gain, rel=1e-9)
    assert found.evidence[1] > 50.0
    assert found.evidence[[0, 2, 3]].max() < 5.0
    assert found.own[1, 1] / found.others[1, 1] == pytest.approx(9.0, rel=0.2)


def test_heavy_tails_are_no_difference() -> None:
    """Variances of rows with heavy tails differ between sites by chance: without fourth moments they look different."""
    rng = np.random.default_rng(3)
    believed, naive = [], []
    for _ in range(40):
        X = [rng.standard_t(3, (400, 1)) for _ in range(6)]
        believed.append(mechanisms(X, fourth=True).of([(0, ())])[0, ()].is_own.any())
        naive.append(mechanisms(X).of([(0, ())])[0, ()].is_own.any())
    assert sum(believed) <= 2
    assert sum(naive) > 20


def test_rows_of_a_site_where_a_variable_was_set_count_in_no_family_of_it() -> None:
    X = tables(np.random.default_rng(4))
    X[0][:, 2] = 7.0 * X[0][:, 1]
    S = np.concatenate(X)
    found = Mechanisms(S.T @ S / len(S), [moments(one) for one in X], {2: frozenset([0])}).of([(2, (0,)), (1, ())])
    assert found[2, (0,)].gain[0] == 0.0
    assert not found[2, (0,)].told[0]
    rest = np.concatenate(X[1:])[:, [0, 2]]
    assert found[2, (0,)].others[0, 0] == pytest.approx(np.linalg.lstsq(rest[:, :1], rest[:, 1], rcond=None)[0][0])
    assert found[1, ()].told.all()
