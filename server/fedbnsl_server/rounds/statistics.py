"""A statistics round at the coordinator: a centre and a scale for each column, from what the sites say of theirs.

In a private run what they say is noisy. Then no scale is below the size of the noise, and the numbers also serve as the
first scales of private moments rounds, as those of a round of `scales` do.
"""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedbnsl.console.wording import first_few
from fedbnsl.errors import LocalProtocolError, RemoteProtocolError
from fedbnsl.plan.preparation import BINS_AN_OCTAVE, Preparation
from fedbnsl.privacy.calibration import LATTICE
from fedbnsl.protocol.messages import Units
from fedbnsl.protocol.sparse import Index, Mask, Matrix
from fedbnsl.rounds.kinds import LARGEST
from fedbnsl.rounds.statistics import Answer, Task, as_one
from fedbnsl_server.algorithm.admm import AdmmState, in_units
from fedbnsl_server.algorithm.completion import Completion
from fedbnsl_server.algorithm.influence import Compared, counted_rows, sampling_variance, variance_of_squares
from fedbnsl_server.algorithm.outlying import limits as limits_of
from fedbnsl_server.algorithm.outlying import weighted_median
from fedbnsl_server.inference.degenerate_columns import FEW_ROWS, Unused
from fedbnsl_server.rounds.kinds import Run
from fedbnsl_server.search.private.pooled_moments import mean_square_noise


def ask(state: AdmmState, run: Run) -> tuple[AdmmState, Task]:
    """The plan says what is asked for."""
    return state, Task()


def n_summands(task: Task, run: Run) -> int:
    """Numbers of secure aggregation."""
    return (2 + run.plan.tells_means) * len(run.mask.allowed)


def of_sums(sums: Sequence[int], task: Task, run: Run) -> Answer:
    """What the columns of all sites are like, each about its own site's means."""
    return as_one(sums, *run.plan.bounds(run.mask.columns.names))


# The least scale of a column in a private run, squared, as a share of the square of half its range.
_LEAST_SHARE = 5e-4
# A variance may as well be none, if residual moments do not tell it either, within so many standard deviations of its
# noise: three, and means at an end of the range and the number of complete rows make each three times the variance.
_HIDING = 3.0 * math.sqrt(3.0)
# A site says itself how many values it has, and few excuse wide errors: no wider than with this share of its rows.
_LEAST_SHARE_OF_VALUES = 0.01
# Of the noise of a count: so few values are not told from none, and so many more than rows are no noise.
_NONE, _TOO_MANY = 3.0, 4.0
# Rows times the variance of the logarithm of a squared spread (`preparation.NORMAL`) of normal values.
_SQUARED_SPREAD = 5.44
# Values so many spreads from the median are far, and so many standard deviations more of them than elsewhere no chance.
_FAR, _MORE_FAR = 4.0, 5.0
# Squares are rounded on the fixed-point grid.
_ROUNDING = 1e-6


def fault(answer: Answer, task: Task, run: Run) -> str:
    """Report means that should have stayed at the site, and numbers that are missing or impossible."""
    preparation, private = _preparation(run), run.plan.privacy is not None
    if bool(answer.means.size) != (run.plan.tells_means if private else preparation.intercept == "common"):
        return "has means where the plan has none, or none where it has them"
    if bool(answer.variances.size) != preparation.needs_variances:
        return "has variances where the plan has none, or none where it has them"
    # Noise may be larger than what it hides: then a variance counts in squares of the column's half range.
    sizes = answer.variances / run.half_ranges**2 if private else answer.variances
    if (np.abs(sizes) > LARGEST).any() or (not private and (sizes < 0.0).any()):
        return f"has a variance below 0, or beyond {LARGEST:g}"
    if (np.abs(answer.means) > LARGEST).any():
        return f"has a mean beyond {LARGEST:g}"
    # A column may be constant at one site, such as a level that does not occur there: `advance` looks at all sites.
    if private:
        low, high = run.plan.bounds(run.mask.columns.names)
        slack = _ROUNDING * (high - low)
        if answer.means.size and ((answer.means < low - slack) | (answer.means > high + slack)).any():
            return "has a mean outside the range of its column"
        possible = answer.n_values.size == len(run.mask.allowed) and (answer.n_values >= 1.0).all()
        return "" if possible and answer.complete_rows == 0.0 else "has impossible numbers of values"
    if bool(answer.spreads.size) != run.plan.leaves_out_outlying or (answer.spreads > LARGEST).any():
        return "has spreads where the plan does not ask for them, none where it does, or one that is too large"
    far = np.bincount(answer.far[:, 0], weights=answer.far[:, 2], minlength=len(run.mask.allowed))
    told = run.plan.numbers(run.mask.columns) & (answer.spreads > 0.0) if answer.spreads.size else False
    if (far > np.where(told, answer.complete_rows, 0.0)).any():
        return "has more far values than rows, or far values of levels or of a column without a spread"
    if (answer.n_values > answer.complete_rows).any() or bool(answer.n_values.size) > run.plan.completes:
        return "has counts of values that the plan has not, or more than it has rows"
    whole = answer.complete_rows >= 1.0 and answer.complete_rows == int(answer.complete_rows)
    return "" if whole and answer.complete_rows <= run.plan.max_rows else "has an impossible number of complete rows"


