"""Graphs with hubs and unequal noise: what the default plan, `fed-sparse` and `standard` find, send and compute.

The graphs are Barabasi-Albert graphs, in which a few variables have many neighbours. Noise variances differ, so that
the data tell no more than the class of the graph: beside the usual SHD there is the distance between classes. Of these
plans, `standard` alone does not take noise variances to be equal.
"""

import statistics
import time
from collections.abc import Iterator

import networkx as nx
import numpy as np

from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.ready_files import DEFAULT_PLAN
from fedbnsl.protocol.sparse import Mask
from fedbnsl_research.bench.networks import class_found
from fedbnsl_research.trials.harness import Row, by_seed, run_plan, run_row
from fedbnsl_workbench.tables.synthetic import SyntheticFederation, edge_weights, sample, variable_names

# By m, the neighbours of a new node; with two, a run of standard takes minutes.
PLANS = {1: (DEFAULT_PLAN, "fed-sparse", "standard"), 2: (DEFAULT_PLAN, "fed-sparse")}
VARIABLES = 300
N_SITES = 8
ROWS = 1000
NOISE = (0.5, 2.0)
SEEDS = range(3)  # no plan was tuned on them

_MEANS = (
    ("MB serialised", "mb_serialised"),
    ("s of the processor, a run", "processor"),
    ("s of the processor, its last round", "last_round"),
)


def hubs() -> Iterator[Row]:
    """A row for each kind of graph and plan; all plans see the same tables."""
    for name in {name for names in PLANS.values() for name in names}:
        _run(_plan(name), federation(1, seed=100, n_variables=10, n_samples=50))  # compiles
    for m, names in PLANS.items():
        drawn = [federation(m, seed=seed) for seed in SEEDS]
        edges = statistics.mean(int(np.count_nonzero(one.W)) for one in drawn)
        title = f"Barabasi-Albert, d={VARIABLES}, m={m}, P={N_SITES}, {ROWS} rows a site, noise sd 0.5 to 2"
        for name in names:
            rows = [_run(_plan(name), one) for one in drawn]
            yield {
                "figure": f"{title}, plan {name}",
                "seeds": f"{SEEDS.start}..{SEEDS.stop - 1}",
                "true edges": round(edges, 1),
                "SHD by seed": by_seed(rows, "shd"),
                "CPDAG SHD by seed": by_seed(rows, "class_shd"),
                **{what: float(f"{statistics.mean(float(row[of]) for row in rows):.3g}") for what, of in _MEANS},
            }


def federation(m: int, *, seed: int, n_variables: int = VARIABLES, n_samples: int = ROWS) -> SyntheticFederation:
    """Tables of a graph in which every new node has m neighbours, preferably those that have many already."""
    rng = np.random.default_rng(seed)
    W = edge_weights(hub_graph(n_variables, m, rng, seed=seed), rng)
    noise_std = rng.uniform(*NOISE, n_variables)
    tables = tuple(sample(W, n_samples, rng, noise_std=noise_std) for _ in range(N_SITES))
    return SyntheticFederation(variable_names(n_variables), W, tables, (W,) * N_SITES)


def hub_graph(n_variables: int, m: int, rng: np.random.Generator, *, seed: int) -> Mask:
    """(d, d) Barabasi-Albert graph; an edge goes from the node that is earlier in a random order to the later one."""
    place = rng.permutation(n_variables)
    edges = np.zeros((n_variables, n_variables), dtype=bool)
    drawn: nx.Graph[int] = nx.barabasi_albert_graph(n_variables, m, seed=seed)  # pyright: ignore[reportUnknownMemberType]
    for pair in drawn.edges:
        source, target = sorted(pair, key=lambda node: place[node])
        edges[source, target] = True
    return edges


def _plan(name: str) -> Plan:
    """Without the bootstrap, which takes most of a run's time and changes no graph."""
    return Plan.load(name).with_settings(bootstrap=0)


def _run(plan: Plan, drawn: SyntheticFederation) -> Row:
    """Accuracy and bytes of a run, and seconds of the processor: of all of it, and of its last round.

    The last round is the search where the plan has one (the sites know their moments by then), otherwise the refit.
    """
    marks = [time.process_time()]
    result = run_plan(plan, drawn, follow=lambda state: marks.append(time.process_time()))
    return {
        **run_row(result, drawn),
        "class_shd": class_distance(class_found(result), cpdag(drawn.W != 0)),
        "processor": time.process_time() - marks[0],
        "last_round": marks[-1] - marks[-2],
    }
