"""What result.json says of how the tables' columns were prepared."""

from collections.abc import Sequence
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.algorithm.admm import AdmmState


def preparation_of(state: AdmmState | None, plan: Plan, variables: Sequence[str]) -> dict[str, Any] | None:
    """The plan's settings, and centres, scales and means by column; None: columns were taken as they are."""
    if plan.preparation is None:
        return None
    units = None if state is None else state.units
    return {
        **plan.preparation.model_dump(),
        "centres": None if units is None else _by_name(units.centres, variables),
        "scales": None if units is None else _by_name(units.scales, variables),
        "means": None if state is None else _by_name(state.means, variables),
    }


def _by_name(numbers: Matrix, variables: Sequence[str]) -> dict[str, float] | None:
    return dict(zip(variables, numbers.tolist(), strict=True)) if numbers.size else None
