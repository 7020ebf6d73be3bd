"""Private rounds of moments: the search over pooled moments, and whole runs with real participants and seeded noise."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import Matrix, SparseMatrix
from fedbnsl.rounds import moments as moments_rounds
from fedbnsl.rounds import residual_moments as residual_rounds
from fedbnsl.rounds import scales as scales_rounds
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_server.algorithm.admm import AdmmState, initial_state
from fedbnsl_server.algorithm.consensus_graph import consensus_graph
from fedbnsl_server.rounds.kinds import Run, kind_of
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.search.graph_search import FoundGraph
from fedbnsl_server.search.private import equal_variance_search
from fedbnsl_server.search.private.equal_variance_search import EqualVarianceSearch, Learned
from fedbnsl_server.search.private.pooled_moments import PooledMoments, next_scales
from fedbnsl_server.search.private.released_likelihood import Release
from fedbnsl_server.sites.mailbox import UpdateCheck
from fedbnsl_server.store import checkpoint
from fedbnsl_workbench.tables.synthetic import synthesise
from plain_sites import PlainSites, states_of_run

FEDERATION = synthesise(8, 10, 3, 4000, 100)
VARIABLES, TRUTH = FEDERATION.variables, FEDERATION.W
TABLES = {f"site-{k}": Dataset(VARIABLES, X) for k, X in enumerate(FEDERATION.tables)}
N_SAMPLES = {site: table.n_samples for site, table in TABLES.items()}
PLAN = Plan.parse(
    {
        "n_participants": 3,
        "local_solver": "dp-pgcd",
        "rounds": 0,
        "local_steps": 4,
        "refit_rounds": 0,
        "moments_rounds": 3,
        "value_type": "float32",
        "privacy": {"epsilon": 100.0, "feature_bounds": [100.0], "smoothness_share": 0.05},
    }
)
AFTER_ADMM = PLAN.with_settings(rounds=2)
NOTHING = Knowledge()


# ---- the search ----------------------------------------------------------------------------------------------------

BACK = np.linalg.inv(np.eye(8) - TRUTH)
POOLED = PooledMoments(BACK.T @ BACK, 0.01, np.zeros((8, 8), dtype=bool))
NO_GRAPH = np.zeros((8, 8), dtype=bool)


def found_with(knowledge: Knowledge, *, dag: Matrix = NO_GRAPH, keep_small: bool = False) -> FoundGraph:
    scales = np.sqrt(POOLED.moments.diagonal())
    mask = EdgeMask(knowledge, VARIABLES)
    return EqualVarianceSearch(mask, 0.3, last=not keep_small).searched(POOLED, dag, scales)


@pytest.fixture(params=[40, 3], ids=["all pairs", "neighbours"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs up to this size are searched among all pairs, larger ones among neighbours that selections find."""
    monkeypatch.setattr(equal_variance_search, "_ALL_PAIRS", request.param)


@pytest.mark.usefixtures("either_way")
def test_exact_moments_give_the_truth_and_its_weights() -> None:
    found = found_with(NOTHING)
    assert np.array_equal(found.dag, TRUTH != 0)
    np.testing.assert_allclose(found.weights, TRUTH, atol=1e-6)
    np.testing.assert_allclose(found.residual_variance, 1.0, rtol=1e-6)


def edges(dag: Matrix) -> list[tuple[str, str]]:
    return [(VARIABLES[i], VARIABLES[j]) for i, j in zip(*np.nonzero(dag), strict=True)]


@pytest.mark.usefixtures("either_way")
def test_what_is_known_holds_even_against_the_moments() -> None:
    a, b = edges(TRUTH)[0]
    source, target = edges(TRUTH)[1]
    reversed_and_forbidden = Knowledge(required=((b, a),), forbidden=((source, target), (target, source)))
    found = found_with(reversed_and_forbidden)
    assert (b, a) in edges(found.dag)
    assert not {(source, target), (target, source), (a, b)} & set(edges(found.dag))
    assert is_acyclic(found.dag)
    last, *others = reversed([*VARIABLES])
    tiers = Knowledge(tiers=((last,), tuple(others)))
    assert not [edge for edge in edges(found_with(tiers).dag) if edge[1] == last]


