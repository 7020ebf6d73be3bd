"""A private run whose sites are not of one size: a small one's noise makes no edges."""

from pathlib import Path

import numpy as np
import pytest

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_experiments.scoring.evaluation import learned_graph
from fedbnsl_experiments.simulate import simulate
from fedbnsl_experiments.tables.synthetic import synthesise

D, ROWS = 10, (300, 1700, 1700, 1700)
NAMES = tuple(f"x{k}" for k in range(D))
# Half a range, in standard deviations: so wide that the noise of the first mean of the small site is many of them.
_WIDE = 9.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_small_site_makes_no_edges_that_are_none(seed: int, tmp_path: Path) -> None:
    drawn = synthesise(D, D, 1, sum(ROWS), seed, noise_range=(0.5, 2.0))
    X = drawn.tables[0] / drawn.tables[0].std(axis=0)
    ranges = Dictionary.from_plain({name: {"range": [-_WIDE, _WIDE]} for name in NAMES}, origin="the test")
    plan = Plan.load("private", epsilon=1.0).with_settings(
        n_participants=len(ROWS), dictionary=ranges.model_dump(), bootstrap=0
    )
    parts = np.split(X, np.cumsum(ROWS)[:-1])
    sites = {f"site-{k}": Dataset(NAMES, part) for k, part in enumerate(parts)}
    found = learned_graph(simulate(plan, sites, tmp_path / "run", noise_seed=seed))
    truth = drawn.W != 0
    false = (found | found.T) & ~(truth | truth.T)
    assert false.sum() // 2 <= 1, "pairs"
    assert ((found | found.T) & truth).sum() >= 0.7 * truth.sum()
