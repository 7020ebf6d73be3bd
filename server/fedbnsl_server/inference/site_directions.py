"""Sites as experiments: directions that a class leaves open, by which member needs the fewest mechanisms that differ.

Where sites differ in few mechanisms of the true graph, they differ in more of another member of its class: if the noise
of a alone is larger at a site and a acts on b, then b by itself and a given b both differ there. Members explain pooled
moments equally well, and are told apart by that (sparse mechanism shifts: Perry, von Kuegelgen and Schoelkopf 2022).

What a family costs at a site is what parameters of its own add to the log-likelihood there (`site_mechanisms`), if that
is beyond chance: nothing below `_CHANCE`, and no more than `_MOST`, for beyond that a site differs for sure, and how
much it does is no argument for either direction. An open edge gets the direction i -> j where

    all members with j -> i cost more by `MARGIN` than the best of all,
    at no site the best of these costs less by `_DISAGREE`, and
    at a site i surely differs given its parents, while j given its own does not, and the costs there say i -> j.

The last is asked for because of hidden causes. If i and j have one and nothing else in common, and the mechanism of j
differs, then i by itself and j given i look as if i acted on j. But if that of i differs, so do both j given i and i
given j: no direction is told. So a cause is believed that was seen to move with what it acts on, in a law that stayed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from fedbnsl.graphs.class_members import directed_at
from fedbnsl.graphs.directed_by import Source
from fedbnsl.graphs.pag import ARROW, NONE, Marks
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.inference.directions import Direction, components
from fedbnsl_server.inference.site_mechanisms import Family, Mechanism, Mechanisms

MARGIN = 5.0
"""By how much log-likelihood members with the other direction must be worse."""
MOST_MEMBERS = 1000
"""Members of the edges that undirected paths join; of more, none is compared."""
# In units of -log of a p value: below the first nothing differs, beyond the second it does for sure.
_CHANCE, _SURE = 4.0, 12.0
_MOST = 12.0
_DISAGREE = 3.0


@dataclass(frozen=True, eq=False)
class OfSites:
    """What the sites tell of the open edges of a class."""

    told: tuple[Direction, ...]
    n_open: int  # edges that were open
    n_compared: int  # of them, those whose members were compared


@dataclass(frozen=True, eq=False)
class _Member:
    """A member of the class, of the nodes of one component."""

    marks: Mask  # (V, V)
    mechanisms: Mapping[int, Mechanism]  # by node, given its parents
    cost: Matrix  # (P,) of all of them, by site

    @classmethod
    def of(cls, marks: Mask, nodes: Sequence[int], mechanisms: Mechanisms) -> "_Member":
        families = {v: family(marks, v) for v in nodes}
        found = mechanisms.of(families.values())
        of_nodes = {v: found[one] for v, one in families.items()}
        return cls(marks, of_nodes, np.sum([_cost(one) for one in of_nodes.values()], axis=0))

    @property
    def total(self) -> float:
        return float(self.cost.sum())


def family(marks: Mask, node: int) -> Family:
    """A node and its parents, where all its edges are directed."""
    return node, tuple(np.flatnonzero(marks[:, node] & ~marks[node]).tolist())


def site_directions(
    marks: Mask,
    pag: Marks,
    mechanisms: Mechanisms,
    *,
    variables: Sequence[str],
    sites: Sequence[str],
    targets: Mask,
) -> OfSites:
    """Directions of the open edges of a class.

    Parameters
    ----------
    marks
        (V, V) the class, closed under Meek's rules; a variable is one column.
    pag
        (V, V) the partial ancestral graph: no direction is told that it contradicts. (0, 0): it is not known.
    mechanisms
        Of these sites; at the (P, V) `targets`, which were set, a variable's own law counts for nothing.
    """
    undirected = marks & marks.T
    number, told, n_compared = components(undirected), list[Direction](), 0
    for start in sorted({number[v] for v in np.flatnonzero(undirected.any(axis=0)).tolist()}):
        nodes = [v for v, one in enumerate(number) if one == start]
        directed = list(islice(directed_at(marks, nodes), MOST_MEMBERS + 1))
        if len(directed) > MOST_MEMBERS:
            continue
        pairs = [(i, j) for i in nodes for j in np.flatnonzero(undirected[i]).tolist()]
        n_compared += len(pairs) // 2
        mechanisms.of(family(one, v) for one in directed for v in nodes)  # all at once
        members = [_Member.of(one, nodes, mechanisms) for one in directed]
        for i, j in pairs:
            if (pag.size == 0 or _allows(pag, i, j)) and (evidence := _evidence(members, i, j, targets)) is not None:
                told.append(evidence.as_direction(variables[i], variables[j], sites))
    return OfSites(tuple(told), int(undirected.sum()) // 2, n_compared)


def _allows(pag: Marks, i: int, j: int) -> bool:
    """Whether i can be a cause of j."""
    return bool(pag[i, j] != NONE and pag[j, i] != ARROW)


@dataclass(frozen=True, eq=False)
class _Evidence:
    gap: Matrix  # (P,) by how much the best member with the other direction costs more at each site
    by: Source

    def as_direction(self, source: str, target: str, sites: Sequence[str]) -> Direction:
        at = np.flatnonzero(self.gap > _DISAGREE).tolist()
        numbers = {"log_likelihood": float(self.gap.sum()), "sites": [sites[p] for p in at]}
        return Direction(source, target, self.by, numbers)


def _evidence(members: Sequence[_Member], i: int, j: int, targets: Mask) -> _Evidence | None:
    """Why i -> j; None: the sites do not say so."""
    best = min((one for one in members if not one.marks[j, i]), key=lambda one: one.total)
    other = min((one for one in members if one.marks[j, i]), key=lambda one: one.total)
    gap = other.cost - best.cost
    if gap.sum() < MARGIN or gap.min() < -_DISAGREE:
        return None
    source, target = best.mechanisms[i], best.mechanisms[j]
    moved = (source.evidence >= _SURE) | targets[:, i]
    stayed = target.told & (target.evidence < _CHANCE)
    if not (moved & stayed & (gap > _DISAGREE)).any():
        return None
    at = np.flatnonzero(gap > _DISAGREE)
    known = targets[at, i] | targets[at, j]
    return _Evidence(gap, "interventions" if known.all() else "sites")


def _cost(mechanism: Mechanism) -> Matrix:
    """(P,) by site."""
    return np.where(mechanism.evidence < _CHANCE, 0.0, np.minimum(mechanism.gain, _MOST))
