"""What `fedbnsl effect` reports: all values of an effect over a class of graphs, and notes on how sure they are.

Values are those of the best class. Where it rests on arrows that too few bootstrap draws agree with, or the draws
mostly have paths that it has not, a direction is open and the effect not identified, whatever this one class says. So
is one between functions of each other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedbnsl.console.wording import first_few, levels_in_words
from fedbnsl.errors import SetupError
from fedbnsl.protocol.sparse import Index, Matrix
from fedbnsl_server.inference.curves import moved_along
from fedbnsl_server.inference.effects import Effect, certainty, rests_on, total_effects
from fedbnsl_server.results.effect_by_tables import DRAWS, LEFT_OUT, TableEffect, effects_by_tables, has_grades
from fedbnsl_server.results.hidden_effects import EffectsIfHidden, IfHidden
from fedbnsl_server.results.learned_network import Curve, LearnedNetwork
from fedbnsl_server.results.sentences import Note, in_words, note, sentence
from fedbnsl_server.results.withheld_effects import missing_edges, told_effects, unseen_pairs

Change = tuple[float, float]

_NORMAL_95 = 1.959963984540054


def effect_of(
    network: LearnedNetwork, sources: Sequence[str], target: str, change: Change | None = None
) -> dict[str, Any]:
    """The effect of variables, or of levels such as `ward=surgery`, that are set together; see `effect_report`.

    Parameters
    ----------
    change
        From where to where the source is set, in its unit from its mean; None: one unit higher, along straight lines.

    Raises
    ------
    SetupError
        If a name is none of the network's, or names a variable twice, or a source is of the row before; or if there is
        no such change of the sources, or a curve does not reach as far.
    """
    named = [_place(name, network) for name in (*sources, target)]
    places = [variable for variable, _ in named]
    if len(set(places)) < len(places):
        raise SetupError("the effect of what on what: expected different variables, each of them once")
    if past := [name for name in sources if name.partition("=")[0] in network.before]:
        raise SetupError(
            f"{first_few(map(repr, past))}: what it was one row before. What caused it then lies further back than the "
            "rows of the run, so that its total effect is not known",
            remedy="The weight of an arrow from it is what it does one row later, the other causes held fixed.",
        )
    if change is not None and (len(sources) > 1 or len(network.columns.members()[places[0]]) > 1):
        raise SetupError("a change from one value to another is that of one variable that has no levels but two")
    if change is not None and not (math.isfinite(sum(change)) and change[0] != change[1]):
        raise SetupError(f"a change from {change[0]:g} to {change[1]:g}: expected two different numbers")
    if change is not None and named[0][0] in _with_two_levels(network) and set(change) != {0.0, 1.0}:
        raise SetupError(f"{sources[0]!r} has two levels, 0 and 1: expected a change from 0 to 1, or from 1 to 0")
    return effect_report(network, places[:-1], places[-1], {k for _, columns in named for k in columns}, change)


def _with_two_levels(network: LearnedNetwork) -> set[int]:
    """The variables of one column of zeros and ones."""
    return {k for k, name in enumerate(network.columns.variables) if len(network.levels.get(name, ())) == 2}


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


def draws_have_others(network: LearnedNetwork, sources: Sequence[int], target: int, effects: Sequence[Effect]) -> bool:
    """Whether too many draws have a path that no graph of the class has: there, or for an effect back."""
    names, paths, most = network.columns.variables, network.paths or {}, 1.0 - network.majority

    def led(one: int, other: int) -> float:
        return paths.get(names[one], {}).get(names[other], 0.0)

    if any(one.value.any() for one in effects):
        return any(led(target, k) > most for k in sources) and all(one.value.any() for one in effects)
    return any(led(k, target) > most for k in sources)


def effect_report(
    network: LearnedNetwork, sources: Sequence[int], target: int, asked: set[int], change: Change | None = None
) -> dict[str, Any]:
    """JSON-ready: for each column that is asked for, of source and target, its values and how far they are told.

    Raises
    ------
    ResultError
        As `total_effects`.
    """
    return _Question(network, tuple(sources), target, change).report(asked)


@dataclass(frozen=True, eq=False)
class _Question:
    """The effect of variables that are set together on another one."""

    network: LearnedNetwork
    sources: tuple[int, ...]
    target: int
    change: Change | None

    def report(self, asked: set[int]) -> dict[str, Any]:
        names, network = self._names, self.network
        rows = [self._row(entry, of) for entry, of in self._entries(asked)]
        verdicts = {row["verdict"] for row in rows}
        return {
            "from": [names[k] for k in self.sources],
            "to": names[self.target],
            "change": None if self.change is None else list(self.change),
            "units": {names[k]: network.units.get(names[k]) for k in (*self.sources, self.target)},
            "verdict": verdicts.pop() if len(verdicts) == 1 else "differs by column",
            "open": self._is_open,
            "undecided": self._undecided,
            "paths": self._paths,
            "least_drawn": self._least_drawn,
            "other_ways": self._other_ways,
            "straight_lines_alone": network.no_curves or None,
            "in_words": in_words(list(self._notes(rows))),
            "effects": rows,
            "hidden_causes": self._hidden_causes(asked),
            "probabilities": list(self._probabilities()) or None,
        }

    def _entries(self, asked: set[int]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Of columns of source and target that are asked for: where they are in an effect, and in the network."""
        return [
            ((a, b), (i, j))
            for a, i in enumerate(self._columns[0].tolist())
            for b, j in enumerate(self._columns[1].tolist())
            if {i, j} <= asked
        ]

    def _hidden_causes(self, asked: set[int]) -> dict[str, Any] | None:
        """How far the effect is told if common causes may be hidden, with its values; None: the result does not say."""
        told, names = self._if_hidden, self.network.columns.names
        if told is None:
            return None
        rows = [] if (effect := self._value_if_hidden) is None else [
            {
                "source": names[i],
                "target": names[j],
                "values": [] if np.isnan(effect.value[entry]) else [self._value(effect, entry, (i, j))],
            }
            for entry, (i, j) in self._entries(asked)
        ]  # fmt: skip
        return {
            "verdict": told.verdict,
            "adjusted_for": [self._names[k] for k in told.given] if told.verdict == "identified" else None,
            "share": told.share,
            "in_words": in_words(self._note_if_hidden(told)),
            "effects": rows,
        }

    @cached_property
    def _effects_if_hidden(self) -> EffectsIfHidden | None:
        return None if self.network.pag is None else EffectsIfHidden(self.network, self.network.pag)

    @cached_property
    def _if_hidden(self) -> IfHidden | None:
        found = self._effects_if_hidden
        return None if found is None or self._untold else found.of(self.sources, self.target)

    @cached_property
    def _value_if_hidden(self) -> Effect | None:
        """None: not identified, or its size is not that of a line or a curve with what is adjusted for."""
        told, found = self._if_hidden, self._effects_if_hidden
        if found is None or told is None or told.verdict != "identified" or self._by_tables:
            return None
        if (
            self.change is not None
            and self._curves
            and frozenset(self._names[k] for k in told.given) not in self._curves
        ):
            return None
        return found.value(self.sources, self.target, told.given)

    def _note_if_hidden(self, told: IfHidden) -> Note:
        source, goal = " and ".join(repr(self._names[k]) for k in self.sources), repr(self._names[self.target])
        given = [self._names[k] for k in told.given]
        if told.verdict == "no path":
            of_draws = {"share": told.share, "drawn": told.share is not None}
            return note("if_hidden_no_path", source=source, target=goal, lines=not self._by_tables, **of_draws)
        if told.because:
            ends = ["", ""] if told.edge is None else [self._names[k] for k in told.edge]
            return note(f"if_hidden_{told.because}", share=told.share, a=ends[0], b=ends[1])
        sized = self._value_if_hidden is not None
        of_class = {frozenset(of) for one in self._of_network for (of, *_) in one.adjusted_for}
        return note(
            "if_hidden_identified",
            some=bool(given),
            given=given,
            share=told.share,
            drawn=told.share is not None,
            sized=sized,
            tables=bool(self._by_tables),
            other=sized and len(self.sources) == 1 and self._has_path and frozenset(told.given) not in of_class,
        )

    def _probabilities(self) -> Iterator[dict[str, Any]]:
        """Of the target's levels, by the level that is set; none without a path where other graphs may have one."""
        levels = self.network.table_levels
        for one in () if self._untold else self._by_tables:
            if self._is_open and not one.effect.value.any():
                continue
            for a, level in enumerate(levels[self._names[self.sources[0]]]):
                for b, of_target in enumerate(levels[self._names[self.target]]):
                    p, (low, high) = float(one.probabilities[a, b]), one.intervals[:, a, b].tolist()
                    yield {
                        "set": level,
                        "level": of_target,
                        "probability": None if math.isnan(p) else p,
                        "interval": None if self._tied or not low < high else [low, high],
                        "left_out": float(one.left_out[a]),
                        "adjusted_for": self._named(one.effect),
                    }

    def _named(self, one: Effect) -> list[list[list[str]]]:
        return [[[self._names[k] for k in of_source] for of_source in parents] for parents in one.adjusted_for]

    @property
    def _names(self) -> Sequence[str]:
        return self.network.columns.variables

    @cached_property
    def _columns(self) -> tuple[Index, Index]:
        """Of the sources, and of the target."""
        members = self.network.columns.members()
        return np.concatenate([members[k] for k in self.sources]), members[self.target]

    @property
    def _curves(self) -> Mapping[frozenset[str], Curve]:
        """By the parents of the source; none of several sources, and where no curve is on the way."""
        sources, targets = self._columns
        names = self.network.columns.names
        ends = names[int(sources[0])], names[int(targets[0])]
        return self.network.curves.get(ends, {}) if sources.size == 1 else {}

    def _along_curve(self, one: Effect) -> tuple[float, float] | None:
        """What a change does along the curve of one of the sets that are adjusted for; None: along a line."""
        given = (frozenset(self._names[k] for k in of_source) for (of_source, *_) in one.adjusted_for)
        curve = next((self._curves[names] for names in given if names in self._curves), None)
        if self.change is None or curve is None or not one.value.any():
            return None
        if not curve.at[0] <= min(self.change) < max(self.change) <= curve.at[-1]:
            raise SetupError(
                f"the curve of {self._names[self.sources[0]]!r} reaches from {curve.at[0]:.4g} to {curve.at[-1]:.4g}, "
                f"counted from the mean of its site: expected a change within that, got {self.change[0]:g} to "
                f"{self.change[1]:g}"
            )
        return moved_along(curve.at, curve.change, curve.covariance, self.change)

    @cached_property
    def _untold(self) -> list[str]:
        """Why nothing is known of variables of the question, or of what its effect rests on."""
        untold = self.network.untold
        why = [untold[name] for k in (*self.sources, self.target) if (name := self._names[k]) in untold]
        if not why and (unseen := unseen_pairs(self.network, self.sources, self.target, self._of_network)):
            pairs = [f"{one!r} and {other!r}" for one, other in unseen]
            why.append(sentence(note("effect_unseen", pairs=pairs, one=len(pairs) == 1)))
        has_path, is_open = self._has_path, draws_have_others(self.network, self.sources, self.target, self._of_network)
        if not why and not has_path and not is_open and (pairs := self._missing_edges):
            why.append(sentence(note("effect_missing_edges", pairs=pairs, one=len(pairs) == 1)))
        if not why and self.change is not None and not self._curves and has_path:
            if bent := self.network.bent_between(self.sources, self.target):
                why.append(sentence(note("effect_no_curve", names=bent)))
            elif self._not_described:
                told = note("effect_change_not_described", pairs=self._not_described, why=self.network.no_curves)
                why.append(sentence(told))
        return why

    @cached_property
    def _has_path(self) -> bool:
        """Whether some graph of the class has a directed path."""
        return any(bool(one.value.any()) for one in self._of_network)

    @cached_property
    def _missing_edges(self) -> list[str]:
        """Pairs that an edge is missing between, which would turn the effect."""
        network, marks = self.network, self.network.marks
        found = missing_edges(network, self.sources, self.target, self._of_network, marks, marks | marks.T)
        return [f"{one!r} and {other!r}" for one, other in found]

    @cached_property
    def _tied(self) -> tuple[str, ...]:
        return self.network.function(self.sources, self.target)

    @cached_property
    def _not_described(self) -> list[str]:
        """How what depends on what is described by neither lines nor curves, where the effect rests on it."""
        found = self.network.not_described_for(self.sources, self.target)
        return [f"{child} depends on {parent}" for parent, child in found]

    def _found(self, covariance: Matrix) -> list[Effect]:
        network = self.network
        return total_effects(covariance, network.marks, self.sources, self.target, network.columns, network.precision)

    @cached_property
    def _by_tables(self) -> list[TableEffect]:
        """Empty: the network has no tables, or several sources are set together."""
        (source, *more), network = self.sources, self.network
        known = {self._names[source], self._names[self.target]} <= set(network.tables)
        return effects_by_tables(network, source, self.target) if known and not more else []

    @cached_property
    def _of_network(self) -> list[Effect]:
        return [one.effect for one in self._by_tables] or self._found(self.network.covariance)

    @cached_property
    def _effects(self) -> list[Effect]:
        """NaN where something is not told, without errors where these would mislead."""
        without = self.network.without_withheld
        others = None if without is None else self._found(without)
        effects = told_effects(self.network, self._of_network, others, *self._columns)
        if self._untold:
            effects = [replace(one, value=np.full_like(one.value, math.nan)) for one in effects]
        without_errors = self._tied or self._not_described or self._missing_edges
        return [replace(one, standard_error=None) for one in effects] if without_errors else effects

    @cached_property
    def _undecided(self) -> list[list[str]]:
        """Undecided arrows, by name, that the effect rests on."""
        network = self.network
        found = rests_on(network.marks, network.undecided, self.sources, self.target, network.moved(self.sources))
        return [[self._names[i], self._names[j]] for i, j in np.argwhere(found).tolist()]

    @cached_property
    def _paths(self) -> list[dict[str, Any]] | None:
        """In which share of draws directed edges lead from each source to the target, and back; None: not known."""
        paths = self.network.paths
        if paths is None or self._untold:
            return None
        target = self._names[self.target]
        return [
            {
                "source": source,
                "target": target,
                "forward": paths.get(source, {}).get(target, 0.0),
                "backward": paths.get(target, {}).get(source, 0.0),
            }
            for source in (self._names[k] for k in self.sources)
        ]

    @cached_property
    def _least_drawn(self) -> dict[str, Any] | None:
        """Of the edges that the effect rests on, the one that the fewest bootstrap draws have; None: not known."""
        network, shares, marks, sources = self.network, self.network.shares, self.network.marks, list(self.sources)
        onward, after, before = network.ways(self.sources, self.target)
        if shares is None or self._untold or not after[self.target]:
            return None
        found = onward & (before & after) & (before & after)[:, None]
        found[:, sources] = marks[:, sources]  # the source is adjusted for its parents
        pairs: list[list[int]] = np.argwhere(found & ~np.isnan(shares)).tolist()
        if not pairs:
            return None
        i, j = min(pairs, key=lambda pair: float(shares[pair[0], pair[1]]))
        mark = "--" if marks[j, i] or network.undecided[i, j] else "->"
        return {"source": self._names[i], "target": self._names[j], "mark": mark, "share": float(shares[i, j])}

    @cached_property
    def _other_ways(self) -> list[dict[str, Any]] | None:
        """Pairs without an edge, and the share of draws in which one may open another way; None: not known."""
        if not self.network.draws or self._untold:
            return None
        _, after, before = self.network.ways(self.sources, self.target)
        first, last = {*np.flatnonzero(after).tolist()} - {self.target}, {*np.flatnonzero(before).tolist()}
        last -= {*self.sources}
        found: list[dict[str, Any]] = []
        for (i, j), (adjacent, forward, backward) in self.network.unsure.items():
            there, back = i in first and j in last, j in first and i in last
            share = adjacent - (not there) * forward - (not back) * backward
            if (there or back) and share > 0.0:
                found.append({"source": self._names[i], "target": self._names[j], "share": share})
        return sorted(found, key=lambda one: -float(one["share"]))

    @cached_property
    def _is_open(self) -> bool:
        """Whether a direction is open that the effect rests on, whatever the best class says."""
        draws: Sequence[int] = () if self._untold else self.sources
        missing = self._missing_edges if self._has_path and not self._untold else ()
        others = draws_have_others(self.network, draws, self.target, self._effects)
        return bool(self._tied or self._undecided or missing or others)

    def _row(self, entry: tuple[int, int], of: tuple[int, int]) -> dict[str, Any]:
        """The values of one column of a source and one of the target."""
        (i, j), columns = of, self.network.columns
        is_told = not any(np.isnan(one.value[entry]) for one in self._effects)
        values = [self._value(one, entry, of) for one in self._effects] if is_told else []
        has_path = any(one["effect"] for one in values)
        if not is_told:
            verdict = "not known" if self._untold or self._by_tables else "withheld"
        elif self._is_open:
            verdict = "not identified"
            if not has_path:
                values = []  # a 0 would be read as no effect
        else:
            verdict = certainty([one["effect"] for one in values]) if has_path else "no path"
        return {"source": columns.names[i], "target": columns.names[j], "verdict": verdict, "values": values}

    def _value(self, one: Effect, entry: tuple[int, int], of: tuple[int, int]) -> dict[str, Any]:
        (i, j), (value, error, low_high) = of, self._numbers(one, entry, of)
        scale = float((self.network.spread[i] if self.change is None else 1.0) / self.network.spread[j])
        return {
            "effect": value,
            "standard_error": error,
            "interval": low_high,
            "standardised": value * scale,
            "standardised_interval": None if low_high is None else [end * scale for end in low_high],
            "adjusted_for": self._named(one),
        }

    def _numbers(
        self, one: Effect, entry: tuple[int, int], of: tuple[int, int]
    ) -> tuple[float, float | None, list[float] | None]:
        """An effect, its standard error and its 95 % interval; None: not known."""
        along, step = self._along_curve(one), 1.0
        value, error = float(one.value[entry]), math.nan
        if one.standard_error is not None and (along is not None or not self._through_curves):
            error = float(one.standard_error[entry]) if along is None else along[1]
        if along is not None:
            value = along[0]
        elif self.change is not None:
            step = self.change[1] - self.change[0]
        if math.isnan(error) or not error:  # 0: without a path nothing is estimated
            return value * step, None, None
        half = _NORMAL_95 * error
        ends = self.network.possible(value - half, value + half, of)
        return value * step, error * abs(step), sorted(end * step for end in ends)

    def _notes(self, rows: Sequence[dict[str, Any]]) -> Iterator[Note]:
        """What a reader should know: first how far each column's effect is told."""
        network, names = self.network, self._names
        if self._untold:
            yield from (note("effect_not_known", why=why) for why in self._untold)
            return
        absent = [not one.value.any() for one in self._effects]
        source, goal = " and ".join(repr(names[k]) for k in self.sources), repr(names[self.target])
        yield from self._why_open(source, goal)
        owner = dict(zip(network.columns.names, network.columns.variable_of.tolist(), strict=True))

        def led_from(row: dict[str, Any]) -> str:
            if len(self.sources) == 1 or all(absent):
                return source
            return f"{names[owner[row['source']]]!r}, past the others that are set,"

        said = {
            (row["source"], row["target"]): self._in_class(row, led_from(row), goal, any_absent=any(absent))
            for row in rows
        }
        if self._if_hidden is not None:  # beside it, "identified" alone would be read as holding whatever is hidden
            said = {ends: note("effect_if_none_hidden", words=words) for ends, words in said.items()}
        if len(set(map(sentence, said.values()))) == 1:
            yield next(iter(said.values()))
        else:
            for (one, other), words in said.items():
                yield note("effect_of_column", source=one, target=other, words=words)
        if network.pag is None:
            yield note("if_none_hidden", excluded=network.none_hidden)
        if self._least_drawn:
            yield note("least_drawn", draws=network.draws, **self._least_drawn)
        if self._other_ways:
            ways = [note("way_drawn", **one) for one in self._other_ways]
            yield note("other_ways", source=source, target=goal, ways=ways, draws=network.draws)
        for of in self._paths or ():
            yield note("paths_drawn", draws=network.draws, **of)
        asked, sources = [names[k] for k in (*self.sources, self.target)], [names[k] for k in self.sources]
        levels = {name: network.levels[name] for name in asked if name in network.levels}
        # An effect on a level is a change of its own probability.
        references = {name: network.references[name] for name in sources if name in network.references}
        if levels or references:
            yield note("levels_as_numbers", levels=levels_in_words(levels, references))
        if self._by_tables and not all(absent):
            left_out = max(float(one.left_out[one.left_out <= LEFT_OUT].max(initial=0.0)) for one in self._by_tables)
            source_grades, target_grades = (
                names[k] if has_grades(network, k) else "" for k in (self.sources[0], self.target)
            )
            yield note(
                "effect_by_tables",
                draws=DRAWS,
                left_out=left_out if left_out > LEFT_OUT / 100 else 0.0,
                from_grades=source_grades,
                of_grades=target_grades,
            )
        elif network.tables and not all(absent):
            yield note("effect_together_by_lines")
        if not network.draws:
            yield note("no_draws")
        if self._tied:
            yield note("no_intervals_functions")
        elif self._not_described and not all(absent):
            yield note("no_intervals_not_described", pairs=self._not_described)
        elif self._missing_edges and not all(absent):
            yield note("no_intervals_missing_edges")
        elif network.precision is None:
            yield note("no_intervals_unknown")
        elif self._through_curves and not all(absent) and (self.change is None or not self._curves):
            yield note("no_intervals_lines")
        elif len(self.sources) > 1:
            yield note("no_intervals_together")
        if network.assumed:
            yield note("by_assumption", n=network.assumed)
        if network.withheld:
            yield note("withheld_coefficients", edges=[f"{one} -> {other}" for one, other in network.withheld])
        yield from self._of_curves(source, goal)
        if network.no_curves and not self._by_tables:
            yield note("effect_of_lines_alone", why=network.no_curves)
        if network.precision is not None and network.precision.noise_std:
            yield note("faint_effects_hidden", absent=any(absent))
        through, _ = network.on_the_way(self.sources, self.target)
        if not all(absent) and (clipped := [name for name in network.clipped if through[names.index(name)]]):
            yield note("effect_clipped", variables=clipped)
        yield from (note("doubt", doubt=doubt) for doubt in network.doubts)

    def _of_curves(self, source: str, goal: str) -> Iterator[Note]:
        """What was done about a curve on the way."""
        if not any(one.value.any() for one in self._effects):
            return
        if self.change is None or not self._curves:
            if names := self._bent_on_the_way:
                yield note("effect_of_lines", names=names, drawn=bool(self._curves))
            return
        curve = next(iter(self._curves.values()))
        with_interval = not (self._not_described or self._missing_edges)
        yield note("effect_along_curve", source=source, target=goal, interval=with_interval)
        if min(self.change) < curve.at[1] or max(self.change) > curve.at[-2]:
            yield note("effect_beyond_knots", low=curve.at[1], high=curve.at[-2])

    @cached_property
    def _through_curves(self) -> bool:
        """Whether a line goes through a curve, about which the scatter is uneven: no error of a total counts that."""
        return not self._by_tables and bool(self.network.bent_between(self.sources, self.target))

    @property
    def _bent_on_the_way(self) -> list[str]:
        """Columns that bend, of a source, of its possible parents, or of what lies between a source and the target."""
        (through, start), columns = self.network.on_the_way(self.sources, self.target), self.network.columns
        through[self.target] = False
        relevant = (through | start)[columns.variable_of]
        return [name for name in self.network.bent if relevant[columns.names.index(name)]]

    def _why_open(self, source: str, goal: str) -> Iterator[Note]:
        arrows = [f"{one} -> {other}" for one, other in self._undecided]
        if self._tied:
            yield note("effect_of_functions", names=self._tied)
        elif arrows and not self.network.draws:
            yield note("effect_beside_functions", arrows=arrows)
        elif arrows:
            yield note("effect_undecided", arrows=arrows, majority=self.network.majority)
        elif self._has_path and self._missing_edges:
            pairs = self._missing_edges
            yield note("effect_misses_edges", pairs=pairs, one=len(pairs) == 1, source=source, target=goal)
        elif self._is_open and any(one.value.any() for one in self._effects):
            yield note("effect_open", source=source, target=goal)
        elif self._is_open:
            share = max(one["forward"] for one in self._paths or ())
            yield note("effect_open_path", source=source, target=goal, share=share)

    def _in_class(self, row: dict[str, Any], source: str, goal: str, *, any_absent: bool) -> Note:
        """How far the best class tells the effect of one column; of an open one, what the class says nevertheless."""
        values, verdict = [one["effect"] for one in row["values"]], row["verdict"]
        ends = {"source": source, "target": goal}
        if verdict == "not known":
            return note("effect_not_known", why=note("effect_without_records", share=LEFT_OUT))
        if self._is_open and verdict == "not identified":
            return note("effect_open_values", n=len(values)) if values else note("effect_open_no_path", **ends)
        if verdict == "not identified":
            signs = min(values) < 0.0 < max(values)
            return note("effect_not_identified", n=len(values), signs=signs, absent=any_absent, **ends)
        return note(f"effect_{verdict.replace(' ', '_')}", n=len(values), lines=not self._by_tables, **ends)
