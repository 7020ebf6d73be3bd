"""What result.json says of the shape of noise: p values beside edges, and notes of the assumption checks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl_server.inference.directions import Direction
from fedbnsl_server.inference.noise import Noise
from fedbnsl_server.results.sentences import DIRECTED_BY, Note, note


def with_noise(edges: Sequence[Mapping[str, Any]], noise: Noise | None) -> list[dict[str, Any]]:
    """The edges, each that was looked at with the p values of its direction as named and of the other one."""
    told = {(one.source, one.target): (one.p, one.p_reversed, one.share) for one in (noise.tests if noise else ())}
    told |= {(target, source): (back, p, share) for (source, target), (p, back, share) in told.items()}
    return [
        {**edge, "noise": dict(zip(("p", "p_reversed", "share_of_rows"), told[ends], strict=True))}
        if (ends := (edge["source"], edge["target"])) in told
        else dict(edge)
        for edge in edges
    ]


def noise_tests(plan: Plan, noise: Noise | None) -> Iterator[tuple[bool, Note]]:
    """Which edges were looked at, and which were not."""
    if noise is None:
        searches = plan.look_at_noise and plan.privacy is None and plan.graph_class == "cpdag"
        if searches and plan.no_noise_because in ("consensus", "groups"):
            yield False, note("noise_not_asked", groups=plan.no_noise_because == "groups")
        return
    if noise.tests:
        share = min(one.share for one in noise.tests)
        yield True, note("tests_noise", edges=len(noise.tests), share=share, part=share < 1.0)
    if left := noise.n_open - len(noise.tests):
        yield False, note("noise_untested", edges=left)


def _said(denied: Direction | None) -> dict[str, Any]:
    """What another source said of an edge, if any did."""
    if denied is None:
        return {"by": ""}
    return {"by": DIRECTED_BY[denied.by], "source": denied.source, "target": denied.target}


def noise_contradictions(
    noise: Noise | None, edges: Sequence[Mapping[str, Any]], bent: Collection[str]
) -> Iterator[Note]:
    """Edges that noise fits in neither direction, by Holm; not those at variables whose effects the graph has bent."""
    pairs = {frozenset((edge["source"], edge["target"])) for edge in edges}
    found = noise.neither if noise is not None else ()
    denied = {frozenset((one.source, one.target)): one for one in (noise.denied if noise else ())}
    named = [
        note("fits_neither", one=one.source, other=one.target, **_said(denied.get(frozenset((one.source, one.target)))))
        for one in found
        if frozenset((one.source, one.target)) in pairs and not {one.source, one.target} & set(bent)
    ]
    if named:
        yield note("noise_fits_neither", edges=named)
