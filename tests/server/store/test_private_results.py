"""What a result says about privacy: the guarantee in one sentence, or why there is none."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import JoinRequest, LedgerHead
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.results import warnings
from fedbnsl_server.results.results import RunRecorder
from fedbnsl_server.results.sentences import in_words
from fedbnsl_server.sites.mailbox import Traffic
from fedbnsl_server.sites.roster import Roster
from fedbnsl_server.store.run_folder import RunFolder
from fedbnsl_server.store.run_id import RunIdentity
from fedbnsl_workbench.simulate import simulate
from private_site import NAMES, private_plan, rows

HEAD = LedgerHead(b"i" * 16, b"a" * 16, 1, b"d" * 32, 0)
EXACT = private_plan(privacy={"smoothness": "exact"})


def result_of(plan: Plan, out: Path, *, uncounted: Sequence[str] = ()) -> dict[str, Any]:
    """The result of a run that broke off in its first round."""
    recorder = RunRecorder(RunFolder.create(out, plan), run=1)
    recorder.start(NAMES, {"north": 120, "south": 1000}, Traffic(), uncounted=uncounted)
    return recorder.finish("interrupted", "in a test")


def test_a_private_run_names_its_guarantee_in_one_sentence(tmp_path: Path) -> None:
    result = result_of(private_plan(privacy={"delta": 0.0}), tmp_path)
    assert result["manifest"]["private"] is True
    sentence = result["privacy"]["guarantee"]
    assert "at most 1 rounds" in sentence, "whoever answered the round that broke off has paid for it"
    assert sentence.startswith("Every site's table is protected by (epsilon = 1, delta = 6.94e-05 or less")
    assert sentence.endswith(".")
    assert result["privacy"]["no_guarantee_because"] == []
    assert result["privacy"]["sites"]["south"]["delta"] == pytest.approx(1e-6)
    assert result["privacy"]["sites"]["south"]["accounting"] == "Gaussian"
    assert result["privacy"]["sites"]["north"]["contributed_zcdp"] == 0.0, "it has answered nothing"


def test_a_run_that_goes_on_does_not_say_how_many_rounds_were_answered_at_most(tmp_path: Path) -> None:
    """Its folder may be a backup: the sites may have answered rounds that it does not know of."""
    plan = private_plan(rounds=7)
    RunFolder.create(tmp_path, plan, RunIdentity(1, datetime.now(UTC))).close()
    folder = RunFolder.resume(tmp_path, plan)
    recorder = RunRecorder(folder, run=1)
    recorder.start(NAMES, {"north": 120, "south": 1000}, Traffic())
    result = recorder.pause()
    folder.close()
    assert "at most 7 rounds" in result["privacy"]["guarantee"]


def test_a_run_that_never_began_claims_nothing(tmp_path: Path) -> None:
    recorder = RunRecorder(RunFolder.create(tmp_path, private_plan()), run=1)
    assert recorder.finish("interrupted", "while it waited")["manifest"]["private"] is False


def test_a_run_without_privacy_says_nothing_about_it(tmp_path: Path) -> None:
    result = result_of(Plan(), tmp_path)
    assert (result["manifest"]["private"], result["privacy"]) == (False, None)


@pytest.mark.parametrize(
    ("plan", "uncounted", "reason"),
    [
        (private_plan(), ["south keeps no privacy ledger"], "south keeps no privacy ledger"),
        (EXACT, [], "second moments were used exactly"),
    ],
    ids=["no ledger", "exact"],
)
def test_a_run_that_guarantees_nothing_says_why_and_claims_nothing(
    plan: Plan, uncounted: list[str], reason: str, tmp_path: Path
) -> None:
    result = result_of(plan, tmp_path, uncounted=uncounted)
    assert result["manifest"]["private"] is False
    assert result["privacy"]["guarantee"] == ""
    assert reason in result["privacy"]["no_guarantee_because"][0]
    assert any("no privacy guarantee" in warning and reason in warning for warning in result["warnings"])


@pytest.mark.parametrize("seed", [None, 3])
def test_a_simulation_is_never_private(seed: int | None, tmp_path: Path) -> None:
    tables = {name: Dataset(NAMES, rows(k)) for k, name in enumerate(("north", "south"))}
    result = simulate(private_plan(), tables, tmp_path, noise_seed=seed)
    assert result["manifest"]["private"] is False
    assert result["privacy"]["guarantee"] == ""
    reasons = result["privacy"]["no_guarantee_because"]
    assert "a simulation keeps no ledger" in reasons
    assert ("its noise came from a seed" in reasons) == (seed is not None)


def test_the_roster_knows_who_counts_what_it_releases() -> None:
    async def memberships() -> Roster:
        roster = Roster(private_plan(variables=NAMES))
        roster.join(JoinRequest("north", NAMES, 120, ledger=HEAD))
        roster.join(JoinRequest("south", NAMES, 120))
        return roster

    import asyncio

    members = asyncio.run(memberships()).members
    assert {name: member.has_ledger for name, member in members.items()} == {"north": True, "south": False}


MOMENTS = {"rounds": 0, "moments_rounds": 3}


def test_a_run_of_moments_that_broke_off_names_what_may_have_been_released(tmp_path: Path) -> None:
    plan = private_plan(**MOMENTS)
    first = result_of(plan, tmp_path / "first")["privacy"]["guarantee"]
    assert "in this run: 3 noisy second moments. A record is a row." in first
    RunFolder.create(tmp_path / "run", plan, RunIdentity(1, datetime.now(UTC))).close()
    folder = RunFolder.resume(tmp_path / "run", plan)
    recorder = RunRecorder(folder, run=1)
    recorder.start(NAMES, {"north": 120}, Traffic())
    resumed = recorder.pause()["privacy"]["guarantee"]
    folder.close()
    assert "the noisy moments of its residuals at most 3 times. A record" in resumed, "the folder may be a backup"


def test_columns_whose_spread_the_noise_hides_are_named_where_their_edges_are_told() -> None:
    dictionary = {"a": {"range": [0, 1]}, "b": {"range": [0, 1]}}
    plan = Plan.load("private", ["privacy.secure_aggregation=false"]).with_settings(dictionary=dictionary)
    assert [*warnings.of_hidden_scales(plan, ("a", "b"), np.array([1.0, 0.4]))] == [], "none is told there"
    plan = plan.with_settings(rounds=2, moments_rounds=0, graph_class="dag-equal-variance", threshold=0.3)
    (told,) = in_words([*warnings.of_hidden_scales(plan, ("a", "b"), np.array([1.0, 0.4]))])
    assert "how much 'b' vary" in told
    assert [*warnings.of_hidden_scales(plan, ("a", "b"), np.ones(2))] == []


def test_weights_into_variables_with_levels_are_called_biased_where_records_are_clipped() -> None:
    levels = {"a": {"range": [0, 1]}, "b": {"kind": "binary", "levels": ["no", "yes"]}}
    private, standard = Plan.load("private"), Plan.load("standard")
    (told,) = in_words([*warnings.of_clipped_levels(private.with_settings(dictionary=levels), {"a", "b"})])
    assert "weights of edges into 'b' come out too large or too small" in told
    assert [
        *warnings.of_clipped_levels(private.with_settings(dictionary={**levels, "b": {"range": [0, 1]}}), {"b"})
    ] == []
    assert [*warnings.of_clipped_levels(standard.with_settings(dictionary=levels), {"b"})] == []
    assert [*warnings.of_clipped_levels(private.with_settings(dictionary=levels), {"a"})] == [], "no edge into it"
