"""A round that looks at the shape of noise, at the coordinator: ask about edges without a direction, and direct some.

What the moments have found stays, but for the numbers along edges whose direction is now known, which are those of
another graph of the same class.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedbnsl.graphs.class_members import consistent_extension
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.rounds.noise import MOST_PAIRS, MOST_SETS, N_STATISTICS, NUMBERS_A_PAIR, Answer, Task
from fedbnsl_server.algorithm.admm import AdmmState, of_result
from fedbnsl_server.algorithm.consensus_graph import ConsensusGraph, consensus_graph, never_together
from fedbnsl_server.algorithm.influence import Compared
from fedbnsl_server.inference.noise import noise_of, pairs_of
from fedbnsl_server.rounds.curvature import are_sums
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.moments import along_another_dag, keeps_moments

# Of a mean product of two functions that sums are of, and rounding.
_LARGEST = 4.0 + 1e-3


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """Both directions of all edges between continuous numbers that the class leaves open.

    None where rows without a gap do not stand for all, nor where no row has both of two variables.
    """
    unfit = state.completion is not None and state.completion.unfit
    if unfit or never_together(state, run.mask.columns) is not None:
        return state, Task(())
    graph, kept = _graph(state, run)
    pairs = pairs_of(
        graph.found_class,
        graph.mask.columns,
        run.plan.continuous(graph.mask.columns),
        most=MOST_PAIRS,
        most_sets=MOST_SETS,
    )
    return state, Task(tuple(pair.at(kept) for pair in pairs))


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report sums that were not asked for, or that no records have."""
    if answer.sums.shape != (len(task.pairs), NUMBERS_A_PAIR):
        return f"has sums of {len(answer.sums)} pairs; {len(task.pairs)} were asked for"
    possible = are_sums(answer.sums, most_rows=max(run.n_samples.values()))
    return "" if possible and _are_of_noise(answer.sums) else "has sums that no records have"


def _are_of_noise(sums: Matrix) -> bool:
    """Whether variances of (k, 21) sums can be: mean squares of functions of scaled residuals are at most 1, or 4.

    Otherwise a site of few rows could outweigh all others.
    """
    i, j = np.triu_indices(N_STATISTICS)
    squares = sums[:, 1 + N_STATISTICS :][:, i == j]
    return bool((squares <= _LARGEST * sums[:, :1]).all())


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """The state with what the tests say, and a graph that has the directions.

    What sites say of an edge that noise fits in neither direction counts for nothing: a hidden cause, or a curve whose
    ends sites see different parts of, looks like a mechanism that differs.
    """
    graph, kept = _graph(state, run)
    columns, place = graph.mask.columns, {c: k for k, c in enumerate(kept)}
    total = np.sum([answer.sums for answer in answers.values()], axis=0)
    pairs = [pair.at(place) for pair in task.pairs]
    shares = _shares_of_rows(answers, run.n_samples)
    noise = noise_of(total, shares, pairs, graph.found_class, columns).denying(state.directions)
    others = tuple(one for one in state.directions if one not in noise.denied)
    after = replace(state, noise=noise, directions=(*others, *noise.directions))
    told = _graph(after, run)[0]
    if (told.between_variables & ~told.class_marks).any():
        after = along_another_dag(after, consistent_extension(told.class_marks), run)
    keeps_squares = run.plan.searches_curves
    moments: Mapping[str, Matrix] = after.moments if keeps_moments(after, run) else {}
    return replace(after, moments=moments, squares=after.squares if keeps_squares else {})


def _shares_of_rows(answers: Mapping[str, Answer], rows: Mapping[str, int]) -> Matrix:
    """(k,) of the rows of all sites, those of sites that tell anything of a pair."""
    told = [rows[site] * (answer.sums[:, 0] > 0.0) for site, answer in answers.items()]
    return np.asarray(np.sum(told, axis=0) / sum(rows.values()))


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Nothing: the moments before were compared."""
    return []


def _graph(state: AdmmState, run: Run) -> tuple[ConsensusGraph, list[int]]:
    """The graph between the columns that the result is about, and which ones these are."""
    shown, names = of_result(state, run.mask.columns)
    return consensus_graph(shown, run.plan, run.plan.edge_mask(names)), state.unused.kept(run.mask.columns).tolist()
