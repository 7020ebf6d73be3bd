"""Compare plans that end with a graph search with earlier plans on the same tables: graph, bytes, seconds."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fedbnsl.plan.plan import Plan
from fedbnsl_research.bench.generated import Generated
from fedbnsl_research.private_plans import EPSILONS, private_plan_200, steps_alone
from fedbnsl_research.reproduce.private_study_plans import with_privacy
from fedbnsl_research.trials.harness import Row, by_seed, run_plan, run_row

# Names of the plans compared with fed-sparse, by data. No plan was tuned on these graphs (see `accuracy`).
_LEAN = {
    Generated(20, range(2, 12)): ("lean plan", "messages alone", "search alone"),
    Generated(100, range(2, 6)): ("lean plan",),
    Generated(200, range(2, 4)): ("lean plan", "messages alone", "search alone"),
    Generated(20, range(2, 7), n_sites=5, variance=0.1): ("lean plan",),
}


def lean() -> Iterator[Row]:
    """The lean plan, and each of its causes by itself, against fed-sparse, 80 rounds of exact messages and a refit."""
    sparse = Plan.load("fed-sparse")
    known = {
        "lean plan": Plan.load("lean"),
        "messages alone": sparse.with_settings(value_type="float32", send_tolerance=0.01),
        "search alone": sparse.with_settings(refit_rounds=0, moments_rounds=1),
    }
    for data, names in _LEAN.items():
        yield from _compared(data, sparse, {name: known[name] for name in names})


def private_moments() -> Iterator[Row]:
    """Private moments by epsilon against the private steps that were tuned for it."""
    plan = Plan.load("private-moments")
    data = Generated(20, range(2, 12))
    for epsilon in EPSILONS:
        yield from _compared(
            data, steps_alone(epsilon), {f"private moments, epsilon {epsilon:g}": with_privacy(plan, epsilon=epsilon)}
        )
    for d, seeds, epsilon in ((200, range(2, 4), 10.0), (100, range(2, 6), 1.0), (200, range(2, 4), 1.0)):
        yield from _compared(
            Generated(d, seeds),
            with_privacy(private_plan_200(), epsilon=epsilon),
            {f"private moments, epsilon {epsilon:g}": with_privacy(plan, epsilon=epsilon)},
        )
    yield _alone("private moments, epsilon 10", Generated(500, range(2, 4)), with_privacy(plan, epsilon=10.0))


def unequal_noise() -> Iterator[Row]:
    """Both plans on unequal noise variances, which the squared loss and the search's starts do not expect."""
    lean, sparse = Plan.load("lean"), Plan.load("fed-sparse")
    private = with_privacy(Plan.load("private-moments"), epsilon=1.0)
    for noise in ((0.9, 1.1), (0.7, 1.4), (0.5, 2.0)):
        data = Generated(20, range(2, 12), noise=noise)
        yield from _compared(data, sparse, {"lean plan": lean})
        yield from _compared(data, steps_alone(1.0), {"private moments, epsilon 1": private})


def _compared(data: Generated, before: Plan, plans: Mapping[str, Plan]) -> Iterator[Row]:
    """One row for each plan; all plans and `before` run on the same tables."""
    earlier, *found = data.rows(before, *plans.values())
    for name, rows in zip(plans, found, strict=True):
        yield _beside(f"{name}, {data}", earlier, rows)


def _alone(name: str, data: Generated, plan: Plan) -> Row:
    """One row for a private plan by itself, where the earlier plans would take hours."""
    rows, sent = list[Row](), list[float]()
    for seed in data.seeds:
        federation = data.federation(seed)
        result = run_plan(plan, federation, noise_seed=seed)
        rows.append(run_row(result, federation))
        sent.append(result["bytes"]["up"]["serialised"] / 1e6 / data.n_sites / plan.moments_rounds)
    return {
        "figure": f"{name}, {data}",
        "SHD": _spread(row["shd"] for row in rows),
        "SHD by seed": by_seed(rows, "shd"),
        "MB serialised": float(f"{_mean(rows, 'mb_serialised'):.3g}"),
        "MB a site and round of moments": float(f"{statistics.mean(sent):.3g}"),
        "s a run": float(f"{_mean(rows, 'seconds'):.3g}"),
    }


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
