"""How well settings predict a site that was left out: a score that needs no true graph.

For each site in turn the others learn a network, and the score is the mean log-likelihood of the left-out site's rows
under it, in nats a row: the sum over columns of -(log(2 pi v) + r / v) / 2, with v the network's residual variance and
r the mean squared residual of the left-out rows. Edges that only fit noise of their own sites lower it, and so do
missing ones.
"""

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedbnsl.plan.plan import Plan
from fedbnsl.protocol.sparse import Matrix
from fedbnsl_client.data.dataset import Dataset
from fedbnsl_client.data.plan_fit import rows_for
from fedbnsl_client.data.preparation import column_means, has_intercept
from fedbnsl_client.losses.squared import SecondMoments
from fedbnsl_research.trials.harness import Row, megabytes_sent
from fedbnsl_server.algorithm.admm import AdmmState, of_result
from fedbnsl_server.algorithm.consensus_graph import consensus_graph
from fedbnsl_workbench.plan_settings import for_sites
from fedbnsl_workbench.simulate import simulate


def held_out_row(plan: Plan, tables: Mapping[str, Dataset], *, noise_seed: int | None) -> Row:
    """Mean over sites, weighted by rows, of the log-likelihood a row when the site is left out; and what the runs cost.

    Megabytes and seconds are means over the runs; `n_edges` is, too.

    Raises
    ------
    FedbnslError
        Whatever ended one of the runs.
    """
    total = n_rows = 0.0
    costs: list[tuple[float, float, float, float]] = []
    for left_out in tables:
        others = {site: table for site, table in tables.items() if site != left_out}
        states: list[AdmmState] = []
        with tempfile.TemporaryDirectory() as scratch:
            result = simulate(
                for_sites(plan, len(others)),
                others,
                Path(scratch, "run"),
                noise_seed=noise_seed,
                follow=states.append,
            )
        columns = plan.columns(plan.column_names or next(iter(others.values())).variables)
        state, names = of_result(states[-1], columns)
        graph = consensus_graph(state, plan, plan.edge_mask(names))
        variance = state.residual_variance
        if not variance.size:
            variance = _pooled_variance(graph.weights, [_moments(table, plan, names) for table in others.values()])
        moments, n = _moments(tables[left_out], plan, names)
        total += n * log_likelihood(moments.residual_variance(graph.weights), variance)
        n_rows += n
        sent = [megabytes_sent(result, kind) for kind in ("formula", "serialised")]
        costs.append((sent[0], sent[1], result["seconds"]["total"], float(len(result["edges"]))))
    mb, mb_serialised, seconds, n_edges = np.mean(costs, axis=0).tolist()
    return {
        "held_out": total / n_rows, "n_edges": n_edges, "mb": mb, "mb_serialised": mb_serialised,
        "seconds": seconds, "error": "",
    }  # fmt: skip


def log_likelihood(squared_residuals: Matrix, variance: Matrix) -> float:
    """Mean log-likelihood a row, in nats, of (d,) mean squared residuals under (d,) residual variances."""
    return float(-0.5 * (np.log(2.0 * math.pi * variance) + squared_residuals / variance).sum())


def _moments(table: Dataset, plan: Plan, names: tuple[str, ...]) -> tuple[SecondMoments, int]:
    """Second moments of the rows that a run would use, about the site's own means if the plan gives it an intercept."""
    used = rows_for(table, plan).complete_cases().reordered(names)
    centre = column_means(used.X) if has_intercept(plan.preparation) else None
    return SecondMoments.of(used.X, centre), used.n_samples


def _pooled_variance(weights: Matrix, moments: list[tuple[SecondMoments, int]]) -> Matrix:
    """(d,) of plans that do not release residual variances: those of the tables that were learned from."""
    shares = [n * of_site.residual_variance(weights) for of_site, n in moments]
    return np.asarray(np.sum(shares, axis=0) / sum(n for _, n in moments), dtype=np.float64)
