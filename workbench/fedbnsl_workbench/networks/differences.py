"""What two runs say differently of edges: which came, went, turned, were directed or left open."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedbnsl.errors import SetupError

CAME, WENT, TURNED, DIRECTED, LEFT_OPEN = "came", "went", "turned", "directed", "left open"


class _Edge(NamedTuple):
    ends: tuple[str, str]
    mark: str  # "->" from the first to the second, "--", or "" for none
    share: float | None  # of the bootstrap draws that have an edge there; None: not told


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """JSON-ready, of the contents of two result.json: pairs of variables that both runs tell of, with other edges.

    `same` counts the edges that are alike; shares are of bootstrap draws that have an edge of the pair, whatever its
    direction, and null where a run does not tell one (below a tenth of the draws without an edge). `draws`: how many
    each run made; null: an older one does not say.

    Raises SetupError if they have no variable in common.
    """
    untold = [{k["variable"] for k in one["unused"] if k["level"] is None} for one in (first, second)]
    variables = [set(one["variables"]) - of_one for one, of_one in zip((first, second), untold, strict=True)]
    shared = variables[0] & variables[1]
    if not shared:
        raise SetupError("the two runs have no variable in common that both tell of: there is nothing to compare")
    before, after = (_edges(one, shared) for one in (first, second))
    rows: list[dict[str, Any]] = []
    same = 0
    for pair in sorted({*before, *after}, key=sorted):
        old, new = before.get(pair), after.get(pair)
        what = _what(old, new)
        if what:
            drawn = new if new is not None and new.mark else old
            ends = drawn.ends if drawn is not None else tuple(sorted(pair))
            rows.append({"source": ends[0], "target": ends[1], "what": what, "first": _said(old), "second": _said(new)})
        same += not what and old is not None and bool(old.mark)
    only = {key: sorted(own - shared) for key, own in zip(("first", "second"), variables, strict=True)}
    draws = {"first": first["verdict"]["draws"], "second": second["verdict"]["draws"]}
    return {"same": same, "variables_of_one_alone": only, "draws": draws, "edges": rows}


def _edges(result: Mapping[str, Any], shared: set[str]) -> dict[frozenset[str], _Edge]:
    found: dict[frozenset[str], _Edge] = {}
    for one in result["unsure"]:
        ends = one["source"], one["target"]
        found[frozenset(ends)] = _Edge(ends, "", one["adjacent"])
    for one in result["edges"]:
        ends, drawn = (one["source"], one["target"]), one["bootstrap"]
        mark = "->" if one["directed"] else "--"
        found[frozenset(ends)] = _Edge(ends, mark, None if drawn is None else drawn["adjacent"])
    return {pair: edge for pair, edge in found.items() if pair <= shared}


def _what(old: _Edge | None, new: _Edge | None) -> str:
    """Empty: nothing has changed."""
    was, now = (one is not None and bool(one.mark) for one in (old, new))
    if old is None or new is None or not (was and now):
        return {(False, True): CAME, (True, False): WENT}.get((was, now), "")
    if old.mark != new.mark:
        return DIRECTED if new.mark == "->" else LEFT_OPEN
    return TURNED if old.mark == "->" and old.ends != new.ends else ""


def _said(edge: _Edge | None) -> dict[str, Any]:
    """The edge as one run draws it: `edge` is empty where there is none."""
    if edge is None:
        return {"edge": "", "share": None}
    return {"edge": f"{edge.ends[0]} {edge.mark} {edge.ends[1]}" if edge.mark else "", "share": edge.share}
