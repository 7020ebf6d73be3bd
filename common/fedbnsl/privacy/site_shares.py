"""How much each site counts in secure aggregation of residual moments, by rows and privacy cost alone.

In the sum one site's moments cannot be told from another's. A site has taken its own noisy means off its records, and
the square of their error stays in its moments: of few rows it outweighs what they tell, and would look like edges.
"""

import math
from collections.abc import Sequence

from fedbnsl.privacy.calibration import LATTICE, WHOLE_SHARE, Price, constant_residual

FAINT = WHOLE_SHARE // 4
"""A site with a smaller share hardly counts."""


def site_shares(price: Price, n_samples: Sequence[int], norm_bound: float) -> list[int]:
    """Of each site, in parts of WHOLE_SHARE; the largest is WHOLE_SHARE.

    With n records of mean weight w, whose means have errors of variance e^2, moments about them have the variance
    1 / (n w) + e^4, in units of residuals: the sum tells most if a site counts by the inverse of it, relative to its
    n w records. The privacy cost is that of any site, as noise is the same for all; records of residuals are clipped to
    `norm_bound`, R.
    """
    constant = constant_residual(price.n_variables)
    weight = min(norm_bound**2 / (price.n_variables + constant**2), 1.0)  # of records with residuals of variance 1
    noise_std = math.sqrt(price.means_variance) * norm_bound**2 / LATTICE
    told = [1.0 / (1.0 + n * weight * (noise_std / (n * weight * constant)) ** 4) for n in n_samples]
    return [int(WHOLE_SHARE * one / max(told)) for one in told]
