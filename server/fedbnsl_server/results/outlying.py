"""What a result says of values that lie far apart from all others of their column, and count as missing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedbnsl.console.wording import counted
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.results.sentences import Note, note


def outlying_of(state: AdmmState | None, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By column, how many spreads above and below a site's median values count as missing, and how many did by site."""
    if state is None or state.units is None or not state.outlying:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for k, (name, sides) in enumerate(zip(names, state.units.limits.T.tolist(), strict=True)):
        values = {site: counts[k] for site, counts in state.outlying.items() if counts[k]}
        if values:
            above, below = (None if math.isinf(one) else one for one in sides)
            found[name] = {"above": above, "below": below, "values": values}
    return found


def outlying_notes(found: Mapping[str, Mapping[str, Any]]) -> Iterator[Note]:
    """A warning that names them, with the columns that have most first."""
    if not found:
        return
    numbers = {name: sum(one["values"].values()) for name, one in found.items()}
    values = [
        f"{counted(numbers[name], 'value')} of {name!r} ({_far(found[name])} the median)"
        for name in sorted(found, key=lambda name: -numbers[name])
    ]
    yield note("outlying", values=values)


def _far(one: Mapping[str, Any]) -> str:
    """Such as `8 spreads or more from`, or of one side `below`."""
    if one["above"] == one["below"]:
        return f"{one['above']:.3g} spreads or more from"
    sides = (f"{one[side]:.3g} spreads or more {side}" for side in ("above", "below") if one[side] is not None)
    return " or ".join(sides)
