"""Four sites for secure aggregation: enrolled ones with confirmed peers, as real processes, and others in this
process."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fedbnsl.errors import FedbnslError
from fedbnsl.identity.certificates import key_fingerprint
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LocalUpdate, Loss, RoundTask, SiteState
from fedbnsl_client.budget.journal import RunJournal
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.participant import Participant
from fedbnsl_client.privacy import randomness
from fedbnsl_client.secure_aggregation import peers
from fedbnsl_client.secure_aggregation.keys import public_key_of
from fedbnsl_client.site import folder as site_folder
from fedbnsl_client.site.new_site import NewSite
from fedbnsl_research.bench.secure_aggregation import LosingExchange, SiteLostError
from fedbnsl_server.algorithm import admm
from fedbnsl_server.grpc_api.servicer import Servicer
from fedbnsl_server.identity.enrolment import Federation
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.secure_aggregation import SecureSites
from fedbnsl_server.run.serve import serve
from fedbnsl_server.run.settings import ServerSettings
from fedbnsl_server.sites.mailbox import UpdateCheck
from fedbnsl_workbench.tables.synthetic import synthesise
from federation_folder import enrol
from forked import joining, start_fork_server
from private_site import DATASET, write_table

FEDERATION = synthesise(5, 5, 4, 400, 101)
SITES = ("east", "north", "south", "west")
TABLES = dict(zip(SITES, FEDERATION.tables, strict=True))
PLAN = Plan.load(
    "private-moments",
    [
        "n_participants=4",
        f"variables={json.dumps(list(FEDERATION.variables))}",
        "privacy.secure_aggregation=true",
        "privacy.delta=1e-6",
        "join_deadline_s=60.0",
        "run_deadline_s=120.0",
    ],
    epsilon=2.0,
)


def make_sites(folder: Path, federation: Federation, plan: Plan = PLAN, *, confirm: bool = True) -> dict[str, Path]:
    """Four enrolled sites that have approved the plan and confirmed each other."""
    fingerprints = dict[str, str]()
    for site, X in TABLES.items():
        table = write_table(folder / site / "table.csv", X, FEDERATION.variables)
        site_folder.create(
            folder / site,
            NewSite(site, table, DATASET, max_epsilon=10.0, max_delta=1e-6, max_epsilon_against_all=30.0),
        )
        identity = enrol(federation, folder / site, site)
        fingerprints[site] = key_fingerprint(public_key_of(identity.certificate))
        with site_folder.opened(folder / site) as (_, ledger):
            ledger.approvals.approve(plan.digest(), plan.name)
    for site in SITES if confirm else ():
        for other in set(SITES) - {site}:
            peers.confirm(folder / site, other, fingerprints[other])
    return {site: folder / site for site in SITES}


class Wire:
    """What the coordinator received, and who may act when a site asks for its next round."""

    def __init__(self) -> None:
        self.updates: dict[tuple[str, int], set[bytes]] = defaultdict(set)
        self.on_pull: Callable[[str], None] = lambda site: None


def tap(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Listen to all coordinators of this process."""
    heard = Wire()
    push, pull = Servicer.PushUpdate, Servicer.PullTask

    async def pushed(self: Servicer, request: Any, context: Any) -> Any:
        heard.updates[request.site, request.round].add(request.SerializeToString(deterministic=True))
        return await push(self, request, context)

    async def pulled(self: Servicer, request: Any, context: Any) -> Any:
        reply = await pull(self, request, context)
        heard.on_pull(request.site)
        return reply

    monkeypatch.setattr(Servicer, "PushUpdate", pushed)
    monkeypatch.setattr(Servicer, "PullTask", pulled)
    return heard


def play(
    folders: Mapping[str, Path],
    federation: Federation,
    out: Path,
    plan: Plan = PLAN,
    *,
    live: Callable[[Path, str], tuple[int, str]],
) -> tuple[dict[str, Any] | None, FedbnslError | None, dict[str, tuple[int, str]]]:
    """A coordinator on this thread, each site on another; how it ended here and there."""
    start_fork_server()  # it ends with the thread that starts it
    ends: dict[str, tuple[int, str]] = {}
    acting: list[threading.Thread] = []

    def listening(address: str) -> None:
        for site, folder in folders.items():
            acting.append(threading.Thread(target=lambda s=site, f=folder: ends.update({s: live(f, address)})))
            acting[-1].start()

    result, error = None, None
    try:
        result = serve(plan, out, ServerSettings("127.0.0.1:0", listening, federation=federation))
    except FedbnslError as caught:
        error = caught
    for thread in acting:
        thread.join(60)
    return result, error, ends


def once(folder: Path, address: str) -> tuple[int, str]:
    process = joining(folder, address)
    said = process.communicate()
    return process.returncode, said


# ---- in one process, where a site may be lost ------------------------------------------------------------------------

GONE = "north"


class LossyExchange(LosingExchange):
    """Sites in this process, of which one answers no more from round `lost_in` on; what was sent is kept."""

    def __init__(self, participants: Mapping[str, Participant], *, lost_in: int, plan: Plan = PLAN) -> None:
        super().__init__(plan, participants, gone=GONE, lost_in=lost_in)
        self.sent: dict[tuple[str, int, int], LocalUpdate] = {}
        self.checks: dict[int, UpdateCheck] = {}

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        def noting(update: LocalUpdate) -> None:
            check(update)
            self.sent[update.site, update.round, len(tasks[update.site].lost)] = update
            self.checks[update.round] = check

        return super().exchange(tasks, snapshots, noting)


def sites_of(
    journals: Mapping[str, RunJournal] | None = None,
    plan: Plan = PLAN,
    snapshots: Mapping[str, SiteState] | None = None,
) -> dict[str, Participant]:
    return {
        site: Participant(
            site,
            Dataset(FEDERATION.variables, X),
            plan,
            None if snapshots is None else snapshots.get(site),
            run=1,
            journal=journals and journals[site],
            randbelow=randomness.seeded(site),
        )
        for site, X in TABLES.items()
    }


def played(
    exchange: LossyExchange, plan: Plan = PLAN, *, on_round: Callable[[admm.AdmmState], None] = lambda state: None
) -> admm.AdmmState:
    """A whole run, which goes on without the site that is lost."""
    state: list[admm.AdmmState] = []
    rows, lost = dict.fromkeys(SITES, 400), tuple[Loss, ...]()
    while True:
        try:
            return round_loop.run(
                plan,
                FEDERATION.variables,
                rows,
                exchange,
                on_round=lambda after, record: (state.append(after), on_round(after))[0],
                state=admm.without(state[-1], [GONE]) if lost and state else None,
                secure=SecureSites(lost=lost),
            )
        except SiteLostError:
            assert not lost
            lost, rows = (Loss(GONE, len(state) + 1),), {site: n for site, n in rows.items() if site != GONE}
