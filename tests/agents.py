"""A coordinator's service and the agents of three sites, as real processes over TLS."""

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from command_line import Outcome
from fedbnsl.plan.plan import Plan
from fedbnsl_client.budget.approvals import Terms
from fedbnsl_client.site import folder as site_folder
from fedbnsl_workbench.localnet import LocalNetwork
from federation_folder import enrol, make_federation
from free_port import free_port
from private_site import DATASET, NAMES, make_site, private_plan, rows, units_spent, write_table
from waiting import until

SITES = ("east", "north", "south")


def plan_of_three(**settings: Any) -> Plan:
    """A private plan for the three sites, a few rounds long."""
    return private_plan(**{"n_participants": 3, "sites": SITES, "variables": NAMES, **settings})


class Federated:
    """One coordinator's folder of runs, and three sites that are enrolled there; processes by name."""

    def __init__(self, folder: Path, network: LocalNetwork, fedbnsl: Callable[..., Outcome]) -> None:
        self.folder, self.network, self._fedbnsl = folder, network, fedbnsl
        self.port = free_port()
        self.federation = make_federation(folder / "federation", port=self.port)
        self.runs = folder / "runs"
        self.sites: dict[str, Path] = {}
        self._started = 0
        for number, site in enumerate(SITES):
            place = folder / site
            table = write_table(place / "table.csv", rows(number + 1))
            make_site(place, table=table, site=site, max_epsilon=20.0)
            enrol(self.federation, place, site)
            self.sites[site] = place

    def start_service(self, *options: str) -> str:
        name = self._name("service")
        words = ["coordinator", "runs", "serve", self.runs, f"--federation={self.federation.folder}"]
        self.network.start(name, [*words, f"--listen=127.0.0.1:{self.port}", *options])
        self.await_text(name, "listening on")
        return name

    def start_agent(self, site: str, *options: str) -> str:
        name = self._name(site)
        self.network.start(name, ["participant", "agent", self.sites[site], *options])
        self.await_text(name, "asking")
        return name

    def _name(self, what: str) -> str:
        self._started += 1
        return f"{what}-{self._started}"

    def approve(self, plan: Plan, *sites: str, runs: int = 1) -> None:
        for site in sites or SITES:
            with site_folder.opened(self.sites[site]) as (_, ledger):
                known = ledger.registrations.find(DATASET)
                assert known is not None
                terms = Terms.of(plan, DATASET, n_samples=known.n_samples, n_variables=len(known.variables), runs=runs)
                ledger.approvals.approve(plan.digest(), plan.name, terms)

    def queue(self, plan: Plan, name: str) -> Path:
        file = self.folder / f"{name}.toml"
        file.write_text(plan.to_toml(), encoding="utf-8")
        self.command("coordinator", "runs", "start", self.runs, file, f"--name={name}")
        return self.runs / name

    def command(self, *words: str | Path) -> str:
        done = self._fedbnsl(*words)
        assert done.code == 0, done.err
        return done.out

    def state(self, name: str) -> str:
        told = json.loads(self.command("coordinator", "runs", "show", self.runs, name, "--json"))
        return str(told["state"])

    def await_state(self, name: str, state: str) -> None:
        until(lambda: self.state(name) == state, f"run {name} is {state}", self.logs)

    def await_text(self, process: str, text: str, *, times: int = 1) -> None:
        until(lambda: self.log(process).count(text) >= times, f"{process} says {text!r}", self.logs)

    def log(self, process: str) -> str:
        return (self.folder / "logs" / f"{process}.log").read_text(encoding="utf-8", errors="replace")

    def logs(self) -> str:
        names = sorted(file.stem for file in (self.folder / "logs").glob("*.log"))
        return "\n".join(f"--- {name}\n{self.log(name)[-1500:]}" for name in names)

    def kill(self, process: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.network.pid(process), number)
        until(lambda: self.network.ended(process), f"{process} ends", self.logs)

    def results(self, site: str) -> Mapping[str, dict[str, Any]]:
        """The outcomes that a site's agent has kept, by the runs' names."""
        found = (self.sites[site] / "results").glob("*/outcome.json")
        return {content["name"]: content for content in (json.loads(file.read_text("utf-8")) for file in found)}

    def await_results(self, site: str, *names: str) -> None:
        def kept() -> bool:
            found = self.results(site)
            return all(name in found and found[name]["outcome"] == "finished" for name in names)

        until(kept, f"{site} has kept {', '.join(names)}", self.logs)

    def rounds_of(self, name: str) -> int:
        """How many rounds of a run are complete."""
        events = self.runs / name / "events.jsonl"
        return events.read_text(encoding="utf-8").count('"event": "round"') if events.exists() else 0

    def await_rounds(self, name: str, rounds: int) -> None:
        until(lambda: self.rounds_of(name) >= rounds, f"run {name} has {rounds} rounds", self.logs)

    def spent(self, site: str) -> int:
        with site_folder.opened(self.sites[site]) as (_, ledger):
            ledger.verify()
            return units_spent(ledger, DATASET)


def price_units(plan: Plan, n_samples: int) -> int:
    """What a run costs a site, in units of 1e-12 zCDP."""
    return Terms.of(plan, DATASET, n_samples=n_samples, n_variables=len(NAMES), runs=1).units
