"""A scales round at a site: send the mean squares that the setup paid for and released."""

import numpy as np

from fedbnsl.errors import LocalProtocolError
from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.matrix_codec import as_sent
from fedbnsl.protocol.messages import MaskedSum, RoundTask
from fedbnsl.rounds.scales import Answer
from fedbnsl_client.rounds.kinds import LocalRounds


class Rounds(LocalRounds):
    """Nothing new is released."""

    def answer(self, task: RoundTask) -> Answer | MaskedSum:
        """The released mean squares."""
        setup = self.problem.setup
        if setup is None:
            raise LocalProtocolError("scales come from estimated second moments, which this plan does not have")
        privacy = self.problem.plan.privacy
        if privacy is not None and privacy.secure_aggregation:
            sums = np.rint(setup / np.array(privacy.feature_bounds) * (LATTICE * len(self.problem.X)))  # as released
            return self.problem.masked(task, [int(number) for number in sums])
        return Answer(as_sent(setup, self.problem.plan.value_type))
