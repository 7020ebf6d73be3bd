"""Secure aggregation that lose a site: its round is asked anew of the others, with fresh masks and fresh noise, paid
again."""

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbnsl.errors import (
    BudgetExhaustedError,
    PeerRefusedError,
    PlanError,
    PlanMismatchError,
    RemoteProtocolError,
    ResultError,
    SetupError,
    StaleRoundError,
)
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy import zcdp
from fedbnsl.privacy.calibration import price_of
from fedbnsl.privacy.report import guarantee_sentence
from fedbnsl.protocol.messages import LocalUpdate, Loss, MaskedSum, Membership, RoundTask, SiteState
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl_client.budget.journal import RunHere, RunJournal
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.policy import DatasetPolicy
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_client.secure_aggregation import masks
from fedbnsl_client.secure_aggregation.attestation import Attestation
from fedbnsl_client.secure_aggregation.member import Member
from fedbnsl_client.site import folder as site_folder
from fedbnsl_server.algorithm import admm
from fedbnsl_server.results.privacy_loss import privacy_loss
from fedbnsl_server.rounds import residual_moments
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.sites.ejection import Ejected, losses, round_to_go_on_after
from fedbnsl_server.store import checkpoint, operator_commands
from fedbnsl_server.store.history import read_past
from fedbnsl_server.store.kept_checkpoints import KeptCheckpoints
from federation_folder import make_federation
from forked import joining
from private_site import DATASET, units_spent
from secure_sites import (
    FEDERATION,
    GONE,
    PLAN,
    SITES,
    TABLES,
    LossyExchange,
    Wire,
    make_sites,
    once,
    play,
    played,
    sites_of,
    tap,
)

PRICE = price_of(PLAN, n_samples=400, n_variables=5)


def journals_of(folder: Path, plan: Plan = PLAN) -> tuple[dict[str, RunJournal], dict[str, Ledger]]:
    price = price_of(plan, n_samples=400, n_variables=5)
    rule = DatasetPolicy(
        id=DATASET,
        path=Path("t.csv"),
        max_epsilon=50.0,
        max_delta=1e-6,
        max_epsilon_per_run=50.0,
        max_epsilon_against_all=99.0,
    )
    ledgers = {site: Ledger.create(folder / f"{site}.db") for site in SITES}
    for ledger in ledgers.values():
        ledger.registrations.register(DATASET, FEDERATION.variables, TABLES["east"])
    return {
        site: RunJournal(ledger.payments, rule, plan, price, RunHere(1, site)) for site, ledger in ledgers.items()
    }, ledgers


def memberships_are_those_of(exchange: LossyExchange, t: int, attempt: int) -> set[str]:
    return {site for site, round_, k in exchange.sent if (round_, k) == (t, attempt)}


