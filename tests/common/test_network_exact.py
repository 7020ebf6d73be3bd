"""Closed forms of a network against all combinations of levels, the normal law, and draws."""

import itertools

import numpy as np
import pytest

from fedbnsl.errors import SetupError
from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.exact import moments, probabilities
from fedbnsl.network.families import Family, Grade, Levels, Number, Table
from fedbnsl.protocol.sparse import Matrix

NONE = np.array([], dtype=np.int64)


def table(rng: np.random.Generator, *shape: int) -> Matrix:
    return rng.dirichlet(np.ones(shape[-1]), shape[:-1])


def discrete(seed: int) -> BayesianNetwork:
    """a (3 levels, columns 0 and 1) -> b; a, b -> c (grade); c -> d; b, d -> e (odds)."""
    rng = np.random.default_rng(seed)
    a, b, c, d = np.array([0, 1]), np.array([2]), np.array([3]), np.array([4])
    families: dict[str, Family] = {
        "a": Table(a, 3, (), table(rng, 3)),
        "b": Table(b, 2, ((a, 3),), table(rng, 3, 2)),
        "c": Grade(3, np.array([0, 1, 2]), rng.normal(size=3), 0.2, np.array([-1.0, 0.3, 1.2])),
        "d": Table(d, 2, ((c, 4),), table(rng, 4, 2)),
        "e": Levels(np.array([5, 6]), np.array([2, 4]), rng.normal(size=(2, 2)), rng.normal(size=2), by_odds=True),
    }
    return BayesianNetwork(7, families)


CODES = {
    "a": [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]],
    "b": [[0.0], [1.0]],
    "c": [[0.0], [1.0], [2.0], [3.0]],
    "d": [[0.0], [1.0]],
    "e": [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]],
}


def of_all_combinations(
    network: BayesianNetwork, target: str, known: dict[str, list[float]], set_to: dict[str, list[float]]
) -> Matrix:
    found = np.zeros(len(CODES[target]))
    for row in itertools.product(*CODES.values()):
        values = dict(zip(CODES, row, strict=True))
        if any(values[name] != value for name, value in {**known, **set_to}.items()):
            continue
        X = np.concatenate(row)[None, :]
        logs = [float(one.log_density(X)[0]) for name, one in network.families.items() if name not in set_to]
        found[CODES[target].index(values[target])] += np.exp(sum(logs))
    return np.asarray(found / found.sum())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("target", CODES)
@pytest.mark.parametrize(
    ("known", "set_to"),
    [
        ({}, {}),
        ({"e": [0.0, 1.0]}, {}),
        ({"d": [1.0], "a": [1.0, 0.0]}, {}),
        ({"e": [1.0, 0.0]}, {"c": [2.0]}),
        ({}, {"b": [1.0]}),
    ],
)
def test_levels_are_as_likely_as_all_combinations_say(
    seed: int, target: str, known: dict[str, list[float]], set_to: dict[str, list[float]]
) -> None:
    if target in {**known, **set_to}:
        return
    network = discrete(seed)
    told = probabilities(network, target, known, set_to)
    assert told is not None
    np.testing.assert_allclose(told, of_all_combinations(network, target, known, set_to), rtol=1e-12)


def test_a_long_chain_of_levels_has_no_long_factor() -> None:
    rng, columns = np.random.default_rng(3), [np.array([k]) for k in range(400)]
    families: dict[str, Family] = {"v0": Table(columns[0], 2, (), table(rng, 2))}
    for k in range(1, 400):
        families[f"v{k}"] = Table(columns[k], 2, ((columns[k - 1], 2),), table(rng, 2, 2))
    network, known = BayesianNetwork(400, families), {f"v{k}": [float(k % 2)] for k in range(1, 400)}
    told = probabilities(network, "v0", known, {})
    first, second = families["v0"], families["v1"]
    assert isinstance(first, Table)
    assert isinstance(second, Table)
    expected = first.table * second.table[:, 1]
    assert told == pytest.approx(expected / expected.sum(), rel=1e-12)
    chain = first.table
    for k in range(1, 400):
        one = families[f"v{k}"]
        assert isinstance(one, Table)
        chain = chain @ one.table
    assert probabilities(network, "v399", {}, {}) == pytest.approx(chain, rel=1e-10)


def test_values_that_never_occur_together_are_refused_and_numbers_left_to_draws() -> None:
    a, b = np.array([0]), np.array([1])
    families: dict[str, Family] = {
        "a": Table(a, 2, (), np.array([0.5, 0.5])),
        "b": Table(b, 2, ((a, 2),), np.eye(2)),
        "x": Number(2, a, np.array([1.0]), 0.0, 1.0),
        "c": Levels(np.array([3]), np.array([2]), np.array([[1.0]]), np.array([0.0]), by_odds=True),
    }
    network = BayesianNetwork(4, families)
    with pytest.raises(SetupError, match="never occurs in the network: 'a', 'b'"):
        probabilities(network, "c", {"a": [0.0], "b": [1.0], "x": [0.0]}, {}) or probabilities(
            BayesianNetwork(4, {k: families[k] for k in "ab"}), "a", {"a": [0.0], "b": [1.0]}, {}
        )
    assert probabilities(network, "c", {}, {}) is None
    assert probabilities(network, "b", {}, {}) == pytest.approx([0.5, 0.5])
    assert moments(network, "x", {}, {}) is None


def test_lines_follow_the_normal_law_and_what_is_set_has_no_causes() -> None:
    families: dict[str, Family] = {
        "x": Number(0, NONE, np.array([]), 1.0, 2.0),
        "y": Number(1, np.array([0]), np.array([0.5]), 0.0, 1.0),
        "z": Number(2, np.array([0, 1]), np.array([1.0, -1.0]), 3.0, 0.5),
        "bounded": Number(3, np.array([2]), np.array([1.0]), 0.0, 1.0, 0.0, 9.0),
    }
    network = BayesianNetwork(4, families)
    X = network.sample(400_000, np.random.default_rng(1))
    assert moments(network, "z", {}, {}) == pytest.approx((X[:, 2].mean(), X[:, 2].std()), abs=0.02)
    assert moments(network, "z", {}, {"y": [4.0]}) == pytest.approx((1.0 - 4.0 + 3.0, np.sqrt(4.0 + 0.25)))
    # y given z = 4: the slope and the rest of the regression of y on z.
    S = np.cov(X[:, 1], X[:, 2])
    expected = X[:, 1].mean() + S[0, 1] / S[1, 1] * (4.0 - X[:, 2].mean()), np.sqrt(S[0, 0] - S[0, 1] ** 2 / S[1, 1])
    assert moments(network, "y", {"z": [4.0]}, {}) == pytest.approx(expected, abs=0.02)
    assert moments(network, "bounded", {}, {}) is None
    assert moments(network, "x", {"bounded": [1.0]}, {}) is None
