"""Numbers that JSON has no word for: NaN and infinity become null, in everything that is written as JSON for others."""

import math
from collections.abc import Iterator, Mapping
from typing import Any


def finite(content: Any) -> Any:
    """The content with null in place of every number that is not finite."""
    held: Any = content  # beside its type, which says nothing of what is in it
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {str(key): finite(value) for key, value in held.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in held]
    return content


def not_finite(content: Any, path: str = "") -> Iterator[str]:
    """Where these numbers are, such as `edges/0/weight`."""
    held: Any = content
    if isinstance(content, float):
        if not math.isfinite(content):
            yield path
    elif isinstance(content, Mapping):
        for key, value in held.items():
            yield from not_finite(value, f"{path}/{key}" if path else str(key))
    elif isinstance(content, list | tuple):
        for k, value in enumerate(held):
            yield from not_finite(value, f"{path}/{k}")
