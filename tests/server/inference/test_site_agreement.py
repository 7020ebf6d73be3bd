"""Whether sites agree: no alarm on tables of one law whatever it is, and the right site named where one differs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl_server.inference.site_agreement import Agreement, site_agreement
from fedbnsl_server.search.dependent_rows import DependentRows
from fedbnsl_server.search.linear_network import Accuracy, SiteMoments, fitted
from fedbnsl_server.search.squared_residuals import SquaredResiduals

Draw = Callable[[np.random.Generator, int], np.ndarray]
COLUMNS = Columns.of(["a", "b", "c", "d"])
# b -> a, b -> c, c -> d; tables are drawn from a -> b -> c -> d, so that one edge is turned, as in a class it may be.
DAG = np.zeros((4, 4), dtype=bool)
DAG[[1, 1, 2], [0, 2, 3]] = True
WEIGHTS = np.zeros((4, 4))
WEIGHTS[[0, 1, 2], [1, 2, 3]] = 0.6, 0.7, 0.8


def chain(rng: np.random.Generator, noise: Callable[[int], np.ndarray], n: int) -> np.ndarray:
    X = np.column_stack([noise(n) for _ in range(4)])
    for k in range(3):
        X[:, k + 1] += 0.7 * X[:, k]
    return X


def gaussian(rng: np.random.Generator, n: int) -> np.ndarray:
    return chain(rng, rng.standard_normal, n)


def t3(rng: np.random.Generator, n: int) -> np.ndarray:
    return chain(rng, lambda size: rng.standard_t(3, size), n)


def t2(rng: np.random.Generator, n: int) -> np.ndarray:
    """No fourth moment exists, nor a variance."""
    return chain(rng, lambda size: rng.standard_t(2, size), n)


def exponential(rng: np.random.Generator, n: int) -> np.ndarray:
    return chain(rng, lambda size: rng.exponential(size=size), n)


def rare_twins(rng: np.random.Generator, n: int) -> np.ndarray:
    """Two events of 1 in 100 that mostly come together, and two common ones."""
    b = rng.random(n) < 0.01
    a = np.where(rng.random(n) < 0.6, b, rng.random(n) < 0.005)
    c = rng.random(n) < np.where(b, 0.7, 0.3)
    d = rng.random(n) < np.where(c, 0.6, 0.4)
    return np.column_stack([a, b, c, d]).astype(float)


def rare_event(rng: np.random.Generator, n: int) -> np.ndarray:
    """d happens to 3 in 100 or so, mostly where c is large."""
    X = gaussian(rng, n)
    X[:, 3] = rng.random(n) < 1 / (1 + np.exp(5.5 - 1.5 * X[:, 2]))
    return X


LAWS: list[tuple[Draw, list[bool]]] = [
    (gaussian, [False] * 4),
    (t3, [False] * 4),
    (t2, [False] * 4),
    (exponential, [False] * 4),
    (rare_twins, [True] * 4),
    (rare_event, [False, False, False, True]),
]


def agreement(tables: list[np.ndarray], levels: list[bool], dag: np.ndarray = DAG) -> Agreement:
    rows = [len(X) for X in tables]
    S = [np.cov(X.T, bias=True) for X in tables]
    pooled = np.average(S, axis=0, weights=rows)
    network = fitted(dag, pooled, COLUMNS)
    sites = [
        SiteMoments(one, Accuracy(len(X) - 1), SquaredResiduals(WEIGHTS, squares(X)))
        for one, X in zip(S, tables, strict=True)
    ]
    return site_agreement(network, pooled, sites, COLUMNS, np.where(levels, pooled.diagonal(), np.nan))


def squares(X: np.ndarray) -> np.ndarray:
    """What a site tells of its residuals under weights that are near those of the graph, and have one edge turned."""
    e = ((X - X.mean(axis=0)) @ (np.eye(4) - WEIGHTS)) ** 2
    size = e.mean(axis=0)
    size[size == 0.0] = 1.0
    return e.T @ e / len(X) / size / size[:, None]


@pytest.mark.parametrize(("law", "levels"), LAWS)
@pytest.mark.parametrize("n_sites", [3, 8])
def test_sites_of_one_law_are_not_said_to_differ(law: Draw, levels: list[bool], n_sites: int) -> None:
    """With errors as if rows were normal, 0, 39, 60, 11, 55 and 2 of 60 federations of three sites raise an alarm."""
    alarms = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        alarms += agreement([law(rng, 500) for _ in range(n_sites)], levels).p().min() < 0.01
    assert alarms <= 4  # 0.6 expected


@pytest.mark.parametrize("law", [gaussian, exponential, t3, t2])
@pytest.mark.parametrize("n_sites", [3, 8])
def test_the_site_that_has_the_opposite_effect_is_named_alone(law: Draw, n_sites: int) -> None:
    right = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        tables = [law(rng, 1500) for _ in range(n_sites)]
        tables[1][:, 2] *= -1.0
        found = agreement(tables, [False] * 4)
        odd = found.odd_site()
        assert odd in (None, 1)
        if odd == 1:
            right += 1
            assert 2 in found.where_odd(1) or law is t2
    assert right >= (12 if law is t2 else 15)


def test_yes_and_no_swapped_at_one_site_names_it_though_no_distance_of_moments_is_large() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        tables = [gaussian(rng, 600) for _ in range(3)]
        for X in tables:
            X[:, 2] = X[:, 2] > 0.0
        tables[2][:, 2] = 1.0 - tables[2][:, 2]
        assert agreement(tables, [False, False, True, False]).odd_site() == 2


@pytest.mark.parametrize("n_sites", [3, 8])
def test_a_column_in_another_unit_at_one_site_does_not_hide_what_is_swapped_between_others(n_sites: int) -> None:
    """The unit multiplies a or d by 18."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        tables = [gaussian(rng, 450) for _ in range(n_sites)]
        for X in tables:
            X[:, 2] = X[:, 2] > 0.0
        tables[0][:, 2] = 1.0 - tables[0][:, 2]
        tables[0][:, [0, 3][seed % 2]] *= 18.0
        assert [1, 2] in agreement(tables, [False, False, True, False]).where_odd(0).tolist()


