"""Contingency tables that the sites have sent, and the table of any set of variables that follows from them.

Tables of all sets are over the same sites: those that have answered every round so far. A site that missed a round is
left out of all of them, for tables over different records cannot be compared. Where every site was missed once, only
the last round counts.

A site may withhold the table of a set, as the rule `least_cell` of its policy says. Then no table of this set counts,
nor of one that holds it: a cell of a table is the sum of cells of a larger one, so that the larger one has a cell below
the limit, too.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple, Protocol, Self

import numpy as np

from fedbnsl.graphs.contingency import VariableSet, cells_of, shape_of
from fedbnsl.protocol.sparse import Index, Mask, Matrix


class SiteTables(NamedTuple):
    """Tables of one site, as `rounds.counts.Answer` has them."""

    n_cells: Index
    cells: Index
    counts: Index

    def then(self, later: "SiteTables") -> "SiteTables":
        """These tables, and after them those of a later round."""
        return SiteTables(*(np.concatenate(pair) for pair in zip(self, later, strict=True)))


class Choice(NamedTuple):
    """Bits that describe the tables by the graph of counts, and by that of moments (`straight`)."""

    by_tables: float
    by_lines: float

    @property
    def counts(self) -> bool:
        """Whether the graph is that of counts."""
        return self.by_tables < self.by_lines


NO_TABLES = SiteTables(*(np.empty(0, dtype=np.int64) for _ in range(3)))


@dataclass(frozen=True, eq=False)
class Counted:
    """Where the rounds of counts stand."""

    dag: Mask  # (V, V) the best graph so far
    sets: tuple[VariableSet, ...] = ()  # whose tables are here
    told: Mapping[str, SiteTables] = field(default_factory=dict[str, SiteTables])  # of all these sets, by site
    wanted: tuple[VariableSet, ...] = ()  # what the next round asks for
    given_up: bool = False  # as sites withhold tables of the graph of moments, which stays
    choice: Choice | None = None  # between both graphs, made in the last round where a variable has grades

    @property
    def decides(self) -> bool:
        """Whether the graph is that of counts, as far as is known."""
        return not self.given_up and (self.choice is None or self.choice.counts)

    @cached_property
    def withheld(self) -> Mapping[str, frozenset[VariableSet]]:
        """By site the sets whose tables it keeps to itself; without those that keep none."""
        found = {
            site: frozenset(self.sets[k] for k in np.flatnonzero(one.n_cells == 0).tolist())
            for site, one in self.told.items()
        }
        return {site: sets for site, sets in found.items() if sets}

    def with_answers(self, sets: tuple[VariableSet, ...], answers: Mapping[str, SiteTables]) -> Self:
        """After a round that asked for these sets."""
        before = self.told if self.sets else dict.fromkeys(answers, NO_TABLES)
        told = {site: before[site].then(answer) for site, answer in answers.items() if site in before}
        if not told:
            return replace(self, sets=sets, told=dict(answers), wanted=())
        return replace(self, sets=self.sets + sets, told=told, wanted=())

    def without(self, sites: Collection[str]) -> Self:
        """Without the tables of some sites."""
        return replace(self, told={site: one for site, one in self.told.items() if site not in sites})


class TableSource(Protocol):
    """Where tables come from: what the sites sent, or records that were drawn."""

    @property
    def n_samples(self) -> float:
        """Records of each table."""
        ...

    def table(self, variables: VariableSet) -> Matrix | None:
        """The table of a set, one axis a variable; None: it is not known."""
        ...

    def is_withheld(self, variables: VariableSet) -> bool:
        """Whether it never will be known, as a site keeps it to itself."""
        ...


@dataclass(frozen=True, eq=False)
class PooledTables:
    """Tables over all sites.

    Attributes
    ----------
    counted
        What the sites sent.
    levels
        (V,) of each variable.
    """

    counted: Counted
    levels: Index

    @property
    def n_samples(self) -> float:
        """Records of each table."""
        return self._n_samples

    @cached_property
    def _n_samples(self) -> float:
        of_sets = (
            np.bincount(np.repeat(np.arange(len(one.n_cells)), one.n_cells), one.counts)
            for one in self.counted.told.values()
        )
        return float(sum(totals.max(initial=0.0) for totals in of_sets))

    def is_withheld(self, variables: VariableSet) -> bool:
        """See `TableSource.is_withheld`."""
        within = (one for size in range(1, len(variables) + 1) for one in combinations(variables, size))
        return bool(self._withheld) and not self._withheld.isdisjoint(within)

    @cached_property
    def _withheld(self) -> frozenset[VariableSet]:
        return frozenset[VariableSet]().union(*self.counted.withheld.values())

    def table(self, variables: VariableSet) -> Matrix | None:
        """The table of a set that was asked for, or of one within such a set; None: it is not known."""
        if variables in self._place:
            return self._asked(self._place[variables])
        first, *others = (self._having.get(v, set[int]()) for v in variables)
        larger = min(first.intersection(*others), default=None)
        if larger is None:
            return None
        one = self.counted.sets[larger]
        return np.asarray(self._asked(larger).sum(axis=tuple(k for k, v in enumerate(one) if v not in variables)))

    @cached_property
    def _place(self) -> dict[VariableSet, int]:
        return {one: k for k, one in enumerate(self.counted.sets) if one not in self._withheld}

    @cached_property
    def _having(self) -> dict[int, set[int]]:
        """The sets that have a variable."""
        found: dict[int, set[int]] = {}
        for one, k in self._place.items():
            for v in one:
                found.setdefault(v, set()).add(k)
        return found

    @cached_property
    def _starts(self) -> dict[str, Sequence[int]]:
        return {site: np.concatenate([[0], np.cumsum(one.n_cells)]).tolist() for site, one in self.counted.told.items()}

    def _asked(self, k: int) -> Matrix:
        one = self.counted.sets[k]
        found = np.zeros(cells_of(one, self.levels))
        for site, told in self.counted.told.items():
            first, end = self._starts[site][k : k + 2]
            found[told.cells[first:end]] += told.counts[first:end]
        return found.reshape(shape_of(one, self.levels))
