"""How strong edges are whose effects bend, by which the page and the summary order them."""

from collections.abc import Mapping
from typing import Any


def along_curves(result: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """By source and target of edges with a curve: how far the changing end moves along it, in its scales.

    Empty where columns were not scaled. An edge that bends from both ends has the curve from its source; without a
    direction, the one along which more moves: from its other end a U moves next to nothing.
    """
    told, preparation = result["curves"], result["preparation"]
    if told is None or preparation is None or preparation["scale"] != "pooled" or preparation["scales"] is None:
        return {}
    spreads = {
        (one["source"], one["target"]): one["spread"] / preparation["scales"][one["target"]]
        for one in told["effects"]
        if one["spread"] is not None
    }
    found: dict[tuple[str, str], float] = {}
    for edge in result["edges"]:
        one, other = edge["source"], edge["target"]
        both = [spreads[pair] for pair in ((one, other), (other, one)) if pair in spreads]
        if both:
            found[one, other] = both[0] if edge.get("directed", True) else max(both)
    return found
