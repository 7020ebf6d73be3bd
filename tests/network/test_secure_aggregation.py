"""Secure aggregation over TLS, with sites as real processes: totals alone cross the wire, also where a process is
killed."""

import random
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import Outcome
from fedbnsl.errors import PeerRefusedError, RemoteProtocolError
from fedbnsl.events.security_log import NAME, lines
from fedbnsl.identity.certificates import Name
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import MaskedSum, Membership
from fedbnsl_client.budget.payments import Request
from fedbnsl_client.budget.spending import Spending
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_client.secure_aggregation import masks, peers
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site import identity
from fedbnsl_client.site.identity import Identity
from fedbnsl_server.algorithm import admm
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.store import checkpoint
from fedbnsl_workbench.simulate import InProcessExchange, simulate
from federation_folder import make_federation
from forked import Command, joining
from private_site import DATASET, units_spent
from secure_sites import FEDERATION, PLAN, SITES, TABLES, Wire, make_sites, once, play, tap


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return tap(monkeypatch)


@pytest.fixture
def _ended_once_all_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator, on the main thread, would wait for sites that do not come back."""
    left: list[str] = []
    genuine = Servicer.Leave

    async def leave(self: Servicer, request: Any, context: Any) -> Any:
        left.append(request.site)
        reply = await genuine(self, request, context)
        if len(left) == len(SITES):
            signal.raise_signal(signal.SIGINT)
        return reply

    monkeypatch.setattr(Servicer, "Leave", leave)


ended_once_all_have_left = pytest.mark.usefixtures("_ended_once_all_have_left")


def test_a_run_of_real_sites_sends_totals_alone_and_pays_for_its_share_of_the_noise(wire: Wire, tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "federation")
    folders = make_sites(tmp_path, federation)
    killed: list[str] = []
    rng = random.Random(7)
    processes: dict[str, Command] = {}

    def live(folder: Path, address: str) -> tuple[int, str]:
        while True:
            processes[folder.name] = joining(folder, address)
            said = processes[folder.name].communicate()
            if processes[folder.name].returncode != -signal.SIGKILL:
                return processes[folder.name].returncode, said

    def kill(site: str) -> None:
        if site in ("north", "west") and len(killed) < 6 and rng.random() < 0.5:
            killed.append(site)
            threading.Timer(rng.uniform(0.0, 0.1), processes[site].send_signal, (signal.SIGKILL,)).start()

    wire.on_pull = kill
    result, error, ends = play(folders, federation, tmp_path / "run", live=live)
    assert error is None, ends
    assert result is not None
    assert all(code in (0, 6) for code, _ in ends.values()), ends  # 6: it came back to a run that was over
    assert killed
    assert result["manifest"]["private"] is True
    assert "The coordinator sees sums over all 4 sites only" in result["privacy"]["guarantee"]
    assert (
        "together with any 1 other site, those that a site has not confirmed and those that are lost during "
        "the run among them;" in result["privacy"]["guarantee"]
    )

    price = price_of(PLAN, n_samples=400, n_variables=5)
    run = int(result["manifest"]["run"], 16)
    sent_numbers: list[np.ndarray] = []
    for site, folder in folders.items():
        with site_folder.opened(folder) as (_, ledger):
            ledger.verify()
            reserved = [entry.content["round"] for entry in ledger.entries() if entry.kind == "reserve"]
            assert units_spent(ledger, DATASET) == sum(map(price.units_of, reserved))
            assert ledger.payments.spending(DATASET, against_all=True) == Spending(
                sum(map(price.share_units_of, reserved))
            )
            for t in range(1, price.last_round + 1):
                (sent,) = wire.updates[site, t]
                update = codec.update_from_bytes(sent, n_variables=5)
                kept = ledger.payments.stored(Request(DATASET, run, t, site))
                assert kept is not None
                if t == 1:
                    assert codec.release_from_bytes(kept, n_variables=5)[1] == update
                else:
                    assert kept == sent, "whatever was sent, however often, is what the ledger keeps"
                    assert isinstance(update.content, MaskedSum)
                    sent_numbers.append(update.content.numbers.astype(float) / 2.0**64)
    spread = np.concatenate(sent_numbers)
    assert len(spread) == len(SITES) * (5 + PLAN.moments_rounds * 15)
    assert 0.4 < spread.mean() < 0.6, "masked numbers lie anywhere: more than five standard errors"


def renew(folder: Path, federation: Federation, *, with_new_key: bool) -> None:
    asked = identity.request(folder, Name("lab", folder.name), renew=True, with_new_key=with_new_key)
    bundle = federation.approve(asked, days=10, renew=True)
    identity.enrol(folder, bundle, expected_fingerprint=federation.fingerprint)


@pytest.mark.parametrize("with_new_key", [False, True])
@pytest.mark.parametrize("after_its_key", [False, True])
def test_a_site_that_renews_its_certificate_during_a_run_goes_on_with_it_after_a_restart(
    wire: Wire, tmp_path: Path, after_its_key: bool, with_new_key: bool
) -> None:
    """Others that have seen the new key elsewhere start again, too: the run rests on keys that the old one signed."""
    federation = make_federation(tmp_path / "federation")
    folders = make_sites(tmp_path, federation)
    processes: dict[str, Command] = {}
    renewed: list[str] = []

    def live(folder: Path, address: str) -> tuple[int, str]:
        while True:
            processes[folder.name] = joining(folder, address)
            said = processes[folder.name].communicate()
            if processes[folder.name].returncode != -signal.SIGKILL:
                return processes[folder.name].returncode, said

    def pulled(site: str) -> None:
        # The coordinator has handed out the task of round 1, or of round 3.
        if renewed or site != "north" or (after_its_key and ("north", 2) not in wire.updates):
            return
        old = confirmed_key(folders["west"])
        renew(folders["north"], federation, with_new_key=with_new_key)
        renewed.append(site)
        if after_its_key:
            peers.note_followed(folders["west"], "north", old, own_key(folders["north"]))
            processes["west"].send_signal(signal.SIGKILL)
        processes["north"].send_signal(signal.SIGKILL)

    wire.on_pull = pulled
    result, error, ends = play(folders, federation, tmp_path / "run", live=live)
    assert (error, {code for code, _ in ends.values()}) == (None, {0}), ends
    assert result is not None
    assert renewed
    assert not result["privacy"]["no_guarantee_because"]
    assert "was lost" not in result["privacy"]["guarantee"], "no site was"
    last = price_of(PLAN, n_samples=400, n_variables=5).last_round
    assert all(("north", t) in wire.updates for t in range(1, last + 1))


def own_key(folder: Path) -> str:
    return identity.key_of_certificate(Identity.open(folder).certificate)


def confirmed_key(folder: Path) -> str:
    return peers.confirmed(folder)["north"]


def test_after_a_renewal_nobody_has_to_confirm_anything_and_a_new_key_that_follows_the_old_one_is_shown(
    wire: Wire, tmp_path: Path, fedbnsl: Callable[..., Outcome]
) -> None:
    """East keeps its key. North had two new ones, each signed by the one before."""
    federation = make_federation(tmp_path / "federation")
    folders = make_sites(tmp_path, federation)
    old = own_key(folders["north"])
    renew(folders["east"], federation, with_new_key=False)
    for _ in range(2):
        renew(folders["north"], federation, with_new_key=True)
    renew(folders["north"], federation, with_new_key=False)
    new = own_key(folders["north"])
    assert new != old
    result, error, ends = play(folders, federation, tmp_path / "run", live=once)
    assert (error, {code for code, _ in ends.values()}) == (None, {0}), ends
    assert result is not None
    for site in ("east", "south", "west"):
        assert confirmed_key(folders[site]) == new
        said = fedbnsl("participant", "peers", folders[site]).out
        assert f"in place of {old}, which had signed" in said
        entries = [line.entry for line in lines(folders[site] / NAME)]
        assert [
            (one["federation"], one["site"], one["former"], one["fingerprint"])
            for one in entries
            if one["event"] == "peer key followed"
        ] == [("lab", "north", old, new)]


@ended_once_all_have_left
def test_a_new_key_that_the_confirmed_one_did_not_sign_is_refused(wire: Wire, tmp_path: Path) -> None:
    """As a coordinator could make one: north asks as a new site does, in another folder."""
    federation = make_federation(tmp_path / "federation")
    plan = PLAN.with_settings(run_deadline_s=30.0)  # north waits for the others until then
    folders = make_sites(tmp_path, federation, plan)
    old = own_key(folders["north"])
    (folders["north"] / "identity").rename(tmp_path / "lost")
    renew(folders["north"], federation, with_new_key=False)
    _, error, ends = play(folders, federation, tmp_path / "run", plan, live=once)
    assert error is not None
    assert {site for site, t in wire.updates if t > 1} == set()
    for site in ("east", "south", "west"):
        code, said = ends[site]
        assert (code, "site 'north' has another key than the confirmed one" in said) == (12, True), said
        assert confirmed_key(folders[site]) == old


@ended_once_all_have_left
def test_sites_that_confirmed_nobody_send_nothing_but_their_farewell(wire: Wire, tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "federation")
    folders = make_sites(tmp_path, federation, confirm=False)
    _, error, ends = play(folders, federation, tmp_path / "run", live=once)
    assert error is not None
    assert not wire.updates
    heard = (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8")
    assert "left the run: too few of the other sites are confirmed there" in heard
    for code, said in ends.values():
        assert code == PeerRefusedError.exit_code, said
        assert "could have invented the rest" in said
        assert "fedbnsl participant peers" in said
    for folder in folders.values():
        with site_folder.opened(folder) as (_, ledger):
            assert units_spent(ledger, DATASET) == 0


@ended_once_all_have_left
def test_a_coordinator_that_passes_on_a_key_of_its_own_is_refused_before_anything_is_paid(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation(tmp_path / "federation")
    folders = make_sites(tmp_path, federation)
    genuine = admm.with_memberships

    def forged(state: admm.AdmmState, memberships: tuple[Membership, ...]) -> admm.AdmmState:
        first, *others = memberships
        own = Membership(first.site, first.n_samples, first.certificate, bytes([9, *bytes(31)]), first.signature)
        return genuine(state, (own, *others))

    monkeypatch.setattr("fedbnsl_server.rounds.keys.with_memberships", forged)
    _, error, ends = play(folders, federation, tmp_path / "run", live=once)
    assert error is not None
    assert {site for site, t in wire.updates if t > 1} == set()
    for site, (_, said) in ends.items():
        assert ("another key for this site" if site == "east" else "was not signed by it") in said
    for folder in folders.values():
        with site_folder.opened(folder) as (_, ledger):
            assert units_spent(ledger, DATASET) == 0


# ---- in one process, where noise can have a seed ------------------------------------------------------------------


def simulated(out: Path, plan: Plan = PLAN) -> dict[str, Any]:
    datasets = {site: Dataset(FEDERATION.variables, X) for site, X in TABLES.items()}
    return simulate(plan, datasets, out, noise_seed=3)


def test_masks_change_nothing_of_what_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = simulated(tmp_path / "masked")
    assert result["influence"]["unknown_because"] == "in secure aggregation nobody sees the numbers of one site"
    assert {
        round(of["price_zcdp_against_all_others"] / of["price_zcdp"]) for of in result["privacy"]["sites"].values()
    } == {3}
    monkeypatch.setattr(masks, "_stream", lambda shared, info, n: np.zeros(n, dtype=np.uint64))
    simulated(tmp_path / "clear")
    for name in ("weights.csv", "edges.csv", "lgbn.json"):
        assert (tmp_path / "masked" / name).read_bytes() == (tmp_path / "clear" / name).read_bytes(), name


def test_the_noise_of_the_total_is_smaller_by_the_sites_that_share_it(tmp_path: Path) -> None:
    """Of four sites three are honest: a third of the variance at each."""
    alone = PLAN.with_settings(privacy={**PLAN.model_dump()["privacy"], "secure_aggregation": False})
    none_lost = PLAN.with_settings(privacy={**PLAN.model_dump()["privacy"], "secure_aggregation_retries": 0})
    shared, own = (price_of(plan, n_samples=400, n_variables=5) for plan in (none_lost, alone))
    assert shared.units == own.units
    assert own.moments_variance / 3 <= shared.moments_variance <= own.moments_variance / 3 + 2
    assert own.setup_variance / 3 <= shared.setup_variance <= own.setup_variance / 3 + 1
    assert shared.share_units == 3 * shared.units


def two_faced(monkeypatch: pytest.MonkeyPatch, *, checks: bool) -> None:
    """Let the coordinator ask one site about residuals in other units than the rest."""
    genuine = InProcessExchange.exchange

    def exchange(self: InProcessExchange, tasks: Any, snapshots: Any, check: Any) -> Any:
        east = tasks["east"]
        if east.round == 4:
            other = replace(east.content, scales=east.content.scales * 2.0)
            tasks = {**tasks, "east": replace(east, content=other)}
        return genuine(self, tasks, snapshots, check if checks else lambda update: None)

    monkeypatch.setattr(InProcessExchange, "exchange", exchange)


def test_a_coordinator_that_asks_one_site_another_question_learns_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own check of the digests is taken out: the total is then far beyond what sums can be."""
    two_faced(monkeypatch, checks=False)
    with pytest.raises(RemoteProtocolError, match="larger than the rows of all sites allow"):
        simulated(tmp_path / "run")


