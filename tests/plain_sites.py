"""Sites that are objects in the test's own process, for whole runs over an Exchange without a network."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl_client.participant import Participant
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_server.sites.mailbox import Exchange, Traffic, UpdateCheck


class PlainSites:
    """Participants that answer at once; tasks and updates are kept.

    Parameters
    ----------
    start
        Makes the participant of a site, from the coordinator's state or (None) from nothing.
    anew
        Start every participant from the coordinator's state before every round.
    """

    def __init__(
        self, sites: Iterable[str], start: Callable[[str, SiteState | None], Participant], *, anew: bool = False
    ) -> None:
        self.traffic = Traffic()
        self.tasks: list[RoundTask] = []
        self.updates: list[Mapping[str, LocalUpdate]] = []
        self.participants = {site: start(site, None) for site in sites}
        self._start, self._anew = start, anew

    def exchange(
        self, tasks: Mapping[str, RoundTask], snapshots: Mapping[str, SiteState], check: UpdateCheck
    ) -> Mapping[str, LocalUpdate]:
        self.tasks.append(next(iter(tasks.values())))
        if self._anew:
            self.participants = {site: self._start(site, snapshots[site]) for site in self.participants}
        updates = {site: self.participants[site].handle(task) for site, task in tasks.items()}
        for update in updates.values():
            check(update)
        self.updates.append(updates)
        return updates


def states_of_run(
    plan: Plan,
    exchange: Exchange,
    state: AdmmState | None = None,
    *,
    variables: Sequence[str],
    n_samples: Mapping[str, int],
) -> list[AdmmState]:
    """The state after every round of a run."""
    states: list[AdmmState] = []

    def keep(state: AdmmState, record: RoundRecord) -> None:
        states.append(state)

    round_loop.run(plan, variables, n_samples, exchange, on_round=keep, state=state)
    return states
