"""Entries of dictionary.toml and columns.toml as a person writes them: one line for each setting."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_entry(name: str, settings: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """A [table] of numbers, texts, lists and mappings, and comments on lines of their own after it.

    Names and texts must not hold control characters.
    """
    return "\n".join([f"[{_key(name)}]", toml_settings(settings), *(f"# {comment}" for comment in comments)]) + "\n"


def toml_settings(settings: Mapping[str, Any]) -> str:
    """The settings alone, one a line."""
    return "\n".join(f"{_key(key)} = {_value(value)}" for key, value in settings.items())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = cast(Mapping[str, Any], value)
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in inner.items()) + " }"
    # Lists, numbers, and texts without control characters are written alike in JSON and TOML.
    return json.dumps(value, ensure_ascii=False)
