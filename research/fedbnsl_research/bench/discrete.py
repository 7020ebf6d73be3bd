"""Tables of categories: what counts add to moments, and what privacy takes, beside searches that see all rows."""

import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.graphs.class_members import consistent_extension
from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_research.bench.missing import lacking_cells
from fedbnsl_research.comparators.causal_learn_adapter import boss_of_categories, causal_learn_installed
from fedbnsl_research.comparators.pgmpy_adapter import hill_climbing, pgmpy_installed
from fedbnsl_research.tables.discrete import DiscreteNetwork, read_discrete
from fedbnsl_research.tables.grades import graded_network
from fedbnsl_research.trials.harness import Row, timed
from fedbnsl_server.search.counts.climb import Moves
from fedbnsl_server.search.counts.redrawn import Records
from fedbnsl_server.search.counts.score import Gains
from fedbnsl_server.store.result_file import learned_class
from fedbnsl_workbench.simulate import simulate

_NETWORKS = ("child", "sachs", "alarm", "hailfinder")
_SIZES = {"8x5000": (8, 5000), "8x1000": (8, 1000), "5x100": (5, 100)}
_SHARES = {"grades-straight": 0.0, "grades-quarter": 0.25, "grades-half": 0.5, "grades-tables": 1.0}
"""Of children that follow tables, in generated networks; the effects on all others are straight."""
_GAPS = {"": 0.0, "-gaps2": 0.02, "-gaps10": 0.1}
_USUAL = ("child-8x5000", "child-5x100", "sachs-8x5000", "sachs-5x100")
_SEEDS = range(3)
# A search on pooled rows is given up after so many seconds.
_LIMIT_S = 300.0

_PLANS = {
    "standard": Plan.load("standard").with_settings(bootstrap=0),
    "standard without counts": Plan.load("standard").with_settings(bootstrap=0, counts_rounds=0),
    "private, epsilon 1": Plan.load("private", epsilon=1.0),
    "private, epsilon 5": Plan.load("private", epsilon=5.0),
}
_OF_GAPS = ("standard", "standard without counts")
_AS_NOMINAL = "standard, as nominal"
_GRADED = {label: _PLANS[label] for label in _OF_GAPS} | {_AS_NOMINAL: _PLANS["standard"]}
# Of the noise of privacy.
_NOISE_SEED = 0

_PEERS = {
    "hill climbing, BIC": ("pgmpy", partial(hill_climbing, score="bic-d")),
    "hill climbing, BDeu": ("pgmpy", partial(hill_climbing, score="bdeu")),
    "BOSS, BIC": ("causal-learn", partial(boss_of_categories, score="bic-d")),
    "BOSS, BDeu": ("causal-learn", partial(boss_of_categories, score="bdeu")),
}
"""Searches on pooled rows, and the packages that they need."""

_Kind = Literal["nominal", "ordinal"]
Found = TypeVar("Found")
Follow = Callable[[int, int, str], None]
"""Takes how many cells are done, of how many, and what is measured now."""


class _Case(NamedTuple):
    network: str
    sites: int
    rows: int  # of each site
    gaps: float = 0.0  # share of the cells, missing completely at random
    ordinal: bool = False  # whether all variables of more than two levels are called so

    def drawn_from(self, seed: int) -> DiscreteNetwork:
        """The published network, or a generated one."""
        if self.network in _SHARES:
            return graded_network(_SHARES[self.network], np.random.default_rng((seed, 2)))
        return read_discrete(self.network)


CASES = {
    f"{name}-{label}{words}": _Case(name, *size, share)
    for name in _NETWORKS
    for label, size in _SIZES.items()
    for words, share in _GAPS.items()
}
CASES |= {
    f"{name}-{label}-ordinal": _Case(name, *size, ordinal=True) for name in _NETWORKS for label, size in _SIZES.items()
}
CASES |= {
    f"{name}-{label}": _Case(name, *size, ordinal=True)
    for name in _SHARES
    for label, size in {"8x1000": (8, 1000), "4x500": (4, 500)}.items()
}
"""By name."""


def discrete(
    cases: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] = (),
    follow: Follow = lambda done, total, what: None,
) -> Iterator[Row]:
    """Distance of classes, skeletons, bytes and seconds of `standard`, with and without counts, `private`, and peers.

    Of ordinal variables `standard` alone: as it is, without counts, and called nominal.

    Parameters
    ----------
    cases
        Names or patterns of `CASES`; empty: child and sachs, with many rows and with few.
    methods
        Names or patterns of plans and peers; empty: all.

    Raises
    ------
    ResultError
        If no case or no method has such a name, or a network is not there.
    """
    chosen = [name for name in CASES if any(fnmatch(name, pattern) for pattern in cases or _USUAL)]
    if not chosen:
        raise ResultError(f"no case is called {', '.join(cases)}", remedy=f"Choose from {', '.join(CASES)}.")
    labels = [*_PLANS, _AS_NOMINAL, *_PEERS]
    taken = [label for label in labels if any(fnmatch(label, pattern) for pattern in methods or ("*",))]
    if not taken:
        raise ResultError(f"no method is called {', '.join(methods)}", remedy=f"Choose from: {'; '.join(labels)}.")
    for done, case in enumerate(chosen):
        now = partial(_of_case, follow, done, len(chosen), case)
        yield _row(CASES[case], list(seeds or _SEEDS), taken, now)


def _of_case(follow: Follow, done: int, total: int, case: str, method: str) -> None:
    follow(done, total, f"{case}, {method}")


