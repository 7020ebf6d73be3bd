"""Data-quality warnings: what a round's answers show about the sites' tables, as codes (`findings` in result.json).

Without privacy the sites report it themselves. In a private run only released values may be used: scales and moments
show a little (see `search.centring`), the weights of ADMM rounds nothing. They are combined by the plan's `consensus`,
as in the result: with a robust one, a single wrong site neither makes nor hides a warning about all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbnsl.graphs.family_moments import symmetric
from fedbnsl.protocol.messages import Content, LocalUpdate
from fedbnsl.protocol.sparse import Matrix
from fedbnsl.rounds import moments, residual_moments, scales, statistics
from fedbnsl_server.algorithm.influence import FEWEST_SITES
from fedbnsl_server.results.sentences import DATA_QUALITY, Note, note
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.rounds.moments import mean_squares
from fedbnsl_server.rounds.statistics import variances_without_tails
from fedbnsl_server.search.private.centring import in_one_direction, near_bounds
from fedbnsl_server.search.private.pooled_moments import mean_over_records, mean_square_noise

# A standard deviation so many times as large or small as at every other site is told, where those are alike.
_APART, _ALIKE = 5.0, 2.5
# Numbers of two tables are not equal by chance if so many of their columns are measured: by the dictionary or, where it
# says nothing, as their mean squares are above what zeros and ones can have. Those are equal often: all moments of
# three events of 1 in 50, at two of ten sites of 100 rows, in three of ten runs.
_MEASURED, _PERHAPS_MEASURED, _LARGEST_OF_LEVELS = 2, 3, 1.0


@dataclass(frozen=True)
class QualityWarning:
    """Something odd about some variables (by index), in one site's table or in what all sites released."""

    code: str
    variables: tuple[int, ...] = ()
    site: str = ""
    count: int = 0  # of what the code is about; 0: it counts nothing


def quality_warnings(asked: Content, updates: Mapping[str, LocalUpdate], run: Run) -> tuple[QualityWarning, ...]:
    """What the answers of one round tell."""
    sites = sorted(updates)
    if run.plan.privacy is None:
        told = ((site, found) for site in sites for found in updates[site].findings)
        own = (QualityWarning(found.code.name.lower(), found.variables, site, found.count) for site, found in told)
        return (*own, *_beside_each_other(asked, {site: updates[site].content for site in sites}, run))
    if run.plan.preparation is not None or not isinstance(asked, scales.Task | residual_moments.Task):
        return ()  # prepared columns have their means taken off, and the dictionary's ranges
    d, rows, rule = len(run.mask.allowed), run.rows(sites), run.rule(sites)
    prices = list(run.prices(sites).values())
    setup = [price.setup_variance for price in prices]
    answers: list[Any] = [updates[site].content for site in sites]
    if isinstance(asked, scales.Task):
        mean_squares = mean_over_records([answer.mean_squares for answer in answers], rows, rule)
        near = near_bounds(mean_squares, mean_square_noise(setup, rows, rule), run.feature_bounds)
        return (QualityWarning("near_bounds", tuple(near)),) if near else ()
    if asked.weights.nnz:  # moments of residuals; without weights they are those of x itself
        return ()
    everything = np.triu(np.ones((d, d), dtype=bool))
    one = in_one_direction(
        [symmetric(answer.moments, everything) for answer in answers],
        rows,
        [price.moments_variance for price in prices],
        scales=asked.scales,
        scale_variances=setup,
        bounds=run.feature_bounds,
        norm_bound=run.privacy.residual_norm_bound(d),
        rule=rule,
    )
    return (QualityWarning("in_one_direction"),) if one else ()


def _beside_each_other(asked: Content, answers: Mapping[str, Any], run: Run) -> Iterator[QualityWarning]:
    """What exact variances of the sites' columns show beside each other, and equal numbers of several sites."""
    if isinstance(asked, statistics.Task):
        numbers = {site: answer.variances for site, answer in answers.items()}
        variances = {site: _of_values(answer) for site, answer in answers.items()}
        spread = variances_without_tails(np.stack([*variances.values()]), answers, run)
    elif isinstance(asked, moments.Task):
        numbers = {site: answer.moments for site, answer in answers.items()}
        if run.plan.preparation is not None:  # statistics have told it
            return
        variances = {site: mean_squares(answer, asked, run) for site, answer in answers.items()}
        spread = np.stack([*variances.values()])
    else:
        return
    alone, continuous = run.mask.columns.sizes[run.mask.columns.variable_of] == 1, ~run.indicators
    for site, one in numbers.items():
        told = _are_measured(variances[site], run)
        if told and any(np.array_equal(one, other) for name, other in numbers.items() if name != site):
            yield QualityWarning("same_numbers", (), site)
    for k, (site, one) in enumerate(variances.items()):
        others = np.array([other for name, other in variances.items() if name != site])
        if not one.size or not len(others):
            continue
        constant = np.flatnonzero((one <= 0.0) & alone & (others > 0.0).any(axis=0)).tolist()
        if constant:
            yield QualityWarning("constant_at_a_site", tuple(constant), site)
        if len(others) + 1 < FEWEST_SITES:  # of two, nothing tells which one is odd
            continue
        one, others = spread[k], np.delete(spread, k, axis=0)
        low, high = np.fmin.reduce(others, axis=0), np.fmax.reduce(others, axis=0)
        alike = (low > 0.0) & (high <= _ALIKE**2 * low) & continuous & (one > 0.0)
        odd = np.flatnonzero(alike & ((one >= _APART**2 * high) | (one <= low / _APART**2))).tolist()
        if odd:
            yield QualityWarning("other_spread", tuple(odd), site)


def _of_values(answer: statistics.Answer) -> Matrix:
    """(d,) variances, NaN for a column that has no value at this site; empty where it tells none."""
    if not answer.n_values.size or not answer.variances.size:
        return answer.variances
    return np.where(answer.n_values > 0, answer.variances, np.nan)


def _are_measured(variances: Matrix, run: Run) -> bool:
    """Whether enough columns of a site are such that no other table has the same numbers by chance."""
    dictionary, columns = run.plan.dictionary, run.mask.columns
    owners = [columns.variables[int(v)] for v in columns.variable_of]
    if not variances.size:
        return False
    known = sum(dictionary[name].kind == "continuous" for name in owners if name in dictionary)
    unknown = np.array([name not in dictionary for name in owners])
    perhaps = int((unknown & (variances > _LARGEST_OF_LEVELS)).sum())
    return known >= _MEASURED or perhaps >= _PERHAPS_MEASURED


def as_entries(findings: Iterable[QualityWarning], variables: Sequence[str]) -> list[dict[str, Any]]:
    """Warnings by name, as result.json has them."""
    return [
        {
            "code": found.code,
            "variables": [variables[k] for k in found.variables],
            "site": found.site,
            **({"count": found.count} if found.count else {}),
        }
        for found in findings
    ]


def data_quality(rounds: Iterable[Mapping[str, Any]]) -> list[Note]:
    """One note for each code among the data-quality warnings (`findings`) of the rounds of result.json."""
    entries = [entry for one in rounds for entry in one.get("findings", [])]
    found: list[Note] = []
    for code in DATA_QUALITY:
        of_code = [entry for entry in entries if entry["code"] == code]
        names = [name for entry in of_code for name in entry["variables"]]
        if of_code:
            sites, count = [entry["site"] for entry in of_code], sum(entry.get("count", 0) for entry in of_code)
            found.append(note(code, variables=names, sites=sites, count=count))
    return found
