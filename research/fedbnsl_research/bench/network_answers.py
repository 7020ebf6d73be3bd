"""What a network says of variables, beside pgmpy's variable elimination, and beside the covariance of a known law.

Tables are rows of published discrete networks, and of a generated one of lines; what is compared is how exactly the
learned network is answered for, not how well it was learned.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_research.tables.discrete import read_discrete
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.network import Network
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

_PUBLISHED = ("child", "sachs", "alarm")
_ROWS, _SEEN = 3000, 2  # of each of two sites; variables that are known
_PLAN = Plan.load("standard", ["bootstrap=0", "validation=none"]).with_settings(n_participants=2)


def network_answers(seeds: Sequence[int] = ()) -> Iterator[Row]:
    """A row for each published network, with all marginals and one conditional a variable, and one for lines."""
    seed = (*seeds, 1)[0]
    for name in _PUBLISHED:
        with TemporaryDirectory() as scratch:
            yield _beside_pgmpy(name, seed, Path(scratch))
    with TemporaryDirectory() as scratch:
        yield _beside_the_normal_law(seed, Path(scratch))


def _beside_pgmpy(name: str, seed: int, scratch: Path) -> Row:
    published, rng = read_discrete(name), np.random.default_rng(seed)
    described = published.dictionary()
    tables = published.tables([_ROWS] * 2, rng)
    sites = {
        f"site-{k}": Dataset.of_values(published.variables, X, origin=name, dictionary=described, warn=False)
        for k, X in enumerate(tables)
    }
    simulate(_PLAN.with_dictionary(described, origin=name), sites, scratch / "run")
    network = Network.load(scratch / "run")
    if find_spec("pgmpy") is None:
        return {"figure": f"{name}: needs pgmpy, which is not installed"}
    inference: Any = import_module("pgmpy.inference").VariableElimination(network.to_pgmpy())
    variables, gap, drawn = network.fitted.variables, 0.0, 0
    for target in variables:
        known = [str(one) for one in rng.choice([one for one in variables if one != target], _SEEN, replace=False)]
        row = tables[0][int(rng.integers(_ROWS))]
        seen = {one: described[one].levels[int(row[published.variables.index(one)])] for one in known}
        for given in ({}, seen):
            told = network.ask(target, given=given)
            found = inference.query([target], evidence=given, show_progress=False)
            drawn += not told["exact"]
            for level, p in told["probabilities"].items():
                gap = max(gap, abs(p - float(found.get_value(**{target: level}))))
    return {
        "figure": f"{name}: {len(variables)} variables, marginals and conditionals given {_SEEN}",
        "furthest from pgmpy": f"{gap:.1e}",
        "answers by draws": drawn,
    }


def _beside_the_normal_law(seed: int, scratch: Path) -> Row:
    one = synthesise(20, 40, 2, _ROWS, seed, noise_range=(0.5, 2.0))
    simulate(_PLAN, {f"site-{k}": Dataset(one.variables, X) for k, X in enumerate(one.tables)}, scratch / "run")
    network = Network.load(scratch / "run")
    fitted, S = network.fitted, network.fitted.learned.covariance
    rng, gap = np.random.default_rng(seed), 0.0
    for k, target in enumerate(fitted.variables):
        at: Index = rng.choice(np.delete(np.arange(len(S)), k), _SEEN, replace=False)
        values: Matrix = fitted.means[at] + np.sqrt(S[at, at]) * rng.normal(size=_SEEN)
        weights: Matrix = np.asarray(np.linalg.solve(S[np.ix_(at, at)], S[at, k]), dtype=np.float64)
        spread = float(np.sqrt(S[k, k] - weights @ S[at, k]))
        places: list[int] = at.tolist()
        given = {fitted.variables[i]: float(value) for i, value in zip(places, values, strict=True)}
        told = network.ask(target, given=given)
        mean = float(fitted.means[k] + weights @ (values - fitted.means[at]))
        gap = max(gap, abs(told["mean"] - mean) / spread, abs(told["spread"] / spread - 1.0))
    figure = f"lines: {len(S)} variables, conditionals given {_SEEN}, in standard deviations"
    return {"figure": figure, "furthest from the normal law": f"{gap:.1e}"}
