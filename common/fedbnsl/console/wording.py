"""How a message names many things, the first few or how many of which kind, and a time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def first_few(names: Iterable[str], most: int = 8) -> str:
    """Distinct names in order, with commas, at most `most` of them: `a, b and 3 more`."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {more} more" if more > 0 else "")


def levels_in_words(levels: Mapping[str, Sequence[str]], references: Mapping[str, str]) -> str:
    """Which number stands for which level, by variable: `smoker: 1 = yes; stage: 0 = I, 1 = II, 2 = III`.

    Of two levels, the one that is 1 says which is 0. Of a nominal variable, the reference level: `ward: each level
    against surgery`.
    """
    as_numbers = [
        f"{name}: {', '.join(f'{k} = {level}' for k, level in enumerate(own) if k or len(own) > 2)}"
        for name, own in levels.items()
    ]
    return "; ".join([*as_numbers, *(f"{name}: each level against {level}" for name, level in references.items())])


def counted(n: int, one: str, several: str = "") -> str:
    """`1 edge`, `2 edges`; where the plural has another form than an s, `several` is it."""
    return f"{n:,} {one if n == 1 else several or one + 's'}"


def edges_in_words(edges: Sequence[Mapping[str, Any]]) -> str:
    """`17 directed edges, 3 undirected` of the edges of a result; where all are directed, `17 edges`."""
    return counted_edges(len(edges), sum(not edge.get("directed", True) for edge in edges))


def counted_edges(n_edges: int, n_undirected: int) -> str:
    """The same of numbers of edges, the undirected among them."""
    if not n_undirected:
        return counted(n_edges, "edge")
    return f"{counted(n_edges - n_undirected, 'directed edge')}, {n_undirected} undirected"


def duration(seconds: float) -> str:
    """Seconds for people: two units at most."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
