"""Rows that belong together: wrong arrows and intervals by what is made of visits, and what lags find in a series.

At the end private runs that protect persons, by how many rows each has.

Generated tables. Repeated visits: patients differ by a share (ICC) of each noise variance that stays over their visits;
it is the same for all variables, or each has one of its own. With a drift, variables also rise or fall by the visit.
`lagged`: each variable depends on itself one visit before, a few on another one before, and on others at the visit.

Intervals of 95 % count where they have a truth to contain: of weights where the target has its true parents, of total
effects where the class has the true graph and gives one effect.
"""

import statistics
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.cpdag import class_distance, cpdag
from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_research.bench.confidence import covered
from fedbnsl_research.bench.networks import class_found
from fedbnsl_research.tables.published import read_network as read_published
from fedbnsl_research.trials.harness import Row
from fedbnsl_server.inference.effects import total_effects
from fedbnsl_server.results.learned_network import LearnedNetwork, read_network
from fedbnsl_workbench.scoring.metrics import score
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import random_weights, sample

_SITES, _SEEDS = 8, range(3)
_PATIENTS, _VISITS, _VARIABLES = 100, 10, 20
_PATIENT = np.repeat(np.arange(float(_PATIENTS)), _VISITS)
_TABLES = f"{_SITES} x {_PATIENTS} patients x {_VISITS} visits"
_WIDTH = 1.96
_ICCS = (0.5, 0.9)
_UNEQUAL = (0.0, 0.95)  # each variable has one of its own
_WAYS: dict[str, dict[str, Any]] = {
    "independent": {},
    "rows": {"within": "rows"},
    "between": {"within": "between"},
    "within": {"within": "within"},
}
_NAMES = {
    "independent": "as if independent", "rows": "rows of groups", "between": "between", "within": "within"
}  # fmt: skip
_DRIFTING = (6, _VARIABLES)
_SLOPES = (0.05, 0.2)  # of noise by visit, in units of its standard deviation; up or down

_SERIES, _LENGTH, _OF_SERIES = 5, 20, 10
_AUTOCORRELATION, _SEEDS_OF_SERIES = 0.9, range(10)
_LAGGED_EDGES = 6

# By network, persons a site: with one row each, a few pairs of variables are wrong.
_PERSONS = {"er20": 2000, "ecoli70": 5000}
_ROWS_OF_PERSONS, _EPSILON, _SEEDS_OF_PERSONS = (1, 3, 10), 1.0, range(5)
_NOISE, _WITHIN = (0.5, 2.0), 6.0  # standard deviations of noise; of variables, in a range on both sides of the mean


def groups() -> Iterator[Row]:
    """Wrong arrows and intervals over repeated visits by what is made of them; recall and precision of lags.

    Then what private runs find of persons with several rows each. Raises ResultError if FEDBNSL_DATA lacks a network.
    """
    for icc in _ICCS:
        yield _repeated(f"ICC {icc:g}", (icc, icc))
    yield _repeated(f"ICC {_UNEQUAL[0]:g} to {_UNEQUAL[1]:g}", _UNEQUAL)
    for n_drifting in _DRIFTING:
        yield _drifting(n_drifting)
    yield _lagged()
    for name, n_persons in _PERSONS.items():
        for n_rows in _ROWS_OF_PERSONS:
            yield _private(name, n_persons, n_rows)


def visits(
    W: Matrix,
    icc: Matrix,
    rng: np.random.Generator,
    slopes: Matrix | float = 0.0,
    *,
    size: tuple[int, int] = (_PATIENTS, _VISITS),
    noise_std: Matrix | float = 1.0,
) -> Matrix:
    """(patients x visits, d) rows, those of a patient after each other.

    Parameters
    ----------
    icc
        (d,) of the noise of each variable.
    slopes
        (d,) by which it rises from one visit to the next.
    size
        Patients and visits.
    noise_std
        (d,) of the noise of each variable.
    """
    patients, n_visits = size
    lasting = np.repeat(sample(W, patients, rng), n_visits, axis=0)
    A, visit = np.eye(len(W)) - W, np.tile(np.arange(float(n_visits)), patients)
    noise = np.sqrt(icc) * (lasting @ A) + np.sqrt(1.0 - icc) * (sample(W, len(lasting), rng) @ A)
    noise *= noise_std
    return np.asarray((noise + visit[:, None] * slopes) @ np.linalg.inv(A))


