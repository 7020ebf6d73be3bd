"""Values as programs and tables hold them, in the words of the data dictionary: as sites read cells."""

import math
from typing import Any

from fedbnsl.console.shown import shown
from fedbnsl.console.wording import first_few
from fedbnsl.errors import SetupError
from fedbnsl.network.fitted_network import FittedNetwork
from fedbnsl_client.data.reading import SAME_NAMES, Reading, readings


def text_of(fitted: FittedNetwork, name: str, value: object) -> str:
    """A level, or a number as text; empty: the value stands for a missing one (None, NaN, NA, an empty cell).

    Raises
    ------
    SetupError
        If the network has no such variable, or the variable no such value.
    """
    fitted.require(name)
    alone: Any = value
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        alone = alone.item()
    if type(alone).__name__ in ("NAType", "NaTType"):  # by name: pandas, whose they are, is no dependency
        return ""
    reading = _reading(fitted, name)
    try:
        code = reading.value(alone)
    except (ValueError, TypeError, OverflowError):
        if isinstance(alone, str):
            fitted.coded(name, alone.strip())  # says what was expected
        wanted = f"one of {first_few(map(repr, fitted.levels[name]))}" if reading.codes else "one number"
        raise SetupError(f"{name} = {shown(repr(alone), 40)}: expected {wanted}") from None
    if math.isnan(code):
        return ""
    if reading.codes:
        return fitted.entry(name).levels[int(code)]
    return str(int(code)) if code.is_integer() else repr(code)


def _reading(fitted: FittedNetwork, name: str) -> Reading:
    if name not in fitted.dictionary:
        return Reading()
    (found,) = readings(fitted.dictionary, SAME_NAMES, [name])
    return found
