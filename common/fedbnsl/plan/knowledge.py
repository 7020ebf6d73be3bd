"""Prior knowledge about edges, as a mask of the coordinates that the solvers may touch."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fedbnsl.console.wording import first_few
from fedbnsl.errors import PlanError
from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.graph import is_acyclic
from fedbnsl.plan.columns import Columns
from fedbnsl.protocol.messages import VARIABLE_NAME_RULE, composed, is_variable_name
from fedbnsl.protocol.sparse import Index, Mask


def usable_name(name: str) -> str:
    """A composed name; raises ValueError for one that breaks VARIABLE_NAME_RULE."""
    name = composed(name)
    if not is_variable_name(name):
        raise ValueError(VARIABLE_NAME_RULE)
    return name


VariableName = Annotated[str, AfterValidator(usable_name)]
NamedEdge = tuple[VariableName, VariableName]


class Knowledge(BaseModel):
    """What is known before a record is read, by variable name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    required: tuple[NamedEdge, ...] = Field(default=(), description="edges [source, target] that the graph must have")
    forbidden: tuple[NamedEdge, ...] = Field(
        default=(), description="edges [source, target] that the graph must not have"
    )
    tiers: tuple[tuple[VariableName, ...], ...] = Field(
        default=(), description="groups of variables in time order: no edge points from a later group to an earlier one"
    )

    def names(self) -> Iterator[str]:
        """Every variable that is mentioned, as often as it is."""
        for group in (*self.required, *self.forbidden, *self.tiers):
            yield from group


class EdgeMask:
    """Knowledge on an ordered list of columns; what is known of a variable holds for all of its columns.

    `of_variables` is the same knowledge between variables: this object itself where each has one column.
    """

    required: Mask
    """(d, d) edges that every graph of the run has."""
    allowed: Mask
    """(d, d) coordinates that may be non-zero: never the diagonal, a forbidden edge, an edge against the tiers of plan
    or dictionary or back in time, or one that would close a cycle with required edges."""

    def __init__(self, knowledge: Knowledge, columns: Sequence[str] | Columns) -> None:
        self._knowledge, self.columns = knowledge, columns if isinstance(columns, Columns) else Columns.of(columns)
        self.of_variables = self
        if self.columns.has_blocks:
            names = self.columns.variables
            alone = replace(self.columns, names=names, variable_of=np.arange(len(names)))
            self.of_variables = EdgeMask(knowledge, alone)
            self.required = self.columns.spread(self.of_variables.required)
            self.allowed = self.columns.spread(self.of_variables.allowed)
            return
        variables = self.columns.variables
        self._position = {name: k for k, name in enumerate(variables)}
        d = len(variables)
        self.required = self._edges(knowledge.required, "knowledge.required", d)
        forbidden = self._edges(knowledge.forbidden, "knowledge.forbidden", d) | self._against(knowledge.tiers, d)
        forbidden |= _back_in_time(self.columns.slices, d) | against_tiers(self.columns.tiers, d)
        if (self.required & forbidden).any():
            i, j = (int(k) for k in np.argwhere(self.required & forbidden)[0])
            raise PlanError(
                f"knowledge requires and forbids the edge {variables[i]!r} -> {variables[j]!r}; keep one of the two"
            )
        if not is_acyclic(self.required):
            raise PlanError("knowledge.required has a cycle; a Bayesian network has none")
        self.allowed = ~(np.eye(d, dtype=bool) | forbidden | arrows_lead(self.required).T)

    def over(self, kept: Index) -> "EdgeMask":
        """The same knowledge on some of the columns, ascending, of which every variable has at least one."""
        return EdgeMask(self._knowledge, self.columns.over(kept))

    def _index(self, name: str, setting: str) -> int:
        if name not in self._position:
            near = difflib.get_close_matches(name, self._position, n=3)
            those = f"near it: {', '.join(near)}" if near else first_few(self._position)
            raise PlanError(f"{setting} names {name!r}, which is not a variable of this run ({those})")
        return self._position[name]

    def _edges(self, named: Sequence[NamedEdge], setting: str, d: int) -> Mask:
        edges = np.zeros((d, d), dtype=bool)
        for source, target in named:
            if source == target:
                raise PlanError(f"{setting} holds the edge {source!r} -> {target!r}; no variable is its own parent")
            edges[self._index(source, setting), self._index(target, setting)] = True
        return edges

    def _against(self, tiers: Sequence[Sequence[str]], d: int) -> Mask:
        """Edges from a later tier to an earlier one; variables in no tier are free."""
        tier = np.full(d, -1)
        for level, names in enumerate(tiers):
            for name in names:
                k = self._index(name, "knowledge.tiers")
                if tier[k] >= 0:
                    raise PlanError(f"knowledge.tiers lists {name!r} in two tiers; keep one")
                tier[k] = level
        placed = tier >= 0
        return placed[:, None] & placed[None, :] & (tier[:, None] > tier[None, :])


def against_tiers(tiers: Sequence[int], d: int) -> Mask:
    """(d, d) edges from a later tier of the dictionary to an earlier one, and into the first from variables in none.

    Tier 1 holds what nothing in the table acts on; otherwise variables in no tier, which are of tier 0, are free.
    """
    of = np.array(tiers or [0] * d)
    later = (of[:, None] > of[None, :]) & (of[None, :] > 0)
    return np.asarray(later | ((of[:, None] == 0) & (of[None, :] == 1)))


def _back_in_time(slices: Sequence[int], d: int) -> Mask:
    """(d, d) edges from a later slice of time to an earlier one."""
    times = np.array(slices or [0] * d)
    return np.asarray(times[:, None] > times[None, :])
