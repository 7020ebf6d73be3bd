"""The settings of a plan, one by one: value, unit, default, source, meaning."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedbnsl.plan.absent import Absent
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Unit


class ShownSetting(NamedTuple):
    """One setting of a plan."""

    name: str
    """Dotted, if it belongs to a table."""
    value: Any
    default: Any
    """None: the setting is required."""
    unit: str
    given_by: str
    """As `GivenSettings` has it, or "default"."""
    meaning: str

    @property
    def differs(self) -> bool:
        """Whether the value is not the default."""
        return bool(self.value != self.default)


def shown_settings(plan: Plan, given_by: Mapping[str, str]) -> Iterator[ShownSetting]:
    """Every setting that has a value, in the order of a plan's file; one that is not in `given_by` has its default."""
    for path, model, fields in plan.sections():
        values = model.model_dump(mode="json")
        if isinstance(model, Absent):  # its settings are the names of sites
            defaults: dict[str, Any] = {site: [] for site in values}
        else:
            defaults = type(model).model_construct().model_dump(mode="json", warnings=False)
        for key, info in fields.items():
            name = ".".join((*path, key))
            unit = next((entry.name for entry in info.metadata if isinstance(entry, Unit)), "")
            by = given_by.get(name, "default")
            yield ShownSetting(name, values[key], defaults.get(key), unit, by, info.description or "")
