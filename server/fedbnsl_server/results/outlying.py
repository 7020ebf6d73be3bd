"""What a result says of values that lie far apart from all others of their column, and count as missing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedbnsl.console.wording import counted
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.results.sentences import Note, note


def outlying_of(state: AdmmState | None, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By column, how many spreads from a site's median on values count as missing, and how many did by site."""
    if state is None or state.units is None or not state.outlying:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for k, (name, limit) in enumerate(zip(names, state.units.limits.tolist(), strict=True)):
        values = {site: counts[k] for site, counts in state.outlying.items() if counts[k]}
        if values:
            found[name] = {"limit": limit, "values": values}
    return found


def outlying_notes(found: Mapping[str, Mapping[str, Any]]) -> Iterator[Note]:
    """A warning that names them, with the columns that have most first."""
    if not found:
        return
    numbers = {name: sum(one["values"].values()) for name, one in found.items()}
    values = [
        f"{counted(numbers[name], 'value')} of {name!r} ({found[name]['limit']:.3g} spreads or more from the median)"
        for name in sorted(found, key=lambda name: -numbers[name])
    ]
    yield note("outlying", values=values)