def _repeated(name: str, iccs: tuple[float, float]) -> Row:
    found = dict.fromkeys(_WAYS, _Judged())
    for seed in _SEEDS:
        rng = np.random.default_rng(seed)
        W = random_weights(_VARIABLES, _VARIABLES, rng, size=0.5)
        icc = rng.uniform(*iccs, _VARIABLES)
        tables = [visits(W, icc, rng) for _ in range(_SITES)]
        for way, entry in _WAYS.items():
            keys: dict[str, dict[str, Any]] = {"patient": {"kind": "group", **entry}} if entry else {}
            keyed = [np.column_stack([X, _PATIENT]) if entry else X for X in tables]
            found[way] += _judged(keyed, keys, W)
    row: Row = {"figure": f"repeated visits, {name}: {_TABLES}"}
    for way, judged in found.items():
        row |= judged.told(_NAMES[way])
    return row


def _drifting(n_drifting: int) -> Row:
    found = {"time is no variable": _Judged(), "trend = true": _Judged()}
    for seed in _SEEDS:
        rng = np.random.default_rng(seed)
        W, slopes = random_weights(_VARIABLES, _VARIABLES, rng, size=0.5), np.zeros(_VARIABLES)
        drifts = rng.choice(_VARIABLES, n_drifting, replace=False)
        slopes[drifts] = rng.uniform(*_SLOPES, n_drifting) * rng.choice([-1.0, 1.0], n_drifting)
        tables = [visits(W, np.full(_VARIABLES, _ICCS[0]), rng, slopes) for _ in range(_SITES)]
        visit = np.tile(np.arange(float(_VISITS)), _PATIENTS)
        keyed = [np.column_stack([X, _PATIENT, visit]) for X in tables]
        for way, trend in zip(found, (False, True), strict=True):
            keys: dict[str, dict[str, Any]] = {
                "patient": {"kind": "group", "within": "rows"},
                "visit": {"kind": "time", "trend": trend},
            }
            found[way] += _judged(keyed, keys, W)
    row: Row = {"figure": f"rows of groups, ICC {_ICCS[0]:g}, of which {n_drifting} variables drift: {_TABLES}"}
    for way, judged in found.items():
        row |= judged.told(way)
    return row


class _Judged(NamedTuple):
    """Sums over graphs."""

    wrong: int = 0
    arrows: int = 0
    pairs_off: int = 0  # that are in one of the graphs only
    weights_held: int = 0
    weights: int = 0
    effects_held: int = 0
    effects: int = 0

    def __add__(self, other: tuple[Any, ...]) -> "_Judged":  # not those of a tuple
        return _Judged(*(one + another for one, another in zip(self, other, strict=True)))

    def told(self, way: str) -> Row:
        """As figures."""
        return {
            f"wrong of arrows, {way}": f"{self.wrong} of {self.arrows}",
            f"wrong pairs, {way}": self.pairs_off,
            f"weights in their intervals, {way}": f"{self.weights_held} of {self.weights}",
            f"effects in their intervals, {way}": f"{self.effects_held} of {self.effects}",
        }


def _judged(tables: list[Matrix], keys: dict[str, dict[str, Any]], W: Matrix) -> _Judged:
    """What is learned of tables of visits: the variables, in the order of W, and behind them the keys."""
    with TemporaryDirectory() as scratch:
        result, marks = _learned(tables, keys, Path(scratch, "run"))
        d = len(W)
        wrong, arrows, pairs_off = _counts(marks[:d, :d], W != 0).tolist()
        beside = [name for name in result["variables"] if name not in _names(d)]
        inside, weights, _ = covered({**result, **_without(result, beside)}, W)
        network = read_network(Path(scratch, "run"))
    wrong_way = marks[:d, :d] & ~marks[:d, :d].T & (W == 0)
    effects = _effects(network, W) if not pairs_off and not wrong_way.any() else (0, 0)
    return _Judged(wrong, arrows, pairs_off, inside, weights, *effects)


def _without(result: dict[str, Any], left_out: list[str]) -> dict[str, Any]:
    """Variables and edges without some variables, which nothing causes."""
    return {
        "variables": [name for name in result["variables"] if name not in left_out],
        "edges": [edge for edge in result["edges"] if edge["source"] not in left_out],
    }


