"""The square of a number, as a further column of the residuals that a private run releases moments of."""

import math

import numpy as np

from fedbnsl.protocol.sparse import Matrix

_LONGEST = 3.0
"""Numbers are clipped to so many scales before: a tail would lengthen records, which are then clipped."""


def squares(z: Matrix) -> Matrix:
    """Of prepared numbers, clipped: (z^2 - 1) / sqrt(2), of mean 0 and variance 1 if z is standard normal."""
    return np.asarray((np.square(np.clip(z, -_LONGEST, _LONGEST)) - 1.0) / math.sqrt(2.0))
