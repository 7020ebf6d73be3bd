"""The Sachs protein data: all methods, both splits, three reference graphs, with controls (section "Real data")."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_research.reproduce.sachs_figure import draw_sachs
from fedbnsl_research.reproduce.sachs_methods import (
    DENSE,
    DP_DENSE,
    DP_SPARSE,
    FEDERATED,
    NOTEARS,
    SPARSE,
    Central,
    Federated,
    central_methods,
)
from fedbnsl_research.reproduce.sachs_tables import sachs_tables
from fedbnsl_research.reproduce.study import Comparison, PageTable, Settings, described, mean_and_spread, select
from fedbnsl_research.tables.sachs import SachsData, federate, read_sachs, sachs_digest, sachs_folder, transformed
from fedbnsl_research.trials.harness import Row, megabytes_sent, run_plan, timed
from fedbnsl_research.trials.plan_digest import short_digest
from fedbnsl_research.trials.trials import Trial
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_workbench.pages.chart_files import Figure
from fedbnsl_workbench.scoring.evaluation import graph_of, learned_graph
from fedbnsl_workbench.scoring.metrics import empty_graph_scores, random_dag_scores, score
from fedbnsl_workbench.scoring.varsortability import varsortability

MAIN_REFERENCE = "18-cdt"
"""The edge list that the paper scores against, by its file's name."""

_SPLITS = ("shuffled", "contiguous")
_ROUNDS_LOOKED_AT = (20, 30, 50, 100, 300)
_QUICK_ROUNDS = (20, 30, 50)
_TO_TOLERANCE = 100_000
_N_RANDOM = 300

# Section "Real data".
PAPER: Mapping[str, Mapping[str, float]] = {
    SPARSE: {"edges": 18, "shd": 20, "skeleton_hits": 12},
    DENSE: {"edges": 18, "shd": 23, "skeleton_hits": 8},
    DP_SPARSE: {"shd": 21, "skeleton_hits": 11},
    DP_DENSE: {"edges": 19, "shd": 25, "skeleton_hits": 8},
    NOTEARS: {"edges": 16, "shd": 22},
}
_WORDS = {"edges": "edges", "shd": "SHD", "skeleton_hits": "skeleton hits"}


def _trials(seeds: Sequence[int], quick: bool) -> list[Trial]:
    data = sachs_digest()  # without the data, says so once and before any work
    trials: list[Trial] = [{"part": "data", "seed": seeds[0]}]
    for method, federated in FEDERATED.items():
        for split in _SPLITS:
            # Contiguous sites are the same whatever the seed: only noise would differ.
            repeated = split == "shuffled" or federated.private
            trials += [
                {"part": "federated", "method": method, "split": split, "seed": seed}
                | {"transform": federated.transform, "digest": short_digest(federated.plan)}
                for seed in (seeds if repeated else seeds[:1])
            ]
    trials += [
        {"part": "central", "method": method, "seed": seeds[0], "transform": each.transform}
        | {"settings": dict(each.settings)}
        for method, each in central_methods().items()
    ]
    rounds = list(_QUICK_ROUNDS if quick else _ROUNDS_LOOKED_AT)
    for method, steps in ((SPARSE, (10, 30, _TO_TOLERANCE) if quick else (10, 30, 100, _TO_TOLERANCE)), (DENSE, (0,))):
        trials += [
            {
                "part": "sensitivity",
                "method": method,
                "local_steps": local_steps,
                "transform": transform,
                "split": split,
                "rounds": rounds,
                "seed": seeds[0],
                "digest": short_digest(_sensitivity_plan(method, local_steps, rounds)),
            }
            for transform in ("raw", "centred", "standardised")
            for local_steps in (steps if transform != "standardised" else steps[-1:])
            for split in _SPLITS
        ]
    return [{**trial, "data": data} for trial in trials]


def _named(trial: Trial) -> Row:
    """The part of a trial that belongs in its rows: without the keys that only identify settings and data."""
    return {key: value for key, value in trial.items() if key not in ("digest", "settings", "data")}


def _sensitivity_plan(method: str, local_steps: int, rounds: Sequence[int]) -> Plan:
    """The paper's plan of a method with other local steps (0: its own), as long as the longest run looked at."""
    plan = FEDERATED[method].plan.with_settings(rounds=max(rounds))
    return plan.with_settings(local_steps=local_steps) if local_steps else plan


def _run(trial: Trial) -> list[Row]:
    data = read_sachs()
    if MAIN_REFERENCE not in data.references:
        raise ResultError(f"{sachs_folder()} lacks edges-{MAIN_REFERENCE}.csv, which the paper scores against")
    return {"data": _describe, "federated": _federated, "central": _central, "sensitivity": _sensitivity}[
        trial["part"]
    ](trial, data)


def _federated(trial: Trial, data: SachsData) -> list[Row]:
    method = FEDERATED[trial["method"]]
    federation = federate(data, seed=_split_seed(trial), transform=method.transform)
    result = run_plan(method.plan, federation, noise_seed=trial["seed"])
    known: Row = {
        **_named(trial),
        "transform": method.transform,
        "acyclicity": result["acyclicity"],
        "mb_formula": megabytes_sent(result, "formula"),
        "seconds": result["seconds"]["total"],
    }
    return [known | scored for scored in _scored(learned_graph(result), data)]


