"""The clipped gradient of a table that lies in a file: the same integers, from one block of rows at a time."""

import numpy as np

from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.mapped_array import forget, row_blocks, zeros_in_file
from fedbnsl_client.data.person_rows import PersonRows, Table
from fedbnsl_client.losses.clipped import ClippedGradient, Integers


class BlockedGradient:
    """Like `ClippedGradient`: integer sums over blocks add up to the sums over the table.

    The arrays that a block keeps, twice its own size, are in a file, too, so memory holds little of the table.
    """

    def __init__(self, X: Table, clips: Matrix) -> None:
        rows = X.X if isinstance(X, PersonRows) else X
        self.unit = clips / (len(X) * LATTICE)
        self._kept = zeros_in_file((2 * rows.size,))
        self._blocks: list[ClippedGradient] = []
        taken = 0

        def take(shape: tuple[int, int]) -> Matrix:
            nonlocal taken
            start, taken = taken, taken + shape[0] * shape[1]
            return self._kept[start:taken].reshape(shape)

        for block in X.parts() if isinstance(X, PersonRows) else row_blocks(X):
            self._blocks.append(ClippedGradient(block, clips, empty=take))
            forget(self._kept)
        self.sums: Integers = np.zeros((rows.shape[1],) * 2, dtype=np.int64)

    def move_to(self, B: Matrix) -> None:
        """See `ClippedGradient.move_to`."""
        self.sums[:] = 0
        for block in self._blocks:
            block.move_to(B)
            self.sums += block.sums
            forget(self._kept)

    def step(self, i: int, j: int, value: float) -> None:
        """See `ClippedGradient.step`."""
        self.sums[j] = 0
        for block in self._blocks:
            block.step(i, j, value)
            self.sums[j] += block.sums[j]
            forget(self._kept)
