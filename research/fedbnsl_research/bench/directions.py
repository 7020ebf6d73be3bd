"""Directions of edges that a learned class leaves open, told by something other than which variables are independent.

Tables are those of generated linear graphs over several sites, with 1.5 edges a variable. A changed mechanism has
another noise (half or twice the standard deviation), other coefficients, or both. Curves are not looked for: there are
none. A direction is right if the source acts on the target in truth, also over hidden variables.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.cpdag import class_distance
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_research.bench.generated import weights_with_hidden
from fedbnsl_research.bench.noise_directions import noise_directions
from fedbnsl_research.tables.sachs import read_sachs, sachs_folder
from fedbnsl_research.trials.harness import Row
from fedbnsl_server.store.result_file import learned_class
from fedbnsl_workbench.simulate import simulate

# Apart from those on which limits of the method were chosen (200 to 330, 400 to 409).
_NULL, _SEEDS = range(1000, 1020), range(1000, 1010)
_NOISE: Mapping[str, Callable[[np.random.Generator, tuple[int, int]], Matrix]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t3": lambda rng, shape: rng.standard_t(3, shape) / math.sqrt(3.0),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1.0,
}


class _Case(NamedTuple):
    changed: int  # mechanisms a site
    noise: str = "normal"
    hidden: int = 0  # variables
    of_hidden: bool = False  # whether mechanisms of hidden variables change, instead of those of observed ones
    variables: int = 20
    sites: int = 8
    rows: int = 1000  # of each site

    def __str__(self) -> str:
        what = f"{self.changed or 'no'} mechanism{'s' * (self.changed != 1)} changed a site"
        of = " of hidden variables" * self.of_hidden
        hidden = f", {self.hidden} hidden" * bool(self.hidden)
        graph = f"{self.variables} variables{hidden}; {self.sites} x {self.rows} rows"
        return f"sites: {what}{of}; {self.noise} noise; {graph}"


class _Truth(NamedTuple):
    acts: Mask  # (V, V) a directed path leads there
    edges: Mask  # (V, V)
    changed: tuple[frozenset[int], ...]  # variables, by site
    tables: list[Matrix]


def directions(seeds: Sequence[int] | None = None) -> Iterator[Row]:
    """Open edges of learned classes, and how many of them get a direction and a wrong one.

    `seeds`: of the graphs, in place of the usual ten, and twenty where nothing differs.
    """
    read_sachs()  # whoever lacks the data learns it before the long rows
    for noise in _NOISE:
        yield _row(_Case(0, noise), seeds or _NULL)
    for changed in (1, 2):
        for noise in _NOISE:
            yield _row(_Case(changed, noise), seeds or _SEEDS)
    for case in (
        _Case(1, rows=5000),
        _Case(2, sites=3, rows=2000),
        _Case(1, hidden=4),
        _Case(2, hidden=4),
        _Case(1, hidden=4, of_hidden=True),
    ):
        yield _row(case, seeds or _SEEDS)
    yield from noise_directions(seeds)
    yield from _sachs()


def _row(case: _Case, seeds: Sequence[int]) -> Row:
    counts = np.sum([_counts(_truth(case, np.random.default_rng(seed))) for seed in seeds], axis=0).tolist()
    n_open, identified, told, wrong = counts
    of = f"of {n_open}"
    row: Row = {"figure": f"{case}; {len(seeds)} graphs", "open edges directed": f"{told} {of}", "wrong": wrong}
    return row | ({"identified": f"{identified} {of}"} if case.changed else {})


def _counts(truth: _Truth) -> tuple[int, int, int, int]:
    """Open edges; those between whose ends a true edge leads from what differs at a site to what does not; told; wrong.

    What follows from these by Meek's rules is not counted among them, but is among those that are told.
    """
    result = _run(truth.tables)
    place = {name: k for k, name in enumerate(result["variables"])}
    ends = [(place[one["source"]], place[one["target"]], one["directed_by"]) for one in result["edges"]]
    among = [(i, j, by) for i, j, by in ends if by in ("nobody", "sites")]
    moved = [(i, j) for i, j in np.argwhere(truth.edges).tolist() if any(i in c and j not in c for c in truth.changed)]
    identified = sum((i, j) in moved or (j, i) in moved for i, j, _ in among)
    told = [(i, j) for i, j, by in among if by == "sites"]
    return len(among), identified, len(told), sum(not truth.acts[i, j] for i, j in told)


def _truth(case: _Case, rng: np.random.Generator) -> _Truth:
    d, n = case.variables, case.variables + case.hidden
    W = weights_with_hidden(d, case.hidden, rng)
    spread = np.sqrt(rng.uniform(0.5, 1.5, n))
    among = np.arange(d, n) if case.of_hidden else np.arange(d)
    tables: list[Matrix] = []
    changed: list[frozenset[int]] = []
    for _ in range(case.sites):
        here, noise = W.copy(), spread.copy()
        nodes: list[int] = rng.choice(among, case.changed, replace=False).tolist()
        for v in nodes:
            parents = np.flatnonzero(W[:, v])
            kind = int(rng.integers(3)) if parents.size else 0
            if kind != 1:
                noise[v] *= rng.choice([0.5, 2.0])
            if kind:
                here[parents, v] *= rng.choice([0.0, -0.5, 0.4], parents.size)
        E = _NOISE[case.noise](rng, (case.rows, n)) * noise
        tables.append((E @ np.linalg.inv(np.eye(n) - here))[:, :d])
        changed.append(frozenset(nodes))
    dag = W != 0.0
    return _Truth(arrows_lead(dag)[:d, :d], dag[:d, :d], tuple(changed), tables)


def _run(tables: Sequence[Matrix], **settings: Any) -> dict[str, Any]:
    apart = {"look_for_curves": False, "look_at_noise": False, "bootstrap": 0}
    plan = Plan.load("standard").with_settings(n_participants=len(tables), **apart, **settings)
    sites = {site: rows_for(one, plan) for site, one in site_tables(list(tables)).items()}
    with TemporaryDirectory() as scratch:
        return simulate(plan, sites, Path(scratch, "run"))


def _sachs() -> Iterator[Row]:
    """Logarithms of the proteins, with the nine conditions as sites: the class with what sites tell, and without."""
    data = read_sachs()
    prepared = {**Plan.load("standard").model_dump(mode="json")["preparation"], "outlying": "keep"}
    result = _run([np.log(data.X[rows]) for rows in _conditions()], preparation=prepared)
    names = [f"X{k + 1}" for k in range(len(data.variables))]
    with_sites, ends = learned_class(result), [(e["source"], e["target"], e["directed_by"]) for e in result["edges"]]
    told = [(names.index(a), names.index(b)) for a, b, by in ends if by == "sites"]
    without = with_sites.copy()
    for i, j in told:
        without[j, i] = True
    n_open = sum(by in ("nobody", "sites") for _, _, by in ends)
    for reference, edges in data.references.items():
        yield {
            "figure": f"sites: Sachs, nine conditions, reference {reference} ({int(edges.sum())} edges)",
            "open edges directed": f"{len(told)} of {n_open}",
            "of them as in the reference": sum(bool(edges[i, j]) for i, j in told),
            "the other way there": sum(bool(edges[j, i]) for i, j in told),
            "pairs that differ, with sites": class_distance(with_sites, edges),
            "without": class_distance(without, edges),
            "of the empty graph": class_distance(np.zeros_like(edges), edges),
        }


def _conditions() -> list[slice]:
    path = sachs_folder() / "conditions.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [slice(int(row["first_row"]), int(row["last_row"]) + 1) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError) as error:
        raise ResultError(f"{path} cannot be read as ranges of rows: {error}") from None
