"""A round that scores the network, at the coordinator: send the network of the run so far, and keep what sites tell."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedbnsl.network.sums import N_BINS, Sums
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.validation import Answer, Task
from fedbnsl_server.algorithm.admm import AdmmState
from fedbnsl_server.algorithm.influence import Compared
from fedbnsl_server.inference.left_out import LeftOut, by_the_others
from fedbnsl_server.inference.validation import Validation
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.moments import keeps_moments

if TYPE_CHECKING:  # where it runs they are loaded when a round asks: they take long
    from fedbnsl.network.families import Family

_ROUNDING = 1e-6  # of sums of what is spread over bins


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """The network that the result will have."""
    return state, Task(run.network())


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report sums that were not asked for, or that no rows have."""
    from fedbnsl.network.validation import levels_of

    families = _families(task)
    if not answer.fits(families.values()):
        return f"has not the sums of the {len(families)} variables that were asked for"
    rows = sum(run.n_samples.values())  # of this site
    real = (answer.log_likelihood, answer.own, answer.numbers)
    if not all((np.abs(one) <= LARGEST * rows).all() for one in real):
        return "has a sum that no rows have"
    for (name, family), one in zip(families.items(), answer.sums(families.values()), strict=True):
        if not all(_is_possible(sums, levels_of(family), rows) for sums in one):
            return f"has sums of {name!r} that no rows have"
    return ""


def _is_possible(one: Sums, K: int, rows: int) -> bool:
    n, counts, numbers = one.rows, one.counts, one.numbers
    each = n * K if K > 2 else n
    # Sums of larger ones could come round to a number that fits.
    if n + one.left_out > rows or counts.max(initial=0) > each or (n == 0 and numbers.any()):
        return False
    if not K:
        positive = (numbers[1 : 5 + N_BINS] >= 0.0).all()  # of counts, sums of k and log k!, too
        binned = float(numbers[3 : 3 + N_BINS].sum())
        return bool(positive and (math.isclose(binned, n, rel_tol=_ROUNDING) or not (binned or counts[0])))
    hits, forecasts = counts[K + N_BINS : K + 2 * N_BINS], counts[K : K + N_BINS]
    if not ((numbers >= 0.0) & (numbers <= forecasts * (1.0 + _ROUNDING))).all():
        return False
    sizes = int(counts[:K].sum()), int(forecasts.sum()), int(counts[K + 2 * N_BINS :].sum())
    return sizes[0] in (0, n) and sizes[1] in (0, each) and sizes[2] in (0, n) and bool((hits <= forecasts).all())


def _families(task: Task) -> Mapping[str, "Family"]:
    from fedbnsl.network.fitted_network import FittedNetwork

    return FittedNetwork.from_json(task.network).network.families if task.network else {}


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """The state with the sums of each site."""
    families = _families(task)
    if not families:
        return state
    sites = {site: dict(zip(families, answer.sums(families.values()), strict=True)) for site, answer in answers.items()}
    left_out = {
        name: {site: one for site, one in of.items() if site in answers}
        for name, of in _left_out(state, task, run).items()
    }
    told = Validation(task.network, sites, left_out)
    return replace(state, validation=told, moments={} if keeps_moments(state, run) else state.moments)


def _left_out(state: AdmmState, task: Task, run: Run) -> dict[str, dict[str, LeftOut]]:
    """Scores of numbers of the other sites; of straight lines alone, and none where no moments are kept."""
    if run.plan.consensus != "mean" or not keeps_moments(state, run):
        return {}
    from fedbnsl.network.families import Number
    from fedbnsl.network.fitted_network import FittedNetwork

    network = FittedNetwork.from_json(task.network)
    place = {name: k for k, name in enumerate(run.mask.columns.names)}
    at = np.array([place[name] for name in network.columns.names], dtype=np.int64)
    families: dict[str, tuple[int, list[int]]] = {
        name: (int(at[family.column]), at[family.lines].tolist())
        for name, family in network.network.families.items()
        if isinstance(family, Number) and not family.bends and family.lines.size
    }
    n = {site: float(run.n_samples[site]) for site in state.moments}
    return by_the_others(state.moments, n, {site: _shares(state, site, n[site]) for site in n}, families)


def _shares(state: AdmmState, site: str, rows: float) -> Matrix:
    """(d,) of the rows of a site that have a value of each column."""
    known = None if state.completion is None else state.completion.n_pairs.get(site)
    return np.ones(len(state.moments[site])) if known is None else np.asarray(known.diagonal() / rows)


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Nothing: what the network is made of was compared before."""
    return []
