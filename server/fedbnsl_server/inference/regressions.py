"""Regressions of children with levels and of counts, from sums that the sites send: Newton's method, a step a round.

Each family has coefficients beta; the sites tell the log-likelihood l with their own best intercepts, its gradient U
and its information J (`fedbnsl.families.regression`). The next coefficients are beta + J^-1 U; if l falls there, nearer
ones, by the parabola through both points. The coefficients have settled when U' J^-1 U, the squared step in standard
errors, is next to nothing.

Where levels are separated, l has no maximum: a coefficient goes on growing by about the same step. Then
sum of (s beta)^2 / (2 * 2.5^2) is taken off l: a normal prior with standard deviation 2.5 for the logarithm of a ratio,
by a level or by one standard deviation s of a column (after Gelman et al. 2008). It is taken away again where it turns
out not to matter.

Whether sites agree: at the common beta, where the sum of their U is 0, the sum of U_p' J_p^-1 U_p is chi-square with as
many degrees of freedom as all sites have coefficients, less q (Rao's score test), if all have the same beta. Without a
site, the others' U_p are taken to their own beta by their J_p. A site's own beta is about beta + J_p^-1 U_p, which is
near enough if the step to it is short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from fedbnsl.protocol.sparse import Mask, Matrix
from fedbnsl_server.algorithm.influence import FEWEST_SITES
from fedbnsl_server.inference.heterogeneity import chi_square_tails, holm
from fedbnsl_server.inference.site_agreement import AGREE_LEVEL, ODD_LEVEL

Standing = Literal["goes on", "settled", "unsettled", "inconsistent", "too wide"]

RIDGE = 1.0 / 2.5**2
"""Weight of the squared coefficients, in units of `Regression.scales`."""

# Squared Newton step in standard errors: coefficients have settled; they nearly have, when no round is left: with a
# ridge, whose weight is a convention, a tenth of a standard error is near enough.
_SETTLED, _NEARLY, _NEARLY_WITH_RIDGE = 1e-14, 1e-7, 1e-2
# The squared step that the ridge is worth, below which it is taken away; and the rounds that this takes.
_UNIMPORTANT, _ROUNDS_WITHOUT = 0.1, 5
# After so many rounds, steps that are still this long, and this share of the last ones, show that levels are separated.
_ROUNDS_BEFORE, _LONG, _SHARE = 5, 0.5, 0.5
_LONGEST = 4.0
# Over a step of less than this, in standard deviations of a column, information changes by less than this factor.
_SHORT, _MOST_BENT = 0.3, 10.0
# Shares of a step that went too far.
_SHORTEST, _HALF = 0.1, 0.5
# Of log-likelihoods: less is rounding; of a site's, more contradicts its gradients.
_ROUNDING, _CONTRADICTION = 1e-10, 1e-6
# Newton's step from the common coefficients to a site's, in standard deviations of the parents: of a longer one, the
# end is too far from the coefficients of the site alone for an interval around it.
_NEAR = 0.5
# Of eigenvalues of the information in units of its diagonal: below, a combination of coefficients is not identified.
_SINGULAR, _LOADS = 1e-9, 1e-4
# Information about a level, or a standard deviation of a column: with less, a site's score is not nearly normal.
_LEAST_INFORMATION = 5.0


class SiteSums(NamedTuple):
    """What one site tells of a family."""

    rows: int
    log_likelihood: float
    gradient: Matrix  # (q,)
    information: Matrix  # (q, q)
    dispersion: float


@dataclass(frozen=True, eq=False)
class Regression:
    """One family on the way to its estimates."""

    child: tuple[int, ...]  # columns of the run, as in `fedbnsl.rounds.regressions.Family`
    parents: tuple[int, ...]
    scales: Matrix  # (q,) standard deviations of the parents, 1 of levels
    at: Matrix  # (q,) the best coefficients so far
    step: Matrix  # (q,) from there to the next that are asked about
    standing: Standing = "goes on"
    penalty: float = 0.0  # 0 or RIDGE
    rounds: int = 0
    # Of what the sites told at the best coefficients; empty before.
    sites: tuple[str, ...] = ()  # P, by name
    rows: int = 0  # without a gap, of sites that tell anything
    free: float = 0.0  # rows, less one for each of these sites and each coefficient
    log_likelihoods: Matrix = field(default_factory=lambda: np.empty(0))  # (P,)
    gradients: Matrix = field(default_factory=lambda: np.empty((0, 0)))  # (P, q)
    information: Matrix = field(default_factory=lambda: np.empty((0, 0)))  # (q, q)
    dispersion: float = 0.0
    identified: Mask = field(default_factory=lambda: np.empty(0, dtype=bool))  # (q,) when these sites answered first
    # Of sites that agree: chi-square and its degrees of freedom; 0 degrees: not tested.
    q: float = 0.0
    degrees: float = 0.0
    # left_out: (P, 2) the same without each site; site_steps, site_errors: (P, q) from `at` to the coefficients of a
    # site alone, and their standard errors, NaN where it tells too little. Empty: not tested.
    left_out: Matrix = field(default_factory=lambda: np.empty((0, 2)))
    site_steps: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    site_errors: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    odd: str = ""  # the site whose numbers contradict each other

    @property
    def near(self) -> Mask:
        """(P,) whether a site's own coefficients are so near that Newton's step leads to them."""
        return np.asarray(np.sqrt((np.nan_to_num(self.site_steps) * self.scales) ** 2).sum(axis=1) <= _NEAR)

    @property
    def goes_on(self) -> bool:
        """Whether another round is to come."""
        return self.standing == "goes on"

    @property
    def asked(self) -> Matrix:
        """(q,) coefficients of the next task."""
        return self.at + self.step

    @property
    def overdispersion(self) -> float:
        """By which factor counts vary more than Poisson's; at least 1, which is also that of levels."""
        return max(self.dispersion / self.free, 1.0) if self.free > 0.0 else 1.0

    @property
    def standard_errors(self) -> Matrix:
        """(q,) of the coefficients; NaN where they are not identified."""
        inverse, _ = _inverse(self.information + np.diag(self.penalty * self.scales**2))
        variance = np.where(self.identified, np.maximum(inverse.diagonal(), 0.0), np.nan)
        return np.asarray(np.sqrt(variance * self.overdispersion))


