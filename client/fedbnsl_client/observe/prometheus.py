"""The metrics of a site's agent, for Prometheus: what it does, and what is left of the budgets of its datasets."""

from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedbnsl.errors import FedbnslError
from fedbnsl_client.agent.agent import Agent
from fedbnsl_client.site import folder as site_folder


class AgentCollector(Collector):
    """The metrics of one agent, made whenever they are asked for, in another thread than the agent's.

    The ledger of the site's folder is read when it has changed.
    """

    def __init__(self, agent: Agent, folder: Path) -> None:
        self._agent, self._folder = agent, folder
        self._seen: object = None
        self._budgets: dict[str, tuple[float, float]] = {}

    def collect(self) -> Iterable[Metric]:
        """One sample each, one a run and one a dataset."""
        agent = self._agent
        yield GaugeMetricFamily("fedbnsl_agent_up", "Whether the agent runs.", value=1.0)
        reached = GaugeMetricFamily(
            "fedbnsl_agent_coordinator_reachable", "Whether the coordinator answered last.", value=float(agent.reached)
        )
        yield reached
        runs = GaugeMetricFamily("fedbnsl_agent_runs", "Runs that are open here, by state.", labels=["state"])
        runs.add_metric(["taking part"], len(agent.parts))
        runs.add_metric(["not approved"], len(agent.waiting))
        over = CounterMetricFamily(
            "fedbnsl_agent_runs_over", "Runs that ended here: finished, or the class of the error.", labels=["outcome"]
        )
        for outcome, times in agent.outcomes.items():
            over.add_metric([outcome], times)
        rounds = GaugeMetricFamily("fedbnsl_agent_round", "The round that was answered last.", labels=["run"])
        for part in agent.parts:
            rounds.add_metric([part.offer.name], part.round)
        yield from (runs, over, rounds)
        allowed = GaugeMetricFamily(
            "fedbnsl_agent_budget_epsilon", "What the policy lets the dataset spend in all.", labels=["dataset"]
        )
        spent = GaugeMetricFamily("fedbnsl_agent_spent_epsilon", "What it has spent of that.", labels=["dataset"])
        for dataset, (most, so_far) in self._read_budgets().items():
            allowed.add_metric([dataset], most)
            spent.add_metric([dataset], so_far)
        yield from (allowed, spent)

    def _read_budgets(self) -> dict[str, tuple[float, float]]:
        """By dataset: what it may spend, and what it has spent; as last read if the folder cannot be read now."""
        try:
            files = [(self._folder / name).stat() for name in (site_folder.POLICY, site_folder.LEDGER)]
            now = [(one.st_mtime_ns, one.st_size) for one in files]
            if now != self._seen:
                with site_folder.opened(self._folder) as (policy, ledger):
                    self._budgets = {
                        one.id: (one.max_epsilon, ledger.payments.spending(one.id).epsilon(one.max_delta))
                        for one in policy.datasets
                    }
                self._seen = now
        except (FedbnslError, OSError):  # the agent itself says so; metrics that fail would hide that it runs
            return self._budgets
        return self._budgets
