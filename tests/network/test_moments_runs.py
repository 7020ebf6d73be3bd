"""Runs with rounds of moments over gRPC: coordinators that are killed, sites that begin anew, sites that are away.

Each site is a thread; a coordinator that is killed is a process of its own.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedbnsl.errors import DivergenceError
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol import codec
from fedbnsl.protocol.messages import LocalUpdate, RoundTask
from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl.rounds.kinds import n_rounds
from fedbnsl_client import join_run
from fedbnsl_client.budget.payments import Request
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import private_moments
from fedbnsl_client.session import Session
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.admission import GuardedTable
from fedbnsl_client.site.identity import Link
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import Follower, ServerSettings
from fedbnsl_workbench.simulate import simulate
from network import test_resume
from network.test_resume import LONG_S, Federation, assert_same_run, coordinate_until
from private_site import DATASET, NAMES, ROWS, make_site, private_plan, rows, units_spent, write_table
from taken_part import take_part

LEAN = Plan(
    variables=test_resume.VARIABLES,
    rounds=4,
    refit_rounds=0,
    moments_rounds=1,
    l1_weight=0.05,
    value_type="float32",
    send_tolerance=0.02,
    join_deadline_s=LONG_S,
    run_deadline_s=LONG_S,
)
# Each kills the coordinator's process in round {t}.
WHEN_ONE_ANSWERED = """
genuine = Mailbox.push
def push(self, update):
    repeat = genuine(self, update)
    if update.round == {t}: die()
    return repeat
Mailbox.push = push
"""
BEFORE_ITS_CHECKPOINT = """
genuine = checkpoint.save
def save(path, state, **options):
    if state.round == {t}: die()
    genuine(path, state, **options)
checkpoint.save = save
"""
AFTER_ITS_CHECKPOINT = "def on_round(t):\n    if t == {t}: die()"

tables, address, sites = test_resume.tables, test_resume.address, test_resume.sites


class Died(BaseException):
    """A site ends."""


class Crashes:
    """Lets a site die twice in every round, before and after it sends its answer; what was sent is kept.

    After its last answer it lives: a run waits for nobody who has left it, and might be over when the site comes back.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, doomed: str, death: Callable[[], BaseException], *, n_rounds: int
    ) -> None:
        self.sent: defaultdict[tuple[str, int], set[bytes]] = defaultdict(set)
        self.deaths: list[tuple[int, str]] = []
        pushed = Session.push

        def die(update: LocalUpdate, when: str) -> None:
            last = (update.round, when) == (n_rounds, "after")
            if update.site == doomed and not last and (update.round, when) not in self.deaths:
                self.deaths.append((update.round, when))
                raise death()

        def push(session: Session, update: LocalUpdate) -> None:
            die(update, "before")
            self.sent[update.site, update.round].add(codec.update_to_bytes(update, run=0, value_type="float64"))
            pushed(session, update)
            die(update, "after")

        monkeypatch.setattr(Session, "push", push)


# ---- without privacy -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(tables: dict[str, Dataset], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lean") / "run"
    simulate(LEAN, tables, out)
    return out


