"""Rows predicted by a network, against conditional distributions in closed form."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from fedbnsl.errors import DataError, SetupError
from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Count, Levels, Number
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.network.prediction_file import write_predictions
from fedbnsl.network.predictions import predicted, scored
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_workbench.networks.rows import read_rows, rows_of_table

NONE = np.array([], dtype=np.int64)
# x -> y -> z, and d (yes or no) below x and z.
FAMILIES = {
    "x": Number(0, NONE, np.array([]), 1.0, 2.0),
    "y": Number(1, np.array([0]), np.array([0.5]), 0.0, 1.0),
    "z": Number(2, np.array([1]), np.array([-1.0]), 3.0, 0.5),
    "d": Levels(np.array([3]), np.array([0, 2]), np.array([[0.8], [-0.5]]), np.array([0.2]), by_odds=True),
}
DICTIONARY = {"x": {}, "y": {}, "z": {"unit": "mg"}, "d": {"kind": "binary", "levels": ["no", "yes"]}}
# Of x, y and z.
S = np.array([[4.0, 2.0, -2.0], [2.0, 2.0, -2.0], [-2.0, -2.0, 2.25]])
MEANS = np.array([1.0, 0.5, 2.5])


def fitted_by_hand() -> FittedNetwork:
    spread, means = np.append(np.sqrt(S.diagonal()), 0.5), np.append(MEANS, 0.5)
    columns, dictionary = Columns.of(["x", "y", "z", "d"]), Dictionary.model_validate(DICTIONARY)
    return FittedNetwork(BayesianNetwork(4, FAMILIES), columns, dictionary, means, spread, {"d": ["no", "yes"]})


FITTED = fitted_by_hand()


def drawn(n: int, seed: int = 1) -> Matrix:
    return FITTED.network.sample(n, np.random.default_rng(seed))


def conditional(target: int, known: list[int], values: Matrix) -> tuple[Matrix, float]:
    """Means, and the standard deviation, of a number given others alone."""
    weights = np.linalg.solve(S[np.ix_(known, known)], S[known, target])
    means = MEANS[target] + (values[:, known] - MEANS[known]) @ weights
    return means, float(np.sqrt(S[target, target] - weights @ S[known, target]))


def test_a_number_between_its_parent_and_its_child_follows_from_both() -> None:
    X = drawn(200)
    means, spread = conditional(1, [0, 2], X)
    X[:, 1] = np.nan  # what the row has of the target does not count
    found = predicted(FITTED, X, "y", np.random.default_rng(1))
    assert not found.by_draws.any()
    np.testing.assert_allclose(found.mean, means, atol=1e-3)
    np.testing.assert_allclose(found.high - found.low, 2 * 1.96 * spread, rtol=0.05)


def test_a_row_without_a_parent_is_predicted_from_draws_of_it() -> None:
    X = drawn(100)
    X[:, [0, 3]] = np.nan
    found = predicted(FITTED, X, "y", np.random.default_rng(1))
    means, _ = conditional(1, [2], X)
    assert found.by_draws.all()
    np.testing.assert_allclose(found.mean, means, atol=0.12)
    assert not found.few.any()


def test_what_is_known_below_says_something_of_levels_and_of_numbers() -> None:
    X = drawn(300)
    found = predicted(FITTED, X, "d", np.random.default_rng(1))
    np.testing.assert_allclose(found.probabilities[:, 1], expit(0.2 + 0.8 * X[:, 0] - 0.5 * X[:, 2]), atol=1e-9)
    yes, no = drawn(1), drawn(1)
    yes[:, 3], no[:, 3] = 1.0, 0.0
    assert (
        predicted(FITTED, yes, "x", np.random.default_rng(1)).mean[0]
        > predicted(FITTED, no, "x", np.random.default_rng(1)).mean[0] + 0.1
    )


@pytest.mark.parametrize("target", ["x", "y", "z"])
def test_intervals_hold_95_percent_of_values(target: str) -> None:
    X = drawn(3000, seed=5)
    found = predicted(FITTED, X, target, np.random.default_rng(1))
    told = scored(FITTED, found, X, target)
    assert told is not None
    assert 0.93 <= told["within"] <= 0.97
    k = "xyz".index(target)
    assert told["r2"] == pytest.approx(1.0 - np.mean((X[:, k] - found.mean) ** 2) / X[:, k].var())


def test_the_area_under_the_curve_is_that_of_others_who_compute_it() -> None:
    X = drawn(1000)
    found = predicted(FITTED, X, "d", np.random.default_rng(1))
    told = scored(FITTED, found, X, "d")
    assert told is not None
    assert told["auc"] == pytest.approx(roc_auc_score(X[:, 3], found.probabilities[:, 1]))
    assert told["log_probability"] > told["log_probability_of_shares"]


def test_what_the_row_has_of_the_target_does_not_count() -> None:
    X = drawn(20)
    other = X.copy()
    other[:, 1] += 7.0
    np.testing.assert_array_equal(
        predicted(FITTED, X, "y", np.random.default_rng(1)).mean,
        predicted(FITTED, other, "y", np.random.default_rng(1)).mean,
    )


def test_cells_are_read_in_the_words_of_the_dictionary_and_others_are_counted_as_missing() -> None:
    table: list[dict[str, str]] = [
        {"x": "1.5", "d": "yes", "ward": "A"},
        {"x": "", "d": "perhaps", "ward": "B"},
        {"x": "1e", "d": "no", "ward": ""},
    ]
    X, unread = rows_of_table(FITTED, table)
    assert unread == {"x": 1, "d": 1}
    np.testing.assert_array_equal(X[:, 0], [1.5, np.nan, np.nan])
    np.testing.assert_array_equal(X[:, 3], [1.0, np.nan, 0.0])
    assert np.isnan(X[:, 1:3]).all()
    with pytest.raises(SetupError, match="no column of the network"):
        rows_of_table(FITTED, [{"ward": "A"}])
    with pytest.raises(SetupError, match="'ward' is not a variable"):
        predicted(FITTED, X, "ward", np.random.default_rng(1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x,d,x\n1,yes,2\n", "has the column 'x' twice"),
        ("x,d\n1,yes\n2\n", "row 2 of .* has 1 cells; its header has 2"),
        ("x,d\n", "has a header and no row"),
        ("", "is empty"),
    ],
)
def test_files_that_are_no_table_are_refused_with_the_reason(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        read_rows(tmp_path / "table.csv")


def test_a_first_line_that_says_what_rows_are_is_no_header_and_later_cells_may_begin_like_it(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("# synthetic\nward,x\n#1,2\n\n#2,3\n")
    assert read_rows(tmp_path / "table.csv") == [{"ward": "#1", "x": "2"}, {"ward": "#2", "x": "3"}]


def test_the_file_has_a_row_for_each_of_the_table(tmp_path: Path) -> None:
    X = drawn(3)
    X[1, 3] = np.nan
    write_predictions(predicted(FITTED, X, "d", np.random.default_rng(1)), X, FITTED, "d", tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "row,d,probability of no,probability of yes"
    assert [line.split(",")[1] for line in lines[1:]] == ["yes" if X[0, 3] else "no", "", "yes" if X[2, 3] else "no"]


def test_rows_that_cannot_be_have_no_prediction() -> None:
    child = Levels(np.array([1]), np.array([0]), np.array([[2000.0]]), np.array([-1000.0]), by_odds=True)
    parent = Levels(np.array([0]), NONE, np.empty((0, 1)), np.array([0.0]), by_odds=True)
    grand = Levels(np.array([2]), np.array([1]), np.array([[2000.0]]), np.array([-1000.0]), by_odds=True)
    network: dict[str, Any] = {"a": parent, "b": child, "c": grand}
    words: dict[str, Any] = {name: {"kind": "binary", "levels": ["no", "yes"]} for name in "abc"}
    fitted = FittedNetwork(
        BayesianNetwork(3, network), Columns.of(list("abc")), Dictionary.model_validate(words), np.full(3, 0.5),
        np.full(3, 0.5), {name: ["no", "yes"] for name in "abc"},
    )  # fmt: skip
    X = np.array([[0.0, np.nan, 1.0], [1.0, np.nan, 1.0]])
    found = predicted(fitted, X, "b", np.random.default_rng(1))
    assert found.is_unknown.tolist() == [True, False]
    assert found.probabilities[1, 1] == pytest.approx(1.0)
    X[:, 1] = 1.0
    assert scored(
        fitted, predicted(fitted, np.vstack([X, X[1]]), "b", np.random.default_rng(1)), np.vstack([X, X[1]]), "b"
    ) == {"rows": 2, "log_probability": 0.0, "log_probability_of_shares": 0.0}


def test_rows_that_hardly_any_draw_is_like_are_said_to_be_rough() -> None:
    X = drawn(2)
    X[:, [0, 3]] = np.nan
    X[0, 2] = MEANS[2] + 5.0 * np.sqrt(S[2, 2])
    X[1, 2] = MEANS[2]
    assert predicted(FITTED, X, "y", np.random.default_rng(1)).few.tolist() == [True, False]


def test_a_number_is_predicted_within_its_range_however_much_the_others_tell() -> None:
    a = Number(0, NONE, np.array([]), 1.0, 1.0, 0.0, np.inf)
    b = Number(1, np.array([0]), np.array([1.0]), 0.0, 0.01)
    described = Dictionary.model_validate({"a": {"range": [0, 1000]}, "b": {}})
    fitted = FittedNetwork(
        BayesianNetwork(2, {"a": a, "b": b}), Columns.of(["a", "b"]), described, np.ones(2), np.ones(2), {}
    )
    found = predicted(fitted, np.array([[np.nan, 0.0]]), "a", np.random.default_rng(1))
    assert found.low[0] >= 0.0
    assert found.mean[0] == pytest.approx(0.01 * np.sqrt(2.0 / np.pi), rel=0.05)  # half of a normal distribution


@pytest.mark.parametrize("noise", [0.001, 0.02, 0.1, 0.5])
def test_intervals_are_those_of_the_normal_law_however_much_the_others_tell(noise: float) -> None:
    a = Number(0, NONE, np.array([]), 0.0, 1.0)
    b = Number(1, np.array([0]), np.array([1.0]), 0.0, noise)
    spread = np.array([1.0, np.sqrt(1.0 + noise**2)])
    described = Dictionary.model_validate({"a": {}, "b": {}})
    fitted = FittedNetwork(
        BayesianNetwork(2, {"a": a, "b": b}), Columns.of(["a", "b"]), described, np.zeros(2), spread, {}
    )
    X = np.array([[0.03, 0.03], [1.7, 1.7]])
    below = predicted(fitted, X, "b", np.random.default_rng(1))
    for end, expected in ((below.low, X[:, 0] - 1.96 * noise), (below.high, X[:, 0] + 1.96 * noise)):
        np.testing.assert_allclose(end, expected, rtol=0.0, atol=0.15 * noise)
    np.testing.assert_allclose(below.mean, X[:, 0], rtol=0.0, atol=0.01 * noise)
    above = predicted(fitted, X, "a", np.random.default_rng(1))
    shrunk, rest = 1.0 / (1.0 + noise**2), noise / np.sqrt(1.0 + noise**2)
    np.testing.assert_allclose(above.mean, X[:, 1] * shrunk, rtol=0.0, atol=0.01 * rest)
    np.testing.assert_allclose(above.high, X[:, 1] * shrunk + 1.96 * rest, rtol=0.0, atol=0.15 * rest)


def test_a_count_within_its_range_is_predicted_within_it() -> None:
    x = Number(0, NONE, np.array([]), 0.0, 1.0)
    k = Count(1, np.array([0]), np.array([0.0]), float(np.log(6.0)), "log1p", True, np.inf, 0.0, 10.0)
    described = Dictionary.model_validate({"x": {}, "k": {"kind": "count", "range": [0, 10]}})
    means, spread = np.array([0.0, 1.9]), np.array([1.0, 0.4])
    fitted = FittedNetwork(BayesianNetwork(2, {"x": x, "k": k}), Columns.of(["x", "k"]), described, means, spread, {})
    told = predicted(fitted, np.zeros((1, 2)), "k", np.random.default_rng(1))
    drawn_counts = np.minimum(np.random.default_rng(2).poisson(6.0, 200_000), 10)
    assert told.mean[0] == pytest.approx(drawn_counts.mean(), abs=0.02)
    assert (told.low[0], told.high[0]) == pytest.approx((2.0, 10.0))
