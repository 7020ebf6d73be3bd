"""A round of counts at a site: how many of its records are in each cell of the tables that the task names."""

from typing import cast

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.graphs.contingency import MOST_CELLS, MOST_CELLS_A_ROUND, PARTS, cells_of, levels_of
from fedbnsl.protocol.messages import RoundTask
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl.rounds.counts import Answer, Task
from fedbnsl_client.data.mapped_array import sum_over_rows
from fedbnsl_client.data.preparation import prepared
from fedbnsl_client.losses.expected_levels import Completing, counted
from fedbnsl_client.rounds.kinds import LocalRounds


class Rounds(LocalRounds):
    """Answers that follow from the task and the table alone, so that a restarted site gives the same."""

    def begin(self, task: RoundTask, last: object) -> None:
        """Refuse sets of other variables, and tables that are too large."""
        columns = self.problem.mask.columns
        sets, levels = cast(Task, task.content).sets, levels_of(columns)
        known = all(one[-1] < len(columns.variables) for one in sets) and len(set(sets)) == len(sets)
        sizes = [cells_of(one, levels) for one in sets] if known else []
        if not known or max(sizes, default=0) > MOST_CELLS or sum(sizes) > MOST_CELLS_A_ROUND:
            raise RemoteProtocolError(
                f"the task of round {task.round} asks for tables of variables that the run does not have, or for more "
                f"than {MOST_CELLS} cells in one or {MOST_CELLS_A_ROUND} in all: nothing was counted"
            )

    def answer(self, task: RoundTask) -> Answer:
        """The cells that have records; of a set with a variable that this site lacks, none."""
        asked = cast(Task, task.content)
        problem, by = self.problem, self._completing()
        columns, members = problem.mask.columns, problem.mask.columns.members()
        levels, lacking = levels_of(columns), self._lacking(members)
        sets = [one for one in asked.sets if not lacking[list(one)].any()]
        total = np.zeros(0)
        if sets:
            total = sum_over_rows(problem.X, lambda block: counted(block, sets, members, levels, by))
        in_parts = by is not None
        whole = np.rint(total * (PARTS if in_parts else 1)).astype(np.int64)
        tables, start = dict.fromkeys(asked.sets, np.empty(0, dtype=np.int64)), 0
        for one in sets:
            size = cells_of(one, levels)
            tables[one], start = whole[start : start + size], start + size
        there = [np.flatnonzero(table) for table in tables.values()]
        nothing = np.empty(0, dtype=np.int64)
        return Answer(
            n_cells=np.array([len(one) for one in there], dtype=np.int64),
            cells=np.concatenate([nothing, *there]),
            counts=np.concatenate([nothing, *(table[k] for table, k in zip(tables.values(), there, strict=True))]),
            in_parts=in_parts,
            task_digest=asked.digest,
        )

    def _completing(self) -> Completing | None:
        problem, by, completed = self.problem, self.problem.completed_by, self.problem.completed
        if by is None or completed is None or problem.plan.preparation is None:
            return None
        centre, scale = prepared(problem.X, problem.plan.preparation, problem.units)
        return Completing(by.S, completed.means, centre, scale)

    def _lacking(self, members: list[Index]) -> Mask:
        """(V,) variables of which no record has a value."""

        def values(block: Matrix) -> Matrix:
            return np.array([(~np.isnan(block[:, own[0]])).sum() for own in members], dtype=np.float64)

        return np.asarray(sum_over_rows(self.problem.X, values) == 0.0)
