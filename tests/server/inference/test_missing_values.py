"""Means of rows with and without a value: alarms where values are missing at random hardly come by chance."""

import numpy as np
import pytest

from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.rounds.completion import LEAST_ROWS
from fedbnsl_client.losses.completed import Patterns
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.inference.missing_values import differences_of_means, unfit

D = 6
NAMES = [f"x{k}" for k in range(D)]


def found(*tables: Matrix, columns: Columns | None = None) -> dict[tuple[int, int], float]:
    """Adjusted p-values by the missing variable and the column that is compared."""
    patterns = {f"site-{k}": Patterns.of(X) for k, X in enumerate(tables)}
    told = Completion(
        {site: one.pair_counts for site, one in patterns.items()},
        differences={site: one.mean_differences(LEAST_ROWS) for site, one in patterns.items()},
    )
    pairs, p = differences_of_means(told, Columns.of(NAMES) if columns is None else columns, LEAST_ROWS)
    return {(v, c): one for (v, c), one in zip(pairs.tolist(), p.tolist(), strict=True)}


@pytest.mark.parametrize(
    ("complete", "rows", "d", "why"),
    [
        (500, 9000, 12, ""),
        (499, 9000, 12, "few"),
        (1000, 9000, 25, ""),
        (999, 9000, 25, "few"),
        (90, 110, 25, ""),
        (80, 110, 25, "few"),
    ],
)
def test_rows_without_a_gap_stand_for_all_where_they_are_many_or_most(
    complete: int, rows: int, d: int, why: str
) -> None:
    n, z = np.full((d, d), float(rows)), np.zeros((d, d))
    told = Completion({"a": n}, differences={"a": z}, complete_rows={"a": complete})
    assert unfit(told, Columns.of([f"x{k}" for k in range(d)]), rows, LEAST_ROWS) == why


def lacking(X: Matrix, chance: Matrix | float, rng: np.random.Generator) -> Matrix:
    return np.where(rng.random(X.shape) < chance, np.nan, X)


@pytest.mark.parametrize("values", ["normal", "skewed", "rare"])
@pytest.mark.parametrize("patterns", [30, None])
def test_an_alarm_comes_by_chance_in_at_most_a_twentieth_of_the_tables(values: str, patterns: int | None) -> None:
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(100):
        tables = []
        for _ in range(4):
            X = rng.standard_normal((300, D)) @ (np.eye(D) + np.eye(D, k=1))
            X = {"normal": X, "skewed": np.exp(X), "rare": (X > 3.0).astype(float)}[values]
            if patterns is None:
                tables.append(lacking(X, 0.2, rng))
            else:
                lacks = rng.random((patterns, D)) < 0.2
                tables.append(np.where(lacks[rng.integers(0, patterns, len(X))], np.nan, X))
        alarms += min(found(*tables).values()) < 0.05
    assert alarms <= 10  # 5 of 100 are expected at most; 11 or more have a chance of 1 %


@pytest.mark.parametrize("opposite", [False, True])
def test_a_mean_that_decides_about_gaps_is_found_though_sites_have_opposite_reasons(*, opposite: bool) -> None:
    rng, tables = np.random.default_rng(2), []
    for site in range(4):
        X = rng.standard_normal((300, D))
        chance = np.zeros(X.shape)
        chance[:, 2] = 0.2 + 0.15 * np.sign(X[:, 4]) * (-1) ** (site * opposite)
        tables.append(lacking(X, chance, rng))
    p = found(*tables)
    assert {pair for pair, one in p.items() if one < 0.05} == {(2, 4)}
    assert p[2, 4] < 1e-6
    assert {v for v, _ in p} == {2}, "no other variable is ever missing"


def test_columns_of_one_variable_are_one_reason_and_are_not_compared_with_each_other() -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, D))
    X[rng.random(200) < 0.3, 1:4] = np.nan
    columns = Columns.of(NAMES, dict.fromkeys(NAMES[1:4], "block"))
    assert found(X, columns=columns).keys() == {(1, 0), (1, 4), (1, 5)}


def test_few_rows_on_one_side_are_not_compared() -> None:
    X = np.random.default_rng(4).standard_normal((200, D))
    X[: LEAST_ROWS - 1, 0] = np.nan
    assert not found(X)
    X[:LEAST_ROWS, 0] = np.nan
    assert found(X).keys() == {(0, c) for c in range(1, D)}
