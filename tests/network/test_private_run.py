"""Private runs over real processes: what was sent is what was paid for, whatever happens to a site in between."""

import json
import os
import random
import shutil
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedbnsl.errors import FedbnslError, InterruptedRunError, LedgerError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.wire import federation_pb2 as federation
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Payment, Request
from fedbnsl_client.budget.spending import Cap
from fedbnsl_client.site import folder as site_folder
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import Follower, ServerSettings
from fedbnsl_workbench import localnet
from forked import Command, forked_run, joining, start_fork_server
from private_site import DATASET, NAMES, make_site, private_plan, rows, units_spent, write_table

SITES = ("north", "south")
SEEDS = {"north": 1, "south": 2}


def site(folder: Path, name: str, plan: Plan, **settings: Any) -> Path:
    table = write_table(folder / name / "table.csv", rows(SEEDS[name]))
    make_site(folder / name, table=table, site=name, **settings)
    with site_folder.opened(folder / name) as (_, ledger):
        ledger.approvals.approve(plan.digest(), plan.name)
    return folder / name


join = partial(joining, options=("--insecure",))


@dataclass
class Wire:
    """What the coordinator received, and who may act when a site asks for its next round."""

    updates: dict[tuple[str, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    everything: list[Any] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    on_pull: Callable[[str, int], None] = lambda site, last_round: None


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    heard = Wire()

    def tap(name: str) -> None:
        genuine = getattr(Servicer, name)

        async def tapped(self: Servicer, request: Any, context: Any) -> Any:
            heard.everything.append(request)
            if name == "PushUpdate":
                heard.updates[request.site, request.round].add(request.SerializeToString(deterministic=True))
            reply = await genuine(self, request, context)
            if name == "PullTask":
                heard.on_pull(request.site, request.last_round)
            return reply

        monkeypatch.setattr(Servicer, name, tapped)

    for name in ("Join", "PullTask", "PushUpdate", "Leave"):
        tap(name)
    return heard


def coordinate(
    plan: Plan, out: Path, wire: Wire, act: Callable[[str], None]
) -> tuple[dict[str, Any] | None, FedbnslError | None]:
    """A coordinator on this thread, and `act` with its address on another."""
    start_fork_server()  # it ends with the thread that starts it
    acting: list[threading.Thread] = []

    def listening(address: str) -> None:
        acting.append(threading.Thread(target=act, args=(address,)))
        acting[0].start()

    result, error = None, None
    try:
        result = serve(plan, out, ServerSettings("127.0.0.1:0", listening), Follower(notice=wire.notices.append))
    except FedbnslError as caught:
        error = caught
    for thread in acting:
        thread.join(30)
    return result, error


def test_a_private_demo_spends_exactly_its_price_and_every_ledger_verifies(tmp_path: Path) -> None:
    plan = private_plan(variables=NAMES, privacy={"epsilon": 4.0})
    tables = {name: write_table(tmp_path / "data" / f"{name}.csv", rows(SEEDS[name])) for name in SITES}
    forked_run(plan, tables, tmp_path / "run", seeds={})
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["manifest"]["private"] is True
    assert "(epsilon = 4, delta = 1e-06) differential privacy" in result["privacy"]["guarantee"]
    price = price_of(plan, n_samples=120, n_variables=3)
    for name, spent in localnet.read_ledgers(tmp_path / "run", SITES).items():
        with Ledger.open(tmp_path / "run" / "sites" / name / "guard" / "ledger.db") as ledger:
            ledger.verify()
            assert units_spent(ledger, name) == price.units
            assert sum(entry.kind == "store" for entry in ledger.entries()) == plan.rounds + 1
        assert spent["spent"]["epsilon"] <= 4.0
        assert result["privacy"]["sites"][name]["contributed_zcdp"] == pytest.approx(spent["spent"]["zcdp"], rel=1e-12)


def test_a_site_that_is_killed_again_and_again_never_overspends_and_never_draws_twice(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = private_plan(variables=NAMES, rounds=4, local_steps=1000, join_deadline_s=60.0, privacy={"epsilon": 2.0})
    north, south = (site(tmp_path, name, plan) for name in SITES)
    old = tmp_path / "backup.db"
    shutil.copy(north / "ledger.db", old)
    rng = random.Random(time.time_ns())
    process: list[Command] = []
    kills: list[float] = []
    ends: dict[str, int | str] = {}

    def kill_later(name: str, last_round: int) -> None:
        if name == "north" and len(kills) < 3 and rng.random() < 0.8:
            delay = rng.choice([rng.uniform(0.0, 0.02), rng.uniform(0.0, 0.3)])
            kills.append(delay)
            threading.Timer(delay, process[-1].send_signal, (signal.SIGKILL,)).start()

    def act(address: str) -> None:
        other = join(south, address)
        while True:
            process.append(join(north, address))
            said = process[-1].communicate()
            if process[-1].returncode != -signal.SIGKILL:
                ends["north"] = process[-1].returncode or "ok"
                break
        other.communicate()
        ends["south"] = other.returncode or "ok"
        wire.notices += [said]

    wire.on_pull = kill_later
    result, error = coordinate(plan, tmp_path / "run", wire, act)
    assert error is None
    # Killed after its last answer, it comes back to a run that is over: nobody answers any more (6).
    assert ends["north"] in ("ok", 6), wire.notices[-1]
    assert ends["south"] == "ok"
    assert result is not None
    assert result["manifest"]["private"] is True
    assert kills

    price = price_of(plan, n_samples=120, n_variables=3)
    run = int(result["manifest"]["run"], 16)
    for name, folder in (("north", north), ("south", south)):
        with site_folder.opened(folder) as (policy, ledger):
            ledger.verify()
            spent, entries = units_spent(ledger, DATASET), ledger.entries()
            assert spent <= policy.datasets[0].cap.units
            assert ledger.payments.head(DATASET).spent_units == spent
            for t in range(1, plan.rounds + 1):
                kept = ledger.payments.stored(Request(DATASET, run, t, name))
                assert wire.updates[name, t] == {kept}, "whatever was sent, however often, is what the ledger keeps"
        reserved = [entry.content["round"] for entry in entries if entry.kind == "reserve"]
        surcharges = reserved.count(1) * price.surcharge_units  # whether its noise was seen, nobody knows
        assert spent == sum(price.round_units if t else price.setup_units for t in reserved) + surcharges
        assert set(reserved) == set(range(plan.rounds + 1))
        assert len(reserved) - len(set(reserved)) <= (len(kills) if name == "north" else 0)

    # ---- a backup is restored: the site notices; where it has lost its note, the coordinator does ----
    shutil.copy(old, north / "ledger.db")
    with pytest.raises(LedgerError, match="is an older copy"), site_folder.opened(north):
        pass
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another state"))
    with pytest.raises(LedgerError, match="nothing is noted"), site_folder.opened(north):
        pass
    with site_folder.opened(north, accept_newest=True):  # somebody is wrong, or lies
        pass
    refused: list[tuple[int, str]] = []

    def rejoin(address: str) -> None:
        again = join(north, address)
        said = again.communicate()
        refused.append((again.returncode, said))
        os.kill(os.getpid(), signal.SIGINT)  # the coordinator, on the main thread, waits for more sites

    wire.on_pull = lambda name, last_round: None
    _, error = coordinate(plan, tmp_path / "second", wire, rejoin)
    assert isinstance(error, InterruptedRunError)
    memory = json.loads((tmp_path / "site-ledgers.json").read_text(encoding="utf-8"))
    assert set(memory) == {"north", "south"}
    ((code, said),) = refused
    assert code == 11
    assert "a backup was restored" in said
    assert "Ask the coordinator's operator to do what the message says" in said
    assert "Never delete or restore" not in said, "which would contradict what the message says"


def test_without_a_margin_a_killed_site_stops_instead_of_overspending(wire: Wire, tmp_path: Path) -> None:
    plan = private_plan(variables=NAMES, rounds=2, local_steps=9000, quorum=1, privacy={"epsilon": 1.0})
    north = site(tmp_path, "north", plan, max_epsilon=1.0, max_epsilon_per_run=2.0)
    south = site(tmp_path, "south", plan)
    process: list[Command] = []
    ended: list[tuple[int, str]] = []

    def kill_in_the_middle(name: str, last_round: int) -> None:
        if name == "north" and last_round == 1 and len(process) == 1:
            threading.Timer(0.1, process[0].send_signal, (signal.SIGKILL,)).start()

    def act(address: str) -> None:
        other = join(south, address)
        for _ in range(2):
            process.append(join(north, address))
            ended.append((process[-1].communicate(), process[-1].returncode)[::-1])
        other.communicate()

    wire.on_pull = kill_in_the_middle
    _, error = coordinate(plan, tmp_path / "run", wire, act)
    (first, _), (second, said) = ended
    assert first == -signal.SIGKILL
    assert second == 13, said
    assert "above `max_epsilon` = 1" in said
    assert error is None, "the others go on without it"
    with site_folder.opened(north) as (policy, ledger):
        assert policy.datasets[0].cap.allows(ledger.payments.spending(DATASET))
        assert ledger.payments.spending(DATASET).epsilon(1e-6) <= 1.0
    hears_only_the_class(wire, "north")


def test_a_site_whose_budget_is_gone_reads_no_record_and_tells_only_the_class(wire: Wire, tmp_path: Path) -> None:
    plan = private_plan(variables=NAMES)
    north = site(tmp_path, "north", plan)
    with site_folder.opened(north) as (policy, ledger):
        ledger.payments.reserve(
            Request(DATASET, 1, 1, "north"), Payment(policy.datasets[0].cap.units, {}), Cap(10**18, 0)
        )
    (north / "table.csv").unlink()
    ended: list[tuple[int, str]] = []

    def act(address: str) -> None:
        process = join(north, address)
        said = process.communicate()
        ended.append((process.returncode, said))
        os.kill(os.getpid(), signal.SIGINT)  # the coordinator, on the main thread, waits for more sites

    coordinate(plan, tmp_path / "run", wire, act)
    ((code, said),) = ended
    assert code == 13
    for number in ("the run costs epsilon 1 ", "spent so far epsilon 5 ", "`max_epsilon` = 5"):
        assert number in said
    hears_only_the_class(wire, "north")
    assert not wire.updates


def hears_only_the_class(wire: Wire, name: str) -> None:
    (end_notice,) = [m for m in wire.everything if m.DESCRIPTOR.name == "LeaveRequest" and m.site == name]
    fields = {descriptor.name for descriptor, _ in end_notice.ListFields()}
    assert fields == {"run", "site", "reason"}
    assert end_notice.reason == federation.LEAVE_REASON_BUDGET
    assert any(f"{name} left the run: its privacy budget does not pay for the run. " in text for text in wire.notices)
    for message in wire.everything:
        assert b"epsilon" not in message.SerializeToString()
    assert not any("epsilon" in notice or "zCDP" in notice for notice in wire.notices)
