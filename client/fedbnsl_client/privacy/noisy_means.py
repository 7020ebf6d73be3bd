"""What a site knows of its own means in a private run: the paid statistics, and each release of residual moments since.

Records of a residual moments release have a constant as their last residual, so that a release also holds the
noisy mean of every residual. The site combines it with what it knew before, each by its precision (a Kalman filter
without motion), and takes the better means off its records in the next round. This works on what was released and on
public numbers: it costs no privacy, and a record still depends on no other record but through released numbers.

An error of the means is in all records: in units of small residuals it may be many standard deviations, and then
shortens the records, which raises the share of the noise in what is left.
"""

from dataclasses import dataclass

import numpy as np

from fedbnsl.sparse import Matrix

# A weight within so many standard deviations of its noise tells nothing.
_TOLD = 3.0


@dataclass(frozen=True, eq=False)
class NoisyMeans:
    """The means of a site's prepared columns.

    Attributes
    ----------
    means
        (d,) in units of the prepared columns, about the centres that the statistics gave.
    error
        (d, d) covariance of their errors by noise alone: they are means of this table, not of a population.
    """

    means: Matrix
    error: Matrix

    def after(self, released: Matrix, A: Matrix, noise_std: float, constant: float) -> "NoisyMeans":
        """What is known after a release; unchanged where it tells nothing or numbers are beyond use.

        Parameters
        ----------
        released
            (d + 1, d + 1) noisy moments of records w (z, c), where z = A'(x - `means`) and w <= 1 shortens a record.
        A
            (d, d) of the residuals that were asked for.
        noise_std
            Of an entry off the diagonal.
        constant
            c.
        """
        if not released[-1, -1] > _TOLD * np.sqrt(2.0) * noise_std:
            return self
        weight = float(released[-1, -1]) / constant
        with np.errstate(all="ignore"):
            unknown = A.T @ self.error  # (z, x) covariance of the errors
            total = unknown @ A + (noise_std / weight) ** 2 * np.eye(len(A))
            try:
                gain = np.linalg.solve(total, unknown).T
            except np.linalg.LinAlgError:  # weights or scales of a task without use
                return self
            means = self.means + gain @ (released[:-1, -1] / weight)
            error = self.error - gain @ unknown
        if not (np.isfinite(means).all() and np.isfinite(error).all()):
            return self
        return NoisyMeans(means, 0.5 * (error + error.T))
