"""What a site knows of its own means in a private run: the paid statistics, and each release of residual moments since.

Records of a residual moments release have a constant as their last residual, so that a release also holds the
noisy mean of every residual. The site combines it with what it knew before, each by its precision (a Kalman filter
without motion), and takes the better means off its records in the next round. This works on what was released and on
public numbers: it costs no privacy, and a record still depends on no other record but through released numbers.

An error of the means is in all records: in units of small residuals it may be many standard deviations, and then
clips the records more, which raises the share of the noise in what is left.
"""

from dataclasses import dataclass

import numpy as np

from fedbnsl.protocol.sparse import Matrix

# A weight within this many standard deviations of its noise tells nothing.
_TOLD = 3.0


@dataclass(frozen=True, eq=False)
class NoisyMeans:
    """The means of a site's prepared columns."""

    means: Matrix  # (d,) in units of the prepared columns, about the centres that the statistics gave
    error: Matrix  # (d, d) covariance of their errors by noise alone: they are means of this table, not of a population

    def after(self, released: Matrix, A: Matrix, noise_std: float, constant: float) -> "NoisyMeans":
        """What is known after a release; unchanged where it tells nothing or numbers are beyond use.

        Parameters
        ----------
        released
            (d + 1,) noisy mean products of records w (z, c) with the last entry, where z = A'(x - `means`) and w <= 1
            clips a record.
        A
            (d, d) of the residuals that were asked for.
        noise_std
            Of one of these numbers; of the last one sqrt(2) times that, at most.
        constant
            c.
        """
        if not released[-1] > _TOLD * np.sqrt(2.0) * noise_std:
            return self
        weight = float(released[-1]) / constant
        with np.errstate(all="ignore"):
            unknown = A.T @ self.error  # (z, x) covariance of the errors
            total = unknown @ A + (noise_std / weight) ** 2 * np.eye(len(A))
            try:
                gain = np.linalg.solve(total, unknown).T
            except np.linalg.LinAlgError:  # weights or scales of a task without use
                return self
            means = self.means + gain @ (released[:-1] / weight)
            error = self.error - gain @ unknown
        if not (np.isfinite(means).all() and np.isfinite(error).all()):
            return self
        return NoisyMeans(means, 0.5 * (error + error.T))


def square_of_means(own_means: Matrix, noise_std: float) -> Matrix:
    """(d, d) what a site's own means add to its moments, so that the rest are moments about them.

    `own_means` are (d + 1,) as in `NoisyMeans.after`; the square of their noise, which is in that of a noisy mean, does
    not count.
    """
    mean, weight = own_means[:-1], float(own_means[-1])
    if not weight > _TOLD * noise_std:  # noise: nothing is known of the means
        return np.zeros((len(mean), len(mean)))
    return np.asarray((np.outer(mean, mean) - noise_std**2 * np.eye(len(mean))) / weight)
