"""EM over rounds reaches what plain EM reaches; pairs that no row has together get zero partial correlations."""

import numpy as np
import pytest

from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.losses.completed import Patterns
from fedbnsl_server.algorithm.completion import Completion, advanced, own_share, started, tolerance

_NO_MEANS = np.empty(0)


def _sites(d: int, n: int, share: float, seed: int = 0) -> dict[str, Patterns]:
    """Three sites of one covariance matrix, each with means of its own."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((d, d)) + 2.0 * np.eye(d)
    found = {}
    for k, site in enumerate("abc"):
        X = rng.standard_normal((n, d)) @ mixing + k
        X[rng.random(X.shape) < share] = np.nan
        found[site] = Patterns.of(X)
    return found


def _begun(sites: dict[str, Patterns]) -> Completion:
    d = next(iter(sites.values())).n_columns
    products = {site: one.pair_products(own_means=True) for site, one in sites.items()}
    return started(products, {site: one.pair_counts for site, one in sites.items()}, _NO_MEANS, np.ones(d, dtype=bool))


def _step(sites: dict[str, Patterns], by: Covariances) -> tuple[Matrix, float]:
    """Pooled expected moments, and the likelihood."""
    told = {site: one.completed(by, own_means=True) for site, one in sites.items()}
    rows = [one.n_samples for one in sites.values()]
    pooled = np.average([one.moments for one in told.values()], axis=0, weights=rows)
    return pooled, sum(one.log_likelihood for one in told.values())


def _completed(sites: dict[str, Patterns], most: int = 60) -> Completion:
    state = _begun(sites)
    while not state.done:
        assert state.by is not None
        S, likelihood = _step(sites, state.by)
        state = advanced(state, S, _NO_MEANS, likelihood, last=state.iterations + 1 == most)
    return state


def _plain(sites: dict[str, Patterns], iterations: int) -> Matrix:
    by = _begun(sites).by
    assert by is not None
    S = by.S
    for _ in range(iterations):
        S, _likelihood = _step(sites, Covariances(S, _NO_MEANS))
    return S


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_accelerated_em_ends_where_plain_em_ends(share: float) -> None:
    sites = _sites(6, 400, share)
    state = _completed(sites)
    assert state.has_converged
    assert state.by is not None
    best = _step(sites, Covariances(_plain(sites, 250), _NO_MEANS))[1]
    likelihood = _step(sites, state.by)[1]
    assert best - likelihood == pytest.approx(0.0, abs=0.05)  # an estimate one standard error away loses 0.5


def test_acceleration_saves_iterations() -> None:
    sites = _sites(6, 400, 0.5)
    S = _plain(sites, _completed(sites).iterations)
    change = np.abs(_step(sites, Covariances(S, _NO_MEANS))[0] - S).max()
    assert change > 2 * tolerance(1200)


def test_the_first_covariances_are_positive_definite_where_pairwise_ones_are_not() -> None:
    X = np.random.default_rng(2).standard_normal((40, 8))
    X[np.random.default_rng(3).random(X.shape) < 0.6] = np.nan
    sites = {"a": Patterns.of(X)}
    assert np.linalg.eigvalsh(sites["a"].pair_products(own_means=True))[0] < 0.0
    by = _begun(sites).by
    assert by is not None
    assert np.linalg.eigvalsh(by.S)[0] > 0.0


def test_pairs_never_seen_together_get_zero_partial_correlations() -> None:
    rng = np.random.default_rng(4)
    mixing = rng.standard_normal((4, 4)) + 2.0 * np.eye(4)
    one, other = rng.standard_normal((2, 500, 4)) @ mixing
    one[:, 0] = np.nan
    other[:, 1] = np.nan
    sites = {"a": Patterns.of(one), "b": Patterns.of(other)}
    state = _completed(sites)
    assert state.never_together[0, 1]
    assert state.never_together.sum() == 2
    assert state.by is not None
    K = np.linalg.inv(state.by.S)
    assert abs(K[0, 1]) / np.sqrt(K[0, 0] * K[1, 1]) < 1e-5
    assert abs(K[0, 2]) / np.sqrt(K[0, 0] * K[2, 2]) > 1e-3


def test_em_that_may_not_go_on_says_that_it_has_not_converged() -> None:
    state = _completed(_sites(6, 400, 0.5), most=3)
    assert state.done
    assert state.iterations == 3
    assert not state.has_converged


def test_em_converges_where_a_column_is_a_sum_of_others() -> None:
    rng = np.random.default_rng(7)
    X = rng.standard_normal((900, 5)) @ (rng.standard_normal((5, 5)) + 2.0 * np.eye(5))
    X[:, 4] = X[:, :3] @ [1.0, -2.0, 0.5]
    X[rng.random(X.shape) < 0.2] = np.nan
    sites = {site: Patterns.of(rows) for site, rows in zip("abc", np.split(X, 3), strict=True)}
    state = _completed(sites)
    assert state.has_converged
    assert state.by is not None
    S = _plain(sites, 250)
    size = np.sqrt(S.diagonal())
    assert np.abs((state.by.S - S) / size / size[:, None]).max() < 0.1 / np.sqrt(len(X))  # of a standard error


def test_a_column_without_variance_takes_no_part() -> None:
    sites = _sites(4, 200, 0.2)
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.standard_normal((200, 2)), np.zeros(200)])
    X[rng.random(X.shape) < 0.2] = np.nan
    sites = {"a": Patterns.of(X)}
    state = started(
        {"a": sites["a"].pair_products(own_means=True)},
        {"a": sites["a"].pair_counts},
        _NO_MEANS,
        np.array([True, True, False]),
    )
    assert state.by is not None
    assert not state.by.S[2].any()
    S, likelihood = _step(sites, state.by)
    state = advanced(state, S, _NO_MEANS, likelihood, last=False)
    assert state.by is not None
    assert not state.by.S[2].any()


def test_rows_count_in_full_only_where_no_value_is_missing() -> None:
    full = Completion({"a": np.full((3, 3), 50.0)})
    assert full.known_share == pytest.approx(1.0)
    half = Completion({"a": np.array([[50.0, 25.0], [25.0, 50.0]])})
    assert half.known_share == pytest.approx(0.5**1.5)
    assert half.known_share_of("a") == pytest.approx(0.5**1.5)
    lacking = np.array([[50.0, 50.0, 0.0], [50.0, 50.0, 0.0], [0.0, 0.0, 0.0]])
    two = Completion({"a": np.full((3, 3), 50.0), "b": lacking})
    assert two.known_share == pytest.approx((3 / (1 + 2 + 2)) ** 2.5)


def test_shared_means_become_those_of_the_greatest_likelihood() -> None:
    rng = np.random.default_rng(6)
    X = rng.standard_normal((300, 3)) @ (rng.standard_normal((3, 3)) + 2.0 * np.eye(3))
    X[rng.random(X.shape) < 0.3] = np.nan
    patterns = Patterns.of(X)
    state = started(
        {"a": patterns.pair_products(own_means=True)}, {"a": patterns.pair_counts}, np.zeros(3), np.ones(3, dtype=bool)
    )
    while not state.done:
        assert state.by is not None
        told = patterns.completed(state.by, own_means=False)
        last = state.iterations == 59
        state = advanced(state, told.moments, told.mean_residual, told.log_likelihood, last=last)
    assert state.has_converged
    assert state.by is not None
    own = patterns.completed(Covariances(state.by.S, _NO_MEANS), own_means=True)
    told = patterns.completed(state.by, own_means=False)
    assert own.log_likelihood == pytest.approx(told.log_likelihood, abs=0.05)


def test_what_a_site_has_of_its_own_stays_a_covariance_matrix() -> None:
    pooled, rows = np.array([[1.0, 0.5], [0.5, 2.0]]), np.array([[0.1, 0.0], [0.0, 2.0]])
    share = own_share(rows, pooled, 0.3)
    assert 0.3 < share < 1.0
    assert np.linalg.eigvalsh(pooled + (rows - pooled) / 0.3)[0] < 0.0
    assert np.linalg.eigvalsh(pooled + (rows - pooled) / share)[0] > 0.0
    assert own_share(0.9 * pooled, pooled, 0.3) == 0.3  # the known share, where that gives one
    assert own_share(rows, pooled, 1.0) == 1.0
    # Nor does a column that is a function of others, but for the rounding of float32.
    ends = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 2.0 - 1e-7]])
    assert own_share(0.9 * ends, ends, 0.3) == 0.3
    # A column without variance changes nothing.
    assert own_share(np.pad(rows, (0, 1)), np.pad(pooled, (0, 1)), 0.3) == share


def test_errors_are_wider_where_two_columns_are_rarely_together() -> None:
    n = np.full((4, 4), 100.0)
    n[0, 1] = n[1, 0] = 10.0
    told = Completion({"a": n})
    assert told.widening[0, 1] == pytest.approx(np.sqrt(told.known_share / 0.1))
    assert told.widening[0, 1] > 1.5
    assert told.widening[2, 3] == 1.0
    n[0, 1] = n[1, 0] = 0.0
    assert np.isinf(Completion({"a": n}).widening[0, 1])