@pytest.mark.parametrize("lost_in", [1, 2, 3, PRICE.last_round])
def test_the_masks_of_the_others_cancel_again_and_the_round_is_answered_anew(
    lost_in: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked = LossyExchange(sites_of(), lost_in=lost_in)
    learned = played(masked)
    monkeypatch.setattr(masks, "_stream", lambda shared, info, n: np.zeros(n, dtype=np.uint64))
    clear = LossyExchange(sites_of(), lost_in=lost_in)
    assert learned.refitted is not None
    assert (again := played(clear).refitted) is not None
    assert learned.refitted.to_dense().tobytes() == again.to_dense().tobytes()

    others = set(SITES) - {GONE}
    assert memberships_are_those_of(masked, lost_in, 0) == memberships_are_those_of(masked, lost_in, 1) == others
    for exchange in (masked, clear) if lost_in > 1 else ():
        for site in others:
            given_up, repeated = (exchange.sent[site, lost_in, k].content for k in (0, 1))
            assert isinstance(given_up, MaskedSum)
            assert isinstance(repeated, MaskedSum)
            assert (given_up.numbers != repeated.numbers).all(), "masks and noise are fresh"
            # Without masks, what is left of the difference is noise: of its price, at this site's part.
            apart = (given_up.numbers - repeated.numbers).view(np.int64).astype(float)
            variance = PRICE.setup_variance if lost_in == 2 else PRICE.moments_variance / 2
            if exchange is clear:
                assert 0.2 < (apart**2).mean() / (2 * variance) < 3.0
            else:
                assert (apart**2).mean() > 1e6 * variance


@pytest.mark.parametrize("lost_in", [1, 2, 3, PRICE.last_round])
def test_a_round_that_is_answered_anew_is_paid_again_within_the_price(lost_in: int, tmp_path: Path) -> None:
    journals, ledgers = journals_of(tmp_path)
    played(LossyExchange(sites_of(journals), lost_in=lost_in))
    again = {1: 0, 2: PRICE.setup_units}.get(lost_in, PRICE.moments_units)
    for site, ledger in ledgers.items():
        ledger.verify()
        if site == GONE:
            assert units_spent(ledger, DATASET) == sum(map(PRICE.units_of, range(lost_in))) - PRICE.setup_units * (
                lost_in < 3
            )
        else:
            assert units_spent(ledger, DATASET) == sum(map(PRICE.units_of, range(PRICE.last_round + 1))) + again
            assert units_spent(ledger, DATASET) <= PRICE.units
            assert units_spent(ledger, DATASET, against_all=True) <= PRICE.share_units


@pytest.mark.parametrize("lost_in", [1, 2, 3, PRICE.last_round])
def test_the_result_counts_what_sites_paid_for_a_round_that_was_given_up(lost_in: int, tmp_path: Path) -> None:
    """The ledgers of the sites are the judge; of the lost site the result cannot know whether it still answered."""
    journals, ledgers = journals_of(tmp_path)
    played(LossyExchange(sites_of(journals), lost_in=lost_in))
    rounds = [
        {"round": t, "contributed": [site for site in SITES if site != GONE or t < lost_in]}
        for t in range(1, PRICE.last_round + 1)
    ]
    told = privacy_loss(
        PLAN,
        5,
        dict.fromkeys(SITES, 400),
        rounds,
        paid_rounds=PRICE.last_round,
        lost=[Loss(GONE, lost_in)],
        no_guarantee=[],
    )
    for site, ledger in ledgers.items():
        counted, paid = told["sites"][site]["contributed_zcdp"], zcdp.zcdp_of(units_spent(ledger, DATASET))
        assert counted >= paid * (1 - 1e-12) if site == GONE else counted == pytest.approx(paid, rel=1e-12), site


def test_a_late_answer_to_the_round_that_was_given_up_is_stale_and_not_a_fault() -> None:
    for lost_in in (1, 3):
        exchange = LossyExchange(sites_of(), lost_in=lost_in)
        played(exchange)
        with pytest.raises(StaleRoundError, match="given up"):
            exchange.checks[lost_in](exchange.sent["east", lost_in, 0])
        exchange.checks[lost_in](exchange.sent["east", lost_in, 1])


class Restarted:
    """One site of a run whose other sites follow the coordinator; it can be asked anything, also after a restart."""

    def __init__(self, folder: Path) -> None:
        self.journals, self.ledgers = journals_of(folder)
        self.tasks: dict[int, RoundTask] = {}
        outer = self

        class Recording(LossyExchange):
            def exchange(self, tasks: Any, snapshots: Any, check: Any) -> Any:
                outer.tasks[tasks["east"].round] = tasks["east"]
                outer.snapshots[tasks["east"].round] = snapshots["east"]
                return super().exchange(tasks, snapshots, check)

        self.snapshots: dict[int, SiteState] = {}
        played(Recording(sites_of(self.journals), lost_in=0))

    def asked_anew(self, t: int, *lost: Loss) -> LocalUpdate:
        east = Participant(
            "east",
            Dataset(FEDERATION.variables, TABLES["east"]),
            PLAN,
            self.snapshots[t],
            run=1,
            journal=self.journals["east"],
            randbelow=randomness.seeded("again"),
        )
        return east.handle(replace(self.tasks[t], lost=lost))


def test_a_coordinator_that_invents_losses_gets_no_more_than_the_price_includes(tmp_path: Path) -> None:
    site = Restarted(tmp_path)
    before = site.ledgers["east"].payments.spending(DATASET).units
    first = site.asked_anew(3, Loss("north", 3))
    assert site.ledgers["east"].payments.spending(DATASET).units == before + PRICE.moments_units == PRICE.units
    # The same round without another site: what was drawn is sent as it was, under the masks that it had.
    assert site.asked_anew(3, Loss("south", 3)) == first
    for t in (2, 4):
        with pytest.raises(BudgetExhaustedError, match="the price of the run includes 1 such rounds"):
            site.asked_anew(t, Loss("south", t))
    assert site.ledgers["east"].payments.spending(DATASET).units == PRICE.units


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ((Loss("north", 3), Loss("south", 3)), "allows for 1 lost"),
        ((Loss("east", 3),), "never for this one"),
        ((Loss("nobody", 3),), "named 4 sites of 4, and 1 lost"),
    ],
)
def test_losses_that_cannot_be_are_refused_before_anything_is_paid(
    lost: tuple[Loss, ...], why: str, tmp_path: Path
) -> None:
    site = Restarted(tmp_path)
    before = site.ledgers["east"].payments.spending(DATASET).units
    with pytest.raises(PeerRefusedError, match=why):
        site.asked_anew(3, *lost)
    assert site.ledgers["east"].payments.spending(DATASET).units == before


