"""The search with equal noise variances in all releases: what noise hides from a single search, and what it obeys."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.search.private import equal_variance_search
from fedbnsl_server.search.private.combined_releases import released
from fedbnsl_server.search.private.equal_variance_search import EqualVarianceSearch, Learned
from fedbnsl_server.search.private.released_likelihood import Release
from fedbnsl_server.search.progress import Progress
from fedbnsl_workbench.tables.synthetic import random_weights

D, ROWS = 20, 1e9
NAMES = [f"x{k}" for k in range(D)]


def network(seed: int, noise_std: Matrix | float = 1.0) -> tuple[Matrix, Matrix]:
    W = random_weights(D, D, np.random.default_rng(seed))
    back = np.linalg.inv(np.eye(D) - W)
    return W, back.T @ (back * (np.ones((D, 1)) * np.reshape(noise_std, (-1, 1))) ** 2)


def asked_with(S: Matrix, W: Matrix, scales: Matrix, std: float, seed: int, size: Matrix | None = None) -> Release:
    E = np.random.default_rng(seed).standard_normal((D, D))
    unit = np.ones(D) if size is None else size
    A = (np.eye(D) - W) / scales
    S_z = A.T @ (S / unit / unit[:, None]) @ A + std * (E + E.T) / np.sqrt(2.0)
    return released(S_z, noise_std=std, W=W, scales=scales, norm_bound=1e3)


def searched(
    releases: Sequence[Release], scales: Matrix, *, knowledge: Knowledge | None = None, **options: object
) -> Learned:
    mask = EdgeMask(knowledge or Knowledge(), NAMES)
    search = EqualVarianceSearch(mask, **{"threshold": 0.3, "last": True, **options})  # type: ignore[arg-type]
    return search.found(releases, ROWS, np.zeros((D, D), dtype=bool), scales)


def wrong(found: Learned, W: Matrix) -> int:
    """Pairs whose edge differs."""
    differs = found.graph.dag != (W != 0)
    return int(np.triu(differs | differs.T).sum())


def test_the_likelihood_finds_what_noise_hides_from_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases in residuals of no graph, with noise that hides most correlations; seeds not tuned on."""

    def errors() -> int:
        total = 0
        for seed in range(1, 5):
            W, S = network(seed)
            scales = np.sqrt(S.diagonal())
            releases = [asked_with(S, np.zeros((D, D)), scales, 0.12, 100 * seed + k) for k in range(2)]
            total += wrong(searched(releases, scales), W)
        return total

    full = errors()
    monkeypatch.setattr(EqualVarianceSearch, "_explained", lambda *_, **__: None)
    plain = errors()
    assert 2 * full <= plain


def test_all_releases_count() -> None:
    W, S = network(7)
    scales = np.sqrt(S.diagonal())
    few, many = (
        [asked_with(S, np.zeros((D, D)), scales, 0.03, seed) for seed in range(start, start + size)]
        for start, size in ((0, 1), (10, 8))
    )
    errors = [np.abs(searched(releases, scales).graph.weights - W).max() for releases in (few, many)]
    assert errors[1] < errors[0]
    assert wrong(searched(many, scales), W) == 0


@pytest.mark.long
def test_unequal_variances_keep_the_searched_graph() -> None:
    """A model that the releases contradict decides nothing."""
    rng = np.random.default_rng(0)
    _, S = network(3, rng.uniform(0.5, 2.0, D))
    scales = np.sqrt(S.diagonal())
    release = asked_with(S, np.zeros((D, D)), scales, 0.003, 1)
    mask = EdgeMask(Knowledge(), NAMES)
    search = EqualVarianceSearch(mask, 0.3, last=True)
    given = equal_variance_search.combined([release], ROWS, release.A)
    graph = search.searched(equal_variance_search._pooled(given), np.zeros((D, D), dtype=bool), scales)
    assert search._explained([release], ROWS, graph, S, clear=False, progress=Progress()) is None
    found = searched([release], scales)
    assert (found.graph.dag == graph.dag).all()
    assert found.graph.weights == pytest.approx(graph.weights)
    assert (found.asked == scales).all()


def clipped(S: Matrix, W: Matrix, scales: Matrix, *, norm_bound: float, constant: float, whole: float) -> Release:
    """The release of many records, of which a share has no missing value; the others count as zeros."""
    A = (np.eye(D) - W) / scales
    Z = np.random.default_rng(0).standard_normal((200_000, D)) @ np.linalg.cholesky(A.T @ S @ A).T
    w = np.minimum(1.0, norm_bound**2 / ((Z**2).sum(axis=1) + constant**2))
    told = whole * float(w.mean()) if constant else math.nan
    S_z = whole * (Z * w[:, None]).T @ Z / len(Z)
    return released(S_z, noise_std=0.005, W=W, scales=scales, weight=told, norm_bound=norm_bound, constant=constant)


@pytest.mark.parametrize("constant", [0.0, math.sqrt(D / 10)])
@pytest.mark.parametrize("last", [False, True])
def test_equal_variances_are_accepted_however_records_are_clipped(last: bool, constant: float) -> None:
    """In residuals of no graph, clipping makes variances look unequal."""
    W, S = network(6)
    scales = np.sqrt(S.diagonal())
    given = clipped(S, np.zeros((D, D)), scales, norm_bound=0.7 * math.sqrt(D), constant=constant, whole=1.0)
    found = searched([given], scales, last=last)
    assert not last or wrong(found, W) == 0
    assert found.graph.residual_variance == pytest.approx(found.graph.residual_variance[0])


