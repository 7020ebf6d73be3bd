"""What sites tell as experiments: directions of open edges, and in which mechanisms which site differs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedbnsl.graphs.class_members import consistent_extension
from fedbnsl.graphs.pag import Marks
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.inference.directions import Direction, directed
from fedbnsl_server.inference.site_directions import family, site_directions
from fedbnsl_server.inference.site_mechanisms import Mechanism, Mechanisms
from fedbnsl_server.search.linear_network import SiteMoments

MOST_VARIABLES = 200
"""With more, sites are not taken as experiments."""
_LEVEL = 0.01
"""Chance of naming a mechanism that does not differ, over all sites and variables."""
_MOST_NAMED = 100
_FAR = 3.0
"""Standard errors beyond which a number of a mechanism is said to differ."""


@dataclass(frozen=True)
class Change:
    """A number of a mechanism at a site, and at the sites that are alike."""

    of: str  # the parent of a coefficient; empty: the residual variance
    here: float
    elsewhere: float


@dataclass(frozen=True)
class Difference:
    """A mechanism that differs at a site, given parents that are all known."""

    site: str
    variable: str
    log_likelihood: float  # what parameters of its own add
    changes: tuple[Change, ...]  # those beyond chance, or the largest


@dataclass(frozen=True, eq=False)
class Experiments:
    """What was found."""

    n_open: int  # edges that the class leaves open
    n_compared: int  # of them, those whose graphs were not too many to be compared
    differences: tuple[Difference, ...]


def experiments(
    dag: Mask,
    marks: Mask,
    pag: Marks,
    S: Matrix,
    sites: Mapping[str, SiteMoments],
    *,
    variables: Sequence[str],
    units: Matrix,
    set_at: Mapping[str, frozenset[str]],
) -> tuple[Mask, tuple[Direction, ...], Experiments]:
    """A DAG of the class that has the directions told, these, and what else was found.

    Parameters
    ----------
    dag, marks, pag
        (V, V) a DAG, its class, and the partial ancestral graph, which may be (0, 0).
    S
        (V, V) pooled moments of the columns, one a variable.
    units
        (V,) units of the columns in those of the tables.
    set_at
        By site, the variables that were set there.
    """
    targets = np.array([[name in set_at.get(site, ()) for name in variables] for site in sites])
    apart = {k: frozenset(np.flatnonzero(targets[:, k]).tolist()) for k in range(len(variables))}
    mechanisms = Mechanisms(S, list(sites.values()), apart)
    found = site_directions(marks, pag, mechanisms, variables=variables, sites=tuple(sites), targets=targets)
    told = directed(marks, variables, found.told).marks
    if (dag & ~told).any():
        dag = consistent_extension(told)
    differences = tuple(_differences(told, mechanisms, variables, tuple(sites), units))
    return dag, found.told, Experiments(found.n_open, found.n_compared, differences[:_MOST_NAMED])


def _differences(
    marks: Mask, mechanisms: Mechanisms, variables: Sequence[str], sites: Sequence[str], units: Matrix
) -> Iterator[Difference]:
    """Mechanisms of variables whose parents are all known, the surest first."""
    known = np.flatnonzero(~(marks & marks.T).any(axis=0)).tolist()
    families = [family(marks, v) for v in known]
    found = mechanisms.of(families)
    least = math.log(len(sites) * max(len(variables), 1) / _LEVEL)
    surest = [
        (-float(found[one].evidence[p]), p, one)
        for one in families
        for p in np.flatnonzero(found[one].is_own & (found[one].evidence > least)).tolist()
    ]
    for _, p, one in sorted(surest):
        child, parents = one
        in_tables = units[child] / units[list(parents)], units[child : child + 1] ** 2
        changes = _changes(found[one], p, [*(variables[k] for k in parents), ""], np.concatenate(in_tables))
        yield Difference(sites[p], variables[child], float(found[one].gain[p]), tuple(changes))


def _changes(mechanism: Mechanism, p: int, of: Sequence[str], units: Matrix) -> Iterator[Change]:
    z = np.abs(np.nan_to_num(mechanism.z[p]))
    here, elsewhere = mechanism.own[p] * units, mechanism.others[p] * units
    for k in np.flatnonzero(z >= min(_FAR, float(z.max()))).tolist():
        yield Change(of[k], float(here[k]), float(elsewhere[k]))