def test_a_coordinator_that_brings_a_lost_site_back_is_refused() -> None:
    exchange = LossyExchange(sites := sites_of(), lost_in=3)
    played(exchange)
    with pytest.raises(RemoteProtocolError, match="without other sites than those"):
        sites["east"].handle(RoundTask(4, exchange.sent["east", 4, 1].content, contributed=True))


def test_losing_a_confirmed_site_is_refused_if_the_rest_are_too_few() -> None:
    """Three of four share the noise, so that two others must be real; 'west' is nobody's."""

    class Confirming(Attestation):
        def require_confirmed(self, memberships: Iterable[Membership], *, least: int, goes_on: bool = False) -> None:
            if sum(membership.site in ("north", "south") for membership in memberships) < least:
                raise PeerRefusedError("too few are confirmed")

    memberships = tuple(Membership(site, 1) for site in SITES)
    member = Member("east", 1, 1, b"plan", 4, 3, Confirming(), 1)
    assert member.present(memberships, ()) == memberships
    assert [membership.site for membership in member.present(memberships, (Loss("west", 3),))] == [
        "east",
        "north",
        "south",
    ]
    with pytest.raises(PeerRefusedError, match="too few"):
        member.present(memberships, (Loss("north", 3),))


def test_a_run_is_not_gone_on_with_under_another_plan(tmp_path: Path) -> None:
    """Noise that was shared in a sum would be sent as if it were all there is."""
    journals, ledgers = journals_of(tmp_path)
    played(LossyExchange(sites_of(journals), lost_in=1))
    alone = PLAN.with_settings(privacy={**PLAN.model_dump()["privacy"], "secure_aggregation": False})
    price = price_of(alone, n_samples=400, n_variables=5)
    rule = journals["east"]._dataset
    with pytest.raises(PlanMismatchError, match="under another plan"):
        RunJournal(ledgers["east"].payments, rule, alone, price, RunHere(1, "east")).check()
    RunJournal(ledgers["east"].payments, rule, PLAN, PRICE, RunHere(1, "east")).check()
    RunJournal(ledgers["east"].payments, rule, alone, price, RunHere(2, "east")).check()


@pytest.mark.parametrize("lost_in", [2, 3, 5])
def test_sites_of_prepared_columns_know_their_means_after_a_loss_and_a_restart(lost_in: int, tmp_path: Path) -> None:
    ranges = {name: {"range": [-20.0, 20.0]} for name in FEDERATION.variables}
    plan = Plan.load("private", ["privacy.delta=1e-7"], epsilon=3.0)
    plan = plan.with_settings(n_participants=4, dictionary=ranges)
    journals, ledgers = journals_of(tmp_path, plan)
    price = price_of(plan, n_samples=400, n_variables=5)
    sites = sites_of(journals, plan)

    class Restarting(LossyExchange):
        def exchange(self, tasks: Any, snapshots: Any, check: Any) -> Any:
            updates = super().exchange(tasks, snapshots, check)
            again = sites_of(journals, plan, snapshots)
            for site, update in updates.items():
                assert again[site].handle(tasks[site]) == update, "the same bytes"
            return updates

    played(Restarting(sites, lost_in=lost_in, plan=plan), plan)
    for site in set(SITES) - {GONE}:
        again = sum(map(price.units_of, range(price.last_round + 1)))
        assert ledgers[site].payments.spending(DATASET).units == again + (
            price.units_of(0) if lost_in == 2 else price.units_of(lost_in)
        )
        assert ledgers[site].payments.spending(DATASET).units <= price.units


def test_the_noise_of_the_scales_is_that_of_the_sites_that_told_them() -> None:
    memberships = tuple(Membership(site, n) for site, n in zip(SITES, (400, 40_000, 400, 400), strict=True))
    rows = {site: 400 for site in SITES if site != GONE}
    zero = SparseMatrix.zeros(5)
    state = replace(
        admm.initial_state(5, list(rows)), sites={s: SiteState(zero, zero, memberships=memberships) for s in rows}
    )
    run = Run(PLAN, PLAN.edge_mask(FEDERATION.variables), rows, lost=(Loss(GONE, 4),)).as_one("all")
    assert residual_moments._when_scales_were_told(state, run).n_samples == {"all": 41_200}
    early = replace(run, lost=(Loss(GONE, 2),))
    assert residual_moments._when_scales_were_told(state, early).n_samples == {"all": 1200}


# ---- over the network ----------------------------------------------------------------------------------------------


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return tap(monkeypatch)


