"""A round that scores the network at a site: sums over its rows, by variable, as the network's families ask for."""

from typing import cast

from fedbnsl.errors import RemoteProtocolError, ResultError
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl.protocol.messages import LocalUpdate, RoundTask
from fedbnsl.rounds.validation import Answer, Task
from fedbnsl_client.rounds.kinds import LocalRounds
from fedbnsl_client.scores import network_that_fits, scored_rows


class Rounds(LocalRounds):
    """Sums over the rows, of a large table over 100,000 to 200,000 of them, evenly spread."""

    _network: FittedNetwork | None = None

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Refuse a network of other columns, or with edges that the plan forbids."""
        text = cast(Task, task.content).network
        try:
            self._network = network_that_fits(text, self.problem.mask) if text else None
        except ResultError as error:
            raise RemoteProtocolError(f"the task of round {task.round} has no network to score: {error}") from None

    def answer(self, task: RoundTask) -> Answer:
        """Those of all variables of the network; `least_cell` withholds what would tell of few rows."""
        problem = self.problem
        if self._network is None:
            return Answer.of(())
        try:
            found = scored_rows(
                self._network, problem.X, problem.mask.columns, problem.plan.dictionary, least_cell=problem.least_cell
            )
        except (ValueError, ArithmeticError):
            raise RemoteProtocolError("the network has numbers with which no row can be scored") from None
        return Answer.of(list(found.values()))