def test_an_honest_coordinator_notices_an_answer_to_another_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_faced(monkeypatch, checks=True)
    with pytest.raises(RemoteProtocolError, match="masks do not cancel"):
        simulated(tmp_path / "run")


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_coordinator_goes_on_from_its_checkpoint_with_the_same_keys(tmp_path: Path, after: int) -> None:
    def sites() -> dict[str, Participant]:
        return {
            site: Participant(site, Dataset(FEDERATION.variables, X), PLAN, run=1, randbelow=randomness.seeded(site))
            for site, X in TABLES.items()
        }

    rows = dict.fromkeys(SITES, 400)
    ends: list[admm.AdmmState] = []
    for stopped in (False, True):
        exchange, path = InProcessExchange(PLAN, sites(), run=1), tmp_path / f"{stopped}.npz"

        def save(state: admm.AdmmState, record: RoundRecord, path: Path = path, stopped: bool = stopped) -> None:
            checkpoint.save(path, state, plan_digest=PLAN.digest())
            if stopped and state.round == after:
                raise KeyboardInterrupt

        if stopped:
            with pytest.raises(KeyboardInterrupt):
                round_loop.run(PLAN, FEDERATION.variables, rows, exchange, on_round=save)
            state = checkpoint.load(path, plan_digest=PLAN.digest())
            assert len(state.memberships) == len(SITES)
            ends.append(
                round_loop.run(
                    PLAN, FEDERATION.variables, rows, exchange, on_round=lambda state, record: None, state=state
                )
            )
        else:
            ends.append(round_loop.run(PLAN, FEDERATION.variables, rows, exchange, on_round=save))
    first, second = ends
    assert first.refitted is not None
    assert second.refitted is not None
    assert first.refitted.to_dense().tobytes() == second.refitted.to_dense().tobytes()
