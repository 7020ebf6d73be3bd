"""What must hold after a run, whatever happened to its processes in between."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from fedbnsl.graphs.formats import weights_csv
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.privacy.calibration import price_of
from fedbnsl.protocol import codec
from fedbnsl_client.budget.ledger import Ledger
from fedbnsl_client.budget.payments import Request
from fedbnsl_client.site import folder as site_folder
from fedbnsl_server.algorithm import admm
from fedbnsl_server.store import checkpoint
from one_round import advance
from private_site import units_spent

GRAPH_FILES = ("weights.csv", "edges.csv", "graph.graphml", "graph.dot", "dagitty.txt", "lgbn.json")


class Remains(Protocol):
    """What a federation left: a folder of each site, by its name, in `folder`, and the folder `run` of the last run."""

    folder: Path
    plan: Plan
    sites: tuple[str, ...]

    @property
    def run(self) -> Path: ...

    @property
    def result(self) -> dict[str, Any]: ...


def is_the_undisturbed_result(remains: Remains, undisturbed: Path) -> None:
    """Every file of the graph, byte for byte."""
    for name in GRAPH_FILES:
        assert (remains.run / name).read_bytes() == (undisturbed / name).read_bytes(), name


def everybody_contributed(remains: Remains) -> None:
    """To every round, each of which is in the result once."""
    rounds = remains.result["rounds"]
    assert [entry["round"] for entry in rounds] == list(range(1, remains.plan.rounds + remains.plan.refit_rounds + 1))
    assert all(entry["contributed"] == sorted(remains.sites) for entry in rounds)


def budgets_held(remains: Remains, kills: Mapping[str, int] | None = None) -> None:
    """No ledger over its cap, every chain verifies, and no more than one payment a kill of its site bought nothing."""
    for site in remains.sites:
        # Opening verifies it. That of a container comes without what its state volume notes of it.
        with site_folder.opened(remains.folder / site, accept_newest=True) as (policy, ledger):
            [dataset], [table] = policy.datasets, ledger.registrations.all()
            spent = units_spent(ledger, dataset.id)
            assert dataset.cap.allows(ledger.payments.spending(dataset.id))
            assert ledger.mark.spent.get(dataset.id, 0) == spent
            reserved = Counter(_requests(ledger, "reserve"))
            stored = Counter(_requests(ledger, "store"))
            price = price_of(remains.plan, n_samples=table.n_samples, n_variables=len(table.variables))
            wasted = sum(reserved.values()) - sum(stored.values())
            of_rounds = sum(price.units_of(t) * times for (_, t), times in reserved.items())
            runs = {run for run, _ in reserved}
            once = sum(price.surcharge_of(t for run, t in reserved if run == one) for one in runs)
            assert of_rounds + once <= spent <= of_rounds + once + wasted * price.surcharge_units
            assert set(stored.values()) <= {1}, "one request, one draw of noise"
            assert set(stored) <= set(reserved), "nothing is released that was not paid for"
            assert wasted <= (kills or {}).get(site, 0), f"{site} paid {wasted} times for nothing"


def what_was_used_is_what_was_paid_for(remains: Remains) -> None:
    """The same W, bit for bit, from the payloads in the sites' ledgers in a loop of its own.

    Had a payload been drawn twice, another one than the ledger keeps would have reached the coordinator.
    """
    result = remains.result
    assert result["state"] == "finished"
    run, variables = int(result["manifest"]["run"], 16), tuple(result["variables"])
    mask = EdgeMask(remains.plan.knowledge, variables)
    state = admm.initial_state(len(variables), remains.sites, sends_changes=remains.plan.sends_changes)
    payloads = {site: _payloads(remains, site, run) for site in remains.sites}
    rows = {site: int(result["sites"][site]["n_samples"]) for site in remains.sites}
    for entry in result["rounds"]:
        updates = {
            site: codec.update_from_bytes(payloads[site][entry["round"]], n_variables=len(variables))
            for site in entry["contributed"]
        }
        state = advance(state, updates, remains.plan, mask, rows)
    text = weights_csv(variables, state.global_weights.to_dense())
    assert (remains.run / "weights.csv").read_text(encoding="utf-8") == text
    kept = checkpoint.load(remains.run / "checkpoint.npz", plan_digest=remains.plan.digest())
    assert kept.round == state.round == remains.plan.rounds
    assert kept.global_weights == state.global_weights
    for site in remains.sites:
        assert kept.sites[site].local_weights == state.sites[site].local_weights
        assert kept.sites[site].consensus_dual == state.sites[site].consensus_dual


def _payloads(remains: Remains, site: str, run: int) -> dict[int, bytes]:
    with site_folder.opened(remains.folder / site, accept_newest=True) as (policy, ledger):
        rounds = range(1, remains.plan.rounds + 1)
        kept = {t: ledger.payments.stored(Request(policy.datasets[0].id, run, t, site)) for t in rounds}
    return {t: payload for t, payload in kept.items() if payload is not None}


def _requests(ledger: Ledger, kind: str) -> list[tuple[str, int]]:
    return [(entry.content["run"], entry.content["round"]) for entry in ledger.entries() if entry.kind == kind]