def begun(child: tuple[int, ...], parents: tuple[int, ...], scales: Matrix) -> Regression:
    """A family of which nothing is known yet; (p,) scales of its parents."""
    zero = np.zeros(len(child) * len(parents))
    return Regression(child, parents, np.tile(scales, len(child)), zero, zero)


def advanced(before: Regression, told: Mapping[str, SiteSums], *, rounds_left: int) -> Regression:
    """After what these sites told at `before.asked`; with no round left, its end.

    Numbers of other sites than before are not compared with theirs: the sums begin again, at the same coefficients.
    """
    after = replace(before, rounds=before.rounds + 1)
    last = 0 if rounds_left else 1
    if before.sites == tuple(told):
        if odd := _contradicts(before, told):
            return replace(after, odd=odd, standing="inconsistent")
        gone_far = _shorter(before, told)
        if gone_far is not None:
            return replace(after, step=gone_far, standing="unsettled" if last else "goes on")
    after = _taken(after, told)
    step, gain = _newton(after)
    if not np.isfinite([*step.tolist(), gain]).all():  # information that hardly is any, beside a gradient
        far = np.abs(after.gradients / after.scales).max(axis=1)
        return replace(after, odd=tuple(told)[int(far.argmax())], standing="inconsistent")
    size = _size(step, after)
    nearly = _NEARLY_WITH_RIDGE if after.penalty else _NEARLY
    if gain < (nearly if last else _SETTLED):
        return _settled(after, told, rounds_left=rounds_left)
    grows = size > _LONG and size > _SHARE * _size(before.step, before)
    if not after.penalty and after.rounds > _ROUNDS_BEFORE and grows:
        after = replace(after, penalty=RIDGE)
        step, _ = _newton(after)
    if last and (odd := _bends_otherwise(before, told)):
        return replace(after, odd=odd, standing="inconsistent")
    return replace(after, step=_not_too_long(step, after), standing="unsettled" if last else "goes on")


def differing(regressions: Sequence[Regression], level: float) -> list[Regression]:
    """Those in whose coefficients sites differ, with Holm's correction over all that are tested."""
    tested = [one for one in regressions if one.degrees]
    return [one for one, p in zip(tested, _p([(one.q, one.degrees) for one in tested]), strict=True) if p < level]


