"""A search space over the settings of a plan: a TOML file of candidates, and the plans that it stands for."""

import difflib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from pydantic import BaseModel

from fedbnsl.errors import PlanError
from fedbnsl.files.toml_text import parse_toml
from fedbnsl.plan.knowledge import Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.preparation import Preparation
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl_research.tuning.ready_grids import GRIDS
from fedbnsl_workbench.plan_settings import with_dotted

MOST_CONFIGURATIONS = 100_000

_TABLES: dict[str, type[BaseModel]] = {"privacy": Privacy, "preparation": Preparation, "knowledge": Knowledge}
_GIVEN_BY_DATA = ("name", "variables", "n_participants")
_DIGITS = 6

Choice = Mapping[str, Any]
"""Dotted setting -> value."""


@dataclass(frozen=True)
class Span:
    """A range to draw from, uniformly or uniformly in the logarithm; whole numbers include both ends."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def __str__(self) -> str:
        flags = [f"{name} = true" for name in ("log", "integer") if getattr(self, name)]
        return f"{{{', '.join([f'low = {self.low}', f'high = {self.high}', *flags])}}}"

    def draw(self, rng: np.random.Generator) -> float | int:
        """A number of the range; of a real one, as many digits as a person would write."""
        if self.log:
            # Extend by half a unit: the first and last whole numbers get their full rounding interval, too.
            low, high = (self.low - 0.5, self.high + 0.5) if self.integer else (self.low, self.high)
            value = math.exp(rng.uniform(math.log(low), math.log(high)))
        elif self.integer:
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        else:
            value = float(rng.uniform(self.low, self.high))
        rounded = round(value) if self.integer else float(f"{value:.{_DIGITS}g}")
        return type(rounded)(min(max(rounded, self.low), self.high))


@dataclass(frozen=True)
class Grid:
    """Candidates by dotted setting, in the order of the file."""

    origin: str
    candidates: Mapping[str, Sequence[Any] | Span]

    def product(self) -> Iterator[Choice]:
        """Every combination.

        Raises
        ------
        PlanError
            If there is a range among the candidates, or there are too many combinations.
        """
        lists: dict[str, Sequence[Any]] = {}
        for key, candidates in self.candidates.items():
            if isinstance(candidates, Span):
                raise PlanError(f"{self.origin}: {key} is a range: give a list, or draw at random with --random N")
            lists[key] = candidates
        count = math.prod(map(len, lists.values()))
        if count > MOST_CONFIGURATIONS:
            raise PlanError(
                f"{self.origin}: {count} combinations, at most {MOST_CONFIGURATIONS}; draw some with --random N"
            )
        return (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))

    def sample(self, n: int, seed: int) -> Iterator[Choice]:
        """`n` random choices; a larger `n` begins with the same ones."""
        rng = np.random.default_rng(seed)
        for _ in range(n):
            yield {
                key: c.draw(rng) if isinstance(c, Span) else c[int(rng.integers(len(c)))]
                for key, c in self.candidates.items()
            }


def read_grid(grid: str | Path) -> Grid:
    """A grid by name or path: each key a setting of the plan, its value a list, or a range for a random search.

    Raises
    ------
    PlanError
        If the file cannot be read, or naming the first key that is no setting or has no usable candidates.
    """
    try:
        content = parse_toml(GRIDS.file(grid).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"grid {grid} cannot be read: {error}") from None
    candidates = {key: _candidates(f"{grid}: {key}", value) for key, value in _flat(str(grid), content)}
    if not candidates:
        raise PlanError(f"grid {grid} names no setting; expected lines such as: l1_weight = [0.05, 0.1]")
    return Grid(str(grid), candidates)


def configurations(plan: Plan, grid: Grid, choices: Iterator[Choice]) -> list[tuple[Choice, Plan]]:
    """The choices that lead to different plans, each with its plan.

    Raises
    ------
    PlanError
        If the plan refuses any of them: how many, and the first with its reason.
    """
    found: dict[bytes, tuple[Choice, Plan]] = {}
    refused: list[PlanError] = []
    count = 0
    for choice in choices:
        count += 1
        try:
            tried = with_dotted(plan, choice, origin=f"the first, {shown(choice)},")
            found.setdefault(tried.digest(), (choice, tried))
        except PlanError as error:
            refused.append(error)
    if refused:
        raise PlanError(
            f"{grid.origin}: {len(refused)} of {count} combinations cannot be used; {refused[0]}",
            remedy="Correct the grid, or the setting of the plan that it contradicts, and start again.",
        )
    return list(found.values())


def shown(choice: Choice) -> str:
    """A choice for people."""
    return ", ".join(f"{key} = {value!r}" for key, value in choice.items())


def _flat(origin: str, content: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Dotted keys; a table is one of the plan's, or else a range."""
    for key, value in content.items():
        table, _, inner = key.partition(".")  # of a quoted key
        if table in _TABLES and (inner or isinstance(value, dict)):
            inside = cast(dict[str, object], {inner: value} if inner else value)
            for name, candidates in inside.items():
                _refuse_unknown(f"{origin}: {table}.{name}", name, list(_TABLES[table].model_fields))
                yield f"{table}.{name}", candidates
            continue
        if key in _GIVEN_BY_DATA:
            raise PlanError(f"{origin}: {key} is not tuned: the data says what it is")
        _refuse_unknown(f"{origin}: {key}", key, list(Plan.model_fields))
        yield key, value


def _refuse_unknown(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise PlanError(f"{what}: no such setting of a plan" + (f"; did you mean {near[0]}?" if near else ""))


def _candidates(what: str, value: object) -> Sequence[Any] | Span:
    if isinstance(value, dict):
        return _span(what, cast(dict[str, Any], value))
    if not isinstance(value, list):
        raise PlanError(f"{what} = {value!r}: expected a list of candidates, such as [{value!r}]")
    if not value:
        raise PlanError(f"{what} = []: expected at least one candidate")
    return cast(Sequence[Any], value)


def _span(what: str, value: dict[str, Any]) -> Span:
    expected = "expected a list, or a range such as {low = 0.01, high = 1.0, log = true}"
    if not {"low", "high"} <= value.keys() <= {"low", "high", "log", "integer"}:
        raise PlanError(f"{what}: has {', '.join(value) or 'nothing'}; {expected}")
    low, high, log, integer = value["low"], value["high"], value.get("log", False), value.get("integer", False)
    if not (isinstance(log, bool) and isinstance(integer, bool)):
        raise PlanError(f"{what}: log and integer are true or false")
    kinds = int if integer else (int, float)
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, kinds) or not math.isfinite(end):
            raise PlanError(f"{what}: {end!r} is no {'whole' if integer else 'finite'} number; {expected}")
    if low >= high:
        raise PlanError(f"{what}: low = {low!r} is not below high = {high!r}")
    if log and low <= 0:
        raise PlanError(f"{what}: low = {low!r} has no logarithm; log = true needs a range above 0")
    return Span(low, high, log, integer)
