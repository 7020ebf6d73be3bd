"""What a result says of columns that it is not about: levels that occur in no row, variables with a single value."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedbnsl.plan.plan import Plan
from fedbnsl_server.inference.degenerate_columns import Unused
from fedbnsl_server.results.sentences import UNUSED, Note, note


def unused_entries(unused: Unused, plan: Plan, names: Sequence[str]) -> list[dict[str, Any]]:
    """What result.json has under `unused`: a variable, its level unless it is the whole variable, and why, as a code.

    A variable that is constant, or hidden by noise, stays in the graph, without an edge.
    """
    columns = plan.columns(names)
    constant, redundant, hidden = set(unused.constant), list(unused.redundant), set(unused.hidden)
    found: list[dict[str, Any]] = []
    for variable, own in zip(columns.variables, columns.members(), strict=True):
        if constant.issuperset(own.tolist()):
            found.append({"variable": variable, "level": None, "why": "constant"})
            continue
        if hidden.issuperset(own.tolist()):
            found.append({"variable": variable, "level": None, "why": "hidden"})
            continue
        places: list[int] = own.tolist()
        levels = {c: names[c].removeprefix(f"{variable}=") for c in places}
        found += [{"variable": variable, "level": levels[c], "why": "no_row"} for c in own.tolist() if c in constant]
        found += [{"variable": variable, "level": levels[c], "why": "hidden_level"} for c in places if c in hidden]
        of_own = [c for c in redundant if c in levels]
        found += [
            {"variable": variable, "level": levels[c], "why": "within_sites" if k else "reference"}
            for k, c in enumerate(of_own)
        ]
    return found


def unused_notes(entries: Sequence[Mapping[str, Any]]) -> Iterator[Note]:
    """One for each reason."""
    for why in UNUSED:
        names = [
            repr(one["variable"]) if one["level"] is None else f"{one['level']!r} of {one['variable']!r}"
            for one in entries
            if one["why"] == why
        ]
        if names:
            yield note(why, names=names, one=len(names) == 1)