def odd_site(regressions: Sequence[Regression]) -> str:
    """The one site without which the others agree well, while they do not at all with it; empty: not exactly one.

    As `Agreement.odd_site` of lines.
    """
    differ, tested = differing(regressions, ODD_LEVEL), [one for one in regressions if one.degrees]
    found: list[str] = []
    for site in differ[0].sites if differ else ():
        without = [one.left_out[one.sites.index(site)] if site in one.sites else (one.q, one.degrees) for one in tested]
        told = [pair for pair in without if pair[1]]
        shared = all(site in one.sites and one.left_out[one.sites.index(site), 1] for one in differ)
        if len(differ[0].sites) >= FEWEST_SITES and shared and min(_p(told), default=1.0) >= AGREE_LEVEL:
            found.append(site)
    return found[0] if len(found) == 1 else ""


def _p(tests: Sequence[tuple[float, float] | Matrix]) -> list[float]:
    q, degrees = np.array(tests).reshape(-1, 2).T
    adjusted: list[float] = holm(chi_square_tails(q, degrees)).tolist()
    return adjusted


def _taken(after: Regression, told: Mapping[str, SiteSums]) -> Regression:
    """With the coefficients that were asked about as the best."""
    informative = [one for one in told.values() if one.information.any()]
    information = np.sum([one.information for one in told.values()], axis=0)
    rows = sum(one.rows for one in informative)
    # Not again of the same sites: separated levels leave less and less information.
    identified = after.identified if after.sites == tuple(told) else _inverse(information)[1]
    return replace(
        after,
        at=after.asked,
        step=np.zeros_like(after.at),
        sites=tuple(told),
        rows=rows,
        free=float(rows - len(informative) - identified.sum()),
        log_likelihoods=np.array([one.log_likelihood for one in told.values()]),
        gradients=np.stack([one.gradient for one in told.values()]),
        information=information,
        dispersion=sum(one.dispersion for one in informative),
        identified=identified,
    )


def _settled(after: Regression, told: Mapping[str, SiteSums], *, rounds_left: int) -> Regression:
    if after.penalty and rounds_left >= _ROUNDS_WITHOUT:
        step, gain = _newton(replace(after, penalty=0.0))
        if gain < _UNIMPORTANT:
            return replace(after, penalty=0.0, step=step)
    after = replace(after, standing="settled")
    sites = list(told.values())
    q, degrees = (0.0, 0.0) if after.penalty else _agreement(after, sites)
    if not degrees:
        return after
    left_out = np.array([_agreement(after, sites[:k] + sites[k + 1 :]) for k in range(len(sites))])
    own = [_own(after, one) for one in sites]
    return replace(
        after,
        q=q,
        degrees=degrees,
        left_out=left_out,
        site_steps=np.stack([step for step, _ in own]),
        site_errors=np.stack([error for _, error in own]),
    )


def _known(at: Regression, one: SiteSums) -> Matrix:
    """(q, k) directions about which a site has information enough, in which that is the identity."""
    size, V = np.linalg.eigh(one.information / at.scales / at.scales[:, None])
    V, size = V[:, size >= _LEAST_INFORMATION], size[size >= _LEAST_INFORMATION]
    return np.asarray(V / at.scales[:, None] / np.sqrt(size))


def _own(at: Regression, one: SiteSums) -> tuple[Matrix, Matrix]:
    """(q,) Newton's step to the site's own coefficients, and their standard errors; NaN where it tells too little."""
    known = _known(at, one)
    covariance, directions = known @ known.T, known * at.scales[:, None]  # by no unit of a column
    lacks = 1.0 - np.diag(directions @ np.linalg.pinv(directions))
    untold = np.where(lacks < _LOADS, 0.0, np.nan)
    errors = np.sqrt(covariance.diagonal() * at.overdispersion)
    return np.asarray(covariance @ one.gradient + untold), np.asarray(errors + untold)


