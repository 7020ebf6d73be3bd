"""Where all TOML is parsed. Size and depth are bounded, so that reading what somebody else wrote always ends soon.

Python's parser goes down one call for each bracket, and its time grows with the square of the parts of a dotted key.
"""

import re
import tomllib
from typing import Any, cast

_BYTE_ORDER_MARK = "\ufeff"  # some Windows programs begin a text file with it
_MOST_BYTES = 2**20
_MOST_DOTS = 100
_DEEPEST = 16
_LARGEST = 2**63  # what TOML promises; Python refuses to print much larger numbers

_BETWEEN_KEYS = re.compile(r"[=,{}\[\]\n]")
# A quoted part of a key can hold what stands between keys, and so hide how long the key is.
_BESIDE_QUOTES = re.compile(r"""["']\s*\.|\.\s*["']""")
_MOST_BESIDE_QUOTES = 50
_OF_OURS = "Value error, "
_OR_INSTANCE = re.compile(r" or instance of \w+")


def parse_toml(text: str) -> dict[str, Any]:
    """Plain values; a byte order mark in front is skipped.

    Raises ValueError with the reason, if this is not TOML, larger than 1 MiB, nested too deeply, or holds an integer
    beyond 64 bits.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if len(text) > _MOST_BYTES or len(text.encode("utf-8", "replace")) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
    if any(chunk.count(".") > _MOST_DOTS for chunk in _BETWEEN_KEYS.split(text)):
        raise ValueError(f"it has more than {_MOST_DOTS} dots in a row, without = or a comma between them")
    if len(_BESIDE_QUOTES.findall(text)) > _MOST_BESIDE_QUOTES:
        raise ValueError(f"it has more than {_MOST_BESIDE_QUOTES} dots beside quotation marks")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_values(values)
    return values


def in_toml_words(message: str) -> str:
    """What a validator says of a value that came from TOML, where a tuple is an array and a dictionary a table."""
    if message.startswith(_OF_OURS):
        return message.removeprefix(_OF_OURS)
    text = _OR_INSTANCE.sub("", message.lower())
    return text.replace("tuple", "array").replace("valid list", "array").replace("valid dictionary", "table")


def _check_values(values: dict[str, Any]) -> None:
    # Level by level, not by recursion: dotted keys nest further than Python can go down.
    level: list[Any] = [values]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(cast(dict[str, Any], value).values())
            elif issubclass(type(value), list):
                inner.extend(value)
            elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
                raise ValueError("it holds an integer beyond 64 bits")
        if not inner:
            return
        level = inner
    raise ValueError("it is nested too deeply")