def test_sites_that_all_differ_and_two_sites_name_nobody() -> None:
    rng = np.random.default_rng(0)
    tables = [gaussian(rng, 2000) for _ in range(3)]
    for effect, X in zip((-1.0, 0.0, 1.0), tables, strict=True):
        X[:, 2] += effect * X[:, 1]
    found = agreement(tables, [False] * 4)
    assert found.p().min() < 1e-6
    assert found.odd_site() is None
    assert agreement(tables[:2], [False] * 4).odd_site() is None


def test_an_effect_without_an_edge_that_one_site_has_is_found_between_residuals() -> None:
    rng = np.random.default_rng(1)
    tables = [gaussian(rng, 3000) for _ in range(3)]
    tables[0][:, 3] += 0.5 * tables[0][:, 0]
    assert [0, 3] in agreement(tables, [False] * 4).differing().tolist()


def test_a_site_has_its_own_regressions_and_a_column_that_does_not_vary_there_has_none() -> None:
    rng = np.random.default_rng(6)
    tables = [gaussian(rng, 500) for _ in range(2)]
    tables[1][:, 1] = 0.0
    estimates, errors = agreement(tables, [False] * 4).of_edges()
    edges = np.argwhere(DAG).tolist()
    for k, (i, j) in enumerate(edges):
        X = tables[0] - tables[0].mean(axis=0)
        assert estimates[0, k] == pytest.approx(X[:, i] @ X[:, j] / (X[:, i] @ X[:, i]))
        assert np.isnan(estimates[1, k]) == np.isnan(errors[1, k]) == (1 in (i, j))


def test_the_error_of_a_coefficient_is_what_normal_rows_show() -> None:
    rng, estimates, errors = np.random.default_rng(3), [], []
    for _ in range(300):
        found = agreement([gaussian(rng, 400) for _ in range(3)], [False] * 4).of_edges()
        estimates.append(found[0][0])
        errors.append(found[1][0])
    assert np.median(errors, axis=0) == pytest.approx(np.std(estimates, axis=0), rel=0.12)


