"""How numbers of a result are written, on the terminal and on the page alike."""

import math
from collections.abc import Sequence

_DECIMALS = 3
_MORE = 4
# Beyond these, a number in another unit is easier to read as 1.23e-09: nobody counts zeros.
_MOST_DECIMALS = 8
_FINE, _LARGE, _HUGE = 0.01, 1e4, 1e7


def signed(value: float | None, interval: Sequence[float] | None = None) -> str:
    """A weight with three decimals, or as many as its interval needs; very small and large ones with three digits."""
    if value is None:
        return "not known"
    if interval is not None:
        places = _places(interval)
    elif value and not _FINE <= abs(value) < _LARGE:
        places = 2 - math.floor(math.log10(abs(value)))
    else:
        places = _DECIMALS
    return _rounded(value, places if abs(value) >= _LARGE else max(_DECIMALS, places), "+")


def between(interval: Sequence[float] | None) -> str:
    """An interval, with two digits of its width; an end near zero has more, so that its sign is seen."""
    if interval is None:
        return "not known"
    places = _places(interval)
    return " to ".join(_rounded(end, places) for end in interval)


def _rounded(value: float, places: int, sign: str = "") -> str:
    """A number rounded to a place; as 1.23e-09 where nobody would count the zeros."""
    shown = round(value, places) + 0.0
    sign = sign if shown or not value else ""  # rounded away, the sign would be that of another number
    if shown and (places > _MOST_DECIMALS or abs(shown) >= _HUGE):
        return f"{shown:{sign}.{max(1, math.floor(math.log10(abs(shown))) + 1 + places)}g}"
    return f"{shown:{sign}.{min(_MOST_DECIMALS, max(0, places))}f}"


def _places(interval: Sequence[float]) -> int:
    """Decimals that show two digits of the width; below 0 for tens, hundreds, ..."""
    width = interval[1] - interval[0]
    places = 1 - math.floor(math.log10(width)) if 0 < width < math.inf else _DECIMALS
    enough = (more for more in range(_MORE) if all(round(end, places + more) or not end for end in interval))
    places += next(enough, 0)
    return places if max(map(abs, interval)) >= _HUGE else max(0, places)


def ratio(value: float | None) -> str:
    """A ratio with three digits, or so many that two digits of its distance from 1 are seen."""
    if value is None:
        return "not known"
    if not 1e-6 < value < _HUGE:
        return f"{value:.3g}"
    distance = max(abs(value - 1.0), 1e-6)
    places = 1 - math.floor(math.log10(distance)) if distance < 1.0 and abs(value - 1.0) > 1e-9 else 0
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)), places)}f}"


def ratios(interval: Sequence[float] | None) -> str:
    """An interval of ratios."""
    return "not known" if interval is None else " to ".join(map(ratio, interval))


def percent(share: float) -> str:
    """A share in whole per cent, which says of a small one that it is not nothing."""
    return "<1\u00a0%" if 0 < share < 0.005 else f"{100 * share:.0f}\u00a0%"


def ranged(low: float, high: float) -> str:
    """The least and the largest of several values, each as `signed` has it but for the plus."""
    return f"{signed(low).lstrip('+')} to {signed(high).lstrip('+')}"