def test_scales_stay_those_of_the_residuals_where_rows_are_missing() -> None:
    """Half of the rows count as zeros: that is no sign of records that were not clipped."""
    _, S = network(6)
    scales, bound = np.ones(D), 0.7 * math.sqrt(D)
    constant, releases = math.sqrt(D / 10), list[Release]()
    graph = np.zeros((D, D))
    for _ in range(4):
        releases.append(clipped(S, graph, scales, norm_bound=bound, constant=constant, whole=0.5))
        found = searched(releases, scales, last=False)
        graph, scales = found.graph.weights, found.scales
    assert np.median(scales) == pytest.approx(math.sqrt(found.graph.residual_variance[0]), rel=0.1)


def test_scales_are_smaller_where_few_records_were_clipped() -> None:
    W, S = network(6)
    given = clipped(S, W, np.ones(D), norm_bound=3.0 * math.sqrt(D), constant=0.0, whole=1.0)
    found = searched([given], np.ones(D), last=False)
    assert np.median(found.scales) == pytest.approx(math.sqrt(found.graph.residual_variance[0]) / 3.0, rel=0.1)


def test_one_column_has_a_graph_too() -> None:
    one = released(np.array([[2.0]]), noise_std=0.1, W=np.zeros((1, 1)), scales=np.ones(1), norm_bound=1.0)
    search = EqualVarianceSearch(EdgeMask(Knowledge(), ["a"]), 0.3, last=True)
    found = search.found([one], ROWS, np.zeros((1, 1), dtype=bool), np.ones(1))
    assert found.graph.residual_variance > 0.0
    assert math.isfinite(found.pooled.noise_std)


def test_noise_variances_are_compared_in_units_of_the_tables() -> None:
    W, S = network(5)
    size = np.random.default_rng(5).uniform(0.3, 3.0, D)
    scales = np.sqrt(S.diagonal()) / size
    releases = [asked_with(S, np.zeros((D, D)), scales, 0.01, seed, size) for seed in range(2)]
    found = searched(releases, scales, size=size)
    assert wrong(found, W) == 0
    assert found.graph.weights * size / size[:, None] == pytest.approx(W, abs=0.3)


@pytest.mark.long
def test_only_the_last_search_drops_what_does_not_exceed_the_threshold() -> None:
    W, S = network(2)
    scales = np.sqrt(S.diagonal())
    release = asked_with(S, np.zeros((D, D)), scales, 1e-3, 2)
    threshold = float(np.median(np.abs(W[W != 0])))
    kept = searched([release], scales, threshold=threshold, last=False).graph
    dropped = searched([release], scales, threshold=threshold).graph
    assert (np.abs(kept.weights[kept.dag]) < threshold).any()
    assert (np.abs(dropped.weights[dropped.dag]) > threshold).all()


def test_required_and_forbidden_edges_are_kept() -> None:
    W, S = network(2)
    i, j = np.argwhere(W != 0)[0].tolist()
    knowledge = Knowledge(forbidden=((NAMES[i], NAMES[j]),), required=((NAMES[j], NAMES[i]),))
    scales = np.sqrt(S.diagonal())
    found = searched([asked_with(S, np.zeros((D, D)), scales, 0.05, 0)], scales, knowledge=knowledge).graph
    assert found.dag[j, i]
    assert not found.dag[i, j]


def test_residuals_that_a_wrong_graph_leaves_long_get_a_larger_scale() -> None:
    """Records are clipped as a whole: one long residual would hide all others."""
    W, S = network(4)
    scales = np.sqrt(S.diagonal())
    i, j = max(np.argwhere(W != 0).tolist(), key=lambda edge: S[edge[0], edge[0]] * W[edge[0], edge[1]] ** 2)
    knowledge = Knowledge(forbidden=((NAMES[i], NAMES[j]), (NAMES[j], NAMES[i])))
    found = searched([asked_with(S, np.zeros((D, D)), scales, 0.05, 1)], scales, knowledge=knowledge, last=False)
    A = np.eye(D) - found.graph.weights
    lengths = np.sqrt((A.T @ S @ A).diagonal()) / found.scales
    assert lengths.max() < 3.0 * np.median(lengths)


@pytest.mark.parametrize("moments", [-20.0 * np.eye(D), 1e25 * (1.0 - np.eye(D)), np.zeros((D, D))])
def test_moments_that_no_records_have_end_in_finite_numbers(moments: Matrix) -> None:
    _, S = network(1)
    scales = np.sqrt(S.diagonal())
    good = asked_with(S, np.zeros((D, D)), scales, 0.05, 4)
    bad = released(moments, noise_std=0.05, W=np.zeros((D, D)), scales=scales, norm_bound=1.0)
    for releases in ([bad], [good, bad], [bad, good]):
        found = searched(releases, scales, last=False)
        assert np.isfinite(found.graph.weights).all()
        assert np.isfinite(found.scales).all()
        assert (found.scales > 0.0).all()
