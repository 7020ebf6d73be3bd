"""Kinds of values that options of the command line take."""

import math
from typing import Any

import click


class Finite(click.FloatRange):
    """A range without NaN, which passes every comparison, and without infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a finite number.", param, ctx)
