"""Graphs of networks whose noise variances differ, beside searches that see the rows of all sites in one place.

Every method is judged by the Markov equivalence class that it finds, the CPDAG, against that of the true graph: SHD
counts the pairs of variables whose mark differs. Data and noise come from the same seed.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from fedbnsl.errors import SetupError
from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask
from fedbnsl_research.bench.network_cases import Case, Drawn, all_cases
from fedbnsl_research.comparators.class_searches import CLASS_SEARCHES, rows_centred_by_site
from fedbnsl_research.trials.harness import Row, megabytes_sent, run_plan, timed
from fedbnsl_server.store.result_file import learned_class
from fedbnsl_workbench.scoring.evaluation import learned_graph
from fedbnsl_workbench.scoring.metrics import score

OURS = "fedbnsl"
METHODS = (OURS, *CLASS_SEARCHES)

AnyCase = TypeVar("AnyCase")
Follow = Callable[[int, int, str], None]
"""Told how many runs have ended, of how many, and what runs now."""


@dataclass(frozen=True)
class Found:
    """What one method found in the tables of one seed; `megabytes` are those of a run, None for rows in one place."""

    distance: int
    skeleton_f1: float
    seconds: float
    megabytes: float | None = None


def networks(
    cases: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] = (),
    follow: Follow = lambda done, total, what: None,
) -> Iterator[Row]:
    """One row a case, with means over the seeds for each method.

    Parameters
    ----------
    cases
        Patterns of names, as file names have them; none: all cases.
    seeds
        None: those of the case.
    methods
        Of `METHODS`; none: all.

    Raises
    ------
    SetupError
        If a pattern fits no case.
    ResultError
        If FEDBNSL_DATA does not hold a network.
    """
    chosen = named(all_cases(), cases)
    methods = methods or METHODS
    total = sum(len(case.seeds if seeds is None else seeds) for case in chosen.values())
    done = 0
    for name, case in chosen.items():
        found: dict[str, list[Found | str]] = {method: [] for method in methods}
        edges: list[int] = []
        used = case.seeds if seeds is None else seeds
        for seed in used:
            drawn = case.draw(seed)
            edges.append(int(drawn.graph.sum()))
            for method in methods:
                follow(done, total, f"{name}, seed {seed}, {method}")
                found[method].append(_run(method, case, drawn, seed))
            done += 1
        yield {
            "figure": case.title,
            "case": name,
            "seeds": " ".join(map(str, used)),
            "true edges": round(statistics.mean(edges), 1),
            **{key: value for method, results in found.items() for key, value in _means(method, results).items()},
        }
    follow(done, total, "")


def named(known: Mapping[str, AnyCase], patterns: Sequence[str]) -> dict[str, AnyCase]:
    """The cases with such names or patterns of names; none: all of them.

    Raises
    ------
    SetupError
        If a pattern fits no case.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise SetupError(
                f"--case {pattern}: no such case; choose from {', '.join(known)}, or a pattern of them, with *"
            )
    return {name: case for name, case in known.items() if not patterns or any(fnmatchcase(name, p) for p in patterns)}


def _run(method: str, case: Case, drawn: Drawn, seed: int) -> Found | str:
    """What a method found, or why it was not run."""
    if method == OURS:
        return _ours(case, drawn, seed)
    search = CLASS_SEARCHES[method]
    if why := search.not_run(len(drawn.variables)):
        return why
    seconds, marks = timed(lambda: search.classes(rows_centred_by_site(drawn.tables)))
    return _judged(marks, drawn.graph, seconds)


def _ours(case: Case, drawn: Drawn, seed: int) -> Found:
    if case.epsilon is None:
        result = run_plan(Plan.load("standard"), drawn)
    else:
        plan = Plan.load("private", epsilon=case.epsilon).with_settings(dictionary=drawn.ranges.model_dump())
        result = run_plan(plan, drawn, noise_seed=seed)
    return _judged(
        class_found(result), drawn.graph, float(result["seconds"]["total"]), megabytes_sent(result, "serialised")
    )


def _judged(marks: Mask, graph: Mask, seconds: float, megabytes: float | None = None) -> Found:
    distance = class_distance(marks, cpdag(graph))
    return Found(distance, score(marks, graph).skeleton_f1 or 0.0, seconds, megabytes)


def class_found(result: Mapping[str, Any]) -> Mask:
    """(V, V) marks of a result of the graph class cpdag; of another one, those of the class of its DAG."""
    return learned_class(result) if result.get("graph_class") == "cpdag" else cpdag(learned_graph(result))


def _means(method: str, results: Sequence[Found | str]) -> Row:
    found = [result for result in results if isinstance(result, Found)]
    if not found:
        return {f"CPDAG SHD, {method}": results[0]}
    row: Row = {
        f"CPDAG SHD, {method}": round(statistics.mean(one.distance for one in found), 2),
        f"CPDAG SHD by seed, {method}": " ".join(str(one.distance) for one in found),
        f"skeleton F1, {method}": round(statistics.mean(one.skeleton_f1 for one in found), 3),
    }
    sent = [one.megabytes for one in found if one.megabytes is not None]
    if sent:
        row[f"MB, {method}"] = float(f"{statistics.mean(sent):.3g}")
    return {**row, f"s a run, {method}": float(f"{statistics.mean(one.seconds for one in found):.3g}")}