def test_a_site_with_too_few_events_tells_nothing_at_edges_of_their_column() -> None:
    rng = np.random.default_rng(4)
    tables = [rare_event(rng, n) for n in (2000, 2000, 300)]
    estimates, _ = agreement(tables, [False, False, False, True]).of_edges()
    assert np.isnan(estimates).tolist() == [[False] * 3, [False] * 3, [False, False, True]]


def with_a_rare_level(rng: np.random.Generator, n: int, effect: float = 0.5) -> np.ndarray:
    """c by a, by the level b that half of the rows have, and by the level d of 7 in 1000."""
    level = rng.choice(3, size=n, p=[0.5, 0.493, 0.007])
    a = rng.standard_normal(n)
    c = effect * a + 0.4 * (level == 1) + (level == 2) + rng.standard_normal(n)
    return np.column_stack([a, level == 1, c, level == 2]).astype(float)


def test_a_rare_level_does_not_keep_the_other_edges_of_its_family_from_being_compared() -> None:
    dag = np.zeros((4, 4), dtype=bool)
    dag[[0, 1, 3], 2] = True

    def found(rng: np.random.Generator, effects: list[float]) -> Agreement:
        return agreement([with_a_rare_level(rng, 1000, one) for one in effects], [False, True, False, True], dag)

    alarms = sum(found(np.random.default_rng(seed), [0.5] * 4).p().min() < 0.01 for seed in range(60))
    assert alarms <= 4  # 0.6 expected
    odd = found(np.random.default_rng(0), [0.5, 0.5, 0.5, 1.2])
    told = dict(zip(map(tuple, odd.pairs.tolist()), np.isfinite(odd.estimates).all(axis=0).tolist(), strict=True))
    assert told[0, 2]
    assert told[1, 2]
    assert not told[3, 2]
    assert odd.odd_site() == 3


def test_levels_that_are_compared_with_a_rare_one_are_not_compared_between_sites() -> None:
    """What the other level leaves of a common level is the rare reference: a handful of rows."""
    dag = np.zeros((4, 4), dtype=bool)
    dag[[0, 1, 3], 2] = True
    tables = list[np.ndarray]()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        level = rng.choice(3, size=1000, p=[0.005, 0.6, 0.395])
        a, noise = rng.standard_normal((2, 1000))
        tables.append(np.column_stack([a, level == 1, 0.5 * a + 0.4 * (level == 1) + noise, level == 2]).astype(float))
    found = agreement(tables, [False, True, False, True], dag)
    told = dict(zip(map(tuple, found.pairs.tolist()), np.isfinite(found.estimates).any(axis=0).tolist(), strict=True))
    assert (told[0, 2], told[1, 2], told[3, 2]) == (True, False, False)


def test_a_site_is_not_named_where_nothing_tells_that_the_others_agree() -> None:
    """Two pairs, each told by the first site and one other: without the first site nothing is compared."""
    nan = np.nan
    estimates = np.array([[0.0, 0.0], [9.0, nan], [nan, 9.0]])
    told = Agreement(np.array([[0, 1], [0, 2]]), 2, estimates, np.where(np.isnan(estimates), nan, 1.0))
    assert told.p().min() < 1e-6
    assert told.odd_site() is None