def _effects(network: LearnedNetwork, W: Matrix) -> tuple[int, int]:
    """Intervals of total effects that hold the truth, and intervals, of a right class."""
    true, held, told = np.linalg.inv(np.eye(len(W)) - W), 0, 0
    for i, j in permutations(range(len(W)), 2):
        one, *others = total_effects(network.covariance, network.marks, [i], j, network.columns, network.precision)
        if others or one.standard_error is None or not one.standard_error[0, 0] > 0.0:
            continue
        told += 1
        held += bool(abs(one.value[0, 0] - true[i, j]) <= _WIDTH * one.standard_error[0, 0])
    return held, told


def _counts(marks: Mask, truth: Mask) -> np.ndarray:
    """Arrows whose source is no ancestor of their target, arrows, and pairs that are in one of the graphs only."""
    arrows, leads = marks & ~marks.T, arrows_lead(truth)
    off = np.triu((marks | marks.T) != (truth | truth.T)).sum()
    return np.array([(arrows & ~leads).sum(), arrows.sum(), off])


class Series(NamedTuple):
    """A process that generates series: x_t = x_t B + x_{t-1} A + noise."""

    A: Matrix  # (d, d) [i, j]: of i one visit before on j
    B: Matrix  # (d, d) of a DAG

    @classmethod
    def random(cls, rng: np.random.Generator) -> "Series":
        """Lagged edges follow the order of the DAG, so that no series grows."""
        B = random_weights(_OF_SERIES, _OF_SERIES, rng, size=0.2)
        order = topological_order(B != 0)
        A = np.diag(np.full(_OF_SERIES, _AUTOCORRELATION))
        for _ in range(_LAGGED_EDGES):
            i, j = sorted(rng.choice(_OF_SERIES, 2, replace=False).tolist())
            A[order[i], order[j]] = 0.15 * rng.choice([-1.0, 1.0])
        return cls(A, B)

    def draw(self, rng: np.random.Generator) -> Matrix:
        """(series x length, d) rows, those of a series after each other, from its stationary law on."""
        back, rows = np.linalg.inv(np.eye(_OF_SERIES) - self.B), list[Matrix]()
        for _ in range(_SERIES):
            x = np.zeros(_OF_SERIES)
            for t in range(-100, _LENGTH):
                x = (x @ self.A + rng.standard_normal(_OF_SERIES)) @ back
                rows += [x] if t >= 0 else []
        return np.array(rows)


def _private(name: str, n_persons: int, n_rows: int) -> Row:
    """What `private` finds at one budget for each person, by what counts of the rows."""
    ways = ("means", "rows") if n_rows > 1 else ("means",)
    found: dict[str, list[tuple[int, float]]] = {way: [] for way in ways}
    for seed in _SEEDS_OF_PERSONS:
        rng = np.random.default_rng(seed)
        if name == "er20":
            W, noise_std, mean = random_weights(20, 20, rng), rng.uniform(*_NOISE, 20), np.zeros(20)
        else:
            network = read_published(name)
            W, noise_std, mean = network.W, network.noise_std, network.mean
        icc, size = np.full(len(W), _ICCS[0]), (n_persons, n_rows)
        tables = [mean + visits(W, icc, rng, size=size, noise_std=noise_std) for _ in range(_SITES)]
        limits = _WITHIN * np.concatenate(tables).std(axis=0)
        person = np.repeat(np.arange(float(n_persons)), n_rows)
        names = _names(len(W) + 1)
        entries: dict[str, dict[str, Any]] = {
            one: {"range": [low, high]}
            for one, low, high in zip(names, (mean - limits).tolist(), (mean + limits).tolist(), strict=False)
        }
        dictionary = Dictionary.model_validate({**entries, names[-1]: {"kind": "group"}})
        keyed = [np.column_stack([X, person]) for X in tables]
        for way, judged in found.items():
            plan = Plan.load("private", [f"privacy.persons_by = {way!r}"], epsilon=_EPSILON)
            plan = plan.with_settings(n_participants=_SITES, bootstrap=0, dictionary=dictionary.model_dump())
            with TemporaryDirectory() as scratch:
                sites = site_tables(keyed, dictionary=plan.dictionary)
                marks = class_found(simulate(plan, sites, Path(scratch, "run"), noise_seed=seed))
            judged.append((class_distance(marks, cpdag(W != 0)), score(marks, W != 0).skeleton_f1 or 0.0))
    row: Row = {
        "figure": f"private, epsilon {_EPSILON:g} for a person: {name}, {_SITES} x {n_persons} persons of {n_rows} "
        f"row(s), ICC {_ICCS[0]:g}, {len(_SEEDS_OF_PERSONS)} seeds"
    }
    for way, judged in found.items():
        row |= {
            f"CPDAG SHD, {way}": round(statistics.mean(distance for distance, _ in judged), 2),
            f"CPDAG SHD by seed, {way}": " ".join(str(distance) for distance, _ in judged),
            f"skeleton F1, {way}": round(statistics.mean(f1 for _, f1 in judged), 3),
        }
    return row