def _central(trial: Trial, data: SachsData) -> list[Row]:
    method = central_methods()[trial["method"]]
    seconds, edges = timed(lambda: method.learn(transformed(data.X, method.transform)))
    known: Row = {**_named(trial), "split": "pooled", "transform": method.transform, "seconds": seconds}
    return [known | scored for scored in _scored(edges, data)]


def _sensitivity(trial: Trial, data: SachsData) -> list[Row]:
    """One long run of the paper's settings; its graph after each of the wanted numbers of rounds."""
    known = {key: trial[key] for key in ("part", "method", "local_steps", "transform", "split", "seed")}
    plan = _sensitivity_plan(trial["method"], trial["local_steps"], trial["rounds"])
    rows: list[Row] = []

    def look(state: AdmmState) -> None:
        if state.round in trial["rounds"]:
            edges = graph_of(state.global_weights.to_dense(), plan.threshold)
            reached = {"rounds": state.round, "acyclicity": state.acyclicity}
            rows.extend(known | reached | scored for scored in _scored(edges, data, only=MAIN_REFERENCE))

    run_plan(plan, federate(data, seed=_split_seed(trial), transform=trial["transform"]), follow=look)
    return rows


def _describe(trial: Trial, data: SachsData) -> list[Row]:
    """What a reader should know of the scales: spread of the variances, and whether they give the order away."""
    rows: list[Row] = []
    for transform in ("raw", "log"):
        X = transformed(data.X, "centred" if transform == "raw" else transform)
        S = SecondMoments.of(X).S
        variances = S.diagonal()
        known: Row = {**_named(trial), "method": "data", "transform": transform}
        known["variance_ratio"] = float(variances.max() / variances.min())
        for split in _SPLITS:
            seed = _split_seed({**trial, "split": split})
            by_site = [table.var(axis=0) for table in federate(data, seed=seed, transform=transform).tables]
            ratios = [max(own) / min(own) for own in zip(*by_site, strict=True)]
            known[f"site_ratio_{split}"] = float(max(ratios))
        rows += [
            {**known, "reference": name, "varsortability": varsortability(S, edges.astype(np.float64))}
            for name, edges in data.references.items()
        ]
    return rows


def _split_seed(trial: Trial) -> int | None:
    return trial["seed"] if trial["split"] == "shuffled" else None


def _scored(edges: Mask, data: SachsData, *, only: str | None = None) -> list[Row]:
    """A row for each edge list: scores beside those of the empty graph and of random DAGs with as many edges."""
    rows: list[Row] = []
    for name, reference in data.references.items():
        if only in (None, name):
            scores = score(edges, reference)
            rows.append(
                {
                    "reference": name,
                    "edges": scores.n_edges,
                    "true_edges": scores.n_reference_edges,
                    "shd": scores.shd,
                    "skeleton_hits": scores.skeleton_hits,
                    "v_structures_common": scores.v_structures_common,
                    "v_structures_true": scores.v_structures_reference,
                    "tpr": scores.tpr,
                    "fdr": scores.fdr,
                    "empty_shd": empty_graph_scores(reference).shd,
                    **_chance(reference.tobytes(), reference.shape[0], scores.n_edges),
                }
            )
    return rows


@cache
def _chance(reference: bytes, n_variables: int, n_edges: int) -> Mapping[str, Any]:
    edges = np.frombuffer(reference, dtype=bool).reshape(n_variables, n_variables)
    drawn = random_dag_scores(edges, n_edges, n_draws=_N_RANDOM)
    return {
        f"random_{short}{suffix}": drawn[part][name]
        for short, name in (("shd", "shd"), ("hits", "skeleton_hits"))
        for part, suffix in (("mean", ""), ("std", "_std"))
    }


def _compare(rows: Sequence[Row]) -> list[Comparison]:
    comparisons: list[Comparison] = []
    for method, numbers in PAPER.items():
        scored = [row for row in select(rows, method=method) if row["part"] in ("federated", "central")]
        for split in dict.fromkeys(row["split"] for row in scored):
            own = select(scored, split=split, reference=MAIN_REFERENCE)
            chance = "; ".join(
                f"{words} {mean_and_spread(own, column)[0]:.1f}"
                for words, column in (("SHD", "random_shd"), ("hits", "random_hits"))
            )
            where = "" if split == "pooled" else f", {split} rows"
            for column, paper in numbers.items():
                what = f"{method}{where}: {_WORDS[column]}"
                note = "" if column == "edges" else f"random DAGs with as many edges: {chance}"
                comparisons.append(Comparison.of(what, own, column, paper=(paper, None), note=note))
    empty = select([row for row in rows if "empty_shd" in row], reference=MAIN_REFERENCE)[0]["empty_shd"]
    note = "no edge at all, no data used; the paper does not show it"
    return [Comparison("the empty graph: SHD", None, empty, note=note), *comparisons]


def _draw(rows: Sequence[Row]) -> Figure:
    return draw_sachs([row for row in rows if row["part"] in ("federated", "central")], MAIN_REFERENCE, PAPER)


def _tables(rows: Sequence[Row]) -> list[PageTable]:
    return sachs_tables(rows, MAIN_REFERENCE, PAPER[SPARSE])


def _settings(quick: bool) -> list[Settings]:
    methods: Mapping[str, Federated | Central] = {**FEDERATED, **central_methods()}
    return [Settings(name, {**each.settings, "columns": each.transform}, each.chosen) for name, each in methods.items()]


STUDY = described(
    "sachs",
    trials=_trials,
    run=_run,
    compare=_compare,
    draw=_draw,
    settings=_settings,
    tables=_tables,
    tuning_seeds=(),
)