def test_families_are_compared_among_the_sites_that_have_all_of_their_columns() -> None:
    """b -> a, b -> c, c -> d; the last site lacks c. Its a given b is its own regression, as with all columns."""
    rng = np.random.default_rng(7)
    tables = [gaussian(rng, 500) for _ in range(3)]
    whole = agreement(tables, [False] * 4).of_edges()
    S = [np.cov(X.T, bias=True) for X in tables]
    S[2][2] = S[2][:, 2] = np.nan
    pooled = np.mean(S[:2], axis=0)
    sites = [SiteMoments(one, Accuracy(499)) for one in S]
    found = site_agreement(fitted(DAG, pooled, COLUMNS), pooled, sites, COLUMNS)
    estimates, errors = found.of_edges()
    assert np.isnan(estimates).tolist() == np.isnan(errors).tolist() == [[False] * 3] * 2 + [[False, True, True]]
    assert estimates[2, 0] == pytest.approx(whole[0][2, 0])
    assert found.q()[1].tolist() == [2, 1, 1]
    apart = np.isnan(found.estimates[2, 3:]).tolist()
    assert found.pairs[3:][~np.array(apart)].tolist() == []  # a, c; a, d; b, d: each has c or a child of c


def test_the_odd_site_is_named_though_one_of_the_others_lacks_a_column_of_what_differs() -> None:
    """The first site differs in two pairs; one of them only two sites have, which alone name nobody."""
    nan = np.nan
    estimates = np.array([[9.0, 9.0], [0.0, 0.0], [0.0, nan]])
    told = Agreement(np.array([[0, 1], [0, 2]]), 2, estimates, np.where(np.isnan(estimates), nan, 1.0))
    assert told.odd_site() == 0
    assert replace(told, estimates=estimates[:, 1:], errors=told.errors[:, 1:], n_edges=1).odd_site() is None


def alone(estimates: list[float]) -> Agreement:
    """Sites with these estimates of one coefficient, each with an error of 1."""
    return Agreement(np.array([[0, 1]]), 1, np.array(estimates)[:, None], np.ones((len(estimates), 1)))


def test_a_site_is_named_only_where_the_others_agree_well() -> None:
    """Of two sites, Q = difference^2 / 2 on one degree of freedom: 0.5 has p = .48, and 6 has p = .014."""
    assert alone([20.0, 0.0, 1.0]).odd_site() == 0
    assert alone([20.0, 0.0, 12.0**0.5]).odd_site() is None


EMPTY = np.zeros((4, 4), dtype=bool)


def of_moments(
    S: list[np.ndarray],
    rows: int,
    dag: np.ndarray = EMPTY,
    *,
    columns: Columns = COLUMNS,
    levels: bool = False,
    dependent: DependentRows | None = None,
) -> Agreement:
    """Sites of equal rows with these moments; all columns with levels or none."""
    pooled = np.mean(S, axis=0)
    sites = [SiteMoments(one, Accuracy(rows, dependent=dependent)) for one in S]
    return site_agreement(
        fitted(dag, pooled, columns),
        pooled,
        sites,
        columns,
        pooled.diagonal() if levels else np.full(len(pooled), np.nan),
    )


def test_errors_of_edges_and_of_other_pairs_grow_where_rows_depend_on_each_other() -> None:
    """By the root of 1 + k times the product of both ICCs, as columns are independent."""
    dag, icc = EMPTY.copy(), np.array([0.5, 0.9, 0.8, 0.2])
    dag[0, 1] = True
    plain = of_moments([np.eye(4)] * 3, 1000, dag)
    grown = of_moments([np.eye(4)] * 3, 1000, dag, dependent=DependentRows(4.0, np.diag(icc)))
    i, j = plain.pairs.T
    assert len(i) == 6
    assert (grown.errors / plain.errors)[0] == pytest.approx(np.sqrt(1.0 + 4.0 * icc[i] * icc[j]))


def test_errors_are_those_of_white_also_under_weights_that_a_search_has_left_since() -> None:
    """The sizes of all columns of a row go together: products of residuals vary more than those of independent ones."""
    rng = np.random.default_rng(8)
    tables = []
    for _ in range(3):
        X = rng.standard_normal((20_000, 4)) * rng.uniform(0.1, 1.0, (20_000, 1))
        X[:, 2] += 0.7 * X[:, 1]
        tables.append(X - X.mean(axis=0))
    found = agreement(tables, [False] * 4)
    edge, apart = (found.pairs.tolist().index(pair) for pair in ([1, 2], [0, 3]))
    for X, errors in zip(tables, found.errors, strict=True):
        a, z, c, d = X.T
        r = c - z * (z @ c) / (z @ z)
        assert errors[edge] == pytest.approx((z**2 @ r**2) ** 0.5 / (z @ z), rel=0.1)
        assert errors[apart] == pytest.approx((a**2 @ d**2) ** 0.5 / len(X), rel=0.1)
        assert errors[apart] > 1.2 * a.std() * d.std() / len(X) ** 0.5, "as if rows were normal"


