"""What a result says of columns that it is not about: levels that occur in no row, variables with a single value."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedbnsl.console.wording import first_few
from fedbnsl.plan.plan import Plan
from fedbnsl_server.inference.degenerate_columns import FEW_ROWS, Unused

_SENTENCES = {
    "constant": "{names}: one value in all rows that are used, so that nothing can be learned about {it}: no edge",
    "no_row": "level {names}: in no row that is used, and left out",
    "reference": "level {names}: its variable's first level is in no row that is used, or at no site together with "
    "another; this one takes its place as the level that coefficients compare the others with",
    "hidden": "{names}: the noise of privacy hides how much {it_varies}, so that no edge there is told; narrower "
    "ranges, known beforehand and not from these tables, more rows or a larger epsilon would tell",
    "hidden_level": "level {names}: so rare that the noise of privacy hides it, or that fewer than about "
    f"{FEW_ROWS} rows have it; left out, so that coefficients compare the others with the first level and the rare "
    "ones together",
    "within_sites": "level {names}: how often it occurs at each site follows from other levels; left out",
}


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


def unused_sentences(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One for each reason."""
    for why, text in _SENTENCES.items():
        of_reason = [one for one in entries if one["why"] == why]
        if of_reason:
            named = (
                repr(one["variable"]) if one["level"] is None else f"{one['level']!r} of {one['variable']!r}"
                for one in of_reason
            )
            one = len(of_reason) == 1
            yield text.format(
                names=first_few(named), it="it" if one else "them", it_varies="it varies" if one else "they vary"
            )
