"""What the accuracy figures share: generated data by seed, and one plan run on all of it."""

from dataclasses import dataclass

from fedbnsl.plan.plan import Plan
from fedbnsl_research.trials.harness import N_SAMPLES, Row, run_plan, run_row
from fedbnsl_workbench.tables.synthetic import SyntheticFederation, synthesise


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
