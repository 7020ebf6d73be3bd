"""What sites that send something wrong do to a graph, under each rule of consensus, and what the rules cost without."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl_client.participant import Participant
from fedbnsl_research.bench.poison import ConstantWeights, Garbage, swapped
from fedbnsl_research.trials.harness import N_SAMPLES, Row, site_datasets
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.consensus_graph import consensus_graph
from fedbnsl_server.algorithm.influence import LIMIT
from fedbnsl_server.run import round_loop
from fedbnsl_server.run.round_loop import RoundRecord
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.simulate import InProcessExchange
from fedbnsl_workbench.tables.synthetic import SyntheticFederation, synthesise

PLANS = ("lean", "fed-sparse")
RULES = ("mean", "median", "trimmed-mean")
# Sites, and how many of them send something wrong.
FEDERATIONS = ((3, 1), (8, 2))
POISONS = ("nobody", "constant weights", "garbage", "two columns swapped")
_SEEDS = range(2, 7)
_VARIABLES = 20

# How honest sites may differ: options of the tables, and whether sites have 100 to 10000 rows instead of equal ones.
HONEST: dict[str, tuple[dict[str, Any], bool]] = {
    "same distribution": ({}, False),
    "same distribution, 100 to 10000 rows": ({}, True),
    "weights apart by a variance of 0.1": ({"weight_variance": 0.1}, False),
    "the same, 100 to 10000 rows, noise variances unequal by up to 16 times": (
        {"weight_variance": 0.1, "noise_range": (0.5, 2.0)},
        True,
    ),
}
_HONEST_SITES = (3, 5, 8)
_HONEST_SEEDS = range(1000, 1100)
_FEWEST_ROWS, _MOST_ROWS = 100, 10_000


def robust() -> Iterator[Row]:
    """SHD under each rule, and how many of the wrong and of the honest sites are named."""
    for name in PLANS:
        for n_sites, n_wrong in FEDERATIONS:
            for poison in POISONS:
                yield _row(name, n_sites, n_wrong if poison != "nobody" else 0, poison)


def _row(name: str, n_sites: int, n_wrong: int, poison: str) -> Row:
    found = {rule: list[int]() for rule in RULES}
    wrong_named = honest_named = 0
    for seed in _SEEDS:
        federation = synthesise(_VARIABLES, _VARIABLES, n_sites, N_SAMPLES, seed)
        for rule in RULES:
            plan = Plan.load(name).with_settings(n_participants=n_sites, consensus=rule)
            shd, named = poisoned_run(plan, federation, n_wrong, poison)
            found[rule].append(shd)
            if rule == "mean":
                wrong = {site for site in named if int(site.rpartition("-")[2]) <= n_wrong}
                wrong_named, honest_named = wrong_named + len(wrong), honest_named + len(named - wrong)
    whole = len(_SEEDS)
    return {
        "figure": f"{name}, {n_wrong} of {n_sites} sites wrong: {poison}",
        **{f"SHD, {rule}": round(statistics.mean(shds), 1) for rule, shds in found.items()},
        **{f"SHD by seed, {rule}": " ".join(map(str, shds)) for rule, shds in found.items()},
        "wrong sites named (mean)": f"{wrong_named} of {n_wrong * whole}",
        "honest sites named (mean)": f"{honest_named} of {(n_sites - n_wrong) * whole}",
    }


def poisoned_run(plan: Plan, federation: SyntheticFederation, n_wrong: int, poison: str) -> tuple[int, set[str]]:
    """SHD of a run whose first sites are wrong, and the sites that it names."""
    variables, tables = federation.variables, site_datasets(federation)
    kinds: dict[str, Callable[..., Participant]] = {"constant weights": ConstantWeights, "garbage": Garbage}
    wrong = list(tables)[:n_wrong]
    if poison == "two columns swapped":
        for site in wrong:
            tables[site] = type(tables[site])(variables, swapped(tables[site].X, federation.W))
    participants = {
        site: (kinds.get(poison, Participant) if site in wrong else Participant)(site, table, plan)
        for site, table in tables.items()
    }
    state, records = _played(plan, variables, participants, {site: table.n_samples for site, table in tables.items()})
    graph = consensus_graph(state, plan, plan.edge_mask(variables))
    return score(graph.dag, federation.W != 0).shd, named_sites(records)


def named_sites(records: Sequence[RoundRecord]) -> set[str]:
    """Sites whose influence was above the limit in any round."""
    return {site for record in records for site, of in record.influence.items() if of.ratio > LIMIT}


def honest() -> Iterator[Row]:
    """How often honest sites are named that differ for good reasons, and the largest influence of any."""
    for n_sites in _HONEST_SITES:
        for kind, (options, unequal_rows) in HONEST.items():
            found = [_named_of_honest(n_sites, seed, options, unequal_rows) for seed in _HONEST_SEEDS]
            largest = [ratio for ratio, _ in found]
            yield {
                "figure": f"lean, {n_sites} honest sites: {kind}",
                "runs": len(largest),
                "runs with a site named": sum(ratio > LIMIT for ratio in largest),
                "largest influence": round(max(largest), 1),
                "runs with an odd site": sum(bool(odd) for _, odd in found),
            }


def _named_of_honest(n_sites: int, seed: int, options: Mapping[str, Any], unequal_rows: bool) -> tuple[float, str]:
    """The largest influence, and the one site without which all others agree; empty: there is none."""
    drawn = synthesise(_VARIABLES, _VARIABLES, n_sites, _MOST_ROWS if unequal_rows else N_SAMPLES, seed, **options)
    tables = site_datasets(drawn)
    if unequal_rows:
        rows = np.exp(np.random.default_rng(seed).uniform(np.log(_FEWEST_ROWS), np.log(_MOST_ROWS), n_sites))
        tables = {
            site: type(table)(drawn.variables, table.X[: int(n)])
            for (site, table), n in zip(tables.items(), rows, strict=True)
        }
    plan = Plan.load("lean").with_settings(n_participants=n_sites)
    participants = {site: Participant(site, table, plan) for site, table in tables.items()}
    state, records = _played(
        plan, drawn.variables, participants, {site: table.n_samples for site, table in tables.items()}
    )
    odd = "" if state.confidence is None else state.confidence.odd_site
    return max(of.ratio for record in records for of in record.influence.values()), odd


def _played(
    plan: Plan, variables: Sequence[str], participants: Mapping[str, Participant], rows: Mapping[str, int]
) -> tuple[AdmmState, list[RoundRecord]]:
    records: list[RoundRecord] = []
    state = round_loop.run(
        plan,
        variables,
        rows,
        InProcessExchange(plan, participants, run=0),
        on_round=lambda state, record: records.append(record),
    )
    return state, records
