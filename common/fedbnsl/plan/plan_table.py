"""The settings of a plan, one by one: value, unit, default, source, meaning."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Unit


class ShownSetting(NamedTuple):
    """One setting of a plan.

    Attributes
    ----------
    name
        Dotted, if it belongs to a table.
    value, default
        As plain values; a default of None: the setting has none.
    unit
        Empty: a number without unit, or no number.
    given_by
        As `GivenSettings` has it, or "default".
    """

    name: str
    value: Any
    default: Any
    unit: str
    given_by: str
    meaning: str

    @property
    def differs(self) -> bool:
        """Whether the value is not the default."""
        return bool(self.value != self.default)


def shown_settings(plan: Plan, given_by: Mapping[str, str]) -> Iterator[ShownSetting]:
    """Every setting, those of tables last, as in a plan's file.

    Parameters
    ----------
    given_by
        As in `GivenSettings`; a setting that is not in it has its default.
    """
    tables: dict[str, BaseModel] = {
        name: value
        for name in Plan.model_fields
        if isinstance(value := getattr(plan, name), BaseModel) and not isinstance(value, Dictionary)
    }
    tables |= {f"dictionary.{name}": entry for name, entry in plan.dictionary.items()}
    for prefix, table in (("", plan), *((f"{name}.", value) for name, value in tables.items())):
        values = table.model_dump(mode="json", exclude_none=True)
        defaults = type(table).model_construct().model_dump(mode="json", warnings=False)
        for key, info in type(table).model_fields.items():
            if (prefix + key) not in tables and key != "dictionary" and key in values:
                name = prefix + key
                by = given_by.get(name, "default")
                yield ShownSetting(name, values[key], defaults.get(key), _unit(info), by, info.description or "")


def _unit(info: FieldInfo) -> str:
    return next((entry.name for entry in info.metadata if isinstance(entry, Unit)), "")
