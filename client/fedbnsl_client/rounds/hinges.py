"""A round of hinges at a site: exact second moments of its columns and of the hinges that are asked for."""

from typing import cast

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.protocol.matrix_codec import as_sent
from fedbnsl.protocol.messages import LocalUpdate, RoundTask
from fedbnsl.protocol.sparse import upper
from fedbnsl.rounds.hinges import KNOTS, Answer, Task
from fedbnsl_client.data.preparation import prepared
from fedbnsl_client.losses.hinges import fewest_beyond, hinge_moments
from fedbnsl_client.rounds.kinds import LocalRounds

# Complete rows of a site: sums over fewer come near to the rows themselves.
_FEWEST_ROWS = 20


class Rounds(LocalRounds):
    """Sums over all rows without a missing value, for plans without privacy."""

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Refuse hinges of levels."""
        columns, problem = cast(Task, task.content).columns, self.problem
        if not problem.plan.numbers(problem.mask.columns)[columns].all():
            raise RemoteProtocolError(f"the task of round {task.round} asks for hinges of columns that hold levels")

    def answer(self, task: RoundTask) -> Answer:
        """Those of the columns that the task names; of no row where too few are complete, or `least_cell` forbids it.

        Where one row alone is beyond a knot, the products of its hinge tell all values of the row. Where one row alone
        has a gap, so does what earlier sums, over the rows that have two columns, exceed those over complete rows by;
        and beside levels it tells how many rows with a gap have two of them.
        """
        problem, columns = self.problem, cast(Task, task.content).columns
        if not columns.size or problem.plan.preparation is None:
            return Answer(0, np.empty(0))
        by = prepared(problem.X, problem.plan.preparation, problem.units)
        asked = problem.X, by.centre, by.scale, columns, np.array(KNOTS)
        n_rows, found = hinge_moments(*asked)
        limited = problem.least_cell > 1
        beside_gaps = limited and n_rows < len(problem.X)
        if n_rows < _FEWEST_ROWS or beside_gaps or (limited and fewest_beyond(*asked) < problem.least_cell):
            n_rows, found = 0, np.zeros_like(found)
        return Answer(n_rows, as_sent(upper(found), problem.plan.value_type))
