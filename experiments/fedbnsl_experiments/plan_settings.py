"""Settings of a plan, replaced by dotted names: `rounds`, `privacy.clip`."""

from collections.abc import Mapping
from typing import Any, cast

from fedbnsl.errors import PlanError
from fedbnsl.plan.plan import Plan


def for_sites(plan: Plan, n_sites: int) -> Plan:
    """The plan for as many sites as there are tables."""
    quorum = plan.quorum if plan.quorum <= n_sites else 0
    return plan.with_settings(n_participants=n_sites, quorum=quorum)


def with_dotted(plan: Plan, settings: Mapping[str, Any], *, origin: str) -> Plan:
    """A plan with some settings replaced, validated as a whole.

    Parameters
    ----------
    settings
        By name; `privacy.clip` reaches into a table, and a mapping as value replaces settings within one.
    origin
        What errors call the settings.

    Raises
    ------
    PlanError
        As `Plan.parse`, or if a name reaches into what is no table.
    """
    values = plan.model_dump(exclude_none=True)
    for name, value in settings.items():
        *tables, leaf = name.split(".")
        inner = values
        for table in tables:
            found = inner.setdefault(table, {})
            if not isinstance(found, dict):
                raise PlanError(f"{origin}: {name}: {table!r} is a setting, not a table")
            inner = cast(dict[str, Any], found)
        old = inner.get(leaf)
        # A table is replaced setting by setting: `privacy = {epsilon = 1}` keeps the plan's clip.
        inner[leaf] = (
            {**cast(dict[str, Any], old), **value} if isinstance(old, dict) and isinstance(value, Mapping) else value
        )
    return Plan.parse(values, origin=origin)


def short_digest(plan: Plan) -> str:
    """16 hexadecimal digits that identify a plan by all its settings, defaults included."""
    return plan.digest().hex()[:16]