def test_a_lean_run_whose_coordinator_is_killed_again_and_again_ends_with_the_same_bits(
    sites: Federation, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sites.start()
    for t, window in ((4, AFTER_ITS_CHECKPOINT), (5, BEFORE_ITS_CHECKPOINT), (5, AFTER_ITS_CHECKPOINT)):
        assert coordinate_until(window.format(t=t), LEAN, out, sites.address) == 9, (t, window)
    result = sites.coordinate(LEAN, out)
    assert [entry["kind"] for entry in result["rounds"]] == ["admm"] * 4 + ["moments"]
    assert len(result["edges"]) > 0
    assert_same_run(out, undisturbed)
    assert all(graph == sites.graphs()[0] for graph in sites.graphs())


def test_a_lean_run_ends_with_the_same_bits_though_a_site_begins_anew_in_every_round(
    sites: Federation, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = Crashes(
        monkeypatch, "c", lambda: DivergenceError("c ends here, and begins anew"), n_rounds=n_rounds(LEAN)
    )
    sites.start("a", "b")
    sites.start("c", lives=2 * n_rounds(LEAN))
    sites.coordinate(LEAN, tmp_path / "run")
    moments = [(t, when) for t in range(1, n_rounds(LEAN) + 1) for when in ("after", "before")]
    assert sorted(crashes.deaths) == [moment for moment in moments if moment != (n_rounds(LEAN), "after")]
    assert all(len(versions) == 1 for versions in crashes.sent.values())
    assert_same_run(tmp_path / "run", undisturbed)


# ---- with privacy --------------------------------------------------------------------------------------------------


class Wards:
    """Sites with a ledger each, that come back whenever they die."""

    def __init__(self, folder: Path, plan: Plan, names: tuple[str, ...], address: str) -> None:
        self.folders = {name: folder / name for name in names}
        self.plan = plan
        self._address = address
        self._threads = ThreadPoolExecutor(len(names))
        self.ends: dict[str, Future[SparseMatrix]] = {}
        for k, (name, of_it) in enumerate(self.folders.items()):
            make_site(of_it, table=write_table(of_it / "table.csv", rows(k)), site=name)
            with site_folder.opened(of_it) as (_, ledger):
                ledger.approvals.approve(plan.digest(), plan.name)

    def start(self) -> None:
        for name in self.folders:
            self.ends[name] = self._threads.submit(self._live, name)

    def _live(self, name: str) -> SparseMatrix:
        while True:
            try:
                with site_folder.opened(self.folders[name]) as (policy, ledger):
                    table = GuardedTable(self.folders[name], policy, ledger, None)
                    return take_part(table, Link(self._address), patience_s=LONG_S)
            except Died:
                continue

    def close(self) -> None:
        self._threads.shutdown()

    def assert_paid_once(self, result: dict[str, Any], *, without: dict[str, set[int]] | None = None) -> None:
        """Each ledger has reserved and kept every round once, the setup included, and the whole is the price."""
        price = price_of(self.plan, n_samples=ROWS, n_variables=len(NAMES))
        run = int(result["manifest"]["run"], 16)
        for name, folder in self.folders.items():
            expected = set(range(price.last_round + 1)) - (without or {}).get(name, set())
            with site_folder.opened(folder) as (policy, ledger):
                ledger.verify()
                entries = ledger.entries()
                for kind in ("reserve", "store"):
                    assert sorted(e.content["round"] for e in entries if e.kind == kind) == sorted(expected), kind
                assert units_spent(ledger, DATASET) == sum(map(price.units_of, expected)) <= price.units
                assert price.units <= policy.datasets[0].run_cap.units
                for t in expected - {0}:
                    kept = ledger.payments.stored(Request(DATASET, run, t, name))
                    assert kept is not None
            assert result["privacy"]["sites"][name]["contributed_zcdp"] == pytest.approx(
                sum(map(price.units_of, expected)) / 1e12, rel=1e-12
            )


WardsFor = Callable[..., Wards]


@pytest.fixture
def wards(tmp_path: Path, address: str) -> Iterator[WardsFor]:
    made: list[Wards] = []

    def make(plan: Plan, *names: str) -> Wards:
        made.append(Wards(tmp_path, plan, names, address))
        return made[0]

    yield make
    for of_them in made:
        of_them.close()


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each release that drew noise for residual moments."""
    genuine, seen = private_moments.release_residual_moments, list[Any]()

    def drawing(*arguments: Any) -> Any:
        seen.append(arguments)
        return genuine(*arguments)

    monkeypatch.setattr("fedbnsl_client.rounds.residual_moments.release_residual_moments", drawing)
    return seen


def moments_plan(**settings: Any) -> Plan:
    given = {"moments_rounds": 2, "join_deadline_s": LONG_S, "run_deadline_s": LONG_S, "privacy": {"epsilon": 4.0}}
    return private_plan(**{"variables": NAMES, **given, **settings})


def kinds(plan: Plan) -> list[str]:
    return ["admm"] * plan.rounds + ["scales"] + ["residual_moments"] * plan.moments_rounds


@pytest.mark.parametrize(
    ("admm_rounds", "kills"),
    [
        (
            0,
            [
                (1, BEFORE_ITS_CHECKPOINT),
                (1, AFTER_ITS_CHECKPOINT),
                (2, WHEN_ONE_ANSWERED),
                (3, BEFORE_ITS_CHECKPOINT),
            ],
        ),
        (2, [(3, WHEN_ONE_ANSWERED), (4, AFTER_ITS_CHECKPOINT)]),
    ],
    ids=["without ADMM", "after ADMM"],
)
def test_a_private_run_whose_coordinator_is_killed_around_rounds_of_moments_pays_once_and_draws_once(
    admm_rounds: int,
    kills: list[tuple[int, str]],
    wards: WardsFor,
    draws: list[Any],
    tmp_path: Path,
    address: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = moments_plan(rounds=admm_rounds)
    crashes = Crashes(monkeypatch, "nobody", Died, n_rounds=n_rounds(plan))
    there = wards(plan, "north", "south")
    there.start()
    for t, window in kills:
        assert coordinate_until(window.format(t=t), plan, tmp_path / "run", address) == 9, (t, window)
    result = serve(plan, tmp_path / "run", ServerSettings(address, lambda text: None))
    assert there.ends["north"].result(LONG_S) == there.ends["south"].result(LONG_S)
    assert [entry["kind"] for entry in result["rounds"]] == kinds(plan)
    assert all(len(versions) == 1 for versions in crashes.sent.values()), "whatever was sent again was the same"
    assert len(draws) == 2 * plan.moments_rounds
    there.assert_paid_once(result)
    assert "the noisy moments of its residuals at most 2 times" in result["privacy"]["guarantee"]


@pytest.mark.parametrize("admm_rounds", [0, 2])
def test_a_site_that_dies_in_every_round_sends_what_it_paid_for_and_draws_once(
    admm_rounds: int, wards: WardsFor, draws: list[Any], tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = moments_plan(rounds=admm_rounds)
    crashes = Crashes(monkeypatch, "south", Died, n_rounds=n_rounds(plan))
    there = wards(plan, "north", "south")
    there.start()
    result = serve(plan, tmp_path / "run", ServerSettings(address, lambda text: None))
    assert there.ends["north"].result(LONG_S) == there.ends["south"].result(LONG_S)
    assert len(crashes.deaths) == 2 * n_rounds(plan) - 1
    assert [entry["contributed"] for entry in result["rounds"]] == [["north", "south"]] * n_rounds(plan)
    assert all(len(versions) == 1 for versions in crashes.sent.values())
    assert len(draws) == 2 * plan.moments_rounds
    there.assert_paid_once(result)


@pytest.mark.parametrize("away", ["scales", "moments"])
def test_a_private_run_goes_on_without_a_site_that_is_away_in_a_round_of_moments(
    away: str, wards: WardsFor, draws: list[Any], tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back for the next round, with what it missed neither drawn nor paid for."""
    missed = {"scales": 1, "moments": 2}[away]
    plan = moments_plan(rounds=0, n_participants=3, quorum=2, round_deadline_s=0.8)
    closed = threading.Event()

    class Slow(Participant):
        def handle(self, task: RoundTask) -> LocalUpdate:
            if (self.site, task.round) == ("west", missed):
                assert closed.wait(LONG_S)
                raise Died
            return super().handle(task)

    def on_round(state: object, record: Any) -> None:
        if record.round == missed:
            closed.set()

    monkeypatch.setattr(join_run, "Participant", Slow)
    there = wards(plan, "north", "south", "west")
    there.start()
    result = serve(plan, tmp_path / "run", ServerSettings(address, lambda text: None), Follower(on_round=on_round))
    assert there.ends["north"].result(LONG_S) == there.ends["west"].result(LONG_S)
    present = [entry["contributed"] for entry in result["rounds"]]
    assert present[missed - 1] == ["north", "south"]
    assert result["state"] == "finished"
    there.assert_paid_once(result, without={"west": {t for t, names in enumerate(present, 1) if "west" not in names}})
    assert len(draws) == sum(len(names) for names in present[1:])
