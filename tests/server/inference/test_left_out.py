"""Numbers of the other sites in the rows of one: against least squares on rows."""

import numpy as np
import pytest

from fedbnsl_server.inference.left_out import by_the_others

RNG = np.random.default_rng(4)
ROWS = {"a": 500, "b": 300, "c": 900}


def table(n: int, weight: float) -> np.ndarray:
    X = RNG.normal(size=(n, 3))
    X[:, 2] += weight * X[:, 0] - 0.5 * X[:, 1]
    return X - X.mean(axis=0)


TABLES = {site: table(n, 2.0 if site == "c" else 1.0) for site, n in ROWS.items()}
MOMENTS = {site: X.T @ X / len(X) for site, X in TABLES.items()}
SHARES = {site: np.ones(3) for site in ROWS}
FAMILIES = {"y": (2, [0, 1])}


def test_errors_are_those_of_least_squares_on_the_rows_of_the_others() -> None:
    found = by_the_others(MOMENTS, ROWS, SHARES, FAMILIES)["y"]
    for site, X in TABLES.items():
        others = np.vstack([T for other, T in TABLES.items() if other != site])
        b = np.linalg.lstsq(others[:, :2], others[:, 2], rcond=None)[0]
        noise = np.mean((others[:, 2] - others[:, :2] @ b) ** 2)
        errors = X[:, 2] - X[:, :2] @ b
        assert found[site].error == pytest.approx(np.mean(errors**2))
        assert found[site].variance == pytest.approx(X[:, 2].var())
        normal = -0.5 * (np.log(2 * np.pi * noise) + errors**2 / noise)
        alone = -0.5 * (np.log(2 * np.pi * X[:, 2].var()) + X[:, 2] ** 2 / X[:, 2].var())
        assert found[site].gain == pytest.approx(np.mean(normal - alone))
    assert found["c"].error > found["a"].error, "its weight is another one"


def test_a_site_that_lacks_values_takes_no_part() -> None:
    shares = SHARES | {"b": np.array([1.0, 0.85, 1.0])}
    found = by_the_others(MOMENTS, ROWS, shares, FAMILIES)["y"]
    assert list(found) == ["a", "c"]
    without = by_the_others({site: MOMENTS[site] for site in "ac"}, ROWS, SHARES, FAMILIES)["y"]
    assert found == without
    unknown = MOMENTS | {"b": np.where(np.eye(3, k=2) > 0, np.nan, MOMENTS["b"])}
    assert by_the_others(unknown, ROWS, SHARES, FAMILIES)["y"] == without


def test_of_one_site_or_of_a_child_without_noise_nothing_is_told() -> None:
    assert by_the_others({"a": MOMENTS["a"]}, ROWS, SHARES, FAMILIES) == {}
    S = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    assert by_the_others(dict.fromkeys(ROWS, S), ROWS, SHARES, FAMILIES) == {}
    constant = MOMENTS | {"a": np.zeros((3, 3))}
    assert "a" not in by_the_others(constant, ROWS, SHARES, FAMILIES)["y"]
