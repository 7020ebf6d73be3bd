"""What a DAG may be: the edges among which a search looks."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.protocol.sparse import Mask


@dataclass(frozen=True, eq=False)
class Space:
    """The DAGs between V variables among which a search looks."""

    candidates: Mask  # (V, V) edges that a DAG may have; never the diagonal
    # (V, V) DAG of edges that it must have; none by default
    required: Mask = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    # (V, V) edges that it may have besides, all candidates among them; the candidates alone by default
    allowed: Mask = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    columns: Columns = field(default_factory=lambda: Columns.of(()))  # those of the variables; one each by default

    def __post_init__(self) -> None:
        if not self.required.size:
            object.__setattr__(self, "required", np.zeros_like(self.candidates))
        if not self.allowed.size:
            object.__setattr__(self, "allowed", self.candidates)
        if not self.columns.names:
            object.__setattr__(self, "columns", Columns.of([str(v) for v in range(len(self.candidates))]))

    @classmethod
    def of(cls, candidates: Mask, mask: EdgeMask) -> Self:
        """Among candidates, with what is known beforehand."""
        return cls(candidates, mask.of_variables.required, mask.of_variables.allowed, mask.columns)
