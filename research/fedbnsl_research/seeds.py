"""Seeds as an option of the command line."""

import re
from typing import Any, cast

import click


class Seeds(click.ParamType[tuple[int, ...]]):
    """Seeds as `2..11`, `1,100,400` or both."""

    name = "SEEDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The seeds in the order given, each once."""
        if isinstance(value, tuple):
            return cast(tuple[int, ...], value)
        seeds: list[int] = []
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", part)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if last < first or last - first > 10_000:
                self.fail(f"{value!r}: expected seeds such as 2..11 or 1,100,400", param, ctx)
            seeds += range(first, last + 1)
        return tuple(dict.fromkeys(seeds))