@pytest.mark.usefixtures("either_way")
def test_a_required_edge_without_any_effect_is_kept() -> None:
    free = np.argwhere(np.isclose(POOLED.moments, 0.0, atol=1e-9))
    i, j = free[0] if len(free) else np.argwhere(np.triu((TRUTH == 0) & (TRUTH.T == 0), 1))[0]
    required = Knowledge(required=((VARIABLES[i], VARIABLES[j]),))
    assert found_with(required).dag[i, j]


def test_a_search_goes_on_until_its_residuals_show_nothing_that_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a neighbourhood that lacks every pair: each search adds what it missed, and it ends."""
    monkeypatch.setattr(equal_variance_search, "_ALL_PAIRS", 3)
    monkeypatch.setattr(equal_variance_search, "neighbours", lambda *arguments: NO_GRAPH)
    genuine, searches = equal_variance_search.search, list[int]()

    def counted(*arguments: Any, **options: Any) -> FoundGraph:
        searches.append(int(arguments[1].candidates.sum()))
        return genuine(*arguments, **options)

    monkeypatch.setattr(equal_variance_search, "search", counted)
    found = found_with(NOTHING)
    assert searches[0] == 0
    assert len(searches) > 1
    assert searches == sorted(set(searches)), "each has more candidates"
    assert not equal_variance_search.missed_neighbours(POOLED, found.weights, found.residual_variance).any()
    forbidden = Knowledge(forbidden=tuple((a, b) for a in VARIABLES for b in VARIABLES if a != b))
    assert not found_with(forbidden).dag.any(), "what it misses and must not have does not keep it going"


def test_small_weights_stay_until_the_last_round() -> None:
    W = TRUTH.copy()
    i, j = max(np.argwhere(W), key=lambda edge: POOLED.moments[edge[0], edge[0]])  # it saves most there
    W[i, j] = 0.2
    back = np.linalg.inv(np.eye(8) - W)
    pooled = PooledMoments(back.T @ back, 1e-3, NO_GRAPH)
    mask, scales = EdgeMask(NOTHING, VARIABLES), np.ones(8)
    small = [
        EqualVarianceSearch(mask, 0.3, last=last).searched(pooled, W != 0, scales).weights[i, j]
        for last in (False, True)
    ]
    assert small == [pytest.approx(0.2, abs=1e-3), 0.0]


# ---- answers -------------------------------------------------------------------------------------------------------


def task_and_answer(kind: str, number: float) -> tuple[Any, Any]:
    if kind == "scales":  # which count in the bounds of the columns
        bound = PLAN.privacy.feature_bounds[0] if PLAN.privacy else math.nan
        return scales_rounds.Task(), scales_rounds.Answer(np.array([1.0] * 7 + [number * bound]))
    task = residual_rounds.Task(SparseMatrix.zeros(8), np.ones(8))
    return task, residual_rounds.Answer(np.array([1.0] * 35 + [number]), task.digest)


@pytest.mark.parametrize("kind", ["scales", "residual_moments"])
@pytest.mark.parametrize("number", [1.01e30, -1.01e30])
def test_numbers_whose_products_could_overflow_are_refused(kind: str, number: float) -> None:
    run = Run(PLAN, EdgeMask(NOTHING, VARIABLES), N_SAMPLES)
    task, answer = task_and_answer(kind, number)
    assert "beyond 1e+30" in kind_of(kind).fault(answer, task, run)
    task, answer = task_and_answer(kind, number / 1.02)
    assert kind_of(kind).fault(answer, task, run) == ""


def test_the_first_scales_count_a_site_by_its_rows() -> None:
    rows, squares = {"a": 3000, "b": 1000}, {"a": 4.0, "b": 8.0}
    run = Run(PLAN, EdgeMask(NOTHING, VARIABLES), rows)
    state = initial_state(8, list(rows))
    answers = {site: scales_rounds.Answer(np.full(8, square)) for site, square in squares.items()}
    after = kind_of("scales").advance(state, answers, scales_rounds.Task(), run)
    np.testing.assert_allclose(after.scales, np.sqrt(5.0))


# ---- whole runs ----------------------------------------------------------------------------------------------------


class Kept:
    """A journal in memory, with noise that depends on the site and the round alone."""

    head = None

    def __init__(self, site: str) -> None:
        self._site = site
        self.kept: dict[int, bytes] = {}
        self._source = randomness.seeded(site)

    def release(self, t: int, draw: Callable[[], bytes], *, attempt: int = 0) -> bytes:
        if t not in self.kept:
            self._source = randomness.seeded(f"{self._site}/{t}")
            self.kept[t] = draw()
        return self.kept[t]

    def randbelow(self, n: int) -> int:
        return self._source(n)


class Sites(PlainSites):
    """Participants with these tables, each with a journal that outlives it."""

    def __init__(self, plan: Plan, *, anew: bool = False, tables: Mapping[str, Dataset] = TABLES) -> None:
        journals = {site: Kept(site) for site in TABLES}

        def start(site: str, snapshot: SiteState | None) -> Participant:
            journal = journals[site]
            return Participant(site, tables[site], plan, snapshot, journal=journal, run=1, randbelow=journal.randbelow)

        super().__init__(TABLES, start, anew=anew)


run = partial(states_of_run, variables=VARIABLES, n_samples=N_SAMPLES)


def assert_same(one: AdmmState, other: AdmmState) -> None:
    assert (one.round, one.contributed, one.acyclicity) == (other.round, other.contributed, other.acyclicity)
    assert one.global_weights == other.global_weights
    assert one.refitted == other.refitted
    assert one.scales.tobytes() == other.scales.tobytes()
    assert one.residual_variance.tobytes() == other.residual_variance.tobytes()
    assert dict(one.sites) == dict(other.sites)


@pytest.mark.parametrize("plan", [PLAN, AFTER_ADMM], ids=["without ADMM", "after ADMM"])
def test_at_a_generous_epsilon_a_run_finds_the_truth(plan: Plan) -> None:
    sites = Sites(plan)
    end = run(plan, sites)[-1]
    kinds = ["admm"] * plan.rounds + ["scales"] + ["residual_moments"] * 3
    assert [task.content.kind for task in sites.tasks] == kinds
    graph = consensus_graph(end, plan, EdgeMask(NOTHING, VARIABLES))
    assert np.array_equal(graph.dag, TRUTH != 0)
    assert graph.weights == pytest.approx(TRUTH, abs=0.1)


@pytest.mark.parametrize("unit", [1.0, 0.01])
def test_the_residual_variances_are_in_squared_units_of_the_variables(unit: float) -> None:
    tables = {site: Dataset(VARIABLES, unit * table.X) for site, table in TABLES.items()}
    plan = PLAN.with_settings(privacy={**vars(PLAN.privacy), "feature_bounds": [100.0 * unit**2]})
    end = run(plan, Sites(plan, tables=tables))[-1]
    pooled = np.vstack([table.X for table in tables.values()])
    for j in range(8):
        parents = np.flatnonzero(TRUTH[:, j])
        left = pooled[:, j] - pooled[:, parents] @ np.linalg.lstsq(pooled[:, parents], pooled[:, j], rcond=None)[0]
        assert end.residual_variance[j] == pytest.approx(np.mean(left**2), rel=0.15)


def test_each_round_asks_with_what_the_round_before_has_found() -> None:
    sites = Sites(PLAN)
    states = run(PLAN, sites)
    scales, first, *others = sites.tasks
    assert (scales.content.kind, first.content.weights.nnz) == ("scales", 0)
    rms = np.sqrt(np.mean([np.mean(table.X**2, axis=0) for table in TABLES.values()], axis=0))
    np.testing.assert_allclose(first.content.scales, rms, rtol=0.1)
    for task, before in zip(others, states[1:], strict=False):
        assert task.content == residual_rounds.Task(before.refitted, before.scales)
        assert task.content.weights.nnz > 0
    assert states[-1].scales == pytest.approx(next_scales(states[-1].scales ** 2))


def test_every_round_adds_its_release_to_those_that_the_search_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given, found = list[int](), EqualVarianceSearch.found

    def counted(search: EqualVarianceSearch, releases: Sequence[Release], *others: Any, **options: Any) -> Learned:
        given.append(len(releases))
        return found(search, releases, *others, **options)

    monkeypatch.setattr(EqualVarianceSearch, "found", counted)
    assert [len(state.releases) for state in run(PLAN, Sites(PLAN))] == [0, 1, 2, 3]
    assert given == [1, 2, 3]


def test_only_the_last_round_drops_what_does_not_exceed_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    last = list[bool]()

    def search(mask: EdgeMask, threshold: float, is_last: bool, size: Matrix | None) -> EqualVarianceSearch:
        last.append(is_last)
        return EqualVarianceSearch(mask, threshold, is_last, size)

    monkeypatch.setattr("fedbnsl_server.rounds.residual_moments.EqualVarianceSearch", search)
    run(AFTER_ADMM, Sites(AFTER_ADMM))
    assert last == [False, False, True]


GRADES = {name: {"kind": "ordinal", "levels": ["low", "middle", "high"]} for name in VARIABLES}


@pytest.mark.parametrize(("epsilon", "at_least", "at_most"), [(0.1, 1.0, 1.0), (1000.0, 2.0, 10.0)])
def test_records_with_levels_are_clipped_less_the_less_noise_there_is(
    epsilon: float, at_least: float, at_most: float
) -> None:
    plan = Plan.load("private", ["privacy.secure_aggregation=false"], epsilon=epsilon).with_settings(dictionary=GRADES)
    run = Run(plan, plan.edge_mask(VARIABLES), N_SAMPLES)
    state = replace(initial_state(8, list(N_SAMPLES)), scales=np.full(8, 2.0))
    _, task = kind_of("residual_moments").ask(state, run)
    assert 2.0 * at_least <= task.scales[0] <= 2.0 * at_most
    assert (task.scales == task.scales[0]).all()


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.1])
def test_with_little_budget_a_run_ends_with_a_graph_all_the_same(epsilon: float) -> None:
    """All is noise: means of squares are as often negative as not."""
    poor = PLAN.with_settings(privacy={"epsilon": epsilon, "feature_bounds": [100.0]})
    end = run(poor, Sites(poor))[-1]
    assert end.refitted is not None
    assert is_acyclic(end.refitted.support())
    assert (end.scales > 0).all()


@pytest.mark.parametrize("plan", [PLAN, AFTER_ADMM], ids=["without ADMM", "after ADMM"])
@pytest.mark.long
def test_the_same_noise_gives_the_same_bits_though_everybody_starts_again_every_round(
    plan: Plan, tmp_path: Path
) -> None:
    straight = run(plan, Sites(plan))
    for one, two in zip(straight, run(plan, Sites(plan)), strict=True):
        assert_same(one, two)
    sites, state = Sites(plan, anew=True), None

    def save(after: AdmmState, record: RoundRecord) -> None:
        checkpoint.save(tmp_path / "state", after, plan_digest=plan.digest())
        raise InterruptedError

    for t in range(n_rounds(plan)):
        with pytest.raises(InterruptedError):
            round_loop.run(plan, VARIABLES, N_SAMPLES, sites, on_round=save, state=state)
        state = checkpoint.load(tmp_path / "state", plan_digest=plan.digest())
        assert_same(state, straight[t])


def test_a_message_with_other_numbers_than_were_asked_for_is_refused() -> None:
    class Wrong(Sites):
        n_refused = 0

        def exchange(
            self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
        ) -> Mapping[str, LocalUpdate]:
            updates = super().exchange(tasks, snapshots, check)
            good = updates["site-0"]
            numbers, *others = vars(good.content).values()
            assert numbers.size == (8 if good.content.kind == "scales" else 36)
            for wrong in (
                type(good.content)(numbers[1:], *others),
                type(good.content)(np.append(numbers, 1.0), *others),
                moments_rounds.Answer(numbers),
            ):
                with pytest.raises(RemoteProtocolError, match=r"were asked for|is of the kind moments"):
                    check(replace(good, content=wrong))
                self.n_refused += 1
            return updates

    sites = Wrong(PLAN)
    run(PLAN, sites)
    assert sites.n_refused == 4 * 3
