"""What a site tells of how well a network describes its rows, what it withholds, and which networks it refuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.network.bayesian_network import BayesianNetwork
from fedbnsl.network.families import Bend, Family, Levels, Number
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.network.sums import N_BINS, N_SCORES
from fedbnsl.network.validation import sums_of
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import RoundTask, SiteState
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.validation import Answer, Task
from fedbnsl_client.participant import Unaccounted
from fedbnsl_client.privacy import randomness
from fedbnsl_client.rounds.kinds import LocalProblem
from fedbnsl_client.rounds.validation import Rounds

NAMES = ("x", "y", "z")
ENTRIES: dict[str, Any] = {"x": {}, "y": {}, "z": {"kind": "binary", "levels": ["no", "yes"]}}
PLAN = Plan.load("standard").with_settings(n_participants=2, dictionary=ENTRIES)
FAMILIES: dict[str, Family] = {
    "x": Number(0, np.array([], dtype=np.int64), np.array([]), 10.0, 2.0),
    "y": Number(1, np.array([0]), np.array([0.5]), -5.0, 1.0),
    "z": Levels(np.array([2]), np.array([1]), np.array([[0.8]]), np.array([0.2]), by_odds=True),
}


def network(families: dict[str, Family] | None = None, names: tuple[str, ...] = NAMES) -> FittedNetwork:
    used = BayesianNetwork(3, families or FAMILIES)
    dictionary = Dictionary.model_validate(dict(zip(names, ENTRIES.values(), strict=True)))
    means, spread = np.array([10.0, 0.0, 0.5]), np.array([2.0, 1.4, 0.5])
    return FittedNetwork(used, Columns.of(list(names)), dictionary, means, spread, {names[2]: ["no", "yes"]})


def rows(n: int = 400) -> np.ndarray:
    X = network().network.sample(n, np.random.default_rng(5))
    X[::9, 1] = np.nan
    return X


def told(X: np.ndarray, text: str, *, plan: Plan = PLAN, least_cell: int = 0) -> Answer:
    problem = LocalProblem(plan, X, plan.edge_mask(NAMES), Unaccounted(), randomness.seeded("1"), least_cell=least_cell)
    zero = SparseMatrix.zeros(3)
    rounds = Rounds(problem, SiteState(zero, zero))
    task = RoundTask(9, Task(text), contributed=True)
    rounds.begin(task, None)
    return rounds.answer(task)


def test_a_site_tells_the_sums_of_its_rows_with_the_means_of_all_sites_and_with_its_own() -> None:
    X = rows()
    for family, both in zip(FAMILIES.items(), told(X, network().to_json()).sums(FAMILIES.values()), strict=True):
        for one, own in zip(both, (False, True), strict=True):
            expected = sums_of(network().network, X, network().means, own_means=own)[family[0]]
            assert (one.rows, one.left_out) == (expected.rows, expected.left_out)
            assert (one.log_likelihood, one.own) == (expected.log_likelihood, expected.own)
            np.testing.assert_array_equal(one.counts, expected.counts)
            np.testing.assert_array_equal(one.numbers, expected.numbers)


def test_nothing_is_told_of_a_network_without_numbers() -> None:
    assert told(rows(), "").rows.size == 0


def test_columns_that_a_network_lacks_do_not_move_the_others() -> None:
    part = FittedNetwork(
        BayesianNetwork(2, {"y": Number(0, np.array([], dtype=np.int64), np.array([]), 0.0, 1.4)}),
        Columns.of(["y", "z"]),
        Dictionary.model_validate({"y": {}, "z": ENTRIES["z"]}),
        np.array([0.0, 0.5]),
        np.array([1.4, 0.5]),
        {"z": ["no", "yes"]},
        {"z": "no site has a value of it"},
    )
    X = rows()
    ((common, _),) = told(X, part.to_json()).sums(part.network.families.values())
    y = X[:, 1][~np.isnan(X[:, 1])]
    assert common.numbers[0] == pytest.approx(y.sum())


def test_with_a_least_cell_no_count_of_fewer_rows_is_told_nor_follows_from_others() -> None:
    X, least = rows(), 8
    for family, both in zip(
        FAMILIES.values(), told(X, network().to_json(), least_cell=least).sums(FAMILIES.values()), strict=True
    ):
        assert not both.common_means.counts[2 * isinstance(family, Levels) :].any(), "with own means alone"
        for one in both:
            counts = one.counts.tolist()
            if isinstance(family, Levels):
                forecasts, hits = (np.array(counts[k : k + N_BINS]) for k in (2, 2 + N_BINS))
                counts += (forecasts - hits).tolist()
            elif any(counts):
                pit = one.numbers[3 : 3 + N_BINS]
                counts += [one.rows - counts[0], counts[0] - pit[1:-1].sum(), *pit.tolist()]
            assert not any(0 < n < least for n in counts)
            assert one.rows
            assert one.log_likelihood
    z = told(X, network().to_json(), least_cell=least).sums(FAMILIES.values())[2].common_means
    assert not z.counts[2 + 2 * N_BINS :].any(), "200 bins of 400 rows: some have few"
    assert z.counts[:2].sum() == z.rows


def test_with_a_least_cell_rows_beside_an_end_that_bins_and_interval_share_are_not_told_by_subtraction() -> None:
    """The interval of 95 % and the ten bins tell together how many rows lie between 2.5 and 10 %."""
    none = np.array([], dtype=np.int64)
    alone = dict(FAMILIES, x=Number(0, none, np.array([]), 0.0, 1.0), y=Number(1, none, np.array([]), 0.0, 1.0))
    X = np.zeros((2000, 3))
    for n, is_told in ((1, False), (20, True)):
        p = (np.arange(2000) + 0.5) / 2000
        p[(p < 0.1) | (p > 0.9)] = np.repeat([0.01, 0.99], 200)
        p[[*range(n), *range(1999, 1999 - n, -1)]] = np.repeat([0.05, 0.95], n)
        X[:, 0] = norm.ppf(p)
        x = told(X, network(alone).to_json(), least_cell=5).sums(alone.values())[0].own_means
        assert bool(x.counts[0]) == is_told


def test_each_bin_of_probability_is_made_of_whole_finer_ones() -> None:
    """So that both together tell of no fewer rows than each."""
    X = rows(20_000)
    counts = sums_of(network().network, X, network().means)["z"].counts
    forecasts, hits = counts[2 : 2 + N_BINS], counts[2 + N_BINS : 2 + 2 * N_BINS]
    without, with_it = np.cumsum(counts[2 + 2 * N_BINS :].reshape(2, N_SCORES), axis=1)
    assert set(np.cumsum(hits)) <= set(with_it.tolist())
    assert set(np.cumsum(forecasts - hits)) <= set(without.tolist())
    assert len(set(np.cumsum(forecasts).tolist())) == N_BINS


def test_with_a_least_cell_a_variable_with_few_rows_of_a_level_or_a_gap_is_not_told() -> None:
    X = rows()
    X[:, 2] = 0.0
    X[:3, 2] = 1.0
    x, _, z = told(X, network().to_json(), least_cell=5).sums(FAMILIES.values())
    assert (z.common_means.rows, z.own_means.rows, z.common_means.left_out) == (0, 0, 0)
    assert not z.common_means.counts.any()
    assert x.common_means.rows == 400
    X = rows()
    X[:, 1] = np.nan_to_num(X[:, 1])
    X[:2, 1] = np.nan
    _, y, z = told(X, network().to_json(), least_cell=5).sums(FAMILIES.values())
    assert (y.common_means.rows, z.common_means.rows) == (0, 0), "two rows lack y"


def test_with_a_least_cell_no_curve_singles_out_a_row() -> None:
    """A spike at the value of one row would make the sums of squares tell that row's value of another column."""
    X = rows()
    X[:, 1] = np.nan_to_num(X[:, 1])
    t, none = float(X[7, 0]), np.array([], dtype=np.int64)
    for at, is_told in (
        (t + np.array([-1.0, -1e-3, 0.0, 1e-3, 1.0]), False),
        (np.array([0.0, 8.0, 10.0, 12.0, 20.0]), True),
    ):
        spike = Bend(0, at, np.array([0.0, 0.0, 1e6, 0.0, 0.0]))
        made_up = dict(FAMILIES, y=Number(1, none, np.array([]), 0.0, 1e9, bends=(spike,)))
        x, y, _ = told(X, network(made_up).to_json(), least_cell=5).sums(made_up.values())
        assert (y.common_means.rows > 0, y.common_means.numbers.any()) == (is_told, is_told)
        assert x.common_means.rows == 400


@pytest.mark.parametrize("text", ["[" * 200_000, '{"schema": "fedbnsl.network/1", "columns": [{"name": 1e999}]}'])
def test_a_text_that_no_network_has_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="no network to score"):
        told(rows(), text)


def test_a_network_of_other_columns_along_forbidden_edges_or_without_end_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="columns that the run does not have"):
        told(rows(), network(dict(zip("xyw", FAMILIES.values(), strict=True)), ("x", "y", "w")).to_json())
    forbidden = PLAN.with_settings(knowledge={"forbidden": [["y", "z"]]})
    with pytest.raises(RemoteProtocolError, match="an edge into 'z' that the plan does not allow"):
        told(rows(), network().to_json(), plan=forbidden)
    for text in ("{", "null", network().to_json().replace("fedbnsl.network/1", "other/1")):
        with pytest.raises(RemoteProtocolError, match="no network to score"):
            told(rows(), text)
    broken = dict(FAMILIES, x=replace(FAMILIES["x"], noise_std=-1.0))  # type: ignore[type-var]
    with pytest.raises(RemoteProtocolError, match="'x': -1, where a number above 0"):
        told(rows(), network(broken).to_json())
