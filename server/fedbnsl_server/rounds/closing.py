"""What follows the last ADMM round: a refit of the learned graph, or moments of the tables and a search with them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.errors import LocalProtocolError
from fedbnsl.graphs.family_moments import needed_moments, parent_candidates, symmetric
from fedbnsl.messages import LocalUpdate, TaskKind
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl.plan.privacy_settings import Privacy
from fedbnsl.privacy.calibration import Price, price_of
from fedbnsl.sparse import Mask, Matrix, SparseMatrix
from fedbnsl_server.algorithm.admm import AdmmState, mean_of
from fedbnsl_server.algorithm.consensus_graph import graphs_to_search
from fedbnsl_server.search.graph_search import search
from fedbnsl_server.search.pooled_moments import first_scales, next_scales, pool, search_pooled


def advance_closing(
    kind: TaskKind,
    state: AdmmState,
    updates: Mapping[str, LocalUpdate],
    plan: Plan,
    mask: EdgeMask,
    *,
    weights: SparseMatrix,
    n_samples: Mapping[str, int],
) -> AdmmState:
    """One round of a kind other than ADMM.

    Parameters
    ----------
    weights
        What the tasks of the round carried.
    n_samples
        Rows by site.
    """
    if kind is TaskKind.REFIT:
        return advance_refit(state, updates, plan)
    if kind is TaskKind.SCALES:
        return advance_scales(state, updates, plan, n_samples)
    if plan.privacy is not None:
        return advance_residual_moments(state, updates, plan, mask, weights=weights.to_dense(), n_samples=n_samples)
    return advance_moments(state, updates, plan, mask, neighbours=weights.support(), n_samples=n_samples)


def advance_refit(state: AdmmState, updates: Mapping[str, LocalUpdate], plan: Plan) -> AdmmState:
    """One refit round: average the weights and residual variances of the sites that contributed."""
    in_order = [updates[site] for site in state.sites if site in updates]
    support = in_order[0].local_weights.support()
    mean = SparseMatrix.on_support(mean_of(update.local_weights for update in in_order), support)
    return replace(
        state,
        round=state.round + 1,
        contributed=frozenset(updates),
        refitted=mean.as_float32() if plan.value_type == "float32" else mean,
        residual_variance=np.mean([update.residual_variance for update in in_order], axis=0),
    )


def advance_moments(
    state: AdmmState,
    updates: Mapping[str, LocalUpdate],
    plan: Plan,
    mask: EdgeMask,
    *,
    neighbours: Mask,
    n_samples: Mapping[str, int],
) -> AdmmState:
    """The moments round: search the DAG of least loss among neighbours, each site with regressions of its own.

    Parameters
    ----------
    neighbours
        (d, d) graph whose moments the sites were asked for.
    n_samples
        Rows by site.
    """
    candidates = parent_candidates(neighbours, mask)
    needed = needed_moments(candidates)
    in_order = [updates[site] for site in state.sites if site in updates]
    rows = float(np.mean([n_samples[update.site] for update in in_order]))
    found = search(
        [symmetric(update.moments, needed) for update in in_order],
        starts=[graph.dag for graph in graphs_to_search(state, plan, mask)],
        candidates=candidates,
        allowed=mask.allowed,
        required=mask.required,
        n_samples=rows,
        threshold=plan.threshold,
    )
    weights = SparseMatrix.on_support(found.weights, found.dag)
    return replace(
        state,
        round=state.round + 1,
        contributed=frozenset(updates),
        refitted=weights.as_float32() if plan.value_type == "float32" else weights,
        residual_variance=found.residual_variance,
    )


def advance_scales(
    state: AdmmState, updates: Mapping[str, LocalUpdate], plan: Plan, n_samples: Mapping[str, int]
) -> AdmmState:
    """Before the first private moments round: scales from the mean squares that the sites released."""
    rows, prices, privacy = _private_answers(state, updates, plan, n_samples)
    d = state.global_weights.n_variables
    scales = first_scales(
        [updates[site].moments for site in prices],
        rows,
        [price.setup_variance for price in prices.values()],
        np.broadcast_to(np.array(privacy.feature_bounds), d),
    )
    return replace(state, round=state.round + 1, contributed=frozenset(updates), scales=scales)


def advance_residual_moments(
    state: AdmmState,
    updates: Mapping[str, LocalUpdate],
    plan: Plan,
    mask: EdgeMask,
    *,
    weights: Matrix,
    n_samples: Mapping[str, int],
) -> AdmmState:
    """A private moments round: search a DAG with the noisy moments, for the next round's residuals or as the answer.

    Parameters
    ----------
    weights
        (d, d) acyclic, whose residuals the sites were asked for in units of `state.scales`.
    """
    rows, prices, privacy = _private_answers(state, updates, plan, n_samples)
    d = state.global_weights.n_variables
    everything = np.triu(np.ones((d, d), dtype=bool))
    pooled = pool(
        [symmetric(updates[site].moments, everything) for site in prices],
        rows,
        [price.moments_variance for price in prices.values()],
        W=weights,
        scales=state.scales,
        norm_bound=privacy.residual_norm_bound(d),
    )
    last = plan.stage(state.round + 1).step == plan.moments_rounds
    found = search_pooled(pooled, weights != 0, state.scales, mask, threshold=plan.threshold, keep_small=not last)
    kept = SparseMatrix.on_support(found.weights, found.dag)
    return replace(
        state,
        round=state.round + 1,
        contributed=frozenset(updates),
        refitted=kept.as_float32() if plan.value_type == "float32" else kept,
        scales=next_scales(found.residual_variance),
    )


def _private_answers(
    state: AdmmState, updates: Mapping[str, LocalUpdate], plan: Plan, n_samples: Mapping[str, int]
) -> tuple[list[int], dict[str, Price], Privacy]:
    """Rows and prices of the sites that answered, in the order of the state, and what the plan says of privacy."""
    if plan.privacy is None:
        raise LocalProtocolError("scales and residual moments belong to private runs")
    d = state.global_weights.n_variables
    prices = {site: price_of(plan, n_samples=n_samples[site], n_variables=d) for site in state.sites if site in updates}
    return [n_samples[site] for site in prices], prices, plan.privacy
