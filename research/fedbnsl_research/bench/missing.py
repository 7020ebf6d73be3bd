"""Values that sites do not have: what `standard` finds by EM with cells or whole columns missing, and what EM costs.

Generated tables. Cells are missing completely at random (MCAR), or at random (MAR): a quarter of the variables are
complete, and each of the others is missing the more often, the greater one of these is. Complete cases are the same
plan without EM, which leaves out rows with a gap; it is refused where a site has too few rows left.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

from fedbnsl.errors import DataError
from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask, Knowledge
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl.rounds import completion
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.mapped_array import sum_over_rows
from fedbnsl_client.data.site_files import site_files
from fedbnsl_client.losses.completed import Patterns
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_research.bench.confidence import covered
from fedbnsl_research.bench.network_cases import published
from fedbnsl_research.bench.networks import class_found
from fedbnsl_research.trials.harness import Row, timed
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.inference.missing_values import differences_of_means
from fedbnsl_server.search.class_search import ClassProblem
from fedbnsl_server.search.score import extended_penalty
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.folder import described_by, read_tables
from fedbnsl_workbench.tables.hospital import ROWS, Trouble, draw, write_hospitals
from fedbnsl_workbench.tables.synthetic import SyntheticFederation, synthesise

_SITES, _ROWS, _NOISE = 8, 1000, (0.5, 2.0)
_SEEDS = {(20, _ROWS): range(10), (50, _ROWS): range(1), (20, 5000): range(3)}  # by variables and rows of a site
_SHARES, _WAYS = (0.1, 0.2, 0.3), ("MCAR", "MAR")
_OF_ABSENT, _ABSENT, _SEEDS_OF_ABSENT = 12, (0.1, 0.3, 0.5), range(10)
_NETWORKS, _ABSENT_OF_NETWORKS, _SEEDS_OF_NETWORKS = ("ecoli70", "magic-niab"), 1 / 3, range(10)
_MIXED: tuple[Trouble, ...] = ("means", "units", "binary", "ordinal", "nominal", "count")
_MIXED_SHARE, _SEEDS_OF_MIXED = 0.2, range(10)
_TABLES, _ROWS_OF_ALARMS, _SLOPES = 200, 300, (0.0, 0.2, 0.4)
_TIMED, _TURNS = ((10**6, 20, 30), (10**6, 20, 3000), (2000, 150, 2000)), 3  # rows, columns, patterns


def missing(seeds: Sequence[int] | None = None) -> Iterator[Row]:
    """Accuracy by share and way of missing cells, by share of missing columns, and the time of an iteration of EM.

    `seeds`: of the graphs, in place of the usual ones.
    """
    for (d, n_rows), usual in _SEEDS.items():
        drawn = {seed: _drawn(d, n_rows, seed) for seed in seeds or usual}
        yield _cells(drawn, 0.0, "MCAR")
        for way in _WAYS:
            for share in _SHARES:
                yield _cells(drawn, share, way)
    few = {seed: _drawn(_OF_ABSENT, _ROWS, seed) for seed in seeds or _SEEDS_OF_ABSENT}
    for share in (0.0, *_ABSENT):
        yield _columns(f"{_OF_ABSENT} variables", {seed: (one.tables, one.W != 0) for seed, one in few.items()}, share)
    for share in (0.0, _MIXED_SHARE):
        yield _mixed(seeds or _SEEDS_OF_MIXED, share)
    for n_patterns in (30, None):
        yield _alarms(n_patterns)
    for size in _TIMED:
        yield _seconds(*size)
    for name in _NETWORKS:
        known = {seed: published(seed, name=name, size=(_SITES, _ROWS)) for seed in seeds or _SEEDS_OF_NETWORKS}
        for share in (0.0, _ABSENT_OF_NETWORKS):
            yield _columns(name, {seed: (one.tables, one.graph) for seed, one in known.items()}, share)


def lacking_cells(tables: Sequence[Matrix], share: float, way: str, rng: np.random.Generator) -> list[Matrix]:
    """(n, d) tables with this share of their cells missing, NaN in the gaps."""
    d = tables[0].shape[1]
    order = rng.permutation(d)
    whole, others = (order[: d // 4], order[d // 4 :]) if way == "MAR" else (order[:0], order)
    causes = rng.choice(whole, len(others)) if whole.size else others
    found: list[Matrix] = []
    for X in tables:
        rank = (np.argsort(np.argsort(X, axis=0), axis=0) + 0.5) / len(X)
        chance = (
            np.full((len(X), len(others)), share) if way == "MCAR" else 2.0 * share * d / len(others) * rank[:, causes]
        )
        gaps = np.zeros(X.shape, dtype=bool)
        gaps[:, others] = rng.random(chance.shape) < chance
        found.append(np.where(gaps, np.nan, X))
    return found


def lacking_columns(n_sites: int, d: int, share: float, rng: np.random.Generator) -> Mask:
    """(n_sites, d) which variables a site does not have: some site has each, and each site at least two."""
    lacks = np.arange(n_sites * d) < round(share * n_sites * d)
    while True:
        found = rng.permutation(lacks).reshape(n_sites, d)
        if not found.all(axis=0).any() and ((~found).sum(axis=1) >= 2).all():
            return found


def _drawn(d: int, n_rows: int, seed: int) -> SyntheticFederation:
    return synthesise(d, d, _SITES, n_rows, seed, noise_range=_NOISE)


def _cells(drawn: Mapping[int, SyntheticFederation], share: float, way: str) -> Row:
    plan = Plan.load("standard")
    without_em = plan.with_settings(preparation={"missing": "complete-cases", "missing_most": 1.0})
    by_em, complete, rows, counts = list[Row](), list[Row](), list[float](), np.zeros(3, dtype=np.int64)
    biased = 0
    for seed, one in drawn.items():
        tables = lacking_cells(one.tables, share, way, np.random.default_rng((seed, 1)))
        rows.append(float(np.mean([(~np.isnan(X)).all(axis=1).sum() for X in tables])))
        result = _learned(plan, site_tables(tables))
        by_em.append(_judged(result, one.W != 0))
        counts += covered(result, one.W)
        if share:
            biased += bool(result["gaps"]["differ"])
            try:
                complete.append(_judged(_learned(without_em, site_tables(tables)), one.W != 0))
            except DataError:
                continue
    inside, judged, edges = counts.tolist()
    example = next(iter(drawn.values()))
    row: Row = {
        "figure": f"{len(example.variables)} variables, {_SITES} x {len(example.tables[0])} rows, {share:.0%} of "
        f"cells missing{f' ({way})' if share else ''}, graphs of seeds {_listed(drawn)}",
        **_means(by_em, "skeleton F1", "CPDAG SHD", "rounds of EM", "MB of EM"),
        "95 % intervals that hold": f"{inside} of {judged} ({edges} true edges)",
    }
    if not share:
        return row
    row["complete cases called biased"] = f"{biased} of {len(by_em)}"
    row["complete rows a site"] = round(statistics.mean(rows), 1)
    row["complete cases refused"] = f"{len(by_em) - len(complete)} of {len(by_em)}"
    found = _means(complete, "skeleton F1", "CPDAG SHD") if complete else {}
    return row | {f"{name}, complete cases": value for name, value in found.items()}


def _columns(name: str, drawn: Mapping[int, tuple[Sequence[Matrix], Mask]], share: float) -> Row:
    judged, of_whole = list[Row](), list[float]()
    for seed, (whole, truth) in drawn.items():
        lacks = lacking_columns(_SITES, len(truth), share, np.random.default_rng((seed, 2)))
        tables = [np.where(gone, np.nan, X) for gone, X in zip(lacks, whole, strict=True)]
        judged.append(_judged(_learned(Plan.load("standard"), site_tables(tables)), truth))
        of_whole.append(_of_whole_tables(whole, ~lacks, truth))
    return {
        "figure": f"{name}, {_SITES} x {_ROWS} rows, {share:.0%} of (site, variable) missing, graphs "
        f"of seeds {_listed(drawn)}",
        **_means(
            judged, "skeleton F1", "CPDAG SHD", "false pairs", "lost pairs", "pairs never together", "rounds of EM"
        ),
        "skeleton F1 of whole tables without edges there": float(f"{statistics.mean(of_whole):.3g}"),
    }


def _of_whole_tables(tables: Sequence[Matrix], seen: Mask, truth: Mask) -> float:
    """Skeleton F1 where nothing is missing, but pairs that no site has together get no edge either."""
    d, centred = len(truth), np.concatenate([X - X.mean(axis=0) for X in tables])
    scaled = centred / centred.std(axis=0)
    found = ClassProblem(
        scaled.T @ scaled / len(scaled),
        (seen.T.astype(np.int64) @ seen.astype(np.int64) > 0) & ~np.eye(d, dtype=bool),
        EdgeMask(Knowledge(), [str(k) for k in range(d)]),
        extended_penalty(len(scaled), d),
        Plan.load("standard").threshold,
        seed=0,
    ).found()
    return score(cpdag(found.dag), truth).skeleton_f1 or 0.0


def _alarms(n_patterns: int | None) -> Row:
    """How often rows without a gap are called a biased sample where they are none, and where they are a little.

    `n_patterns`: of gaps, at a site; None: each cell by itself, so that nearly every row has a pattern of its own.
    """
    alarms = dict.fromkeys(_SLOPES, 0)
    for seed in range(_TABLES):
        rng = np.random.default_rng((seed, 3))
        one = synthesise(_OF_ABSENT, _OF_ABSENT, _SITES, _ROWS_OF_ALARMS, seed, noise_range=_NOISE)
        for slope in _SLOPES:
            differences, n_pairs = dict[str, Matrix](), dict[str, Matrix]()
            for k, X in enumerate(one.tables):
                if n_patterns is None:
                    gaps = rng.random(X.shape) < 0.2
                else:
                    gaps = (rng.random((n_patterns, _OF_ABSENT)) < 0.2)[rng.integers(0, n_patterns, len(X))]
                z = (X[:, 0] - X[:, 0].mean()) / X[:, 0].std()
                gaps[:, 1] = rng.random(len(X)) < 0.2 * (1.0 + slope * np.sign(z))
                gaps[:, 0] = False
                patterns = Patterns.of(np.where(gaps, np.nan, X))
                differences[str(k)], n_pairs[str(k)] = (
                    patterns.mean_differences(completion.LEAST_ROWS),
                    patterns.pair_counts,
                )
            told = Completion(n_pairs, differences=differences)
            alarms[slope] += bool(
                (differences_of_means(told, Columns.of(one.variables), completion.LEAST_ROWS)[1] < 0.05).any()
            )
    return {
        "figure": f"test of values missing completely at random, {_SITES} x {_ROWS_OF_ALARMS} rows, {_OF_ABSENT} "
        f"variables, {'gaps of their own in each row' if n_patterns is None else f'{n_patterns} patterns a site'}",
        **{
            f"alarms, {'none' if not slope else f'{slope:.0%} more or fewer'} by another variable": f"{n} of {_TABLES}"
            for slope, n in alarms.items()
        },
    }


def _seconds(n: int, d: int, n_patterns: int) -> Row:
    """Seconds of the fastest of some turns, in units of a pass that sums second moments of rows without gaps."""
    rng = np.random.default_rng(n_patterns)
    seen = np.ones((1, d), dtype=bool)
    while len(seen) < n_patterns:
        seen = np.unique(np.concatenate([seen, rng.random((n_patterns, d)) >= 0.2]), axis=0)
        seen = seen[seen.any(axis=1)]
    X = rng.standard_normal((n, d))
    gappy = np.where(rng.permutation(seen)[:n_patterns][rng.permutation(n) % n_patterns], X, np.nan)
    centre, scale, by = X.mean(axis=0), X.std(axis=0), Covariances(np.eye(d), np.empty(0))

    def patterns() -> Patterns:  # as a site does it once a run, in blocks of rows
        of_blocks = sum_over_rows(gappy, lambda block: np.array([Patterns.of((block - centre) / scale)]))
        return cast(Patterns, of_blocks[0])

    found = patterns()
    moments, grouping, step = (
        min(timed(work)[0] for _ in range(_TURNS))
        for work in (
            lambda: SecondMoments.of(X, centre, scale),
            patterns,
            lambda: found.completed(by, own_means=True),
        )
    )
    return {
        "figure": f"time of EM at a site, {n} rows, {d} columns, {n_patterns} patterns",
        "grouping rows by pattern, once / a pass of moments": float(f"{grouping / moments:.2g}"),
        "an iteration / a pass of moments": float(f"{step / moments:.2g}"),
        "s of a pass of moments": float(f"{moments:.2g}"),
    }


def _mixed(seeds: Sequence[int], share: float) -> Row:
    judged = list[Row]()
    for seed in seeds:
        drawn, rng = draw(seed, _MIXED), np.random.default_rng((seed, 3))
        sites = [
            replace(site, rows=[["NA" if rng.random() < share else cell for cell in row] for row in site.rows])
            for site in drawn.sites
        ]
        with TemporaryDirectory() as scratch:
            folder = Path(scratch, "data")
            write_hospitals(replace(drawn, sites=tuple(sites)), folder)
            plan = described_by(Plan.load("standard"), folder)
            tables = read_tables(site_files(folder), plan.variables, dictionary=plan.dictionary, warn=False)
            judged.append(_judged(_learned(plan, tables), drawn.W != 0))
    return {
        "figure": f"mixed tables of {len(ROWS)} hospitals, {' + '.join(map(str, ROWS))} rows, {share:.0%} of cells "
        f"missing, graphs of seeds {_listed(seeds)}",
        **_means(judged, "skeleton F1", "CPDAG SHD", "false pairs", "lost pairs", "rounds of EM"),
    }


def _learned(plan: Plan, tables: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan finds, without the bootstrap, which takes most of the time and changes no graph."""
    plan = plan.with_settings(n_participants=len(tables), bootstrap=0)
    with TemporaryDirectory() as scratch:
        return simulate(plan, tables, Path(scratch, "run"))


def _judged(result: Mapping[str, Any], truth: Mask) -> Row:
    marks = class_found(result)
    em = [entry for entry in result["rounds"] if entry["kind"] == completion.Task(None).kind]
    sent = sum(way["serialised"] for entry in em for site in entry["bytes"].values() for way in site.values())
    more, less = (np.triu((one | one.T) & ~(other | other.T)) for one, other in ((marks, truth), (truth, marks)))
    return {
        "skeleton F1": score(marks, truth).skeleton_f1 or 0.0,
        "false pairs": more.sum(),
        "lost pairs": less.sum(),
        "CPDAG SHD": class_distance(marks, cpdag(truth)),
        "rounds of EM": len(em),
        "MB of EM": sent / 1e6,
        "pairs never together": len((result["gaps"] or {"never_together": ()})["never_together"]),
    }


def _means(rows: Sequence[Row], *names: str) -> Row:
    return {name: float(f"{statistics.mean(float(row[name]) for row in rows):.3g}") for name in names}


def _listed(seeds: Iterable[int]) -> str:
    return " ".join(map(str, seeds))
