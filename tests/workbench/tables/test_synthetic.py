"""Generated federations: reproducible to the byte, and drawn from the law that the paper states.

Statistical statements use fixed seeds and margins of at least four standard errors.
"""

import csv
import hashlib

import networkx as nx
import numpy as np
import pytest

from fedbnsl_workbench.tables.folder import write_federation
from fedbnsl_workbench.tables.synthetic import random_weights, sample, synthesise


def edges_of(W):
    return {(i, j) for i in range(len(W)) for j in range(len(W)) if W[i, j] != 0}


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("variance", [0.0, 0.1])
def test_the_same_seed_gives_the_same_bytes_in_memory_and_in_the_files(variance, tmp_path):
    one, other = (synthesise(7, 9, 3, 50, 5, weight_variance=variance) for _ in range(2))
    assert one.W.tobytes() == other.W.tobytes()
    assert [X.tobytes() for X in one.tables] == [X.tobytes() for X in other.tables]
    for federation, name in ((one, "one"), (other, "other")):
        write_federation(federation, tmp_path / name)
    files = bytes_of(tmp_path / "one")
    assert sorted(files) == ["site-1.csv", "site-2.csv", "site-3.csv", "truth.csv"]
    assert files == bytes_of(tmp_path / "other")


def test_another_seed_gives_another_graph_and_other_tables():
    drawn = [synthesise(20, 20, 2, 30, seed) for seed in range(6)]
    assert len({frozenset(edges_of(federation.W)) for federation in drawn}) == 6
    assert len({X.tobytes() for federation in drawn for X in federation.tables}) == 12, "sites differ, too"


def test_weights_lie_between_a_half_and_two_with_either_sign():
    rng = np.random.default_rng(11)
    weights = np.concatenate([W[W != 0] for W in (random_weights(20, 40, rng) for _ in range(50))])
    sizes = np.abs(weights)
    assert sizes.min() >= 0.5
    assert sizes.max() <= 2.0
    # Uniform on [0.5, 2]: every third of the interval has a third of about 2000 weights, and half of them are negative.
    assert weights.size > 1500
    in_thirds = np.histogram(sizes, bins=[0.5, 1.0, 1.5, 2.0])[0] / sizes.size
    assert in_thirds == pytest.approx([1 / 3] * 3, abs=4 * np.sqrt(2 / 9 / sizes.size))
    assert (weights < 0).mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(sizes.size))


def test_every_graph_is_acyclic():
    rng = np.random.default_rng(12)
    for d, edges in ((2, 1), (5, 9), (20, 20), (20, 190), (60, 400)):
        for _ in range(10):
            W = random_weights(d, edges, rng)
            assert nx.is_directed_acyclic_graph(nx.from_numpy_array(W != 0, create_using=nx.DiGraph))


@pytest.mark.parametrize(("d", "expected"), [(10, 10), (20, 20), (20, 60), (6, 15), (5, 0)])
def test_the_mean_number_of_edges_is_the_expected_one(d, expected):
    rng = np.random.default_rng(13)
    counts = [len(edges_of(random_weights(d, expected, rng))) for _ in range(400)]
    pairs = d * (d - 1) / 2
    variance = expected * (1 - expected / pairs)  # binomial over the pairs
    assert np.mean(counts) == pytest.approx(expected, abs=4 * np.sqrt(variance / 400))
    assert np.var(counts) == pytest.approx(variance, rel=0.35, abs=1e-12)


def test_no_pair_of_variables_and_no_direction_is_favoured():
    rng = np.random.default_rng(14)
    d, draws = 5, 4000
    counts = sum((random_weights(d, 4, rng) != 0).astype(int) for _ in range(draws))
    share = 4 / (d * (d - 1))  # a pair is adjacent with probability 4/10, either way alike
    expected = draws * share * (1 - np.eye(d))
    assert counts == pytest.approx(expected, abs=4.5 * np.sqrt(draws * share * (1 - share)))


def test_what_the_parents_leave_of_a_variable_is_independent_unit_noise():
    federation = synthesise(20, 40, 3, 20_000, 15)
    n = 20_000
    for X in federation.tables:
        noise = X - X @ federation.W
        assert noise.var(axis=0) == pytest.approx(np.ones(20), abs=4.5 * np.sqrt(2 / n))
        assert noise.mean(axis=0) == pytest.approx(np.zeros(20), abs=4.5 / np.sqrt(n))
        correlations = np.corrcoef(noise.T) - np.eye(20)
        assert np.abs(correlations).max() < 5 / np.sqrt(n)
    assert any(X.var(axis=0).max() > 2 for X in federation.tables), "the variables themselves are not unit noise"


def test_unequal_noise_is_one_standard_deviation_a_variable_from_its_range():
    federation = synthesise(12, 15, 2, 4000, 3, noise_range=(0.5, 2.0))
    noise = [X - X @ federation.W for X in federation.tables]
    found = [residual.std(axis=0) for residual in noise]
    assert found[0] == pytest.approx(found[1], rel=0.08)
    assert found[0].min() > 0.45
    assert found[0].max() < 2.1
    assert found[0].max() > 1.5 * found[0].min()


def test_small_effects_are_the_same_graph_with_every_weight_multiplied() -> None:
    whole, small = (synthesise(6, 9, 1, 40, 3, weight_size=size) for size in (1.0, 0.3))
    np.testing.assert_allclose(small.W, 0.3 * whole.W)
    X = small.tables[0]
    for j in np.flatnonzero(~(small.W != 0).any(axis=0)):
        np.testing.assert_array_equal(X[:, j], whole.tables[0][:, j])
    residuals = [table @ (np.eye(6) - W) for table, W in ((X, small.W), (whole.tables[0], whole.W))]
    np.testing.assert_allclose(*residuals, atol=1e-9)