def _agreement(at: Regression, sites: Sequence[SiteSums]) -> tuple[float, float]:
    """The score test and its degrees of freedom; of a site, only directions about which it has information enough."""
    whole, _ = _inverse(np.sum([one.information for one in sites], axis=0))
    step = whole @ np.sum([one.gradient for one in sites], axis=0)  # of all sites nearly 0
    q = degrees = 0.0
    n_sites = 0
    for one in sites:
        known = _known(at, one)
        if not known.size:
            continue
        n_sites += 1
        q += float(((known.T @ (one.gradient - one.information @ step)) ** 2).sum())
        degrees += known.shape[1] - float(np.trace(known.T @ one.information @ whole @ one.information @ known))
    if n_sites < 2 or degrees < 0.5:
        return 0.0, 0.0
    return q / at.overdispersion, degrees


def _objective(log_likelihood: float, coefficients: Matrix, of: Regression) -> float:
    return log_likelihood - 0.5 * of.penalty * float(((coefficients * of.scales) ** 2).sum())


def _newton(at: Regression) -> tuple[Matrix, float]:
    """(q,) step and what it gains, twice the log-likelihood: its squared length in standard errors."""
    pull = at.penalty * at.scales**2
    gradient = at.gradients.sum(axis=0) - pull * at.at
    with np.errstate(over="ignore", invalid="ignore"):
        step = _inverse(at.information + np.diag(pull))[0] @ gradient
        return step, max(float(step @ gradient), 0.0)


def _shorter(before: Regression, told: Mapping[str, SiteSums]) -> Matrix | None:
    """(q,) a part of the step, if the log-likelihood fell over the whole; otherwise None."""
    old = _objective(float(before.log_likelihoods.sum()), before.at, before)
    new = _objective(sum(one.log_likelihood for one in told.values()), before.asked, before)
    if new >= old - _ROUNDING * (1.0 + abs(old)):
        return None
    gradient = before.gradients.sum(axis=0) - before.penalty * before.scales**2 * before.at
    slope = float(gradient @ before.step)
    share = slope / (2.0 * (slope + old - new))  # where the parabola with this slope and these ends is highest
    return np.asarray(before.step * min(max(share, _SHORTEST), _HALF))


def _contradicts(before: Regression, told: Mapping[str, SiteSums]) -> str:
    """The first site whose log-likelihoods lie above their tangents, which no concave function does; empty: none."""
    for k, (site, one) in enumerate(told.items()):
        old, rise = float(before.log_likelihoods[k]), float(before.gradients[k] @ before.step)
        room = _CONTRADICTION * (1.0 + abs(old) + abs(one.log_likelihood) + abs(rise))
        above = one.log_likelihood - old > rise + room
        if above or old - one.log_likelihood > room - float(one.gradient @ before.step):
            return site
    return ""


def _bends_otherwise(before: Regression, told: Mapping[str, SiteSums]) -> str:
    """The first site whose gradient has changed over a short step unlike its information tells; empty: none.

    Too much information makes all steps too short, so that nothing ever settles.
    """
    if before.sites != tuple(told) or not 0.0 < _size(before.step, before) <= _SHORT:
        return ""
    for k, (site, one) in enumerate(told.items()):
        bend = float((before.gradients[k] - one.gradient) @ before.step)
        expected = float(before.step @ one.information @ before.step)
        room = _CONTRADICTION * float(np.abs(before.gradients[k]) @ np.abs(before.step))
        if max(bend, expected) > room and not expected / _MOST_BENT <= bend <= expected * _MOST_BENT:
            return site
    return ""


def _size(step: Matrix, of: Regression) -> float:
    return float(np.abs(step * of.scales).max(initial=0.0))


def _not_too_long(step: Matrix, of: Regression) -> Matrix:
    return np.asarray(step * min(1.0, _LONGEST / max(_size(step, of), _LONGEST)))


def _inverse(information: Matrix) -> tuple[Matrix, Mask]:
    """(q, q) inverse on what is identified, and (q,) which coefficients are."""
    size = np.sqrt(np.maximum(information.diagonal(), 0.0))
    there = np.flatnonzero(size > 0.0)
    inverse, identified = np.zeros_like(information), size > 0.0
    if not there.size:
        return inverse, identified
    unit = size[there]
    values, V = np.linalg.eigh(information[np.ix_(there, there)] / unit / unit[:, None])
    kept = values > _SINGULAR * values[-1]
    inverse[np.ix_(there, there)] = (V[:, kept] / values[kept]) @ V[:, kept].T / unit / unit[:, None]
    identified[there] = (V[:, ~kept] ** 2).sum(axis=1) < _LOADS
    return inverse, identified
