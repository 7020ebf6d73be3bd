"""What each variable of a network is, given its parents: formulas with their numbers, as `network show` prints them."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedbnsl.network.families import Count, Family, Grade, Levels, Number, Table
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.results.network_of_run import NetworkOfRun

ONE_OF_THE_CLASS = "parents are those in one of the graphs that fit equally well, which lgbn.json has"
NOISE_IN_NUMBERS = "the noise of privacy is in these numbers and in the means above: see `fedbnsl privacy price`"


def families_in_words(fitted: NetworkOfRun) -> dict[str, str]:
    """By variable; numbers have four digits."""
    names = _names_of_columns(fitted)
    return {name: _words(fitted, name, family, names) for name, family in fitted.network.families.items()}


def _names_of_columns(fitted: NetworkOfRun) -> list[str]:
    """How a formula calls each column: a number by its transform, a binary variable by the level that is 1."""
    found = [_quoted(name) for name in fitted.columns.names]
    for name in fitted.variables:
        entry, own = fitted.entry(name), fitted.members(name)
        if entry.kind == "binary":
            found[int(own[0])] = _quoted(f"{name}={fitted.levels[name][1]}")
        elif not entry.has_levels and entry.applied != "none":
            found[int(own[0])] = f"{entry.applied}({_quoted(name)})"
    return found


def _words(fitted: NetworkOfRun, name: str, family: Family, names: Sequence[str]) -> str:
    if isinstance(family, Number):
        low, high = fitted.entry(name).range or (-np.inf, np.inf)
        within = f", within {low:g} to {high:g}" if np.isfinite([low, high]).any() else ""
        location, noise = _sum(family, names), f"standard deviation {family.noise_std:.4g}"
        if not family.parents.size:
            return f"{names[family.column]} is normal with mean {location} and {noise}{within}"
        return f"{names[family.column]} = {location}, and normal noise with {noise}{within}"
    if isinstance(family, Count):
        of = "log" if family.by_rates else family.transform
        rate = f"{of}(rate) = {_sum(family, names)}" if of != "none" else f"rate = {_sum(family, names)}"
        spread = "Poisson" if np.isinf(family.size) else f"variance rate + rate^2 / {family.size:.4g}"
        return f"{rate}; {spread}"
    if isinstance(family, Grade):
        starts = [
            f"above {level}: {(family.intercept - cut) / family.scale:.4g}"
            for level, cut in zip(fitted.levels[name], family.cuts.tolist(), strict=False)
        ]
        effects = _terms(family.weights / family.scale, [names[int(k)] for k in family.lines])
        effects += "".join(f" + curve of {names[bend.parent]}" for bend in family.bends)
        return f"log odds of a level {', '.join(starts)}" + (f"; to each{effects}" if effects else "")
    if isinstance(family, Levels):
        parents, first = [names[int(k)] for k in family.parents], fitted.levels[name][0]
        rows = zip(fitted.levels[name][1:], family.intercepts.tolist(), family.weights.T, strict=True)
        what = f"log odds against {first}" if family.by_odds else "shares, within 0.001 to 0.999"
        return f"{what}: " + "; ".join(f"{level} {start:.4g}{_terms(own, parents)}" for level, start, own in rows)
    if isinstance(family, Table):
        n = int(np.prod([n for _, n in family.of_parents], dtype=np.int64))
        if not family.of_parents:
            shares = zip(fitted.levels[name], family.table.tolist(), strict=True)
            return "shares: " + ", ".join(f"{level} {share:.4g}" for level, share in shares)
        return f"a table of shares by {n:,} combinations of its parents' levels"
    raise TypeError(f"a family without words: {type(family).__name__}")


def _sum(family: Number | Count, names: Sequence[str]) -> str:
    lines = _terms(family.weights, [names[int(k)] for k in family.lines])
    return f"{family.intercept:.4g}{lines}" + "".join(f" + curve of {names[bend.parent]}" for bend in family.bends)


def _terms(weights: Matrix, names: Iterable[str]) -> str:
    """` + 0.5 age - 2 sex`."""
    found = zip(weights.tolist(), names, strict=True)
    return "".join(f" {'-' if weight < 0 else '+'} {abs(weight):.4g} {name}" for weight, name in found)


def _quoted(name: str) -> str:
    return name if name.isidentifier() else repr(name)
