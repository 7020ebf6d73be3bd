"""What a plan tells a local solver."""

from dataclasses import dataclass
from typing import Self

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask


@dataclass(frozen=True, eq=False)
class Settings:
    """The penalties of the local objective (Eq. Bp), and how far it is minimised."""

    allowed: Mask  # (d, d) coordinates that may change
    lam: float  # L1 weight
    rho_2: float  # consensus penalty
    max_steps: int  # of private steps, K: there are no fewer
    gamma: float = 1.0  # step size in (0, 1]
    tol: float = 0.0  # stop when the best score, or the duality gap, falls below it; not for private steps

    @classmethod
    def of(cls, plan: Plan, allowed: Mask) -> Self:
        """Those of a plan."""
        return cls(allowed, plan.l1_weight, plan.consensus_penalty, plan.local_steps, plan.step_size, plan.local_tol)
