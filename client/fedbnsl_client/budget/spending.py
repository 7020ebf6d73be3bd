"""How much was spent, how it may be counted, and what a cap in epsilon and delta allows.

Everything is counted in units of 1e-12 zCDP. A sum of zCDP becomes epsilon in two ways: as zCDP, which holds whatever
was released, or, if every run was counted by it, as Gaussian differential privacy, which finds a smaller epsilon. Such
runs release Gaussian noise, and selections for which they pay a surcharge (`fedbnsl.privacy.gaussian_dp`). One release
of another kind makes the whole sum count as zCDP.
"""

from dataclasses import dataclass
from typing import Self

from fedbnsl.privacy import gaussian_dp, zcdp


def units_at_sites(k: int, units: int, in_sums: int) -> int:
    """What somebody has lost who has a record at each of k sites that have spent this, `in_sums` a part of it.

    Costs add up; in sums, which have one noise for all sites, they are k^2 times as large (`Price.units_at`).
    """
    return k * units + (k * k - k) * in_sums


LARGEST_CAP_UNITS = 10**18  # a million zCDP, which protects nobody; sums in a ledger stay far from the end of 64 bits


@dataclass(frozen=True)
class Spending:
    """A cost, or the sum of some."""

    units: int = 0  # in 1e-12 zCDP
    gaussian: bool = True  # whether all of it is for runs that are counted by Gaussian DP; so is nothing

    def __add__(self, other: Self) -> "Spending":
        """Both together, Gaussian only if both are; what costs nothing is of either kind."""
        gaussian = all(one.gaussian or not one.units for one in (self, other))
        return Spending(self.units + other.units, gaussian)

    def epsilon(self, delta: float) -> float:
        """Epsilon of it at this delta."""
        epsilon_of = gaussian_dp.epsilon_of if self.gaussian else zcdp.epsilon_of
        return epsilon_of(zcdp.zcdp_of(self.units), delta)


@dataclass(frozen=True)
class Cap:
    """The most that may be spent in all."""

    units: int  # whatever is released
    gaussian_units: int  # if every run is counted by Gaussian DP; more than `units`

    def __post_init__(self) -> None:
        for units in (self.units, self.gaussian_units):
            if type(units) is not int or not 0 <= units <= LARGEST_CAP_UNITS:
                raise ValueError(f"a cap is a whole number of units, at most {LARGEST_CAP_UNITS}; got {units!r}")

    @classmethod
    def of(cls, epsilon: float, delta: float) -> Self:
        """What keeps (epsilon, delta)-differential privacy."""
        return cls(
            zcdp.units_within(zcdp.budget(epsilon, delta)), zcdp.units_within(gaussian_dp.budget(epsilon, delta))
        )

    def allows(self, spent: Spending) -> bool:
        """Whether a sum keeps within it, counted as zCDP or, if all of it is counted so, by Gaussian DP."""
        return spent.units <= self.units or (spent.gaussian and spent.units <= self.gaussian_units)

    def left(self, spent: Spending, *, gaussian: bool) -> Spending:
        """The most that runs counted by Gaussian DP, or other ones, may cost after what was spent."""
        gaussian = gaussian and spent.gaussian
        return Spending(max(0, (self.gaussian_units if gaussian else self.units) - spent.units), gaussian)
