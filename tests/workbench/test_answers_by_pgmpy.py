"""What `network ask` says of tables of categories, beside pgmpy's variable elimination on the exported network."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_research.tables.discrete import read_discrete
from fedbnsl_workbench.network import Network
from fedbnsl_workbench.simulate import simulate

# pgmpy tells of its own modules that will move.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:pgmpy")

_NETWORKS = ("sachs", "child", "alarm")


@pytest.mark.parametrize("name", _NETWORKS)
def test_marginals_and_conditionals_are_those_of_variable_elimination(name: str, tmp_path: Path) -> None:
    if not Path(os.environ.get("FEDBNSL_DATA", "/nowhere"), "discrete").is_dir():
        pytest.skip("needs the published networks in FEDBNSL_DATA/discrete")
    published, rng = read_discrete(name), np.random.default_rng(1)
    described = published.dictionary()
    tables = published.tables([3000, 3000], rng)
    sites = {
        f"site-{k}": Dataset.of_values(published.variables, X, origin="here", dictionary=described, warn=False)
        for k, X in enumerate(tables)
    }
    plan = Plan.load("standard").with_dictionary(described, origin="here").with_settings(n_participants=2, bootstrap=0)
    simulate(plan, sites, tmp_path / "run")
    network = Network.load(tmp_path / "run")
    inference: Any = import_module("pgmpy.inference").VariableElimination(network.to_pgmpy())
    targets = [str(one) for one in rng.choice(network.fitted.variables, 6, replace=False)]
    for target in targets:
        # What is seen of two others in one row: it occurs together.
        others = [one for one in network.fitted.variables if one != target]
        known = [str(one) for one in rng.choice(others, 2, replace=False)]
        row = tables[0][int(rng.integers(3000))]
        seen = {one: described[one].levels[int(row[published.variables.index(one)])] for one in known}
        for given in ({}, seen):
            told = network.ask(target, given=given)
            found = inference.query([target], evidence=given, show_progress=False)
            assert told["exact"]
            for level, p in told["probabilities"].items():
                wanted = float(found.get_value(**{target: level}))
                assert p == pytest.approx(wanted, abs=1e-9), (target, level, given)
