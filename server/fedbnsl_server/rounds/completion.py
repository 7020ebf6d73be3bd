"""An iteration of EM at the coordinator: pool the completed sums of the sites, and ask again until nothing changes."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import RemoteProtocolError
from fedbnsl.plan.preparation import MOST_EM_ROUNDS
from fedbnsl.protocol.messages import Covariances
from fedbnsl.protocol.sparse import Mask, Matrix, symmetric_of, upper
from fedbnsl.rounds.completion import LEAST_ROWS, Answer, Task
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl_server.algorithm.admm import AdmmState, completed_by
from fedbnsl_server.algorithm.completion import Completion, advanced, started
from fedbnsl_server.algorithm.influence import Compared, distances, pairs
from fedbnsl_server.inference.missing_values import unfit
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.moments import are_covariances, of_products

# Of eigenvalues of correlations.
_ROUNDING = 1e-6
# Of squared differences of means in units of their standard errors, which are at most the number of rows.
_ROUNDED_UP = 1.0 + 1e-6


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """The present covariances."""
    return state, Task(_present(state).by)


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report numbers that are missing, that were not asked for, or that no sums of rows can be."""
    d, first = len(run.mask.allowed), task.covariances is None
    if bool(answer.n_pairs.size) != first:
        return "has counts of rows where they are known, or none in the first iteration"
    if bool(answer.means.size) != (_shares_means(run) and not first):
        return "has means where the plan has none, or none where it has them"
    numbers = np.concatenate([answer.moments, answer.means, [answer.log_likelihood / run.plan.max_rows]])
    S = symmetric_of(answer.moments, d)
    squares = S.diagonal()
    if (np.abs(numbers) > LARGEST).any() or (squares < 0.0).any():
        return f"has a mean square below 0, or a number beyond {LARGEST:g}"
    if first:
        n, z = symmetric_of(answer.n_pairs, d), answer.differences
        most = np.minimum(n.diagonal(), n.diagonal()[:, None])
        if (n > most).any() or answer.complete_rows > n.min():
            return "has impossible counts of rows"
        possible = z.shape == n.shape and bool((z**2 <= _ROUNDED_UP * n.diagonal()).all())
        return "" if possible else "has impossible differences of means"
    if answer.means.size:  # these moments are about the means of the task
        S = S - np.outer(answer.means, answer.means)
    return "" if are_covariances(S, squares, rounding=_ROUNDING) else "has impossible products"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """Another iteration, or the end of them.

    Raises
    ------
    RemoteProtocolError
        If the sites fall into groups that have no variable in common, or pairs of variables lack while a site does; or
        if the sums are no covariances.
    """
    before, d = _present(state), len(run.mask.allowed)
    moments = {site: symmetric_of(answer.moments, d) for site, answer in answers.items()}
    if task.covariances is None:
        n_pairs = {site: symmetric_of(answer.n_pairs, d) for site, answer in answers.items()}
        n_pairs = {site: np.minimum(n, run.n_samples[site]) for site, n in n_pairs.items()}
        rows = np.asarray(sum(n_pairs.values()))
        _require_links(rows, [site for site in state.sites if site not in answers], run)
        varies = ~np.isin(np.arange(d), state.unused.constant)
        with _usable():
            found = started(moments, n_pairs, np.zeros(d * _shares_means(run)), varies)
        differences = {site: answer.differences for site, answer in answers.items()}
        complete_rows = {site: answer.complete_rows for site, answer in answers.items()}
        found = replace(found, differences=differences, complete_rows=complete_rows)
        n = sum(run.rows(answers))
        return replace(state, completion=replace(found, unfit=unfit(found, run.mask.columns, n, LEAST_ROWS)))
    out = left_out(state, answers, task, run)
    kept = [site for site in answers if site not in out]
    weights = run.weights(kept)
    S = np.average([moments[site] for site in kept], axis=0, weights=weights)
    means = [answers[site].means for site in kept]
    mean = np.average(means, axis=0, weights=weights) if means[0].size else np.empty(0)
    last = before.iterations + 1 == MOST_EM_ROUNDS
    log_likelihood = sum(answers[site].log_likelihood for site in kept)
    with _usable():
        found = advanced(before, S, mean, log_likelihood, last=last)
    return completed_by(replace(state, completion=found), found.by if found.done else None)


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Completed moments, as those of a round of moments."""
    if task.covariances is None:
        return []
    found = _beside_each_other(state, answers, task.covariances, run)
    return [found.between_variables() if run.plan.leaves_out_outlying else found]


def _beside_each_other(
    state: AdmmState, answers: Mapping[str, Answer], completed_by: Covariances, run: Run
) -> Compared:
    size = completed_by.S.diagonal()
    of_sizes = upper(np.outer(size, size))
    used, places = of_sizes > 0.0, pairs(np.triu(np.ones((len(size), len(size)), dtype=bool)))
    moments = np.stack([answer.moments[used] for answer in answers.values()])
    return of_products(moments, places[used], state, answers, run)


def left_out(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> tuple[str, ...]:
    """Those whose completed moments are farthest from the others', if there is a robust rule."""
    rule = run.rule(answers)
    if rule is None or task.covariances is None:
        return ()
    kept = rule.nearest(distances(_beside_each_other(state, answers, task.covariances, run)))
    return tuple(site for k, site in enumerate(answers) if k not in kept)


def _shares_means(run: Run) -> bool:
    return run.plan.preparation is not None and run.plan.preparation.intercept == "common"


@contextmanager
def _usable() -> Generator[None]:
    """Raise RemoteProtocolError where numbers turn out to be no covariances: all sites together may lack a variance."""
    try:
        with np.errstate(divide="raise", invalid="raise"):
            yield
    except (np.linalg.LinAlgError, FloatingPointError):
        raise RemoteProtocolError(
            "the completed sums of the sites are no covariances",
            remedy="Resume the run when all sites are there, or use the rows without gaps alone "
            "(--set preparation.missing=complete-cases).",
        ) from None


def _require_links(rows: Matrix, absent: Sequence[str], run: Run) -> None:
    """Raise RemoteProtocolError if some variables are in no row with any of the others.

    Nor may a pair lack while a site that may have it does: it would count as never seen together in the whole run.
    """
    columns = run.mask.columns
    if absent and (rows == 0.0).any():
        raise RemoteProtocolError(
            f"no row of the sites that answered has both values of some pairs, and {first_few(absent)} did not answer",
            remedy="Resume the run when all sites are there.",
        )
    together = columns.joined(rows > 0.0)
    np.fill_diagonal(together, True)
    reached: Mask = np.asarray(together[0])
    while (more := together[reached].any(axis=0)).sum() > reached.sum():
        reached = np.asarray(more)
    if not reached.all():
        one = [name for name, is_there in zip(columns.variables, reached.tolist(), strict=True) if is_there]
        other = [name for name in columns.variables if name not in one]
        raise RemoteProtocolError(
            f"no row has a value both of {first_few(map(repr, one))} and of {first_few(map(repr, other))}: nothing "
            "links these variables",
            remedy="Learn them in two runs (--columns), or bring a table with variables of both.",
        )


def _present(state: AdmmState) -> Completion:
    return Completion() if state.completion is None else state.completion
