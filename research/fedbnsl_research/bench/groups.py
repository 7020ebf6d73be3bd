"""Rows that belong together: wrong arrows where visits count as patients, and what lags find in a series.

Generated tables. `repeated`: patients differ by a share (ICC) of each noise variance that stays over their visits.
`lagged`: each variable depends on itself one visit before, a few on another one before, and on others at the visit.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fedbnsl.graphs.class_members import arrows_lead
from fedbnsl.graphs.graph import topological_order
from fedbnsl.plan.dictionary import Dictionary
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.row_groups import LAG
from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_client.data.frames import site_tables
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_research.trials.harness import Row
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import random_weights, sample

_SITES, _SEEDS = 8, range(3)
_PATIENTS, _VISITS, _VARIABLES = 100, 10, 20
_ICCS = (0.5, 0.9)
_WAYS = {"rows": "rows as they are", "between": "between", "within": "within", "first": "one row a patient"}

_SERIES, _LENGTH, _OF_SERIES = 5, 20, 10
_AUTOCORRELATION, _SEEDS_OF_SERIES = 0.9, range(10)
_LAGGED_EDGES = 6


def groups() -> Iterator[Row]:
    """Wrong arrows over repeated visits by what is made of them; recall and precision of lagged networks."""
    for icc in _ICCS:
        yield _repeated(icc)
    yield _lagged()


def visits(W: Matrix, icc: float, rng: np.random.Generator) -> Matrix:
    """(patients x visits, d) rows, those of a patient after each other."""
    d = len(W)
    lasting = np.repeat(sample(W, _PATIENTS, rng), _VISITS, axis=0)
    return np.asarray(np.sqrt(icc) * lasting + np.sqrt(1.0 - icc) * sample(W, _PATIENTS * _VISITS, rng)).reshape(-1, d)


def _repeated(icc: float) -> Row:
    counts = {way: np.zeros(3, dtype=np.int64) for way in _WAYS}
    for seed in _SEEDS:
        rng = np.random.default_rng(seed)
        W = random_weights(_VARIABLES, _VARIABLES, rng, size=0.5)
        tables = [visits(W, icc, rng) for _ in range(_SITES)]
        patient = np.repeat(np.arange(float(_PATIENTS)), _VISITS)
        for way in _WAYS:
            if way == "first":
                learned = _learned([X[::_VISITS] for X in tables], {})
            else:
                keyed = [np.column_stack([X, patient]) for X in tables]
                learned = _learned(keyed, {"patient": {"kind": "group", "within": way}})
            counts[way] += _counts(learned, W != 0)
    row: Row = {"figure": f"repeated visits, ICC {icc:g}: {_SITES} x {_PATIENTS} patients x {_VISITS} visits"}
    for way, name in _WAYS.items():
        wrong, arrows, pairs_off = counts[way].tolist()
        row |= {f"wrong of arrows, {name}": f"{wrong} of {arrows}", f"wrong pairs, {name}": pairs_off}
    return row


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


def _lagged() -> Row:
    found = np.zeros((3, 3), dtype=np.int64)  # right, told, true of: pairs within a visit, arrows within one, lagged
    for seed in _SEEDS_OF_SERIES:
        rng = np.random.default_rng(seed)
        process = Series.random(rng)
        patient = np.repeat(np.arange(float(_SERIES)), _LENGTH)
        time = np.tile(np.arange(float(_LENGTH)), _SERIES)
        tables = [np.column_stack([process.draw(rng), patient, time]) for _ in range(_SITES)]
        marks = _learned(tables, {"patient": {"kind": "group"}, "visit": {"kind": "time", "lags": 1}})
        found += scored_lags(marks, process)
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


def _learned(tables: list[Matrix], keys: dict[str, dict[str, Any]]) -> Mask:
    """Marks of the graph over the tables, whose last columns are the keys."""
    names = [f"X{k + 1}" for k in range(tables[0].shape[1])]  # as `site_tables` calls the columns of an array
    variables, key_names = names[: len(names) - len(keys)], names[len(names) - len(keys) :]
    dictionary = Dictionary.model_validate(
        {**{name: {} for name in variables}, **dict(zip(key_names, keys.values(), strict=True))}
    )
    plan = Plan.load("standard").with_settings(n_participants=len(tables), bootstrap=0)
    plan = plan.with_dictionary(dictionary, origin="generated tables")
    read = {site: rows_for(table, plan) for site, table in site_tables(tables, dictionary=dictionary).items()}
    with TemporaryDirectory() as scratch:
        result = simulate(plan, read, Path(scratch, "run"))
    place = {name: k for k, name in enumerate([*variables, *(name + LAG for name in variables)])}
    marks = np.zeros((len(dictionary),) * 2, dtype=bool)
    for edge in result["edges"]:
        i, j = place[edge["source"]], place[edge["target"]]
        marks[i, j] = True
        marks[j, i] = not edge["directed"]
    return marks
