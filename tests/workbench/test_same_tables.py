"""The same table, written otherwise: order of columns, rows, sites and levels, names and units change no edge."""

from pathlib import Path

import numpy as np

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_workbench.simulate import simulate

NAMES = ("age", "ward", "smoker", "crp", "visits", "pain")
LEVELS = {"ward": ("a", "b", "c"), "smoker": ("no", "yes")}


def table(seed: int, n: int = 250) -> np.ndarray:
    """(n, 6) values with gaps; levels by number."""
    rng = np.random.default_rng(seed)
    age, ward = rng.normal(50, 10, n), rng.integers(0, 3, n)
    smoker = rng.random(n) < 1 / (1 + np.exp((age - 50) / 10))
    crp = np.array([0.0, 1.5, -1.0])[ward] + smoker + rng.normal(0, 1, n)
    visits: Matrix = np.asarray(rng.poisson(np.exp(0.4 * smoker + 0.2 * (ward == 1))), dtype=np.float64)
    pain: Matrix = 0.3 * crp + 0.4 * visits + rng.normal(0, 1, n)
    X = np.column_stack([age, ward, smoker, crp, visits, pain])
    X[rng.random(X.shape) < 0.01] = np.nan
    return X


def edges(out: Path, rng: np.random.Generator | None) -> set[tuple[str, str, bool]]:
    """Of a run on the tables as they are, or written otherwise; by the first names."""
    order, sites = list(range(len(NAMES))), [table(seed) for seed in range(3)]
    entries: dict[str, dict[str, object]] = {"visits": {"kind": "count", "range": [0.0, 1e9]}}
    entries |= {name: {"range": [-1e9, 1e9]} for name in ("age", "crp", "pain")}
    for name, levels in LEVELS.items():
        entries[name] = {"kind": "nominal" if len(levels) > 2 else "binary", "levels": list(levels)}
    named = dict(zip(NAMES, NAMES, strict=True))
    if rng is not None:
        order = [int(k) for k in rng.permutation(len(NAMES))]
        sites = [np.asarray(rng.permutation(sites[k])) for k in (2, 0, 1)]
        for j, name in enumerate(NAMES):
            if name in LEVELS:
                places = rng.permutation(len(LEVELS[name]))
                entries[name]["levels"] = [LEVELS[name][k] for k in places]
                sites = [np.where(np.arange(6) == j, _renumbered(X[:, j], places)[:, None], X) for X in sites]
            elif name != "visits":
                sites = [X * np.where(np.arange(6) == j, 40.0, 1.0) for X in sites]
        named = {name: f"{rng.integers(1000)}-{name}" for name in NAMES}
    names = [named[NAMES[j]] for j in order]
    dictionary = Dictionary.model_validate({named[NAMES[j]]: entries[NAMES[j]] for j in order})
    read = {
        f"site-{k}": Dataset.of_values(
            names, np.asarray(X[:, order], dtype=np.float64), origin="here", dictionary=dictionary, warn=False
        ).complete_cases()
        for k, X in enumerate(sites)
    }
    plan = Plan.load("standard").with_dictionary(dictionary, origin="here")
    result = simulate(plan.with_settings(n_participants=3, bootstrap=5), read, out, noise_seed=None)
    before = {new: name for name, new in named.items()}
    ends = [(before[e["source"]], before[e["target"]], e["directed"]) for e in result["edges"]]
    return {(a, b, True) if directed else (min(a, b), max(a, b), False) for a, b, directed in ends}


def _renumbered(codes: np.ndarray, places: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(codes), np.nan, np.argsort(places)[np.nan_to_num(codes).astype(int)])


def test_another_order_other_names_and_other_units_give_the_same_edges_and_directions(tmp_path: Path) -> None:
    expected = edges(tmp_path / "as-made", None)
    assert len(expected) > 4
    for seed in range(3):
        assert edges(tmp_path / str(seed), np.random.default_rng(seed)) == expected
