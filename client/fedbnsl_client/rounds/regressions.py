"""A step of the regressions at a site: what its records say at the coefficients of all sites, with its own intercepts.

The records of a family are those without a gap in its columns. Parents are taken about their means at the site: this
changes the intercepts alone, and keeps the digits of columns that are far from zero.
"""

from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np

from fedbnsl.errors import RemoteProtocolError
from fedbnsl.families.categorical import Categorical
from fedbnsl.families.ordinal import Ordinal
from fedbnsl.families.poisson import Poisson
from fedbnsl.families.profile import Profile, best_intercepts, profile
from fedbnsl.families.regression import Family as FamilyOfChild
from fedbnsl.families.regression import Sums
from fedbnsl.plan.dictionary import Entry
from fedbnsl.protocol.messages import LocalUpdate, RoundTask, SiteState
from fedbnsl.protocol.sparse import Index, Matrix, upper
from fedbnsl.rounds.regressions import KINDS_OF_CHILDREN, Answer, Family, Task
from fedbnsl_client.data.mapped_array import RowsElsewhere, lies_in_file, sum_over_rows
from fedbnsl_client.data.small_cells import has_small_cell
from fedbnsl_client.rounds.kinds import LocalProblem, LocalRounds, check_edges, check_size


class Rounds(LocalRounds):
    """Answers that follow from the task and the table alone, so that a restarted site gives the same."""

    def __init__(self, problem: LocalProblem, snapshot: SiteState) -> None:
        super().__init__(problem, snapshot)
        self._kept: dict[Family, bool] = {}

    def begin(self, task: RoundTask, last: LocalUpdate | None) -> None:
        """Refuse coefficients that nothing can be computed with, children of another kind, and edges that cannot be."""
        content = cast(Task, task.content)
        check_size(task, content.coefficients)
        for family in content.families:
            self._entry(task, family)
            edges = np.zeros_like(self.problem.mask.allowed)
            edges[np.ix_(family.parents, family.child)] = True
            check_edges(task, edges, self.problem.mask)

    def answer(self, task: RoundTask) -> Answer:
        """The sums of each family; zeros of one with a combination of levels of fewer records than `least_cell`."""
        content, first = cast(Task, task.content), 0
        found: list[tuple[int, Profile]] = []
        for family in content.families:
            last = first + family.n_coefficients
            beta, entry = content.coefficients[first:last], self._entry(task, family)
            found.append(
                (0, _nothing(beta)) if self._is_kept(family) else _profile(self.problem.X, family, entry, beta)
            )
            first = last
        profiles = [one for _, one in found]
        return Answer(
            np.array([n for n, _ in found], dtype=np.int64),
            np.array([one.log_likelihood for one in profiles]),
            np.concatenate([one.gradient for one in profiles]),
            np.concatenate([upper(one.information) for one in profiles]),
            np.array([one.dispersion for one in profiles]),
        )

    def _is_kept(self, family: Family) -> bool:
        """Whether its sums could tell a count that the site does not."""
        if family not in self._kept:
            problem, columns = self.problem, self.problem.mask.columns
            variables = np.unique(columns.variable_of[[*family.child, *family.parents]]).tolist()
            self._kept[family] = problem.least_cell > 1 and has_small_cell(
                problem.X, columns, problem.plan.dictionary, variables, problem.least_cell
            )
        return self._kept[family]

    def _entry(self, task: RoundTask, family: Family) -> Entry:
        """What the dictionary says of the child. Raises RemoteProtocolError if it has no regression here."""
        columns, dictionary = self.problem.mask.columns, self.problem.plan.dictionary
        of_child = np.unique(columns.variable_of[list(family.child)])
        entry = dictionary[columns.variables[int(of_child[0])]] if of_child.size == 1 else None
        if entry is None or entry.kind not in KINDS_OF_CHILDREN:
            raise RemoteProtocolError(
                f"the task of round {task.round} has a regression of a child without levels or counts"
            )
        return entry


@dataclass(frozen=True)
class _Records:
    """The records of a family in blocks of rows."""

    child: tuple[int, ...]  # columns of the blocks
    parents: tuple[int, ...]
    entry: Entry  # of the child

    @property
    def of_kind(self) -> type[Categorical | Ordinal | Poisson]:
        """The child's regression."""
        if self.entry.kind == "count":
            return Poisson
        return Ordinal if self.entry.kind == "ordinal" else Categorical

    @property
    def n_levels(self) -> int:
        """Of the child, those that are in use; of a count any number."""
        return len(self.entry.levels) if self.entry.kind == "ordinal" else len(self.child) + 1

    def of(self, block: Matrix) -> tuple[Matrix, Index]:
        """(n, p) parents and (n,) children of the rows without a gap in them."""
        told = block[:, [*self.child, *self.parents]]
        told = told[~np.isnan(told).any(axis=1)]
        own, X = told[:, : len(self.child)], told[:, len(self.child) :]
        if self.entry.kind == "nominal":
            return X, np.rint(own @ np.arange(1, len(self.child) + 1)).astype(np.int64)
        values = self.entry.formula.back(own[:, 0]) if self.entry.kind == "count" else own[:, 0]
        return X, np.maximum(np.rint(values), 0.0).astype(np.int64)


def _profile(X: Matrix, family: Family, entry: Entry, beta: Matrix) -> tuple[int, Profile]:
    """How many records of a table the family has, and what they say at these coefficients."""
    records = _Records(family.child, family.parents, entry)
    if not (isinstance(X, RowsElsewhere) or lies_in_file(X)):  # gathered once, and not in every pass
        c, k = len(family.child), len(family.child) + len(family.parents)
        X = X[:, [*family.child, *family.parents]]
        records = _Records(tuple(range(c)), tuple(range(c, k)), entry)
    p, totals = len(family.parents), sum_over_rows(X, partial(_totals, records=records))
    n, about, of_site = totals[0], totals[1 : 1 + p] / max(totals[0], 1.0), records.of_kind(totals[1 + p :])
    if not of_site.varies:
        return int(n), _nothing(beta)

    def sums(alpha: Matrix, *, whole: bool = False) -> Sums:
        f = partial(_sums, records=records, of_site=of_site, about=about, alpha=alpha, beta=beta, whole=whole)
        return Sums.of_vector(sum_over_rows(X, f))

    alpha = best_intercepts(of_site, sums)
    return int(n), profile(sums(alpha, whole=True), len(alpha))


def _nothing(beta: Matrix) -> Profile:
    return Profile(0.0, 0.0, np.zeros(len(beta)), np.zeros((len(beta), len(beta))))


def _totals(block: Matrix, *, records: _Records) -> Matrix:
    X, y = records.of(block)
    return np.concatenate([[len(y)], X.sum(axis=0), records.of_kind.totals(y, records.n_levels)])


def _sums(
    block: Matrix, *, records: _Records, of_site: FamilyOfChild, about: Matrix, alpha: Matrix, beta: Matrix, whole: bool
) -> Matrix:
    X, y = records.of(block)
    X = X - about
    return of_site.sums(X if whole else X[:, :0], y, of_site.predictors(X, beta), alpha).as_vector()
