"""What the accuracy figures share: generated data by seed, and one plan run on all of it."""

from dataclasses import dataclass

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_research.trials.harness import N_SAMPLES, Row, run_plan, run_row
from fedbnsl_workbench.tables.synthetic import SyntheticFederation, synthesise


def weights_with_hidden(d: int, hidden: int, rng: np.random.Generator) -> Matrix:
    """(d + hidden, d + hidden) weights of a DAG with 1.5 edges an observed variable, the first d.

    Each hidden variable acts on two or three of these, and nothing on it.
    """
    n = d + hidden
    order, W = rng.permutation(d), np.zeros((n, n))
    later = np.argwhere(np.triu(np.ones((d, d), dtype=bool), k=1))
    chosen = order[later[rng.choice(len(later), int(1.5 * d), replace=False)]].tolist()
    chosen += [[k, c] for k in range(d, n) for c in rng.choice(d, rng.integers(2, 4), replace=False).tolist()]
    for i, j in chosen:
        W[i, j] = rng.uniform(0.3, 0.9) * rng.choice([-1.0, 1.0])
    return W


@dataclass(frozen=True)
class Generated:
    """Generated federations, one a seed.

    d is the number of variables and of expected edges, `variance` that of the weights across sites, `noise` the range
    of the noise's standard deviations.
    """

    d: int
    seeds: range
    n_sites: int = 8
    variance: float = 0.0
    noise: tuple[float, float] = (1.0, 1.0)

    def federation(self, seed: int) -> SyntheticFederation:
        """The tables of one seed."""
        return synthesise(
            self.d, self.d, self.n_sites, N_SAMPLES, seed, weight_variance=self.variance, noise_range=self.noise
        )

    def rows(self, *plans: Plan) -> list[list[Row]]:
        """One row per seed for each plan. All plans see the same tables; data and noise use the same seed."""
        found: list[list[Row]] = [[] for _ in plans]
        for seed in self.seeds:
            federation = self.federation(seed)
            for plan, rows in zip(plans, found, strict=True):
                result = run_plan(plan, federation, noise_seed=seed if plan.privacy else None)
                rows.append(run_row(result, federation))
        return found

    @property
    def seed_range(self) -> str:
        """First and last seed, as they are printed."""
        return f"{self.seeds.start}..{self.seeds.stop - 1}"

    def __str__(self) -> str:
        spread = f", heterogeneous {self.variance:g}" if self.variance else ""
        low, high = self.noise
        spread += f", noise sd {low:g} to {high:g}" if low < high else ""
        return f"d={self.d}, P={self.n_sites}, seeds {self.seed_range}{spread}"
