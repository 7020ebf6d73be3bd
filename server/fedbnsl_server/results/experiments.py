"""What result.json says of sites that were taken as experiments."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph
from fedbnsl_server.inference.directions import Directed
from fedbnsl_server.inference.experiments import Difference
from fedbnsl_server.results.sentences import Note, note


def experiments_of(state: AdmmState | None) -> dict[str, Any] | None:
    """Mechanisms that differ, and how many open edges were compared; None: sites were not taken as experiments."""
    if state is None or state.experiments is None:
        return None
    found = state.experiments
    mechanisms = [
        {
            "site": one.site,
            "variable": one.variable,
            "log_likelihood": one.log_likelihood,
            "changes": [{"of": c.of, "here": c.here, "elsewhere": c.elsewhere} for c in one.changes],
            "says": _mechanism(one),
        }
        for one in found.differences
    ]
    return {"open_edges": found.n_open, "compared": found.n_compared, "mechanisms": mechanisms}


def _mechanism(one: Difference) -> Note:
    changes = [note("mechanism_change", of=c.of, here=c.here, elsewhere=c.elsewhere) for c in one.changes]
    return note("mechanism_differs", site=one.site, variable=one.variable, changes=changes)


def with_tests_of_directions(
    verdict: Mapping[str, Any], plan: Plan, state: AdmmState | None, graph: ConsensusGraph | None
) -> dict[str, Any]:
    """A verdict, as notes, that says whether sites were asked for directions, and where sources contradict."""
    told = list(_tests(plan, state, verdict["directed_by"]))
    parts = {
        "tested": [one for is_tested, one in told if is_tested],
        "not_tested": [one for is_tested, one in told if not is_tested],
        "contradicted": [] if graph is None else list(_contradicting(graph.directed)),
    }
    return {**verdict, **{name: [*verdict[name], *more] for name, more in parts.items()}}


def _tests(plan: Plan, state: AdmmState | None, directed_by: Mapping[str, int]) -> Iterator[tuple[bool, Note]]:
    """Nothing where no edge is open."""
    found = None if state is None else state.experiments
    if found is not None:
        if found.n_compared:
            yield True, note("tests_directions", n=found.n_compared)
        if left := found.n_open - found.n_compared:
            yield False, note("directions_too_many", n=left)
    elif state is not None and plan.graph_class == "cpdag" and directed_by["nobody"]:
        otherwise = "gaps" if state.completion is not None else "curves" if _bends(state) else "few"
        because: str = plan.no_experiments_because or otherwise
        yield False, note("directions_untested", **{one: because == one for one in _WHY})


_WHY = ("privacy", "consensus", "preparation", "groups", "levels", "gaps", "curves", "few")


def _bends(state: AdmmState) -> bool:
    return state.curves is not None and bool(state.curves.columns.size)


def _contradicting(directed: Directed) -> Iterator[Note]:
    """Edges of which different things tell different directions."""
    for several in directed.contradicted:
        says = [f"{one.by}: {one.source} -> {one.target}" for one in several]
        yield note("directions_contradict", says=says)
