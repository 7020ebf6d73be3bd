"""A scales round at a site: send the mean squares again that the setup paid for and released."""

from fedbnsl.errors import LocalProtocolError
from fedbnsl.matrix_codec import as_sent
from fedbnsl.messages import RoundTask
from fedbnsl.rounds.scales import Answer
from fedbnsl_client.rounds.kinds import LocalRounds


class Rounds(LocalRounds):
    """Nothing new is released."""

    def answer(self, task: RoundTask) -> Answer:
        """The released mean squares.

        Raises
        ------
        LocalProtocolError
            If the plan releases none.
        """
        setup = self.problem.setup
        if setup is None:
            raise LocalProtocolError("scales come from estimated second moments, which this plan does not have")
        return Answer(as_sent(setup, self.problem.plan.value_type))
