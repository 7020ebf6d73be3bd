"""When an arrow of a learned class is told: where enough of the bootstrap draws that have its edge agree with it.

A class directs an edge where all of its DAGs agree, however narrowly it beats the next class. Draws of the bootstrap
show how narrowly. An arrow with too few of them is *undecided*: it is shown without a direction. The class itself stays
as it is, for without this arrow its marks are those of no class: of a -> c <- b with a - c alone left open, Meek's
first rule would turn that edge around.

Variables that are functions of each other, such as a sum and its parts, tie exactly: rounding decides their arrows, in
the class and in every draw. The coordinator counts these draws as without a direction.
"""

import numpy as np

from fedbnsl.graphs.pag import MAJORITY as MAJORITY
from fedbnsl.protocol.messages import EdgeDraws
from fedbnsl.protocol.sparse import Mask

FEW_DRAWS = 20
"""With fewer, chance alone moves a share by a fifth and more: results say so."""


def undecided(dag: Mask, marks: Mask, known: Mask, drawn: EdgeDraws | None, functions: Mask | None = None) -> Mask:
    """(V, V) arrows of a class that too few of the draws with the edge agree with.

    Without draws, those between functions of each other.

    Parameters
    ----------
    dag
        (V, V) a DAG of the class, whose edges the draws are of.
    marks
        (V, V) the class.
    known
        (V, V) edges whose direction is known beforehand: no draw can have the other one.
    functions
        (V, V) which variables are functions of each other; None: not known.
    """
    found = np.zeros_like(dag) if functions is None else dag & functions
    if drawn is not None:
        adjacent, forward, _ = np.array(drawn.counts, dtype=np.int64).reshape(-1, 3).T
        found[dag] |= (forward < MAJORITY * adjacent) | (adjacent == 0)
    return found & marks & ~marks.T & ~known