@pytest.mark.parametrize("ordered", [False, True], ids=["in time", "by the operator"])
def test_real_sites_go_on_without_one_that_is_killed_for_good(ordered: bool, wire: Wire, tmp_path: Path) -> None:
    plan = PLAN if ordered else PLAN.with_settings(run_deadline_s=6.0)
    federation, out = make_federation(tmp_path / "federation"), tmp_path / "run"
    folders = make_sites(tmp_path, federation, plan)
    processes: dict[str, Any] = {}
    late: list[tuple[int, str]] = []

    def live(folder: Path, address: str) -> tuple[int, str]:
        if folder.name != GONE:
            return once(folder, address)
        processes[GONE] = joining(folder, address)
        said = processes[GONE].communicate()
        if ordered:
            operator_commands.give(out, GONE, None)
        while "ejected" not in (out / "events.jsonl").read_text(encoding="utf-8"):
            time.sleep(0.1)
        late.append(once(folder, address))
        return processes[GONE].returncode, said

    def kill(site: str) -> None:
        if site == GONE and (GONE, 2) in wire.updates:
            threading.Timer(0.0, processes[GONE].kill).start()

    wire.on_pull = kill
    result, error, ends = play(folders, federation, out, plan, live=live)
    assert error is None, ends
    assert result is not None
    assert all(code == 0 for site, (code, _) in ends.items() if site != GONE), ends
    (ejected,) = result["ejected"]
    assert ejected["site"] == GONE
    assert any(GONE in warning for warning in result["warnings"])
    guarantee = result["privacy"]["guarantee"]
    assert "1 of these releases again, with fresh noise, as a site was lost" in guarantee
    assert "and over the other 3 once a site was lost. The guarantee holds against it alone;" in guarantee
    assert late
    assert "taken out" in late[0][1] or late[0][0] == 6
    price = price_of(plan, n_samples=400, n_variables=5)
    given_up = ejected["after_round"] + 1
    for site in set(SITES) - {GONE}:
        assert len(wire.updates[site, given_up]) <= 2
        with site_folder.opened(folders[site]) as (_, ledger):
            ledger.verify()
            whole = sum(map(price.units_of, range(price.last_round + 1)))
            answered_twice = len(wire.updates[site, given_up]) == 2
            assert units_spent(ledger, DATASET) == whole + (price.units_of(given_up) if answered_twice else 0)


def test_no_second_site_is_taken_out_and_none_from_an_earlier_round() -> None:

    rounds = [{"round": t, "kind": "scales", "contributed": list(SITES)} for t in (1, 2)]
    asked: dict[str, Any] = {"plan": PLAN, "members": set(SITES), "rounds": rounds, "kept": [1, 2]}
    assert round_to_go_on_after("west", None, ejected=[], **asked) == 2
    with pytest.raises(SetupError, match="only the present round"):
        round_to_go_on_after("west", 1, ejected=[], **asked)
    gone = Ejected("id", GONE, None, 2, 400, "now")
    with pytest.raises(SetupError, match="allows for 1 lost sites"):
        round_to_go_on_after("west", None, ejected=[gone], **asked)
    assert losses([gone]) == (Loss(GONE, 3),)
    over = [{**rounds[0], "round": t} for t in range(1, PRICE.last_round + 1)]
    with pytest.raises(SetupError, match="no round is left to ask again"):
        round_to_go_on_after("west", None, ejected=[], **{**asked, "rounds": over})


def test_a_quorum_of_all_sites_is_refused_since_one_may_be_lost() -> None:
    with pytest.raises(PlanError, match="quorum = 4: must be 0"):
        PLAN.with_settings(quorum=4)


def test_a_checkpoint_from_before_a_loss_is_not_gone_on_from(tmp_path: Path) -> None:
    kept: list[admm.AdmmState] = []
    exchange = LossyExchange(sites_of(), lost_in=4)
    played(exchange, on_round=kept.append)
    events, file = tmp_path / "events.jsonl", tmp_path / "checkpoint.npz"
    gone = {"event": "ejected", "order": "id", "site": GONE, "from_round": None, "after_round": 3, "n_samples": 400}
    events.write_text(json.dumps({"time": "now", **gone}) + "\n", encoding="utf-8")
    checkpoint.save(file, kept[1], plan_digest=PLAN.digest())
    with pytest.raises(ResultError, match="older than the loss"):
        read_past(file, events, PLAN, KeptCheckpoints(tmp_path / "kept", PRICE.last_round))


def test_a_loss_takes_one_of_those_that_may_collude() -> None:
    settings = [
        "n_participants=8",
        "privacy.secure_aggregation=true",
        "privacy.delta=1e-6",
        "privacy.secure_aggregation_retries=2",
    ]
    plan = Plan.load("private-moments", settings)

    def said(**of: int) -> str:
        return guarantee_sentence(plan, 5, 400, 6, **of)

    assert "any 2 other sites, those that a site has not confirmed and those that are lost during the run" in said()
    assert "any 1 other site, those that a site has not confirmed among them" in said(lost=1, repeated=1)
    assert "over the other 6 once 2 sites were lost. The guarantee holds against it alone;" in said(lost=2, repeated=2)
    assert "again, with fresh noise" not in said(lost=1), "keys are not released"