def _lagged() -> Row:
    found = np.zeros((3, 3), dtype=np.int64)  # right, told, true of: pairs within a visit, arrows within one, lagged
    for seed in _SEEDS_OF_SERIES:
        rng = np.random.default_rng(seed)
        process = Series.random(rng)
        patient = np.repeat(np.arange(float(_SERIES)), _LENGTH)
        time = np.tile(np.arange(float(_LENGTH)), _SERIES)
        tables = [np.column_stack([process.draw(rng), patient, time]) for _ in range(_SITES)]
        keys: dict[str, dict[str, Any]] = {"patient": {"kind": "group"}, "visit": {"kind": "time", "lags": 1}}
        with TemporaryDirectory() as scratch:
            found += scored_lags(_learned(tables, keys, Path(scratch, "run"))[1], process)
    row: Row = {
        "figure": f"lags = 1, autocorrelation {_AUTOCORRELATION:g}: {_SITES} x {_SERIES} series of {_LENGTH} visits, "
        f"{_OF_SERIES} variables"
    }
    for name, (right, told, true) in zip(("pairs at a visit", "arrows at a visit", "lagged edges"), found, strict=True):
        row |= {f"recall, {name}": f"{right / true:.2f}", f"precision, {name}": f"{right / max(told, 1):.2f}"}
    return row


def scored_lags(marks: Mask, process: Series) -> np.ndarray:
    """(3, 3) right, told and true: of pairs at a visit, of arrows at a visit, of lagged edges between variables.

    `marks`: (2 d, 2 d) the present before the past. A variable on itself is not counted: nobody misses it.
    """
    d = len(process.A)
    now, lagged = marks[:d, :d], marks[d:, :d] & ~np.eye(d, dtype=bool)
    B, A = process.B != 0, (process.A != 0) & ~np.eye(d, dtype=bool)
    pairs, arrows, true_pairs = np.triu(now | now.T), now & ~now.T, np.triu(B | B.T)
    return np.array(
        [
            [(mine & true).sum(), mine.sum(), true.sum()]
            for mine, true in ((pairs, true_pairs), (arrows, B), (lagged, A))
        ]
    )


def _names(d: int) -> list[str]:
    """As `site_tables` calls the columns of an array."""
    return [f"X{k + 1}" for k in range(d)]


def _learned(tables: list[Matrix], keys: dict[str, dict[str, Any]], run: Path) -> tuple[dict[str, Any], Mask]:
    """What a run says of tables whose last columns are the keys, and marks of its graph, of time last."""
    names = _names(tables[0].shape[1])
    variables, key_names = names[: len(names) - len(keys)], names[len(names) - len(keys) :]
    dictionary = Dictionary.model_validate(
        {**{name: {} for name in variables}, **dict(zip(key_names, keys.values(), strict=True))}
    )
    plan = Plan.load("standard").with_settings(n_participants=len(tables), bootstrap=0)
    plan = plan.with_dictionary(dictionary, origin="generated tables")
    read = {site: rows_for(table, plan) for site, table in site_tables(tables, dictionary=dictionary).items()}
    result = simulate(plan, read, run)
    place = {name: k for k, name in enumerate(dictionary.variables)}
    marks = np.zeros((len(dictionary),) * 2, dtype=bool)
    for edge in result["edges"]:
        i, j = place[edge["source"]], place[edge["target"]]
        marks[i, j] = True
        marks[j, i] = not edge["directed"]
    return result, marks
