"""Runs that use rows with gaps: sites that start again, come late, or lack a column; and numbers that are none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Covariances, LocalUpdate, RoundTask, SiteState, Units
from fedbnsl.protocol.sparse import Matrix, SparseMatrix, upper
from fedbnsl.rounds.completion import Answer, Task
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.participant import Participant
from fedbnsl_server.algorithm.admm import AdmmState, initial_state
from fedbnsl_server.rounds import completion
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.run import round_loop
from fedbnsl_server.sites.mailbox import Traffic, UpdateCheck
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise

D, SITES = 5, ("site-1", "site-2", "site-3")
FEDERATION = synthesise(D, 5, 3, 300, 7)
PLAN = Plan.load("standard").with_settings(bootstrap=0, n_participants=3)


def with_gaps(share: float, at: Sequence[int] = (0, 1, 2)) -> dict[str, Matrix]:
    rng = np.random.default_rng(3)
    tables = [X.copy() for X in FEDERATION.tables]
    for k in at:
        tables[k][rng.random(tables[k].shape) < share] = np.nan
    return dict(zip(SITES, tables, strict=True))


class StartedAgain:
    """An Exchange in which only some sites contribute to a round, each starting from what the coordinator holds."""

    def __init__(self, tables: Mapping[str, Matrix], plan: Plan, present: Callable[[int], Sequence[str]]) -> None:
        self.traffic = Traffic()
        self._tables, self._plan, self._present = tables, plan, present

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        found = {}
        for site in self._present(next(iter(tasks.values())).round):
            table = Dataset(FEDERATION.variables, self._tables[site])
            found[site] = Participant(site, table, self._plan, snapshots[site]).handle(tasks[site])
            check(found[site])
        return found


def played(tables: Mapping[str, Matrix], present: Callable[[int], Sequence[str]], plan: Plan = PLAN) -> AdmmState:
    n_samples = {site: len(X) for site, X in tables.items()}
    exchange = StartedAgain(tables, plan, present)
    return round_loop.run(plan, FEDERATION.variables, n_samples, exchange, on_round=lambda state, record: None)


def test_a_site_that_starts_again_in_every_round_gives_the_same_bits(tmp_path: Path) -> None:
    tables, kept = with_gaps(0.2), []
    data = {site: Dataset(FEDERATION.variables, X) for site, X in tables.items()}
    result = simulate(PLAN, data, tmp_path / "run", follow=kept.append)
    again = played(tables, lambda t: SITES)
    assert again.iterations["completion"] == result["gaps"]["iterations"] > 2
    assert again.refitted == kept[-1].refitted
    assert dict(again.sites) == dict(kept[-1].sites)


def test_rows_of_a_site_that_came_after_the_statistics_may_have_gaps() -> None:
    found = played(with_gaps(0.2, at=[2]), lambda t: SITES if t > 1 else SITES[:2], PLAN.with_settings(quorum=2))
    assert found.completion is not None
    assert found.completion.has_converged


def test_a_site_that_missed_all_rounds_of_em_counts_like_the_others() -> None:
    plan = PLAN.with_settings(quorum=2)
    assert played(with_gaps(0.2), lambda t: SITES if not 1 < t < 10 else SITES[:2], plan).refitted is not None


def test_pairs_that_only_an_absent_site_has_are_not_called_never_seen_together() -> None:
    tables = with_gaps(0.0)
    for site in SITES[:2]:
        tables[site][:, 3] = np.nan
    with pytest.raises(RemoteProtocolError, match="site-3 did not answer"):
        played(tables, lambda t: SITES if t != 2 else SITES[:2], PLAN.with_settings(quorum=2))


@pytest.mark.parametrize("lacking", [1, 2])
def test_a_column_that_a_site_lacks_makes_no_site_stand_out(lacking: int, tmp_path: Path) -> None:
    tables = with_gaps(0.0)
    for site in SITES[:lacking]:
        tables[site][:, 3] = np.nan
    data = {site: Dataset(FEDERATION.variables, X) for site, X in tables.items()}
    told = simulate(PLAN, data, tmp_path / "run")["warnings"]
    assert [said for said in told if "has no value of" not in said] == []


def _run(intercept: str = "site") -> Run:
    plan = PLAN.with_settings(preparation={"missing": "em", "intercept": intercept})
    return Run(plan, plan.edge_mask(["x", "y", "z"]), dict.fromkeys(SITES, 100))


def test_products_with_an_eigenvalue_below_zero_are_refused() -> None:
    S = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])  # each pair by itself is possible
    none = np.empty(0, dtype=np.int64)
    task = Task(Covariances(np.eye(3), np.empty(0)))
    assert completion.fault(Answer(upper(S), none, np.empty(0), 0.0), task, _run())
    assert not completion.fault(Answer(upper(np.abs(S)), none, np.empty(0), 0.0), task, _run())
    # About means of the task, a mean square is no less than the square of a mean.
    shared = Task(Covariances(np.eye(3), np.zeros(3)))
    assert completion.fault(Answer(upper(np.eye(3)), none, np.array([0.0, 2.0, 0.0]), 0.0), shared, _run("common"))
    assert not completion.fault(Answer(upper(np.eye(3)), none, np.array([0.0, 0.9, 0.0]), 0.0), shared, _run("common"))


def test_a_column_without_products_that_had_a_variance_ends_the_run_with_a_reason() -> None:
    answer = Answer(upper(np.diag([1.0, 0.0, 1.0])), upper(np.full((3, 3), 100)), np.empty(0), 0.0, np.zeros((3, 3)))
    assert not completion.fault(answer, Task(None), _run())
    with pytest.raises(RemoteProtocolError, match="no covariances"):
        completion.advance(initial_state(3, SITES), dict.fromkeys(SITES, answer), Task(None), _run())


@pytest.mark.parametrize("means", [np.empty(0), np.ones(D)])
def test_a_site_completes_nothing_by_numbers_that_are_no_covariances(means: Matrix) -> None:
    """Nor about means where it takes off its own."""
    S = np.eye(D)
    S[0, 1] = S[1, 0] = 0.0 if means.size else 2.0
    table = Dataset(FEDERATION.variables, with_gaps(0.2)["site-1"])
    zero = SparseMatrix.zeros(D)
    site = Participant("site-1", table, PLAN, SiteState(zero, zero, zero, Units(np.empty(0), np.ones(D))))
    with pytest.raises(RemoteProtocolError, match="no covariances"):
        site.handle(RoundTask(2, Task(Covariances(S, means)), contributed=False))


def test_the_result_says_what_complete_cases_would_have_been(tmp_path: Path) -> None:
    def said(name: str, tables: Mapping[str, Matrix]) -> tuple[Any, str]:
        result = simulate(PLAN, {site: Dataset(FEDERATION.variables, X) for site, X in tables.items()}, tmp_path / name)
        assert result["gaps"]["complete_rows"] == sum((~np.isnan(X)).all(axis=1).sum() for X in tables.values())
        (words,) = result["verdict"]["complete_cases"]
        return result["gaps"]["differ"], words

    differ, words = said("at random", with_gaps(0.1))
    assert differ == {}
    assert "no biased sample" in words
    old = {site: X.copy() for site, X in zip(SITES, FEDERATION.tables, strict=True)}
    for X in old.values():
        X[X[:, 0] > X[:, 0].mean(), 3] = np.nan
    differ, words = said("by another", old)
    assert next(iter(differ)) == FEDERATION.variables[3]
    assert differ[FEDERATION.variables[3]][0] == FEDERATION.variables[0]
    assert "a biased sample: beyond chance, rows without 'X4' differ in 'X1'" in words
    few = {site: X.copy() for site, X in zip(SITES, FEDERATION.tables, strict=True)}
    few["site-1"][:5, 2] = np.nan
    differ, words = said("few", few)
    assert differ == {}
    assert "895 of 900 rows; whether these are a biased sample was not tested, as no site has 10 rows" in words


@pytest.mark.parametrize("told", [True, False])
def test_a_private_run_does_not_call_a_site_odd_for_a_column_that_it_lacks(tmp_path: Path, told: bool) -> None:
    """Whether the plan says that it lacks it, or the column is empty."""
    rng, tables = np.random.default_rng(4), list[Matrix]()
    for k in range(4):
        X = rng.standard_normal((1500, 4))
        X[:, 1] += X[:, 0]
        X[:, 2] += X[:, 1]
        tables.append(np.where([False, False, k == 2, False], np.nan, X))
    ranges = {f"X{k + 1}": {"range": [-6.0, 6.0]} for k in range(4)}
    plan = Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=50.0).with_settings(
        n_participants=4, bootstrap=0, dictionary=ranges, absent={"site-3": ["X3"]} if told else {}
    )
    sites = site_tables(tables, dictionary=plan.dictionary)
    sites = {site: replace(table, absent=plan.absent.of(site)) for site, table in sites.items()}
    result = simulate(plan, sites, tmp_path / "run", noise_seed=1)
    influence = result["influence"]
    assert set(influence["sites"]) == set(sites)
    assert all(one["largest"] < influence["limit"] for one in influence["sites"].values()), influence
