"""How far numbers of confidence can be believed: coverage of intervals, truth of edges by bootstrap share, time.

No plan and no setting of the bootstrap was tuned on these seeds and networks. Data and noise come from the same seed.

Coverage counts the edges whose interval has a truth to contain. An interval is one of a coefficient given the graph:
so an edge counts if its target has exactly its true parents in the DAG that was found (of lgbn.json). Calibration
counts pairs of variables, whether the graph has them or not, by the share of the draws that have them adjacent; a pair
is true if it is adjacent in the true graph. The same for directions, against the class of the true graph. Arrows of
the class that was found are counted by the share of the draws with their edge that have them: those with a majority
are shown, the others are left open; wrong is one that the class of the true graph lacks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbnsl.graphs.cpdag import cpdag
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_research.tables.published import read_network
from fedbnsl_research.trials.harness import N_SAMPLES, Row, run_plan
from fedbnsl_server.inference.draws import MAJORITY
from fedbnsl_workbench.tables.synthetic import synthesise

EPSILONS = (None, 5.0, 1.0)
"""Budgets of the private runs; None: a run of the plan `standard`."""

_COVERAGE_D, _COVERAGE_SEEDS = 20, range(60)
_NO_CURVES = "look_for_curves=false"
_NETWORKS, _NETWORK_SEEDS = ("ecoli70", "magic-niab"), range(5)
# Sites, rows of each, and the budget.
_SIZES: tuple[tuple[int, int, float | None], ...] = ((8, 1000, None), (5, 100, None), (8, N_SAMPLES, 1.0))
_TIMED_D, _TIMED_DRAWS = 50, 100
_NOISE = (0.5, 2.0)
_WITHIN = 6.0  # standard deviations on both sides of the mean that the range of a variable allows

BANDS = ((0.1, 0.5), (0.5, 0.9), (0.9, 1.0))
"""Shares of the draws, the lower end included; the last band includes its upper end."""

ARROW_BANDS = ((0.0, MAJORITY), (MAJORITY, 0.9), (0.9, 1.0))
"""The same, of the draws with an edge."""


@dataclass(frozen=True, eq=False)
class Known:
    """Tables, and what they were drawn from: (d, d) weights in their units, (d,) means and standard deviations."""

    variables: tuple[str, ...]
    tables: tuple[Matrix, ...]
    W: Matrix
    mean: Matrix
    std: Matrix

    @property
    def ranges(self) -> Dictionary:
        """What anybody knows of the variables before a table is drawn: private plans need it."""
        limits = np.stack([self.mean - _WITHIN * self.std, self.mean + _WITHIN * self.std], axis=1).tolist()
        named = {name: {"range": ends} for name, ends in zip(self.variables, limits, strict=True)}
        return Dictionary.from_plain(named, origin="the law of the tables")


def confidence() -> Iterator[Row]:
    """Coverage by budget, calibration by network and rows, and the time of the bootstrap."""
    for epsilon in EPSILONS:
        yield _coverage(epsilon)
    yield _coverage(5.0, _NO_CURVES)
    for name in _NETWORKS:
        for n_sites, n_rows, epsilon in _SIZES:
            yield _calibration(name, n_sites, n_rows, epsilon)
    yield _seconds()


def _coverage(epsilon: float | None, *settings: str) -> Row:
    drawn = [_generated(_COVERAGE_D, seed) for seed in _COVERAGE_SEEDS]
    results = [_run(data, epsilon, seed, *settings, draws=0) for data, seed in zip(drawn, _COVERAGE_SEEDS, strict=True)]
    found = [covered(result, data.W) for result, data in zip(results, drawn, strict=True)]
    inside = sum(one for one, _, _ in found)
    judged = sum(one for _, one, _ in found)
    edges = sum(one for _, _, one in found)
    return {
        "figure": f"intervals, d={_COVERAGE_D}, P=8, {N_SAMPLES} rows a site, noise sd {_NOISE[0]:g} to {_NOISE[1]:g}, "
        f"{_named(epsilon, *settings)}, seeds {_COVERAGE_SEEDS.start}..{_COVERAGE_SEEDS.stop - 1}",
        "coverage of 95 % intervals": round(inside / judged, 4) if judged else None,
        "intervals that count": judged,
        "true edges": edges,
        "edges that are none": sum(
            false_pairs(result, data.W != 0) for result, data in zip(results, drawn, strict=True)
        ),
    }


def _calibration(name: str, n_sites: int, n_rows: int, epsilon: float | None) -> Row:
    totals: dict[str, Matrix] = {"pairs": np.zeros((len(BANDS), 2)), "directions": np.zeros((len(BANDS), 2))}
    arrows: dict[str, Matrix] = {"open": np.zeros((len(ARROW_BANDS), 2)), "shown": np.zeros((len(ARROW_BANDS), 2))}
    draws = Plan.load("standard").bootstrap
    for seed in _NETWORK_SEEDS:
        data = _published(name, n_sites, n_rows, seed)
        result = _run(data, epsilon, seed, draws=draws)
        for what, counts in by_share(result, data.W != 0).items():
            totals[what] += counts
        for what, counts in arrows_by_share(result, data.W != 0).items():
            arrows[what] += counts
    row: Row = {
        "figure": f"bootstrap shares, {name}, P={n_sites}, {n_rows} rows a site, {_named(epsilon)}, {draws} draws, "
        f"seeds {_NETWORK_SEEDS.start}..{_NETWORK_SEEDS.stop - 1}"
    }
    for what, counts in totals.items():
        for (low, high), (n, true) in zip(BANDS, counts.tolist(), strict=True):
            share = f"{true / n:.3f}" if n else "none"
            row[f"{what} with share {low:g} to {high:g}: true"] = f"{share} of {n:.0f}"
    for what, counts in arrows.items():
        for (low, high), (n, wrong) in zip(ARROW_BANDS, counts.tolist(), strict=True):
            if n:
                row[f"arrows {what}, in {low:g} to {high:g} of the draws with an edge: wrong"] = (
                    f"{wrong:.0f} of {n:.0f}"
                )
    return row


def _seconds() -> Row:
    data = _generated(_TIMED_D, 0)
    with_draws, without = (_run(data, None, 0, draws=draws)["seconds"]["global"] for draws in (_TIMED_DRAWS, 0))
    return {
        "figure": f"time of {_TIMED_DRAWS} draws, d={_TIMED_D}, standard",
        "s at the coordinator, with draws": round(with_draws, 2),
        "s at the coordinator, without": round(without, 2),
    }


def covered(result: Mapping[str, Any], W: Matrix) -> tuple[int, int, int]:
    """Intervals that contain the truth, intervals that count, and true edges.

    Parameters
    ----------
    W
        (d, d) true weights, in units of the tables.
    """
    position = {name: k for k, name in enumerate(result["variables"])}
    found = np.zeros(W.shape, dtype=bool)
    intervals: dict[tuple[int, int], Sequence[float]] = {}
    for edge in result["edges"]:
        i, j = position[edge["source"]], position[edge["target"]]
        found[i, j] = True
        if edge.get("interval"):  # a run without numbers of confidence has none
            intervals[i, j] = edge["interval"]
    right = (found == (W != 0)).all(axis=0)
    judged = [(W[i, j], interval) for (i, j), interval in intervals.items() if right[j]]
    inside = sum(low <= value <= high for value, (low, high) in judged)
    return inside, len(judged), int((W != 0).sum())


def false_pairs(result: Mapping[str, Any], truth: Mask) -> int:
    """Edges between variables that the (d, d) true DAG has none between, whichever way."""
    position = {name: k for k, name in enumerate(result["variables"])}
    ends = [(position[edge["source"]], position[edge["target"]]) for edge in result["edges"]]
    return sum(not (truth[i, j] or truth[j, i]) for i, j in ends)


def by_share(result: Mapping[str, Any], truth: Mask) -> dict[str, Matrix]:
    """(bands, 2) how many pairs, and how many directions, have a share in each band, and how many of them are true.

    Parameters
    ----------
    truth
        (d, d) true DAG.
    """
    position = {name: k for k, name in enumerate(result["variables"])}
    directed = _directed(truth)
    pairs: list[tuple[float, bool]] = []
    directions: list[tuple[float, bool]] = []
    drawn = [{**edge, **edge["bootstrap"]} for edge in result["edges"] if edge.get("bootstrap")]
    for edge in [*drawn, *result["unsure"]]:
        i, j = position[edge["source"]], position[edge["target"]]
        pairs.append((edge["adjacent"], bool(truth[i, j] or truth[j, i])))
        directions += [(edge["forward"], bool(directed[i, j])), (edge["backward"], bool(directed[j, i]))]
    return {"pairs": _banded(pairs), "directions": _banded(directions)}


def arrows_by_share(result: Mapping[str, Any], truth: Mask) -> dict[str, Matrix]:
    """(bands, 2) how many arrows are left open, and how many are shown, by ARROW_BANDS, and how many of them are wrong.

    Parameters
    ----------
    truth
        (d, d) true DAG.
    """
    position = {name: k for k, name in enumerate(result["variables"])}
    directed = _directed(truth)
    arrows: dict[str, list[tuple[float, bool]]] = {"open": [], "shown": []}
    for edge in result["edges"]:
        drawn = edge.get("bootstrap")
        if not drawn or not (edge["directed"] or edge["directed_by"] == "undecided"):
            continue  # without draws, or without a direction in the class
        share = drawn["forward"] / drawn["adjacent"] if drawn["adjacent"] else 0.0
        wrong = not directed[position[edge["source"]], position[edge["target"]]]
        arrows["shown" if edge["directed"] else "open"].append((share, wrong))
    return {what: _banded(found, ARROW_BANDS) for what, found in arrows.items()}


def _directed(truth: Mask) -> Mask:
    """(d, d) the arrows of the class of a DAG."""
    marks = cpdag(truth)
    return marks & ~marks.T


def _banded(shares: Sequence[tuple[float, bool]], bands: Sequence[tuple[float, float]] = BANDS) -> Matrix:
    """(bands, 2) how many shares lie in each band, and how many of these are marked."""
    counts = np.zeros((len(bands), 2))
    for share, marked in shares:
        for k, (low, high) in enumerate(bands):
            if low <= share < high or share == high == 1.0:
                counts[k] += [1, marked]
    return counts


def _run(data: Known, epsilon: float | None, seed: int, *settings: str, draws: int) -> dict[str, Any]:
    if epsilon is None:
        plan = Plan.load("standard", settings).with_settings(bootstrap=draws)
        return run_plan(plan, data)
    plan = Plan.load("private", settings, epsilon=epsilon)
    plan = plan.with_settings(bootstrap=draws, dictionary=data.ranges.model_dump())
    return run_plan(plan, data, noise_seed=seed)


def _named(epsilon: float | None, *settings: str) -> str:
    return ", ".join(["standard" if epsilon is None else f"private, epsilon {epsilon:g}", *settings])


def _generated(d: int, seed: int) -> Known:
    drawn = synthesise(d, d, 8, N_SAMPLES, seed, noise_range=_NOISE)
    std = np.concatenate(drawn.tables).std(axis=0)
    return Known(drawn.variables, drawn.tables, drawn.W, np.zeros(d), std)


def _published(name: str, n_sites: int, n_rows: int, seed: int) -> Known:
    network = read_network(name)
    tables = tuple(network.tables((n_rows,) * n_sites, np.random.default_rng(seed)))
    return Known(network.variables, tables, network.W, network.mean, network.std)
