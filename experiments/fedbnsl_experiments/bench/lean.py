"""The plans that end with a graph search, each beside the state before it on the same tables: graphs, bytes, seconds.

Data and noise come from seeds, so that every figure but the seconds comes out the same again.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedbnsl.plan.plan import Plan
from fedbnsl_experiments.private_plans import EPSILONS, private_plan, private_plan_200
from fedbnsl_experiments.tables.synthetic import SyntheticFederation, synthesise
from fedbnsl_experiments.trials.harness import N_SAMPLES, Row, by_seed, run_plan, run_row

_STARTS = [{"l1_weight": 0.05}, {"acyclicity": "log-det"}]


@dataclass(frozen=True)
class _Data:
    """Generated federations, one a seed.

    Variables and expected edges, sites, variance of the weights across sites, range of the noise's standard deviations.
    """

    d: int
    seeds: range
    n_sites: int = 8
    variance: float = 0.0
    noise: tuple[float, float] = (1.0, 1.0)

    def federations(self) -> Iterator[tuple[int, SyntheticFederation]]:
        for seed in self.seeds:
            yield (
                seed,
                synthesise(
                    self.d,
                    self.d,
                    self.n_sites,
                    N_SAMPLES,
                    seed,
                    weight_variance=self.variance,
                    noise_range=self.noise,
                ),
            )

    def __str__(self) -> str:
        spread = f", heterogeneous {self.variance:g}" if self.variance else ""
        low, high = self.noise
        spread += f", noise sd {low:g} to {high:g}" if low < high else ""
        return f"d={self.d}, P={self.n_sites}, seeds {self.seeds.start}..{self.seeds.stop - 1}{spread}"


# By data: what is set beside the default plan. The graphs are those of the accuracy figure: nothing was tuned on them.
_LEAN = {
    _Data(20, range(2, 12)): ("lean plan", "messages alone", "search alone", "three starts and search"),
    _Data(100, range(2, 6)): ("lean plan", "three starts and search"),
    _Data(200, range(2, 4)): ("lean plan", "messages alone", "search alone"),
    _Data(20, range(2, 7), n_sites=5, variance=0.1): ("lean plan",),
}


def lean() -> Iterator[Row]:
    """The lean plan, and each of its causes by itself, against the default plan with its refit."""
    default = Plan.load("fed-sparse")
    search = default.with_settings(refit_rounds=0, moments_rounds=1)
    known = {
        "lean plan": Plan.load("lean"),
        "messages alone": default.with_settings(value_type="float32", send_tolerance=0.01),
        "search alone": search,
        "three starts and search": search.with_settings(starts=_STARTS),
    }
    for data, names in _LEAN.items():
        yield from _compared(data, default, {name: known[name] for name in names})


def private_moments() -> Iterator[Row]:
    """Private moments by epsilon against the private steps that were tuned for it."""
    plan = Plan.load("private-moments")
    data = _Data(20, range(2, 12))
    for epsilon in EPSILONS:
        yield from _compared(data, private_plan(epsilon), {f"private moments, epsilon {epsilon:g}": _at(plan, epsilon)})
    yield from _compared(_Data(200, range(2, 4)), private_plan_200(), {"private moments, epsilon 10": _at(plan, 10.0)})


def unequal_noise() -> Iterator[Row]:
    """Both where noise variances differ, which neither the squared loss nor the search's starts expect."""
    lean, default = Plan.load("lean"), Plan.load("fed-sparse")
    private = _at(Plan.load("private-moments"), 1.0)
    for noise in ((0.9, 1.1), (0.7, 1.4), (0.5, 2.0)):
        data = _Data(20, range(2, 12), noise=noise)
        yield from _compared(data, default, {"lean plan": lean})
        yield from _compared(data, private_plan(1.0), {"private moments, epsilon 1": private})


def _at(plan: Plan, epsilon: float) -> Plan:
    return plan.with_settings(privacy={**plan.model_dump()["privacy"], "epsilon": epsilon})


def _compared(data: _Data, before: Plan, plans: Mapping[str, Plan]) -> Iterator[Row]:
    """A row for each plan, all of them run on the same tables as the one before."""
    earlier: list[Row] = []
    found: dict[str, list[Row]] = {name: [] for name in plans}
    for seed, federation in data.federations():
        earlier.append(_run(before, federation, seed))
        for name, plan in plans.items():
            found[name].append(_run(plan, federation, seed))
    for name, rows in found.items():
        yield _beside(f"{name}, {data}", earlier, rows)


def _run(plan: Plan, federation: SyntheticFederation, seed: int) -> Row:
    noise_seed = None if plan.privacy is None else seed
    return run_row(run_plan(plan, federation, noise_seed=noise_seed), federation)


def _beside(name: str, before: Sequence[Row], rows: Sequence[Row]) -> Row:
    """Means over the seeds, before and now."""
    figures: Row = {"figure": name}
    for label, of in ((", before", before), ("", rows)):
        figures[f"SHD{label}"] = _spread(row["shd"] for row in of)
        figures[f"SHD by seed{label}"] = by_seed(of, "shd")
        for title, column in (("MB serialised", "mb_serialised"), ("MB formula", "mb_formula"), ("s a run", "seconds")):
            figures[f"{title}{label}"] = float(f"{_mean(of, column):.3g}")
    return {
        **figures,
        "bytes before / bytes": round(_mean(before, "mb_serialised") / _mean(rows, "mb_serialised"), 1),
        "seconds before / seconds": round(_mean(before, "seconds") / _mean(rows, "seconds"), 1),
    }


def _mean(rows: Iterable[Row], column: str) -> float:
    return statistics.mean(float(row[column]) for row in rows)


def _spread(values: Iterable[int]) -> str:
    """Mean and standard deviation."""
    values = list(values)
    return f"{statistics.mean(values):.2f} +- {statistics.stdev(values):.2f}"