def test_a_row_that_a_site_s_regression_goes_through_does_not_make_it_sure() -> None:
    rng = np.random.default_rng(9)
    tables = [gaussian(rng, 500) for _ in range(3)]
    tables[2][0, 1:3] = 3000.0, 500.0
    found = agreement(tables, [False] * 4)
    edge = found.pairs.tolist().index([1, 2])
    assert found.estimates[2, edge] == pytest.approx(1 / 6, rel=0.01)
    assert found.p()[edge] > 0.01


def test_a_covariance_of_rare_twins_without_an_edge_is_as_inexact_as_it_is() -> None:
    """Of columns a = b that are 1 with chance p, z^2 r^2 has the mean p (1 - p) ((1 - p)^3 + p^3)."""
    p = 0.02
    v = p * (1.0 - p)
    S = np.where(np.add.outer(range(4), range(4)) == 1, v, np.diag([v] * 4))  # a and b are one
    told = of_moments([S] * 3, 40_000, levels=True)
    true = ((v * ((1.0 - p) ** 3 + p**3) - v**2) / 40_000) ** 0.5
    assert true <= told.errors[0, told.pairs.tolist().index([0, 1])] <= 2.0 * true


def test_a_site_that_its_rows_happen_to_fit_is_no_surer_than_all_sites_make_it() -> None:
    """a -> b, and no residual at the last site: its error has the residual variance of all."""
    dag = EMPTY.copy()
    dag[0, 1] = True
    S = [np.eye(4) for _ in range(3)]
    S[2][0, 1] = S[2][1, 0] = 1.0 - 1e-9
    residual = 1.0 - np.mean(S, axis=0)[0, 1] ** 2
    told = of_moments(S, 1000, dag)
    assert told.errors[2, 0] >= (residual / 1000) ** 0.5
    assert told.errors[2, told.pairs.tolist().index([1, 2])] >= (residual / 1000) ** 0.5


def test_levels_of_one_variable_are_not_compared_with_each_other() -> None:
    columns = Columns.of(["k=1", "k=2", "x"], {"k=1": "k", "k=2": "k", "x": "x"})
    told = of_moments([np.eye(3) * 0.2] * 3, 1000, np.zeros((2, 2), dtype=bool), columns=columns)
    assert told.pairs.tolist() == [[0, 2], [1, 2]]


def test_a_site_with_too_few_events_tells_nothing_of_pairs_of_their_column_without_an_edge() -> None:
    rng = np.random.default_rng(4)
    tables = [rare_event(rng, n) for n in (2000, 2000, 300)]
    found = agreement(tables, [False, False, False, True])
    assert found.pairs[3:].tolist() == [[0, 2], [0, 3], [1, 3]]
    assert np.isnan(found.estimates[:, 3:]).tolist() == [[False] * 3, [False] * 3, [False, True, True]]


@pytest.mark.parametrize(("p", "tells"), [(0.08, False), (0.12, True)])
@pytest.mark.parametrize("with_edge", [True, False])
def test_two_rare_columns_are_compared_only_where_both_are_expected_in_ten_rows(
    p: float, *, tells: bool, with_edge: bool
) -> None:
    """Each happens in more than 20 of 1,000 rows; both together in 6.4 or 14.4 if they are independent."""
    dag = EMPTY.copy()
    dag[0, 1] = with_edge
    told = of_moments([np.eye(4) * p * (1.0 - p)] * 3, 1000, dag, levels=True)
    assert np.isfinite(told.estimates[:, told.pairs.tolist().index([0, 1])]).tolist() == [tells] * 3
