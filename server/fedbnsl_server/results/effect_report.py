"""What `fedbnsl effect` reports: all values of an effect over a class of graphs, and in words how far they are told.

Values are those of the best class. Where it rests on arrows that too few bootstrap draws agree with, or the draws
mostly have paths that it has not, a direction is open and the effect not identified, whatever this one class says. So
is one between functions of each other.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedbnsl.console.wording import counted, first_few, levels_in_words
from fedbnsl.errors import SetupError
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_server.inference.effects import Effect, certainty, rests_on, total_effects
from fedbnsl_server.results.learned_network import LearnedNetwork
from fedbnsl_server.results.withheld_effects import told_effects

_NORMAL_95 = 1.959963984540054


def effect_of(network: LearnedNetwork, sources: Sequence[str], target: str) -> dict[str, Any]:
    """The effect of variables, or of levels such as `ward=surgery`, that are set together; see `effect_report`.

    Raises
    ------
    SetupError
        If a name is none of the network's, or names a variable twice.
    """
    named = [_place(name, network) for name in (*sources, target)]
    places = [variable for variable, _ in named]
    if len(set(places)) < len(places):
        raise SetupError("the effect of what on what: expected different variables, each of them once")
    return effect_report(network, places[:-1], places[-1], {k for _, columns in named for k in columns})


def _place(name: str, network: LearnedNetwork) -> tuple[int, list[int]]:
    """A variable and the columns of it that are asked for: all, or of a level such as `ward=surgery` its own."""
    columns = network.columns
    if name in columns.variables:
        variable = columns.variables.index(name)
        return variable, columns.members()[variable].tolist()
    if name in columns.names:
        column = columns.names.index(name)
        return int(columns.variable_of[column]), [column]
    owner, equals, _ = name.partition("=")
    if equals and owner in columns.variables:
        own: list[int] = columns.members()[columns.variables.index(owner)].tolist()
        if len(own) == 1:
            of = "".join(f", {level!r} is {k}" for k, level in enumerate(network.levels.get(owner, ())))
            raise SetupError(f"{owner!r} is one column{of}: name it without a level")
        levels = [columns.names[k] for k in own]
        raise SetupError(
            f"{name!r} is no column of {owner!r}, which has {first_few(map(repr, levels))}; its first level is what "
            "the others are compared with"
        )
    raise SetupError(f"{name!r} is not a variable of the run, which has {first_few(map(repr, columns.variables))}")


def effect_report(network: LearnedNetwork, sources: Sequence[int], target: int, asked: set[int]) -> dict[str, Any]:
    """JSON-ready: for each column that is asked for, of source and target, its values and how far they are told.

    Raises
    ------
    ResultError
        As `total_effects`.
    """
    columns = network.columns
    members = columns.members()
    of_sources: list[int] = [k for source in sources for k in members[source].tolist()]

    def found(covariance: Matrix) -> list[Effect]:
        return total_effects(covariance, network.marks, sources, target, columns, network.precision)

    others = None if network.without_withheld is None else found(network.without_withheld)
    effects = told_effects(network, found(network.covariance), others, np.array(of_sources), members[target])
    undecided = _rests_on(network, sources, target)
    untold = [network.untold[name] for k in (*sources, target) if (name := columns.variables[k]) in network.untold]
    draws = None if untold else _paths(network, sources, target)
    if untold:
        effects = [replace(one, value=np.full_like(one.value, math.nan)) for one in effects]
    tied = network.function(sources, target)
    if tied:
        effects = [replace(one, standard_error=None) for one in effects]
    is_open = bool(tied or undecided) or _against(network, draws, effects)
    rows = [
        _row(network, effects, (a, b), (i, j), is_open=is_open, untold="not known" if untold else "withheld")
        for a, i in enumerate(of_sources)
        for b, j in enumerate(members[target].tolist())
        if {i, j} <= asked
    ]
    verdicts = {row["verdict"] for row in rows}
    names = columns.variables
    return {
        "from": [names[k] for k in sources],
        "to": names[target],
        "units": {name: network.units.get(name) for name in (names[k] for k in (*sources, target))},
        "verdict": verdicts.pop() if len(verdicts) == 1 else "differs by column",
        "open": is_open,
        "undecided": undecided,
        "paths": draws,
        "in_words": _sentences(
            network, effects, rows, undecided, draws, untold, names, sources, target, is_open=is_open
        ),
        "effects": rows,
    }


def _row(
    network: LearnedNetwork,
    effects: Sequence[Effect],
    entry: tuple[int, int],
    of: tuple[int, int],
    *,
    is_open: bool,
    untold: str,
) -> dict[str, Any]:
    """The values of one column of a source and one of the target; `untold` is the verdict where they are NaN."""
    (a, b), (i, j), variables = entry, of, network.columns.variables
    scale, values = float(network.spread[i] / network.spread[j]), list[dict[str, Any]]()
    is_told = not np.isnan(effects[0].value[a, b])
    for one in effects if is_told else ():
        told = math.nan if one.standard_error is None else float(one.standard_error[a, b])
        error = None if math.isnan(told) or not told else told  # 0: without a path nothing is estimated
        value = float(one.value[a, b])
        half = None if error is None else _NORMAL_95 * error
        low_high = None if half is None else list(network.possible(value - half, value + half, of))
        values.append(
            {
                "effect": value,
                "standard_error": error,
                "interval": low_high,
                "standardised": value * scale,
                "standardised_interval": None if low_high is None else [end * scale for end in low_high],
                "adjusted_for": [
                    [[variables[k] for k in of_source] for of_source in parents] for parents in one.adjusted_for
                ],
            }
        )
    verdict = certainty([one["effect"] for one in values]) if is_told else untold
    names = network.columns.names
    if is_open and is_told:
        verdict = "not identified"
        if not any(one["effect"] for one in values):
            values = []  # a 0 would be read as no effect
    elif is_told and not any(one["effect"] for one in values):
        verdict = "no path"
    return {"source": names[i], "target": names[j], "verdict": verdict, "values": values}


def _rests_on(network: LearnedNetwork, sources: Sequence[int], target: int) -> list[list[str]]:
    """Undecided arrows, by name, that the effect rests on."""
    names = network.columns.variables
    found = rests_on(network.marks, network.undecided, sources, target)
    return [[names[i], names[j]] for i, j in np.argwhere(found).tolist()]


def _paths(network: LearnedNetwork, sources: Sequence[int], target: int) -> list[dict[str, Any]] | None:
    """In which share of the draws directed edges lead from each source to the target, and back; None: not known."""
    if network.paths is None:
        return None
    names, paths = network.columns.variables, network.paths
    return [
        {
            "source": names[source],
            "target": names[target],
            "forward": paths.get(names[source], {}).get(names[target], 0.0),
            "backward": paths.get(names[target], {}).get(names[source], 0.0),
        }
        for source in sources
    ]


def _against(network: LearnedNetwork, draws: list[dict[str, Any]] | None, effects: Sequence[Effect]) -> bool:
    """Whether too many draws have a path that no graph of the best class has: there, or for an effect back."""
    if not draws:
        return False
    most = 1.0 - network.majority
    if any(one.value.any() for one in effects):
        return any(of["backward"] > most for of in draws) and all(one.value.any() for one in effects)
    return any(of["forward"] > most for of in draws)


def _sentences(
    network: LearnedNetwork,
    effects: Sequence[Effect],
    rows: Sequence[dict[str, Any]],
    undecided: list[list[str]],
    draws: list[dict[str, Any]] | None,
    untold: Sequence[str],
    names: Sequence[str],
    sources: Sequence[int],
    target: int,
    *,
    is_open: bool,
) -> list[str]:
    """What a reader should know: first how far each column's effect is told."""
    source, goal = " and ".join(repr(names[k]) for k in sources), repr(names[target])
    if untold:
        return [f"not known: {why}" for why in untold]
    absent = [not one.value.any() for one in effects]
    found: list[str] = []
    tied, arrows = network.function(sources, target), first_few(f"{one} -> {other}" for one, other in undecided)
    if tied:
        found.append(
            f"not identified: the direction between {first_few(map(repr, tied))} is open: they are functions of each "
            "other, and the tables cannot tell which of them moves which"
        )
    elif undecided and not network.draws:
        found.append(
            f"not identified: the direction of {arrows} is open, between functions of each other, and this effect "
            "rests on it"
        )
    elif undecided:
        found.append(
            f"not identified: the direction of {arrows} is open: less than {100 * network.majority:.0f} % of the "
            "bootstrap draws agree with it, and this effect rests on it"
        )
    elif is_open:
        found.append(
            f"not identified: the direction between {source} and {goal} is open: the bootstrap draws do not agree with "
            "the best class"
        )
    owner = dict(zip(network.columns.names, network.columns.variable_of.tolist(), strict=True))

    def led_from(row: dict[str, Any]) -> str:
        if len(sources) == 1 or all(absent):
            return source
        return f"{names[owner[row['source']]]!r}, past the others that are set,"

    said = {
        (row["source"], row["target"]): _in_class(row, led_from(row), goal, is_open=is_open, any_absent=any(absent))
        for row in rows
    }
    if len(set(said.values())) == 1:
        found.append(next(iter(said.values())))
    else:
        found += [f"of {one} on {other}, {words}" for (one, other), words in said.items()]
    for of in draws or ():
        there, back = (f"{100 * of[way]:.0f} %" for way in ("forward", "backward"))
        found.append(
            f"directed edges lead from {of['source']!r} to {of['target']!r} in {there} of the {network.draws} "
            f"bootstrap draws, from {of['target']!r} to {of['source']!r} in {back}"
        )
    if levels := {name: network.levels[name] for k in (*sources, target) if (name := names[k]) in network.levels}:
        found.append(f"levels as numbers: {levels_in_words(levels)}")
    if not network.draws:
        found.append("how sure the directions are is not known: the run has no bootstrap draws")
    if tied:
        found.append("no intervals: they would hold only if the direction were known")
    elif network.precision is None:
        found.append("no intervals: the run does not say what its coefficients were estimated from")
    elif len(sources) > 1:
        found.append("no intervals: they are not computed for variables that are set together")
    if network.assumed:
        found.append(
            f"{counted(network.assumed, 'edge has its direction', 'edges have their directions')} by the assumption of "
            "equal noise variances alone; without it, the effect may be another"
        )
    if network.withheld:
        arrows = first_few(f"{one} -> {other}" for one, other in network.withheld)
        found.append(
            f"the run withholds the coefficient of {arrows}: effects and intervals that rest on it are not told, and "
            "numbers without units take the nearest possible value"
        )
    if any(absent) and network.precision is not None and network.precision.noise_std:
        found.append("be careful: the noise of privacy hides faint edges, and an effect along one would be missed")
    return found + [f"be careful: {doubt}" for doubt in network.doubts]


def _in_class(row: dict[str, Any], source: str, goal: str, *, is_open: bool, any_absent: bool) -> str:
    """How far the best class tells the effect of one column; of an open one, what the class says nevertheless."""
    values = [one["effect"] for one in row["values"]]
    no_path = f"in no graph of the best class does a directed path lead from {source} to {goal}"
    if is_open and row["verdict"] == "not identified":
        if not values:
            return f"{no_path}, but others may have one"
        return f"the best class gives {counted(len(values), 'effect')}, and other classes may give others"
    match row["verdict"]:
        case "withheld":
            return "withheld: noise took it, or a coefficient that it rests on, beyond what is possible"
        case "no path":
            return f"no path: {no_path}; an effect that is too faint for these rows would look the same"
        case "identified":
            return "identified: every graph of the class gives the same effect"
        case "range":
            return f"a range: the graphs of the class give {len(values)} different effects, all of the same sign"
        case _:
            words = f"not identified: the graphs of the class give {len(values)} different effects"
            if min(values) < 0.0 < max(values):
                words += ", whose signs differ"
            if any_absent:
                words += f"; 0 is among them: in some graphs no directed path leads from {source} to {goal}"
            return words
