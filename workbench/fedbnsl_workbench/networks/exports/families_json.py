"""All of a network as JSON: families with curves, odds, cuts and ranges, which no other format holds together."""

import json
import math
from collections.abc import Iterable
from typing import Any

from fedbnsl.errors import SetupError
from fedbnsl.network.families import Family, Grade, Levels, Number, Table
from fedbnsl_workbench.networks.exports.distributions import owner, parents_of
from fedbnsl_workbench.networks.fitted import FittedNetwork

SCHEMA = "fedbnsl.network/1"

_HOW = {
    "columns": "an effect is of a column: of a number its value after `transform`; of an ordinal variable the position "
    "of its level from 0; of a level of a nominal or binary variable 1 where it has it, else 0",
    "location": "intercept + weight * column over `effects` + the value of each curve at its column, which is a "
    "straight line between its points and goes on beyond them",
    "number": "normal with mean location and standard deviation noise_std; with a range, that distribution within the "
    "range (truncated); null is no end",
    "ordinal": "level k has the probability that a normal value of mean location and standard deviation noise_std lies "
    "between k - 1/2 and k + 1/2; the first and the last level have all below and above",
    "odds": "of each level but the first, the logarithm of its odds against the first: intercept + weight * column",
    "shares": "of each level but the first, its probability: intercept + weight * column, cut at 0.001 and 0.999; the "
    "first has the rest, at least 0.001; then all are divided by their sum",
    "table": "probabilities of the levels, by combinations of the parents' levels: nested in the order of `parents`",
}


def families_json(fitted: FittedNetwork, comments: Iterable[str]) -> str:
    """JSON in ASCII."""
    content = {
        "schema": SCHEMA,
        "about": list(comments),
        "how": _HOW,
        "variables": [_variable(fitted, name) for name in fitted.variables],
        "families": {
            name: {"parents": parents_of(fitted, family)} | _family(fitted, family)
            for name, family in fitted.network.families.items()
        },
    }
    return json.dumps(content, indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def _variable(fitted: FittedNetwork, name: str) -> dict[str, Any]:
    entry = fitted.entry(name)
    found: dict[str, Any] = {"name": name, "kind": entry.kind}
    if name in fitted.levels:
        return found | {"levels": list(fitted.levels[name])}
    return found | {"unit": entry.unit, "transform": entry.applied}


def _family(fitted: FittedNetwork, family: Family) -> dict[str, Any]:
    if isinstance(family, Number):
        ends = [end if math.isfinite(end) else None for end in (family.low, family.high)]
        return {"family": "number", **_number(fitted, family), "range": ends}
    if isinstance(family, Grade):
        return {"family": "ordinal", **_number(fitted, family.number)}
    if isinstance(family, Levels):
        effects = [
            {**_column(fitted, column), "weights": weights}
            for column, weights in zip(family.parents.tolist(), family.weights.tolist(), strict=True)
        ]
        name = "odds" if family.by_odds else "shares"
        return {"family": name, "intercepts": family.intercepts.tolist(), "effects": effects}
    if isinstance(family, Table):
        return {"family": "table", "probabilities": family.table.tolist()}
    raise SetupError(f"a family of kind {type(family).__name__} has no form in JSON yet")


def _number(fitted: FittedNetwork, family: Number) -> dict[str, Any]:
    effects = [
        {**_column(fitted, column), "weight": weight}
        for column, weight in zip(family.lines.tolist(), family.weights.tolist(), strict=True)
    ]
    curves = [
        {**_column(fitted, bend.parent), "at": bend.at.tolist(), "adds": bend.adds.tolist()} for bend in family.bends
    ]
    return {"intercept": family.intercept, "effects": effects, "curves": curves, "noise_std": family.noise_std}


def _column(fitted: FittedNetwork, column: int) -> dict[str, Any]:
    """Which column an effect is of: a variable, and of a nominal or binary one a level."""
    name = owner(fitted, column)
    if name not in fitted.levels or fitted.entry(name).kind == "ordinal":
        return {"of": name}
    at = fitted.members(name).tolist().index(column)
    return {"of": name, "level": fitted.levels[name][at + 1]}
