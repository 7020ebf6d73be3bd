"""A private run whose sites are not of one size: a small one's noise makes no edges."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import WHOLE_SHARE, price_of
from fedbnsl.privacy.site_shares import site_shares
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.scoring.evaluation import learned_graph
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

D = 10
NAMES = tuple(f"x{k}" for k in range(D))
# Half a range, in standard deviations: so wide that the noise of the first mean of a small site is many of them.
_WIDE = 9.0


def learned(
    seed: int, rows: tuple[int, ...], epsilon: float, folder: Path, *, shared: bool = False, **settings: str
) -> tuple[Mapping[str, Any], int, int, int]:
    """The result; pairs that are none and are adjacent; true pairs that are, and all of them."""
    drawn = synthesise(D, D, 1, sum(rows), seed, noise_range=(0.5, 2.0))
    X = drawn.tables[0] / drawn.tables[0].std(axis=0)
    ranges = Dictionary.from_plain({name: {"range": [-_WIDE, _WIDE]} for name in NAMES}, origin="the test")
    plan = Plan.load("private", [f"privacy.secure_aggregation={str(shared).lower()}"], epsilon=epsilon).with_settings(
        n_participants=len(rows), dictionary=ranges.model_dump(), bootstrap=0, **settings
    )
    parts = np.split(X, np.cumsum(rows)[:-1])
    sites = {f"site-{k}": Dataset(NAMES, part) for k, part in enumerate(parts)}
    result = simulate(plan, sites, folder / "run", noise_seed=seed)
    found, truth = learned_graph(result), drawn.W != 0
    adjacent, true = found | found.T, truth | truth.T
    return result, int((adjacent & ~true).sum()) // 2, int((adjacent & true).sum()) // 2, int(truth.sum())


@pytest.mark.parametrize("shared", [False, True], ids=["own noise", "secure aggregation"])
def test_a_small_site_makes_no_edges_that_are_none(shared: bool, tmp_path: Path) -> None:
    counts = np.zeros(3, dtype=int)
    for seed in (1, 2, 3):
        result, *found = learned(seed, (300, 1700, 1700, 1700), 1.0, tmp_path / str(seed), shared=shared)
        counts += found
        named = [line for line in result["warnings"] if "site-0 has too few rows" in line]
        assert len(named) == 1
    false, right, true = counts.tolist()
    assert false <= 9, "about 3; 17 if sites counted by their rows"
    assert right >= 0.5 * true  # 0.75 of them on average


def test_sites_of_one_size_count_in_full_and_a_small_one_by_what_it_tells() -> None:
    ranges = {name: {"range": [0.0, 1.0]} for name in NAMES}
    for secure in ("true", "false"):
        plan = Plan.load("private", [f"privacy.secure_aggregation={secure}"], epsilon=1.0).with_settings(
            dictionary=ranges
        )
        price = price_of(plan, n_samples=1000, n_variables=D)
        assert site_shares(price, [1000] * 8, 2.0) == [WHOLE_SHARE] * 8
        few, some, most = site_shares(price, [10, 1500, 10_000], 2.0)
        if secure == "true":
            assert few == 0
            assert 0 < some < most == WHOLE_SHARE
        else:
            assert {few, some, most} == {WHOLE_SHARE}, "the coordinator sees each site's release"


@pytest.mark.parametrize("consensus", ["mean", "median", "trimmed-mean"])
def test_a_site_that_noise_hides_leaves_the_others_what_they_tell(consensus: str, tmp_path: Path) -> None:
    result, false, right, true = learned(1, (4000, 4000, 4000, 60), 3.0, tmp_path, consensus=consensus)
    assert false <= 1
    assert right >= 0.7 * true
    named = [line for line in result["warnings"] if "site-3 has too few rows" in line]
    assert len(named) == (consensus == "mean"), "under a rule it has its vote"


@pytest.mark.parametrize("shared", [False, True], ids=["own noise", "secure aggregation"])
def test_only_records_without_missing_values_count_in_sampling_errors(shared: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    a = rng.standard_normal(4500)
    X = np.column_stack([a, 0.5 * a + rng.standard_normal(4500)])
    ranges = {name: {"range": [-6.0, 6.0]} for name in "ab"}
    plan = Plan.load("private", [f"privacy.secure_aggregation={str(shared).lower()}"], epsilon=200.0)
    plan = plan.with_settings(n_participants=3, dictionary=ranges, bootstrap=0)
    found = {}
    for name, missing in (("whole", 0.0), ("gaps", 0.7)):
        table = np.where((np.arange(2) == 1) & (rng.random((4500, 1)) < missing), np.nan, X)
        sites = {f"s{k}": Dataset(("a", "b"), part) for k, part in enumerate(np.split(table, 3))}
        found[name] = simulate(plan, sites, tmp_path / name, noise_seed=1)["estimation"]["n_samples"]
    assert found["whole"] == pytest.approx(4497, rel=0.01)
    assert found["gaps"] == pytest.approx(0.3 * 4497, rel=0.05)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_column_whose_spread_the_noise_hides_has_no_edge_and_is_named(seed: int, tmp_path: Path) -> None:
    """Half of one column is missing; it and another have ranges a hundred thousand times as wide as their values."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((1200, 5))
    X[:, 1] += X[:, 0]
    X[:, 3] += X[:, 2]
    X[:, 4] += X[:, 3]
    X[rng.random(1200) < 0.5, 0] = np.nan
    wide = {"range": [-5.0, 1e6]}
    names = tuple("abcde")
    ranges = {name: wide if name in "ae" else {"range": [-6.0, 6.0]} for name in names}
    plan = Plan.load("private", epsilon=5.0).with_settings(n_participants=3, dictionary=ranges, bootstrap=2)
    sites = {f"site-{k}": Dataset(names, part) for k, part in enumerate(np.split(X, 3))}
    result = simulate(plan, sites, tmp_path / "run", noise_seed=seed)
    assert {one["variable"] for one in result["unused"]} >= {"a", "e"}
    assert not [edge for edge in result["edges"] if {edge["source"], edge["target"]} & {"a", "e"}]
    (said,) = (line for line in result["warnings"] if "no edge there is told" in line)
    assert "'a'" in said
    assert "'e'" in said


@pytest.mark.parametrize("epsilon", [6.0, 1000.0], ids=["hidden by noise", "six rows"])
def test_a_rare_level_is_merged_with_the_first_one_and_named(tmp_path: Path, epsilon: float) -> None:
    rng = np.random.default_rng(7)
    level = rng.choice(4, size=3000, p=[0.5, 0.3, 0.198, 0.002])
    y = rng.standard_normal(3000) + np.array([0.0, 1.0, 2.0, 40.0])[level]
    column = np.column_stack([level == 1, level == 2, level == 3, y]).astype(float)
    dictionary = {
        "job": {"kind": "nominal", "levels": ["none", "part", "full", "rare"]},
        "y": {"range": [-5.0, 45.0]},
    }
    plan = Plan.load("private", epsilon=epsilon).with_settings(n_participants=3, dictionary=dictionary, bootstrap=2)
    names = ("job=part", "job=full", "job=rare", "y")
    sites = {f"site-{k}": Dataset(names, part) for k, part in enumerate(np.split(column, 3))}
    result = simulate(plan, sites, tmp_path / "run", noise_seed=1)
    assert result["unused"] == [{"variable": "job", "level": "rare", "why": "hidden_level"}]
    (edge,) = result["edges"]
    assert {"job=rare"}.isdisjoint(str(one) for told in edge["coefficients"] for one in told.values())
    assert [line for line in result["warnings"] if "level 'rare' of 'job': so rare" in line]
