"""What a site learns by taking part, as numbers that can be compared."""

from typing import Any

from fedbnsl.protocol.sparse import SparseMatrix
from fedbnsl_client import join_run


def take_part(*arguments: Any, **options: Any) -> SparseMatrix:
    """The weights of the graph that `join_run.take_part` returns."""
    learned = join_run.take_part(*arguments, **options)
    return SparseMatrix.on_support(learned.weights, learned.dag)
