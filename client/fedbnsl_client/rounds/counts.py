"""A round of counts at a site: how many of its records are in each cell of the tables that the task names."""

from typing import cast

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graphs.contingency import MOST_CELLS, MOST_CELLS_A_ROUND, cells_of, levels_of
from fedbnsl.protocol.messages import RoundTask
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.rounds.counts import Answer, Task
from fedbnsl_client.data.mapped_array import sum_over_rows
from fedbnsl_client.data.small_cells import small_beside_gaps
from fedbnsl_client.losses.contingency import counted
from fedbnsl_client.rounds.kinds import LocalRounds


class Rounds(LocalRounds):
    """Answers that follow from the task and the table alone, so that a restarted site gives the same."""

    def begin(self, task: RoundTask, last: object) -> None:
        """Refuse sets of other variables, and tables that are too large."""
        columns = self.problem.mask.columns
        sets, levels = cast(Task, task.content).sets, levels_of(columns, self.problem.plan.dictionary)
        known = all(one[-1] < len(columns.variables) for one in sets) and len(set(sets)) == len(sets)
        sizes = [cells_of(one, levels) for one in sets] if known else []
        if not known or max(sizes, default=0) > MOST_CELLS or sum(sizes) > MOST_CELLS_A_ROUND:
            raise RemoteProtocolError(
                f"the task of round {task.round} asks for tables of variables that the run does not have, or for more "
                f"than {MOST_CELLS} cells in one or {MOST_CELLS_A_ROUND} in all: nothing was counted"
            )

    def answer(self, task: RoundTask) -> Answer:
        """The cells that have records; none of a table that has one with fewer than the site's `least_cell`.

        All tables are of the same records, those without a gap. Beside sums of earlier rounds, over the rows that have
        a pair of variables, they tell how many rows with a gap have each combination: these, too, must be enough.
        """
        asked, columns = cast(Task, task.content), self.problem.mask.columns
        levels, members = levels_of(columns, self.problem.plan.dictionary), columns.members()

        def sums(block: Matrix) -> Matrix:
            return counted(block[~np.isnan(block).any(axis=1)], asked.sets, members, levels)

        totals = sum_over_rows(self.problem.X, sums) if asked.sets else np.empty(0)
        ends = np.cumsum([cells_of(one, levels) for one in asked.sets], dtype=np.int64)
        tables = np.split(totals.astype(np.int64), ends[:-1]) if asked.sets else []
        least = self.problem.least_cell
        small = np.array([((table > 0) & (table < least)).any() for table in tables], dtype=bool)
        if least > 1 and asked.sets:
            small |= small_beside_gaps(self.problem.X, columns, self.problem.plan.dictionary, asked.sets, least)
        told = [table * (not kept) for table, kept in zip(tables, small.tolist(), strict=True)]
        there = [np.flatnonzero(table) for table in told]
        nothing = np.empty(0, dtype=np.int64)
        return Answer(
            n_cells=np.array([len(one) for one in there], dtype=np.int64),
            cells=np.concatenate([nothing, *there]),
            counts=np.concatenate([nothing, *(table[k] for table, k in zip(tables, there, strict=True))]),
            task_digest=asked.digest,
        )
