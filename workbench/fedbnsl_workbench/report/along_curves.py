"""How strong edges are whose effects bend, by which the page and the summary order them."""

from collections.abc import Mapping
from typing import Any


def along_curves(result: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """By source and target of edges with a curve: how far the changing end moves along it, in its scales.

    Empty where columns were not scaled. An edge that bends from both ends has the curve from its source.
    """
    told, preparation = result["curves"], result["preparation"]
    if told is None or preparation is None or preparation["scale"] != "pooled" or preparation["scales"] is None:
        return {}
    spreads = {
        (one["source"], one["target"]): one["spread"] / preparation["scales"][one["target"]]
        for one in told["effects"]
        if one["spread"] is not None
    }
    ends = [(edge["source"], edge["target"]) for edge in result["edges"]]
    found = {(one, other): spreads.get((one, other), spreads.get((other, one))) for one, other in ends}
    return {pair: spread for pair, spread in found.items() if spread is not None}