def _row(case: _Case, seeds: Sequence[int], methods: Sequence[str], now: Callable[[str], None]) -> Row:
    networks, gaps = [case.drawn_from(seed) for seed in seeds], case.gaps
    drawn = [
        network.tables([case.rows] * case.sites, np.random.default_rng(seed))
        for seed, network in zip(seeds, networks, strict=True)
    ]
    listed = " ".join(map(str, seeds))
    row: Row = {"figure": f"{case.network}, P={case.sites}, {case.rows} rows a site, seeds {listed}"}
    row["figure"] += ", ordinal" * case.ordinal
    if gaps:
        row["figure"] += f", {gaps:.0%} of cells missing"
        drawn = [
            lacking_cells(tables, gaps, "MCAR", np.random.default_rng((seed, 1)))
            for seed, tables in zip(seeds, drawn, strict=True)
        ]
        whole = [sum((~np.isnan(X)).all(axis=1).sum() for X in tables) for tables in drawn]
        row["rows without a gap"] = " ".join(map(str, whole))
    chosen = {label: _PLANS[label] for label in _OF_GAPS} if gaps else _GRADED if case.ordinal else _PLANS
    for label, plan in chosen.items():
        if label not in methods:
            continue
        now(label)
        kind: _Kind = "ordinal" if case.ordinal and label != _AS_NOMINAL else "nominal"
        results: list[dict[str, Any]] = []

        def found(k: int, plan: Plan = plan, kind: _Kind = kind, ended: list[dict[str, Any]] = results) -> Mask:
            ended.append(_run(networks[k], kind, drawn[k], plan))
            return learned_class(ended[-1])

        row |= _scores(label, networks, drawn, [timed(partial(found, k)) for k in range(len(seeds))])
        kilobytes = statistics.mean(result["bytes"]["up"]["serialised"] for result in results) / case.sites / 1e3
        row[f"kB up a site, {label}"] = round(kilobytes, 1)
        if case.ordinal and label == "standard":
            row["counts taken"] = " ".join("yes" if result["categories"] else "no" for result in results)
    if gaps or case.ordinal:  # of which the other searches know nothing
        return row
    there = {"pgmpy": pgmpy_installed(), "causal-learn": causal_learn_installed()}
    for label, (package, search) in _PEERS.items():
        if label not in methods:
            continue
        if not there[package]:
            row[label] = f"not run ({package} is not installed)"
            continue
        now(label)
        ended = [within(_LIMIT_S, partial(search, np.concatenate(tables))) for tables in drawn]
        row |= _scores(label, networks, drawn, ended)
        if None in ended:
            row[f"not ended in {_LIMIT_S:.0f} s, {label}"] = ended.count(None)
    return row


def within(limit_s: float, search: Callable[[], Found]) -> tuple[float, Found] | None:
    """`timed`, in a process that is ended after so many seconds; None: it was ended."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        try:
            return pool.apply_async(timed, (search,)).get(limit_s)
        except multiprocessing.TimeoutError:
            return None


def _scores(
    label: str,
    networks: Sequence[DiscreteNetwork],
    drawn: Sequence[Sequence[Matrix]],
    timings: Sequence[tuple[float, Mask] | None],
) -> Row:
    """What searches found in tables of these networks, and in how many seconds; None: not ended."""
    ended = [
        (timing, network, tables)
        for timing, network, tables in zip(timings, networks, drawn, strict=True)
        if timing is not None
    ]
    if not ended:
        return {}
    pairs = [(found, cpdag(network.graph)) for (_, found), network, _ in ended]
    above = [_above_truth(found, network, np.concatenate(tables)) for (_, found), network, tables in ended]
    return {
        f"class SHD, {label}": " ".join(str(class_distance(*pair)) for pair in pairs),
        f"skeleton F1, {label}": round(statistics.mean(_skeleton_f1(*pair) for pair in pairs), 3),
        f"score above the true graph's, {label}": " ".join(above),
        f"seconds, {label}": round(statistics.mean(seconds for (seconds, _), *_ in ended), 1),
    }


def _above_truth(found: Mask, network: DiscreteNetwork, codes: Matrix) -> str:
    """Score of counts of a class less that of the true graph, in nats; "-" where a family has too many cells."""
    whole = codes[~np.isnan(codes).any(axis=1)].astype(np.int64)
    sizes = np.array([len(levels) for levels in network.levels])
    none = np.zeros((len(sizes),) * 2, dtype=bool)
    moves = Moves(Gains(Records(list(whole.T), sizes), sizes), none, none)
    above = moves.score(consistent_extension(found)) - moves.score(network.graph)
    return str(round(above)) if np.isfinite(above) else "-"


def _skeleton_f1(found: Mask, truth: Mask) -> float:
    """Twice the pairs that both have, by the pairs of both."""
    pairs, true = np.triu(found | found.T), np.triu(truth | truth.T)
    return 2.0 * float((pairs & true).sum()) / max(float(pairs.sum() + true.sum()), 1.0)


def _run(network: DiscreteNetwork, kind: _Kind, tables: Sequence[Matrix], plan: Plan) -> dict[str, Any]:
    """What result.json holds."""
    with tempfile.TemporaryDirectory() as scratch:
        return run_of_codes(network.dictionary(kind), tables, plan, Path(scratch, "run"))


def run_of_codes(described: Dictionary, tables: Sequence[Matrix], plan: Plan, folder: Path) -> dict[str, Any]:
    """What result.json holds after a run on tables of positions of levels, a column for each entry of a dictionary."""
    plan = plan.with_dictionary(described, origin="the network").with_settings(n_participants=len(tables))
    noise_seed = None if plan.privacy is None else _NOISE_SEED
    sites = {
        f"site-{k}": Dataset.of_values(described.variables, X, origin="drawn", dictionary=described, warn=False)
        for k, X in enumerate(tables, start=1)
    }
    return simulate(plan, sites, folder, noise_seed=noise_seed)
