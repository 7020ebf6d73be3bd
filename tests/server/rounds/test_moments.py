"""The moments round, over an Exchange with real participants."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graphs import family_moments
from fedbnsl.graphs.family_moments import needed_moments, parent_candidates
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Content, LocalUpdate, RoundTask, SiteState
from fedbnsl.rounds import moments as moments_rounds
from fedbnsl.rounds import scales as scales_rounds
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_client.participant import Participant
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.search.progress import Progress
from fedbnsl_server.sites.mailbox import UpdateCheck
from fedbnsl_server.store import checkpoint
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import synthesise
from plain_sites import PlainSites, states_of_run

FEDERATION = synthesise(8, 10, 3, 400, 5)
VARIABLES = FEDERATION.variables
TABLES = {f"site-{k}": Dataset(VARIABLES, X) for k, X in enumerate(FEDERATION.tables)}
N_SAMPLES = {site: table.n_samples for site, table in TABLES.items()}
MASK = EdgeMask(Knowledge(), VARIABLES)

PLAN = Plan(n_participants=3, rounds=12, refit_rounds=0, moments_rounds=1, l1_weight=0.05)


class Sites(PlainSites):
    """Participants with the tables above."""

    def __init__(self, plan: Plan, *, anew: bool = False) -> None:
        super().__init__(TABLES, lambda site, snapshot: Participant(site, TABLES[site], plan, snapshot), anew=anew)


run = partial(states_of_run, variables=VARIABLES, n_samples=N_SAMPLES)


@pytest.fixture(scope="module")
def played() -> tuple[Sites, list[AdmmState]]:
    sites = Sites(PLAN)
    return sites, run(PLAN, sites)


def test_the_search_finds_the_truth_and_reports_its_weights(played: tuple[Sites, list[AdmmState]]) -> None:
    end = played[1][-1]
    assert end.refitted is not None
    assert np.array_equal(end.refitted.support(), FEDERATION.W != 0)
    assert end.refitted.to_dense() == pytest.approx(FEDERATION.W, abs=0.15)
    assert end.residual_variance == pytest.approx(np.ones(8), abs=0.15)


@pytest.mark.parametrize("value_type", ["float64", "float32"])
def test_a_site_sends_the_moments_of_neighbours_and_no_others(value_type: str) -> None:
    plan = PLAN.with_settings(neighbour_threshold=0.2, value_type=value_type)
    sites = Sites(plan)
    states = run(plan, sites)
    first, last = states[0].global_weights.to_dense(), states[11].global_weights.to_dense()
    expected = (np.abs(first) > 0.2) | (np.abs(last) > 0.2)
    assert np.array_equal(sites.tasks[-1].content.neighbours.support(), expected)
    needed = needed_moments(parent_candidates(expected, MASK))
    for i, j in zip(*np.nonzero(expected), strict=True):  # a family: a child and two of its neighbours
        assert needed[min(i, j), max(i, j)]
        for k in np.flatnonzero(expected[:, j] | expected[j]):
            assert needed[min(i, k), max(i, k)]
    assert needed.sum() < 36
    assert not np.tril(needed, k=-1).any()
    for site, update in sites.updates[-1].items():
        sent = SecondMoments.of(TABLES[site].X).S[needed]
        assert (
            update.content.moments.tolist() == (sent.astype(np.float32) if value_type == "float32" else sent).tolist()
        )


@pytest.mark.parametrize("settings", [{}, {"send_tolerance": 0.02, "value_type": "float32"}])
def test_sites_and_coordinator_that_start_again_every_round_get_the_same_bits(
    settings: dict[str, object], tmp_path: Path
) -> None:
    plan = PLAN.with_settings(rounds=5, **settings)
    straight = run(plan, Sites(plan))
    state: AdmmState | None = None
    for t in range(n_rounds(plan)):
        sites = Sites(plan, anew=True)

        def save(after: AdmmState, record: RoundRecord) -> None:
            checkpoint.save(tmp_path / "state", after, plan_digest=plan.digest())
            raise InterruptedError

        with pytest.raises(InterruptedError):
            round_loop.run(plan, VARIABLES, N_SAMPLES, sites, on_round=save, state=state)
        state = checkpoint.load(tmp_path / "state", plan_digest=plan.digest())
        assert state.global_weights == straight[t].global_weights, t
        assert dict(state.sites) == dict(straight[t].sites)
        assert state.refitted == straight[t].refitted
    assert state is not None
    assert state.refitted is not None


def test_a_message_with_other_numbers_than_were_asked_for_is_refused() -> None:
    class TooMany(Sites):
        def exchange(
            self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
        ) -> Mapping[str, LocalUpdate]:
            updates = super().exchange(tasks, snapshots, check)
            good = updates["site-0"]
            wrong: list[Content] = [scales_rounds.Answer(np.ones(8))]
            if good.content.kind == "moments":
                moments = good.content.moments
                one_large = np.where(np.arange(moments.size) == 1, 1e3, 1.0)
                others = [np.append(moments, 1.0), moments[1:], -moments, moments * one_large, moments * np.inf]
                wrong += [moments_rounds.Answer(other) for other in others]
            else:
                wrong.append(moments_rounds.Answer(np.ones(8)))
            for content in wrong:
                with pytest.raises(RemoteProtocolError, match=r"moments|is of the kind"):
                    check(replace(good, content=content))
            self.n_refused = getattr(self, "n_refused", 0) + len(wrong)
            return updates

    sites = TooMany(PLAN)
    run(PLAN, sites)
    assert sites.n_refused == 12 * 2 + 6


@pytest.mark.parametrize(("epsilon", "warned"), [(100.0, False), (0.1, True)])
def test_noise_that_hides_the_edges_looked_for_is_warned_of(epsilon: float, warned: bool, tmp_path: Path) -> None:
    privacy = {"epsilon": epsilon, "feature_bounds": [50.0]}
    plan = PLAN.with_settings(
        local_solver="dp-pgcd", local_steps=1, rounds=0, refit_rounds=0, moments_rounds=2, privacy=privacy
    )
    warnings = simulate(plan, TABLES, tmp_path / "run", noise_seed=1)["warnings"]
    assert any("most edges are lost" in warning for warning in warnings) == warned


def test_a_kept_answer_about_other_residuals_is_refused() -> None:
    """A site draws a round once only: asked again with other weights, it sends what it kept, which would be misread."""
    privacy = {"epsilon": 50.0, "feature_bounds": [50.0]}
    plan = PLAN.with_settings(
        local_solver="dp-pgcd", local_steps=1, rounds=0, refit_rounds=0, moments_rounds=1, privacy=privacy
    )

    class Restored(Sites):
        """A coordinator that asks the second time with other scales, after its folder was set back."""

        def exchange(
            self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
        ) -> Mapping[str, LocalUpdate]:
            if next(iter(tasks.values())).content.kind == "residual_moments":
                for site, task in tasks.items():
                    answer = self.participants[site].handle(
                        replace(task, content=replace(task.content, scales=task.content.scales * 2.0))
                    )
                    with pytest.raises(RemoteProtocolError, match="kept answer to moments of other residuals"):
                        check(answer)
                raise InterruptedError
            return super().exchange(tasks, snapshots, check)

    with pytest.raises(InterruptedError):
        run(plan, Restored(plan))


@pytest.mark.parametrize(
    ("knowledge", "low", "high"),
    [
        ({}, math.nan, math.nan),
        ({"tiers": [["a", "b"], ["c", "d"]]}, 0.0, 0.5),
        ({"required": [["c", "a"]]}, 2.0, 10.0),  # an edge more, between a and b
        ({"forbidden": [["a", "c"], ["c", "a"]]}, 100.0, 1e4),
        ({"forbidden": [list(pair) for pair in itertools.permutations("abcd", 2)]}, 500.0, 1e4),  # no edge is left
    ],
)
def test_knowledge_that_is_wrong_costs_and_knowledge_that_is_true_does_not(
    knowledge: dict[str, Any], low: float, high: float
) -> None:
    cost = cost_of_knowledge(knowledge)
    assert math.isnan(cost) if math.isnan(low) else low <= cost <= high


@pytest.mark.parametrize("part", ["bootstrap", "without one site each", "searching without prior knowledge"])
def test_knowledge_is_not_judged_by_a_search_that_was_ended_early(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Progress.begin

    def ended(self: Progress, what: str) -> None:
        begin(self, what)
        if what == part:
            self.enough()

    monkeypatch.setattr(Progress, "begin", ended)
    assert math.isnan(cost_of_knowledge({"forbidden": [["a", "c"], ["c", "a"]]}))


def test_tiers_that_reverse_a_collider_are_far_less_likely_on_the_same_pairs() -> None:
    """One more edge, between a and b, makes up for it: with the price of that edge the difference stays small."""
    found = judged({"tiers": [["c"], ["a", "b", "d"]]})
    assert 0.0 < found.cost_of_knowledge < math.log(2000) / 2 + math.log(4)
    assert found.cost_on_same_pairs > 20.0
    assert found.against_knowledge.tolist() == [[0, 2], [1, 2]]
    true = judged({"tiers": [["a", "b"], ["c", "d"]]})
    assert true.cost_on_same_pairs == pytest.approx(0.0, abs=1e-6)
    assert true.against_knowledge.size == 0


def test_pairs_that_knowledge_keeps_apart_are_looked_at_for_what_it_leaves_out() -> None:
    found = judged({"forbidden": [list(pair) for pair in itertools.permutations("abcd", 2)]})
    assert found.n_apart == 6
    assert {(0, 2), (1, 2), (2, 3)} <= {tuple(pair) for pair in found.unexplained.tolist()}


def test_where_very_many_pairs_are_kept_apart_they_are_not_asked_for_and_no_claim_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(family_moments, "FEW_COLUMNS", 2)
    monkeypatch.setattr(family_moments, "_MOST_APART", 11)
    found = judged({"forbidden": [list(pair) for pair in itertools.permutations("abcd", 2)]})
    assert found.n_apart == 0
    assert math.isnan(found.cost_of_knowledge)


def cost_of_knowledge(knowledge: dict[str, Any]) -> float:
    return judged(knowledge).cost_of_knowledge


def judged(knowledge: dict[str, Any]) -> Confidence:
    """In a run on a -> c <- b, c -> d."""
    rng = np.random.default_rng(0)
    tables: dict[str, Dataset] = {}
    for site in ("x", "y"):
        X = rng.standard_normal((1000, 4))
        X[:, 2] += 0.6 * X[:, 0] - 0.5 * X[:, 1]
        X[:, 3] += 0.7 * X[:, 2]
        tables[site] = Dataset(tuple("abcd"), X)
    plan = Plan.load("standard").with_settings(n_participants=2, knowledge=knowledge)
    sites = PlainSites(tables, lambda site, snapshot: Participant(site, tables[site], plan, snapshot))
    rows = {site: table.n_samples for site, table in tables.items()}
    end = states_of_run(plan, sites, variables=tuple("abcd"), n_samples=rows)[-1]
    assert end.confidence is not None
    return end.confidence
