"""How a message names many things: the first few of them, and how many more there are."""

from collections.abc import Iterable


def first_few(names: Iterable[str], most: int = 8) -> str:
    """Distinct names in order, with commas, at most so many: `a, b and 3 more`."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more} more" if more > 0 else "")
