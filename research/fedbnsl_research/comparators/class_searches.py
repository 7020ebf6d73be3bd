"""Searches for a Markov equivalence class that see all rows in one place: FLOP, and BOSS and GES of causal-learn.

Each runs with the penalty that its package recommends or takes by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_research.comparators.causal_learn_adapter import boss, causal_learn_installed, ges
from fedbnsl_research.comparators.flop_adapter import flop, flop_installed


class Search(Protocol):
    """(n, d) table of centred columns to (d, d) CPDAG, both directions true where an edge is not directed.

    The penalty is what an edge adds to the sum over j of n/2 log(v_j); None: the package's own.
    """

    def __call__(self, X: Matrix, /, *, penalty: float | None = None) -> Mask:
        """See above."""
        ...


@dataclass(frozen=True)
class ClassSearch:
    """A search with what is needed to run it.

    Attributes
    ----------
    package
        What `pip install` calls it.
    most_variables
        It is run on so many at most: on more, one graph takes longer than all other methods together.
    """

    classes: Search
    package: str
    installed: Callable[[], bool]
    most_variables: int = 65_535

    def not_run(self, n_variables: int) -> str:
        """Why it is not run on so many variables; empty if it is."""
        if not self.installed():
            return f"not run ({self.package} is not installed)"
        return "not run (slow)" if n_variables > self.most_variables else ""


CLASS_SEARCHES = {
    "FLOP": ClassSearch(flop, "flopsearch", flop_installed),
    "BOSS": ClassSearch(boss, "causal-learn", causal_learn_installed),
    "GES": ClassSearch(ges, "causal-learn", causal_learn_installed, most_variables=100),
}


def rows_centred_by_site(tables: Sequence[Matrix]) -> Matrix:
    """(n, d) rows of all tables together, each without the means of its own table."""
    return np.concatenate([X - X.mean(axis=0) for X in tables])