def test_a_child_is_the_weighted_sum_of_its_parents_and_its_own_noise():
    W = np.zeros((4, 4))
    W[2, 0], W[3, 0], W[0, 1] = 1.5, -0.7, 2.0
    X = sample(W, 30, np.random.default_rng(16))
    noise = np.random.default_rng(16).standard_normal((30, 4))
    for row, e in zip(X, noise, strict=True):
        x2, x3 = e[2], e[3]
        x0 = 1.5 * x2 - 0.7 * x3 + e[0]
        x1 = 2.0 * x0 + e[1]
        assert row == pytest.approx([x0, x1, x2, x3])


@pytest.mark.parametrize("variance", [0.01, 0.1])
def test_heterogeneous_sites_draw_their_weights_around_the_common_ones_with_the_given_variance(variance):
    n_sites, n = 40, 2000
    federation = synthesise(8, 10, n_sites, n, 17, weight_variance=variance)
    gaps = []
    for X in federation.tables:
        for j in range(8):
            parents = np.flatnonzero(federation.W[:, j])
            if parents.size:
                fitted = np.linalg.lstsq(X[:, parents], X[:, j], rcond=None)[0]
                gaps.extend(fitted - federation.W[parents, j])
    # Regression adds an error of its own, of variance at most 1/n here: negligible.
    assert np.var(gaps) == pytest.approx(variance, rel=4 * np.sqrt(2 / len(gaps)) + 0.1)
    assert np.mean(gaps) == pytest.approx(0, abs=4 * np.sqrt(variance / len(gaps)))


def test_without_heterogeneity_all_sites_have_the_common_weights():
    federation = synthesise(6, 8, 3, 20_000, 18)
    for X in federation.tables:
        for j in range(6):
            parents = np.flatnonzero(federation.W[:, j])
            if parents.size:
                fitted = np.linalg.lstsq(X[:, parents], X[:, j], rcond=None)[0]
                assert fitted == pytest.approx(federation.W[parents, j], abs=0.05)


def test_heterogeneous_sites_share_the_graph():
    federation = synthesise(6, 8, 2, 20_000, 19, weight_variance=0.1)
    for X in federation.tables:
        for j in range(6):
            parents = np.flatnonzero(federation.W[:, j])
            unexplained = X[:, j]
            if parents.size:
                unexplained = X[:, j] - X[:, parents] @ np.linalg.lstsq(X[:, parents], X[:, j], rcond=None)[0]
            assert unexplained.var() == pytest.approx(1, abs=0.05), "nothing but unit noise is left beside the parents"


@pytest.mark.parametrize("variance", [0.0, 0.1])
def test_the_weights_kept_of_a_site_leave_nothing_but_its_own_noise(variance):
    federation = synthesise(6, 8, 3, 20_000, 21, weight_variance=variance)
    assert len(federation.site_weights) == 3
    for X, W in zip(federation.tables, federation.site_weights, strict=True):
        assert edges_of(W) == edges_of(federation.W)
        assert (X - X @ W).var(axis=0) == pytest.approx(np.ones(6), abs=4.5 * np.sqrt(2 / 20_000))
    distinct = {W.tobytes() for W in federation.site_weights}
    assert len(distinct) == (1 if variance == 0 else 3)


def test_the_tables_of_a_seed_are_those_of_earlier_versions():
    # Results that were published with a seed stay reproducible; the digest is of the first version that drew any.
    federation = synthesise(6, 8, 3, 40, 5, weight_variance=0.1)
    drawn = b"".join(np.round(X, 9).tobytes() for X in (federation.W, *federation.tables))
    assert hashlib.sha256(drawn).hexdigest() == "67852e5d5d30f1d86a6f3a93c8d1fef412ae7af8e3f9a68e25659664e1448c72"


def test_the_truth_file_lists_every_edge_with_its_exact_weight(tmp_path):
    federation = synthesise(12, 15, 2, 25, 20)
    write_federation(federation, tmp_path / "data")
    with (tmp_path / "data" / "truth.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["source", "target", "weight"]
    position = {name: k for k, name in enumerate(federation.variables)}
    listed = {(position[source], position[target]): float(weight) for source, target, weight in rows}
    assert len(listed) == len(rows) > 0
    assert listed == {(i, j): federation.W[i, j] for i, j in edges_of(federation.W)}


def test_the_tables_are_written_to_the_last_bit_under_the_names_of_the_variables(tmp_path):
    federation = synthesise(4, 4, 2, 25, 21)
    paths = write_federation(federation, tmp_path / "data")
    assert [path.name for path in paths] == ["site-1.csv", "site-2.csv"]
    for path, X in zip(paths, federation.tables, strict=True):
        header, *rows = path.read_text(encoding="utf-8").splitlines()
        assert header.split(",") == list(federation.variables)
        assert [[float(x) for x in row.split(",")] for row in rows] == X.tolist()


@pytest.mark.parametrize(
    ("d", "first", "last"), [(2, "X1", "X2"), (9, "X1", "X9"), (10, "X01", "X10"), (120, "X001", "X120")]
)
def test_variables_are_numbered_from_one_with_leading_zeros_so_that_they_sort_in_order(d, first, last):
    names = synthesise(d, 1, 1, 2, 0).variables
    assert (names[0], names[-1], len(set(names))) == (first, last, d)
    assert list(names) == sorted(names)
