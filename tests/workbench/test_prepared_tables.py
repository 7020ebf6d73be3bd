"""What preparation is for: means, shifts, units, missing values and unequal rows leave the graph as it is."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import DataError
from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.checks import DataWarning
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_server.run import round_loop
from fedbnsl_workbench.simulate import InProcessExchange, simulate
from fedbnsl_workbench.tables.folder import read_tables
from fedbnsl_workbench.tables.synthetic import synthesise

D, ROWS = 8, (60, 400, 1500)
FEDERATION = synthesise(D, 9, len(ROWS), max(ROWS), 100)
CLEAN = [X[:n] for X, n in zip(FEDERATION.tables, ROWS, strict=True)]
STANDARD = Plan.load("standard").with_settings(bootstrap=20)  # draws change no graph and no weight


def datasets(tables: list[Matrix]) -> dict[str, Dataset]:
    return {f"site-{k}": Dataset(FEDERATION.variables, X) for k, X in enumerate(tables, start=1)}


Edges = dict[tuple[str, str, bool], dict[str, Any]]
"""By source, target and whether the edge is directed; the names of an undirected one are in their order."""


def edges_of(result: dict[str, Any]) -> Edges:
    def ends(edge: dict[str, Any]) -> tuple[str, str]:
        found: tuple[str, str] = edge["source"], edge["target"]
        return found if edge["directed"] else (min(found), max(found))

    return {(*ends(edge), edge["directed"]): edge for edge in result["edges"]}


def pairs_of(edges: Edges) -> set[frozenset[str]]:
    return {frozenset(edge[:2]) for edge in edges}


def learned(tables: list[Matrix], out: Path, plan: Plan = STANDARD) -> Edges:
    return edges_of(simulate(plan.with_settings(n_participants=len(tables)), datasets(tables), out))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Edges:
    edges = learned(CLEAN, tmp_path_factory.mktemp("clean") / "run")
    marks = cpdag(FEDERATION.W != 0)
    truth = {
        (FEDERATION.variables[i], FEDERATION.variables[j], not marks[j, i])
        for i, j in np.argwhere(marks)
        if i < j or not marks[j, i]
    }
    assert set(edges) == truth, "or the other tests say nothing"
    return edges


@pytest.mark.parametrize("shift", [lambda k: 12.0, lambda k: 5.0 * k])
def test_means_and_shifts_between_sites_leave_graph_and_weights_as_they_are(
    clean: Edges, tmp_path: Path, shift: Callable[[int], float]
) -> None:
    moved = learned([X + shift(k) * np.arange(1, D + 1) for k, X in enumerate(CLEAN)], tmp_path / "run")
    assert set(moved) == set(clean)
    for pair, edge in moved.items():
        assert edge["weight"] == pytest.approx(clean[pair]["weight"], rel=1e-4)
    raw = learned(
        [X + shift(k) * np.arange(1, D + 1) for k, X in enumerate(CLEAN)], tmp_path / "raw", Plan.load("lean")
    )
    assert pairs_of(raw) != pairs_of(clean), "what it would be without"


def test_one_unit_for_all_columns_scales_nothing_but_the_units(clean: Edges, tmp_path: Path) -> None:
    moved = learned([1000.0 * X for X in CLEAN], tmp_path / "run")
    assert set(moved) == set(clean)
    for pair, edge in moved.items():
        assert edge["weight"] == pytest.approx(clean[pair]["weight"], rel=1e-4)
        assert edge["standardised"] == pytest.approx(clean[pair]["standardised"], rel=1e-4)


def consensus_weights(tables: list[Matrix], plan: Plan) -> Matrix:
    plan, sites = plan.with_settings(n_participants=len(tables)), datasets(tables)
    exchange = InProcessExchange(plan, {site: Participant(site, table, plan) for site, table in sites.items()}, run=0)
    rows = {site: table.n_samples for site, table in sites.items()}
    state = round_loop.run(plan, FEDERATION.variables, rows, exchange, on_round=lambda state, record: None)
    return state.global_weights.to_dense()


def test_sites_that_weigh_as_their_rows_agree_on_what_the_pooled_rows_say() -> None:
    """With hardly any acyclicity term, W converges to the lasso of the pooled rows, whatever the sites' shares."""
    admm = Plan().with_settings(
        rounds=100,
        refit_rounds=0,
        local_tol=1e-9,
        acyclicity_schedule="augmented",
        acyclicity_penalty=1e-9,
        acyclicity_growth=1.0,
        preparation={"intercept": "none", "scale": "none"},
    )
    tables = [CLEAN[0] @ np.diag(np.linspace(0.5, 2.0, D)), *CLEAN[1:]]  # a small site that is unlike the others
    pooled = consensus_weights([np.concatenate(tables)], admm)
    np.testing.assert_allclose(consensus_weights(tables, admm), pooled, atol=2e-3)
    one_vote = admm.with_settings(preparation={"intercept": "none", "scale": "none", "weighting": "sites"})
    assert np.abs(consensus_weights(tables, one_vote) - pooled).max() > 0.02


