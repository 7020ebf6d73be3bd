"""Numbers that pass a site's check end no run, at the coordinator or anywhere else."""

from pathlib import Path

import numpy as np
import pytest

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.limits import LARGEST_VALUE, LEAST_SPREAD
from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.reading import NO_DICTIONARY
from fedbnsl_workbench.simulate import simulate

NAMES = ("age", "dose", "mass")


@pytest.mark.parametrize("ready", ["standard", "lean", "private"])
@pytest.mark.filterwarnings("ignore::fedbnsl_client.data.checks.DataWarning")
def test_no_site_whose_check_passes_ends_a_run_by_the_size_of_its_numbers(ready: str, tmp_path: Path) -> None:
    sizes = np.array([0.9 * LARGEST_VALUE, 2.0 * LEAST_SPREAD, 1.0])
    described = Dictionary.from_plain({name: {"range": [-LARGEST_VALUE, LARGEST_VALUE]} for name in NAMES}, origin="x")
    dictionary = described if ready == "private" else NO_DICTIONARY
    plan = Plan.load(ready, epsilon=5.0 if dictionary else None).with_settings(n_participants=3)
    plan = plan.with_dictionary(dictionary, origin="x") if dictionary else plan
    tables = dict[str, Dataset]()
    for k in range(3):
        X = np.random.default_rng(k).uniform(-1.0, 1.0, (60, 3)) * sizes
        if k == 0:
            X[4, 2] = LARGEST_VALUE  # one wrong cell
        tables[f"site-{k}"] = Dataset.of_values(NAMES, X, origin="x", dictionary=dictionary)
    simulate(plan, tables, tmp_path / "run", noise_seed=1 if dictionary else None)
