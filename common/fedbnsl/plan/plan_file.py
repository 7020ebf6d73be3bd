"""Read the settings of a ready plan or a file and replace some of them; `plan` checks the result.

A file may hold a table `[by_epsilon]` of settings that were found for several budgets: `epsilon` lists the budgets, and
every other setting its value for each of them. A run takes the values of the budget that is nearest to its own on a log
scale. The noise goes about as 1 / epsilon, so these settings were found under the most similar noise; how much noise
there is follows from the run's own epsilon alone.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, cast

from fedbnsl.errors import PlanError
from fedbnsl.files.toml_text import parse_toml
from fedbnsl.plan.ready_files import READY_PLANS

_BY_EPSILON = "by_epsilon"


class GivenSettings(NamedTuple):
    """Settings as plain values, not yet checked."""

    origin: str
    """What errors call them."""
    settings: dict[str, Any]
    given_by: dict[str, str]
    """By dotted name, where the value comes from: "plan", "plan, epsilon 5" (the table by epsilon), or an option."""


class _Change(NamedTuple):
    name: str
    value: object
    given_by: str


def read_settings(
    plan: str | Path, overrides: Iterable[str] = (), *, epsilon: float | None = None, delta: float | None = None
) -> GivenSettings:
    """The settings of a ready plan or of a file; see `Plan.load`.

    Raises
    ------
    PlanError
        If the plan cannot be found or read, an override is not key=value, a table by epsilon does not fit, or epsilon
        or delta is given twice or without [privacy].
    """
    settings, origin = _content(plan)
    by_epsilon = settings.pop(_BY_EPSILON, None)
    changes = [_Change(*_parsed(override), "--set") for override in overrides]
    changed = {name for change in changes for name, _ in _flat({change.name: change.value})}
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if value is None:
            continue
        setting = f"privacy.{name}"
        if setting in changed:
            raise PlanError(f"{setting} is given twice, by --{name} and by --set: give it once")
        if "privacy" not in settings and not any(other.startswith("privacy.") for other in changed):
            raise PlanError(
                f"{origin} has no [privacy], and so no {name}",
                remedy="Take a private plan, such as private (fedbnsl plan list shows the ready ones).",
            )
        changes.append(_Change(setting, value, f"--{name}"))
    if by_epsilon is not None:
        privacy = _changed(settings, changes).get("privacy")
        asked = cast(dict[str, Any], privacy).get("epsilon") if isinstance(privacy, dict) else None
        changes = _tuned_for(asked, by_epsilon, origin) + changes
    given_by = dict.fromkeys((name for name, _ in _flat(settings)), "plan")
    for change in changes:
        given_by |= dict.fromkeys((name for name, _ in _flat({change.name: change.value})), change.given_by)
    return GivenSettings(origin, _changed(settings, changes), given_by)


def tuned_epsilons(plan: str | Path) -> tuple[float, ...]:
    """The budgets for which a plan holds settings; empty if it has no table by epsilon."""
    return tuple(_content(plan)[0].get(_BY_EPSILON, {}).get("epsilon", ()))


def read_toml(text: str, origin: str) -> dict[str, Any]:
    """Plain values; a PlanError names the origin, if this is not TOML, or too large or too deep for a plan."""
    try:
        return parse_toml(text)
    except ValueError as error:
        raise PlanError(f"{origin} is not valid TOML: {error}") from None


def _content(plan: str | Path) -> tuple[dict[str, Any], str]:
    resolved = READY_PLANS.resolve(plan)
    origin = f"plan {resolved}" if isinstance(resolved, str) else str(resolved)
    try:
        return read_toml(READY_PLANS.file(resolved).read_text(encoding="utf-8"), origin), origin
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"plan {resolved} cannot be read: {error}") from None


def _tuned_for(asked: object, table: object, origin: str) -> list[_Change]:
    """The settings of the budget that is nearest to the asked one; of two that are equally near, of the smaller."""
    columns = dict(_flat(cast(dict[str, Any], table))) if isinstance(table, dict) else {}
    tuned = columns.pop("epsilon", None)
    if not isinstance(tuned, list) or not tuned or not all(map(_is_budget, cast(list[object], tuned))):
        raise PlanError(f"{origin}: [{_BY_EPSILON}] needs a list `epsilon` of positive numbers")
    budgets = cast(list[float], tuned)
    for name, values in columns.items():
        if not isinstance(values, list) or len(cast(list[object], values)) != len(budgets):
            raise PlanError(f"{origin}: {_BY_EPSILON}.{name} must list a value for each of the {len(budgets)} epsilons")
    # An invalid epsilon is refused later, with the rule that it breaks.
    log_asked = math.log(cast(float, asked)) if _is_budget(asked) else 0.0
    nearest = min(budgets, key=lambda budget: (abs(math.log(budget) - log_asked), budget))
    k, source = budgets.index(nearest), f"plan, epsilon {nearest:g}"
    return [_Change(name, values[k], source) for name, values in columns.items()]


def _is_budget(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted name, without their tables."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(cast(dict[str, Any], value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _parsed(override: str) -> tuple[str, Any]:
    """The dotted name and the value of `key=value`; a value that is not valid TOML is a string."""
    key, separator, text = override.partition("=")
    key = key.strip()
    if not separator or not key:
        raise PlanError(f"--set {override!r}: expected key=value, such as --set rounds=50")
    try:
        return key, parse_toml(f"value = {text}")["value"]
    except ValueError as error:
        if text.strip().startswith(("[", "{")):  # no text that a setting takes begins so
            raise PlanError(
                f"--set {override}: the value is not valid TOML: {error}",
                remedy="Texts in a list need quotation marks, and the shell quotes around the whole: "
                """--set 'knowledge.tiers=[["age", "sex"], ["stage"]]'.""",
            ) from None
        return key, text.strip()


def _changed(settings: Mapping[str, Any], changes: Iterable[_Change]) -> dict[str, Any]:
    """A copy with the changes, in their order."""
    copy = deepcopy(dict(settings))
    for change in changes:
        inner, leaf = place_of(change.name, copy, origin=change.given_by)
        inner[leaf] = change.value
    return copy


def place_of(name: str, settings: dict[str, Any], *, origin: str) -> tuple[dict[str, Any], str]:
    """The table that holds a setting of a dotted name, made if it is missing, and the setting's name in it."""
    *tables, leaf = name.split(".")
    for table in tables:
        found = settings.setdefault(table, {})
        if not isinstance(found, dict):
            raise PlanError(f"{origin} {name}: {table!r} is a setting, not a table")
        settings = cast(dict[str, Any], found)
    return settings, leaf