def test_moments_of_sites_are_searched_as_those_of_the_pooled_rows(tmp_path: Path) -> None:
    plan = STANDARD.with_settings(preparation={"intercept": "common"}, value_type="float64")
    far = [X + 12.0 for X in CLEAN]
    apart, together = learned(far, tmp_path / "apart", plan), learned([np.concatenate(far)], tmp_path / "one", plan)
    assert set(apart) == set(together)
    for pair, edge in apart.items():
        assert edge["weight"] == pytest.approx(together[pair]["weight"], rel=1e-9)


# ---- missing values ------------------------------------------------------------------------------------------------


def write(folder: Path, missing: float) -> dict[str, Path]:
    rng, files = np.random.default_rng(7), dict[str, Path]()
    for k, X in enumerate(CLEAN, start=1):
        cells = np.where(rng.random(X.shape) < missing, rng.choice(["", "NA", "NaN"], X.shape), X.astype(str))
        files[f"site-{k}"] = folder / f"site-{k}.csv"
        lines = [",".join(FEDERATION.variables), *(",".join(row) for row in cells)]
        files[f"site-{k}"].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return files


def test_missing_values_are_counted_and_refused_where_a_plan_wants_none(clean: Edges, tmp_path: Path) -> None:
    with pytest.warns(DataWarning) as warned:
        tables = read_tables(write(tmp_path, 0.02), ())
    assert len(warned) == 3
    assert re.match(r"site-1: \d+ row\(s\) lack a value: 'X", str(warned[0].message))
    for table, X in zip(tables.values(), CLEAN, strict=True):
        complete = table.complete_cases()
        assert table.n_samples == complete.n_samples + table.gaps.rows == len(X)
        assert table.gaps.rows > 0
        assert not np.isnan(complete.X).any()
    result = simulate(STANDARD, tables, tmp_path / "run")
    assert set(edges_of(result)) == set(clean)
    with pytest.raises(DataError, match=r"site-1: of 60 rows, \d+ row\(s\) are left out.* wants none to be left out"):
        simulate(Plan.load("lean"), tables, tmp_path / "lean")


def test_a_table_that_would_lose_most_rows_is_refused(tmp_path: Path) -> None:
    tables = read_tables(write(tmp_path, 0.1), (), warn=False)
    complete = Plan.load("standard", ["preparation.missing='complete-cases'"])
    with pytest.raises(DataError, match="more than the 50% that the plan allows"):
        simulate(complete, tables, tmp_path / "run")


SOLVERS: dict[str, dict[str, Any]] = {
    "closed-form": {"local_solver": "closed-form"},
    "frank-wolfe": {"local_solver": "frank-wolfe"},
    "pgcd": {"local_solver": "pgcd"},
    "dp-pgcd": {
        "local_solver": "dp-pgcd",
        "refit_rounds": 0,
        "local_steps": 20,
        "threshold": 0.1,
        "privacy": {"epsilon": 500.0, "delta": 1e-5, "clip": 5.0},
    },
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_takes_off_each_sites_own_means(tmp_path: Path, solver: str) -> None:
    found: list[list[dict[str, Any]]] = []
    for shift in (0.0, 64.0):  # a power of two: what is taken off again leaves few rounding errors
        ranges = {name: {"range": [shift - 16.0, shift + 16.0]} for name in FEDERATION.variables}
        plan = Plan(name="p").with_settings(
            n_participants=len(ROWS), rounds=8, preparation={}, dictionary=ranges, **SOLVERS[solver]
        )
        tables = {
            f"site-{k}": Dataset(FEDERATION.variables, X + shift, dictionary=plan.dictionary)
            for k, X in enumerate(CLEAN, start=1)
        }
        result = simulate(plan, tables, tmp_path / f"{shift}", noise_seed=3 if plan.privacy else None)
        found.append(result["edges"])
        assert result["edges"]
    assert [(one["source"], one["target"]) for one in found[0]] == [(one["source"], one["target"]) for one in found[1]]
    for one, other in zip(*found, strict=True):
        assert other["weight"] == pytest.approx(one["weight"], rel=1e-3)