def advance(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> AdmmState:
    """The units of all rounds to come: pooled over the records, or over the sites if each has one vote.

    Raises
    ------
    RemoteProtocolError
        If fewer than two variables vary in a run without privacy, or one varies too little.
    """
    preparation, rule = _preparation(run), run.rule(answers)
    if run.plan.privacy is not None:
        return _private(state, answers, run)
    # No more than the site said when it joined: that number is bounded by the plan, and shown.
    complete = {site: min(int(answer.complete_rows), run.n_samples[site]) for site, answer in answers.items()}
    run = replace(run, n_samples={**run.n_samples, **complete})
    state = replace(state, complete_rows=complete)
    rows: list[int] | Matrix | None = run.weights(answers)
    values = _values(answers, run)
    if run.plan.completes and (values is not None or len(answers) < len(state.sites)):  # rows of others may have gaps
        state = replace(state, completion=Completion())
    if values is not None:
        _require_values(values, run)
        # A column without a value at a site has no vote there.
        rows = values if run.plan.weighs_rows else (values > 0).astype(np.float64)
    state, spreads, limits = _without_outlying(state, answers, values, run)
    if not preparation.needs_variances:
        d = len(run.mask.allowed)
        return in_units(state, Units(np.empty(0), np.ones(d), limits))
    variances = np.stack([answer.variances for answer in answers.values()])
    centres = np.empty(0)
    if preparation.intercept == "common":
        means = np.stack([answer.means for answer in answers.values()])
        if values is not None:
            means = np.where(values > 0, means, np.average(means, axis=0, weights=rows))
        centres = np.average(means, axis=0, weights=rows) if rule is None else rule(means)
        variances = variances + np.square(means - centres)
    mean = np.average(variances, axis=0, weights=rows)
    if values is not None:
        variances = np.where(values > 0, variances, mean)
    pooled = mean if rule is None else rule(variances)
    pooled = np.where(pooled > 1 / LARGEST, pooled, mean)  # a level that occurs at few sites alone
    constant = mean <= 0.0
    _require_variation(run, pooled, constant)
    pooled = np.where(constant, 1.0, pooled)
    state = replace(state, unused=Unused(tuple(np.flatnonzero(constant).tolist())))
    if limits.size:  # their standard deviations are those of the outlying values
        pooled = np.where(np.isfinite(limits).any(axis=0) & (spreads**2 > 1 / LARGEST), spreads**2, pooled)
    scales = np.sqrt(pooled) if preparation.scale == "pooled" else np.ones_like(pooled)
    return in_units(state, Units(centres, scales, limits))


def _without_outlying(
    state: AdmmState, answers: Mapping[str, Answer], values: Matrix | None, run: Run
) -> tuple[AdmmState, Matrix, Matrix]:
    """The state with the numbers of outlying values; (d,) pooled spreads, (2, d) limits; empty if none lies apart."""
    none = np.empty(0)
    if not run.plan.leaves_out_outlying:
        return state, none, none
    d, of_sites = len(run.mask.allowed), np.stack([answer.spreads for answer in answers.values()])
    rows = np.repeat(np.array(run.rows(answers), dtype=np.float64)[:, None], d, axis=1) if values is None else values
    far = np.concatenate([answer.far for answer in answers.values()])
    n_values = (rows * (of_sites > 0.0)).sum(axis=0)
    limits = np.full((2, d), np.inf)
    for k in np.unique(far[:, 0]).tolist():
        _, bins, counts = far[far[:, 0] == k].T
        limits[:, k] = limits_of(bins, counts, float(n_values[k]))
    if not np.isfinite(limits).any():
        return state, none, none
    outlying = {site: _beyond(answer.far, limits).tolist() for site, answer in answers.items()}
    # Some rows have gaps from now on.
    return replace(state, outlying=outlying, completion=Completion()), weighted_median(of_sites, rows), limits


def _beyond(far: Index, limits: Matrix) -> Index:
    """(d,) values of a site that lie beyond the (2, d) limits, which are at edges of bins."""
    columns, bins, counts = far.T
    above, below = np.round(BINS_AN_OCTAVE * np.log2(limits))[:, columns]
    beyond = (bins >= above) | (bins <= -below)
    return np.bincount(columns[beyond], weights=counts[beyond], minlength=limits.shape[1]).astype(np.int64)


def _require_variation(run: Run, variances: Matrix, constant: Mask) -> None:
    """Raise RemoteProtocolError for columns that vary too little to be divided by it, or if hardly any varies."""
    columns = run.mask.columns
    faint = [columns.names[k] for k in np.flatnonzero(~constant & ~(variances > 1 / LARGEST)).tolist()]
    if faint:
        raise RemoteProtocolError(
            f"column(s) {first_few(map(repr, faint))}: a variance of {1 / LARGEST:g} or less over all sites, which "
            "is too small to compute with",
            remedy="Give them in a smaller unit (`factor` in columns.toml), or leave them out of the plan's "
            "`variables` (--columns).",
        )
    of_varying: list[int] = columns.variable_of[~constant].tolist()
    varying = {columns.variables[v] for v in of_varying}
    if len(varying) < 2:
        what = f"{next(iter(varying))!r} alone varies" if varying else "none of them varies"
        raise RemoteProtocolError(
            f"of {len(columns.variables)} variables {what} in the rows that are used: there is nothing to learn",
            remedy="Leave out variables that are often missing (--columns), or bring more rows."
            + ("" if run.plan.completes else " Rows with a missing value are left out."),
        )


def _private(state: AdmmState, answers: Mapping[str, Answer], run: Run) -> AdmmState:
    """Scales from noisy variances, none below their noise; and what the first private moments round needs of them."""
    rows, rule, half = run.rows(answers), run.rule(answers), run.half_ranges
    of_sites = np.stack([answer.variances for answer in answers.values()])
    n_values = _n_values(answers, run)
    variances = np.average(of_sites, axis=0, weights=n_values) if rule is None else rule(of_sites)
    shares = _value_shares(n_values, answers, run)
    noise_std = noise_of_variances(run, answers) / shares
    scales = half * np.sqrt(np.clip(variances / half**2, np.maximum(_LEAST_SHARE, noise_std), 1.0))
    if run.plan.tells_means:
        weights = n_values if run.plan.weighs_rows else None
        means = np.stack([answer.means for answer in answers.values()])
        state = replace(state, means=np.average(means, axis=0, weights=weights) if rule is None else rule(means))
    told = replace(state, scales=np.ones_like(scales), mean_squares=variances / scales**2, value_shares=shares)
    if run.plan.moments_rounds:
        faint = variances / half**2 < np.maximum(_HIDING * noise_std, _ROUNDING)
        hidden = np.flatnonzero(faint | rare_levels(variances, sum(rows) * shares, run))
        told = replace(told, unused=Unused(hidden=tuple(hidden.tolist())))
    return in_units(told, Units(np.empty(0), scales))


def rare_levels(variances: Matrix, n_values: Matrix, run: Run) -> Mask:
    """(d,) levels of nominal variables that few rows have, from (d,) variances of columns over rows with a value."""
    columns = run.mask.columns
    of_several = columns.sizes[columns.variable_of] > 1
    return np.asarray(of_several & (variances * n_values < FEW_ROWS))


def _n_values(answers: Mapping[str, Answer], run: Run) -> Matrix:
    """(P, d) noisy numbers of values; no site counts for more than its rows, but for noise."""
    most = np.array(run.rows(answers)) + _TOO_MANY * _noise_of_counts(answers, run)
    return np.minimum([answer.n_values for answer in answers.values()], most[:, None])


def _value_shares(n_values: Matrix, answers: Mapping[str, Answer], run: Run) -> Matrix:
    """(d,) of all records, those that have a value, from (P, d) counts. A share within its noise of 1 is 1."""
    rows = sum(run.rows(answers))
    shares = n_values.sum(axis=0) / rows
    noise_std = float(np.linalg.norm(_noise_of_counts(answers, run))) / rows
    return np.where(shares > 1.0 - 2.0 * noise_std, 1.0, np.maximum(shares, 1.0 / rows))


def noise_of_variances(run: Run, sites: Iterable[str]) -> float:
    """Standard deviation of the noise of a variance over all sites' records, as a share of the squared half range.

    A variance is a mean square less the square of a mean, which lies between -1 and 1 in half ranges: for means within
    half of that, their noise adds at most as much again as that of the mean square.
    """
    sites = list(sites)
    setup = [price.setup_variance for price in run.prices(sites).values()]
    return math.sqrt(2.0) * mean_square_noise(setup, run.rows(sites), run.rule(sites))


def compared(state: AdmmState, answers: Mapping[str, Answer], task: Task, run: Run) -> list[Compared]:
    """Logarithms of variances, of zeros and ones in units of their median; in a private run the noisy variances."""
    variances = np.stack([answer.variances for answer in answers.values()])
    if not variances.size:
        return []
    one = np.repeat(np.arange(len(variances[0]))[:, None], 2, axis=1)
    n_values, share = _values(answers, run), np.ones_like(variances)
    if n_values is not None:  # a column without a value at a site does not make it odd
        told = n_values > _NONE * _noise_of_counts(answers, run)[:, None]
        told |= ~told.any(axis=0)
        variances = np.where(told, variances, np.nanmedian(np.where(told, variances, np.nan), axis=0))
        share = np.clip(n_values / counted_rows(run.rows(answers)), _LEAST_SHARE_OF_VALUES, 1.0)
    typical, indicators = np.maximum(np.median(variances, axis=0), 0.0), run.indicators
    spread = variance_of_squares(typical, indicators)
    if run.plan.privacy is None:
        with np.errstate(divide="ignore", invalid="ignore"):
            believed = variances_without_tails(variances, answers, run)
            logs = np.maximum(np.log(believed), math.log(1 / LARGEST))
            of_levels = np.where(typical > 0.0, variances / typical, 0.0)  # a level need not occur at every site
        values = np.where(indicators, of_levels, logs)
        of_sampling = spread * sampling_variance(run.rows(answers)) / share
        return [Compared(values, of_sampling, one, one_vote=not run.plan.weighs_rows)]
    rows, squared = counted_rows(run.rows(answers)) * share, run.half_ranges**2
    setup = np.array([[float(price.setup_variance)] for price in run.prices(answers).values()])
    noise = 2.0 * setup / (LATTICE * rows) ** 2 * squared**2
    return [Compared(variances, spread * typical**2 / rows + noise, one, one_vote=False)]


def variances_without_tails(variances: Matrix, answers: Mapping[str, Answer], run: Run) -> Matrix:
    """(P, d) variances of the sites' columns, but for what a few values in a heavy tail make of them.

    A variance is no farther from the median site's than the site's spread is, and an error of a spread, unless the site
    has more far values than others. Another unit moves both alike; a code in many rows is many far values. Where a site
    tells no spread, the variance as it is.
    """
    spreads = np.stack([answer.spreads for answer in answers.values()])
    if not spreads.size or not variances.size:
        return variances
    rows = counted_rows(run.rows(answers))
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without a value at any site
        logs, own = np.log(variances), 2.0 * np.log(np.where(spreads > 0.0, spreads, np.nan))
        centre, most = np.nanmedian(logs, axis=0), np.abs(own - np.nanmedian(own, axis=0))
        most = most + np.sqrt(_SQUARED_SPREAD / rows)
        limited = np.exp(centre + np.clip(logs - centre, -most, most))
    far = np.stack(
        [
            _beyond(answer.far, np.full((2, len(one)), _FAR))
            for answer, one in zip(answers.values(), spreads, strict=True)
        ]
    )
    expected = np.median(far / rows, axis=0) * rows
    is_tail = np.isfinite(limited) & (far <= expected + _MORE_FAR * np.sqrt(expected + 1.0))
    return np.where(is_tail, limited, variances)


def _noise_of_counts(answers: Mapping[str, Answer], run: Run) -> Matrix:
    """(P,) standard deviations of the noise of numbers of values; 0 without privacy."""
    if run.plan.privacy is None:
        return np.zeros(len(answers))
    setup = np.array([float(price.setup_variance) for price in run.prices(answers).values()])
    return np.asarray(np.sqrt(setup) / LATTICE)


def _values(answers: Mapping[str, Answer], run: Run) -> Matrix | None:
    """(P, d) rows with a value in each column, at each site; None where no row lacks one."""
    if not any(answer.n_values.size for answer in answers.values()):
        return None
    told = [
        answer.n_values if answer.n_values.size else np.full(len(run.mask.allowed), answer.complete_rows)
        for answer in answers.values()
    ]
    return np.array(told, dtype=np.float64)


def _require_values(values: Matrix, run: Run) -> None:
    """Raise RemoteProtocolError for columns that have no value anywhere."""
    columns = run.mask.columns
    empty: list[int] = sorted(set(columns.variable_of[values.sum(axis=0) == 0.0].tolist()))
    if empty:
        raise RemoteProtocolError(
            f"variable(s) {first_few(repr(columns.variables[v]) for v in empty)} have no value at any site",
            remedy="Leave them out of the plan's `variables` (--columns), or correct the column maps of the sites.",
        )


def _preparation(run: Run) -> Preparation:
    if run.plan.preparation is None:
        raise LocalProtocolError("statistics belong to plans with [preparation]")
    return run.plan.preparation
