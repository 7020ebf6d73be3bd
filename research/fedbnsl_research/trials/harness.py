"""What the figures share: one plan run over one federation, and its row of numbers."""

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

import numpy as np

from fedbnsl.errors import ResultError
from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_workbench.scoring.evaluation import learned_graph
from fedbnsl_workbench.scoring.metrics import Scores, score
from fedbnsl_workbench.simulate import simulate
from fedbnsl_workbench.tables.synthetic import SyntheticFederation

N_SAMPLES = 5000
"""Rows of every site of generated data, as in the paper."""

Row = dict[str, Any]

_T = TypeVar("_T")


class Federation(Protocol):
    """The tables of several sites over the same variables."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the d columns."""
        ...

    @property
    def tables(self) -> tuple[Matrix, ...]:
        """One (n, d) table a site."""
        ...


def run_plan(
    plan: Plan,
    federation: Federation,
    *,
    noise_seed: int | None = None,
    follow: Callable[[AdmmState], None] = lambda state: None,
) -> dict[str, Any]:
    """The content of result.json for a plan simulated over a federation, with one participant per table."""
    tables = site_datasets(federation)
    with tempfile.TemporaryDirectory() as scratch:
        plan = plan.with_settings(n_participants=len(tables))
        return simulate(plan, tables, Path(scratch, "run"), noise_seed=noise_seed, follow=follow)


def site_datasets(federation: Federation) -> dict[str, Dataset]:
    """The tables by site: site-1, site-2, ..."""
    return {f"site-{k + 1}": Dataset(federation.variables, X) for k, X in enumerate(federation.tables)}


def scores_row(scores: Scores) -> Row:
    """Structural accuracy under the names that all tidy tables use."""
    return {
        "shd": scores.shd,
        "tpr": scores.tpr,
        "fdr": scores.fdr,
        "edges": scores.n_edges,
        "true_edges": scores.n_reference_edges,
    }


def run_row(result: Mapping[str, Any], federation: SyntheticFederation) -> Row:
    """Accuracy, megabytes of a whole run both ways, and seconds, of what `run_plan` gave."""
    return {
        **scores_row(score(learned_graph(result), federation.W != 0)),
        "mb_formula": megabytes_sent(result, "formula"),
        "mb_serialised": megabytes_sent(result, "serialised"),
        "seconds": result["seconds"]["total"],
    }


def megabytes_sent(result: Mapping[str, Any], kind: str) -> float:
    """MB (10^6 bytes) of a run, both directions, all sites; `kind` is formula or serialised."""
    return float(result["bytes"]["up"][kind] + result["bytes"]["down"][kind]) / 1e6


def mean_of(rows: Sequence[Row], column: str) -> float:
    """Mean of a column, to two decimals."""
    return round(statistics.mean(float(row[column]) for row in rows), 2)


def by_seed(rows: Sequence[Row], column: str) -> str:
    """The values of a column one by one."""
    return " ".join(str(row[column]) for row in rows)


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Exponent of a power law fitted to the costs: least-squares slope of the logarithms, to two decimals."""
    slope, _ = np.polyfit(np.log(sizes), np.log(costs), 1)
    return round(float(slope), 2)


def timed(work: Callable[[], _T], *, clock: Callable[[], float] = time.perf_counter) -> tuple[float, _T]:
    """Seconds that some work took, by the clock on the wall or that of the processor, and what it gave."""
    started = clock()
    value = work()
    return clock() - started, value


def oracles() -> ModuleType:
    """tests/oracles.py of the checkout that this package is installed from.

    Raises
    ------
    ResultError
        Outside a checkout.
    """
    path = Path(__file__).resolve().parents[3] / "tests" / "oracles.py"
    spec = importlib.util.spec_from_file_location("oracles", path)
    if spec is None or spec.loader is None or not path.exists():
        raise ResultError("the literal solver is part of the tests: run this figure from a checkout of the project")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
