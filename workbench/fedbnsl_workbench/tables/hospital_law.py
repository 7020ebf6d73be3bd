"""How values of continuous, binary, ordinal, nominal and count variables are drawn from one weighted graph.

In the order of the graph, every variable gets

    latent = sum over its parents of weight * code of the parent + noise,    noise ~ N(0, 1).

A continuous variable is its latent, and its code is its value. Of all others the latent is standardised and cut at
thresholds (binary, ordinal, nominal: levels shuffled), or is the log of a Poisson rate (count). Children see what was
observed, never the latent: the code is the observed level, or log1p of the count, standardised, and each child of a
nominal variable has its own effect for every level. So a child is linear in the columns of the data dictionary.

Means and standard deviations that the law needs come from a pilot sample, which is in no table.
"""

import numpy as np

from fedbnsl.graphs.graph import topological_order
from fedbnsl.protocol.sparse import Matrix

_PILOT_ROWS = 20_000
_CUTS = (-0.8, 0.0, 0.8)  # of a standardised latent; binary variables have the middle one
_LOG_RATE = (1.0, 0.6)  # of counts: at the mean of the latent, and for each standard deviation

LEVELS: dict[str, tuple[str, ...]] = {
    "binary": ("no", "yes"),
    "ordinal": ("I", "II", "III", "IV"),
    "nominal": ("surgery", "medicine", "neurology", "geriatrics"),
}


class Law:
    """How values of all variables are drawn, with the constants that a pilot sample has fixed.

    `kinds`: of the variables that are not continuous.

    Attributes
    ----------
    mean, std
        (V,) of values.
    """

    def __init__(self, W: Matrix, kinds: dict[int, str], rng: np.random.Generator) -> None:
        self._W, self._kinds = W, kinds
        V, K = len(W), len(LEVELS["nominal"])
        self._shuffled = {j: rng.permutation(K).astype(np.float64) for j in kinds}
        self._effects = rng.standard_normal((K, V))  # of each level of a nominal variable on each child
        self._latent_mean, self._latent_std = np.zeros(V), np.ones(V)
        self._code_mean, self._code_std = np.zeros((V, V)), np.ones((V, V))
        pilot = self._drawn(rng, _PILOT_ROWS, np.zeros(V), fitting=True)
        self.mean, self.std = pilot.mean(axis=0), pilot.std(axis=0)

    def sample(self, rng: np.random.Generator, n: int, shift: Matrix) -> Matrix:
        """(n, V) values of a site: numbers, and positions of levels.

        `shift`: (V,) what the site adds, in standard deviations. To a continuous variable afterwards, as another
        instrument would; to the latents of the others, so that the site has other shares of levels.
        """
        values = self._drawn(rng, n, shift, fitting=False)
        continuous = [j for j in range(len(self._W)) if j not in self._kinds]
        values[:, continuous] += shift[continuous] * self.std[continuous]
        return values

    def _drawn(self, rng: np.random.Generator, n: int, shift: Matrix, *, fitting: bool) -> Matrix:
        V = len(self._W)
        latent, uniform = rng.standard_normal((n, V)), rng.random((n, V))
        values, codes = np.empty((n, V)), np.empty((V, n, V))  # codes[i, :, j]: what j sees of i
        for j in topological_order(self._W != 0):
            for i in np.flatnonzero(self._W[:, j]).tolist():
                latent[:, j] += self._W[i, j] * codes[i, :, j]
            if j not in self._kinds:
                values[:, j] = latent[:, j]
                codes[j] = latent[:, j, None]
                continue
            if fitting:
                self._latent_mean[j], self._latent_std[j] = latent[:, j].mean(), latent[:, j].std()
            eta = (latent[:, j] - self._latent_mean[j]) / self._latent_std[j] + shift[j]
            values[:, j] = self._observed(j, eta, uniform[:, j])
            seen = self._seen(j, values[:, j])
            if fitting:
                self._code_mean[j], self._code_std[j] = seen.mean(axis=0), seen.std(axis=0)
            codes[j] = (seen - self._code_mean[j]) / self._code_std[j]
        return values

    def _observed(self, j: int, eta: Matrix, uniform: Matrix) -> Matrix:
        from scipy.stats import poisson  # slow to load

        kind = self._kinds[j]
        if kind == "count":
            at_mean, slope = _LOG_RATE
            return np.asarray(poisson.ppf(uniform, np.exp(at_mean + slope * eta)), dtype=np.float64)
        if kind == "binary":
            return (eta > _CUTS[1]).astype(np.float64)
        ranks = np.searchsorted(_CUTS, eta)
        return self._shuffled[j][ranks] if kind == "nominal" else ranks.astype(np.float64)

    def _seen(self, j: int, observed: Matrix) -> Matrix:
        """(n, V) or (n, 1) what each child sees of a variable, before it is standardised."""
        if self._kinds[j] == "nominal":
            return self._effects[observed.astype(np.int64)]
        return (np.log1p(observed) if self._kinds[j] == "count" else observed)[:, None]
