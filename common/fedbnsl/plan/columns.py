"""Which columns of a run belong to which variable of the graph: all of a nominal variable's to one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedbnsl.protocol.sparse import Index, Mask, Matrix


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of a run's matrices, and the variables of its graph."""

    names: tuple[str, ...]
    """d names of columns, in the order of the matrices."""
    variables: tuple[str, ...]
    """V names of variables, in the order of their first columns."""
    variable_of: Index
    """(d,) position of each column's variable."""
    slices: tuple[int, ...] = ()
    """V slices of time of the variables, none of which causes an earlier one; empty: all are of one time."""
    tiers: tuple[int, ...] = ()
    """V tiers of the variables in the dictionary, see `knowledge.against_tiers`; 0: in none. Empty: all are in none."""

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        owners: Mapping[str, str] | None = None,
        slice_of: Callable[[str], int] | None = None,
        tier_of: Callable[[str], int] | None = None,
    ) -> Self:
        """Columns of these names.

        Parameters
        ----------
        names
            d names.
        owners
            The variables of those that are not one by themselves.
        slice_of
            The slice of time of a variable; None: all are of one time.
        tier_of
            The tier of a variable; None: none has one.
        """
        owner = [name if owners is None else owners.get(name, name) for name in names]
        variables = tuple(dict.fromkeys(owner))
        place = {name: k for k, name in enumerate(variables)}
        slices = () if slice_of is None else tuple(map(slice_of, variables))
        tiers = () if tier_of is None else tuple(map(tier_of, variables))
        return cls(tuple(names), variables, np.array([place[name] for name in owner], dtype=np.int64), slices, tiers)

    @property
    def has_blocks(self) -> bool:
        """Whether a variable has several columns, or had before some were left out; otherwise names are the same."""
        return self.names != self.variables

    @property
    def sizes(self) -> Index:
        """(V,) how many columns each variable has."""
        return np.bincount(self.variable_of, minlength=len(self.variables))

    def over(self, kept: Index) -> Self:
        """Some of the columns, ascending, of which every variable has at least one."""
        places: list[int] = kept.tolist()
        return replace(self, names=tuple(self.names[k] for k in places), variable_of=self.variable_of[kept])

    def levels(self, place: int) -> tuple[str, str]:
        """The levels of a pair of columns, at a place as of `places`; empty: the column is its variable."""

        def level(column: int) -> str:
            name, variable = self.names[column], self.variables[int(self.variable_of[column])]
            return "" if name == variable else name.removeprefix(f"{variable}=")

        i, j = divmod(place, len(self.names))
        return level(i), level(j)

    def members(self) -> list[Index]:
        """The columns of each variable, ascending."""
        return [np.flatnonzero(self.variable_of == v) for v in range(len(self.variables))]

    def spread(self, between_variables: Mask) -> Mask:
        """(d, d) the edges between the columns of variables that have a (V, V) edge; none within a variable."""
        if not self.has_blocks:
            return between_variables & ~np.eye(len(between_variables), dtype=bool)
        return between_variables[np.ix_(self.variable_of, self.variable_of)] & ~self.within()

    def within(self) -> Mask:
        """(d, d) pairs of columns of one variable, each column with itself included."""
        return np.asarray(self.variable_of[:, None] == self.variable_of[None, :])

    def joined(self, between_columns: Mask) -> Mask:
        """(V, V) whether any column of one variable has an edge to any column of another."""
        if not self.has_blocks:
            return between_columns
        return self.largest(between_columns.astype(np.float64)) > 0.0

    def places(self, sizes: Matrix) -> Index:
        """(V, V) where in a (d, d) matrix, read row by row, the coefficient is that stands for those of two variables.

        It is the one with the largest of the (d, d) sizes, the first of equal ones; NaN only if all are.
        """
        order = np.argsort(-np.nan_to_num(np.abs(sizes).ravel(), nan=-1.0), kind="stable")[::-1]
        i, j = np.divmod(order, len(self.names))
        found = np.zeros((len(self.variables),) * 2, dtype=np.int64)
        found[self.variable_of[i], self.variable_of[j]] = order  # the last one written is the largest
        return found

    def largest(self, weights: Matrix) -> Matrix:
        """(V, V) the weight of largest size among those of two variables' (d, d) columns; NaN only if all are."""
        if not self.has_blocks:
            return weights
        V, v = len(self.variables), self.variable_of
        i, j = np.nonzero(weights)
        order = np.argsort(np.nan_to_num(np.abs(weights[i, j]), nan=-1.0), kind="stable")
        found = np.zeros((V, V))
        found[v[i[order]], v[j[order]]] = weights[i[order], j[order]]  # the last one written is the largest
        np.fill_diagonal(found, 0.0)
        return found
