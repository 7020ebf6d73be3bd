"""What most likely lies behind tests that contradict a graph, the likeliest first, and what would tell it apart.

First what the run itself shows, then what it cannot see, in the order in which clinical tables have it. What was
tested and not found is no reason.
"""

from collections.abc import Collection, Iterator

import numpy as np

from fedbnsl.plan.columns import Columns
from fedbnsl.plan.knowledge import EdgeMask
from fedbnsl.plan.plan import Plan
from fedbnsl_server.inference.confidence import Confidence
from fedbnsl_server.inference.heterogeneity import chi_square_tails
from fedbnsl_server.results.sentences import Note, note

_OF_SITES = {"mechanisms_differ", "sites_differ", "sites_differ_apart", "ratios_differ", "tables_differ"}
_OF_CURVES = {"curved", "curved_or_open"}
# Coefficients differ widely between sites where at least half of them do by a test of 5 %, of at least so many.
_LEVEL, _WIDELY, _FEWEST = 0.05, 0.5, 6
_CLEARLY = 0.01  # a coefficient differs by itself: dependent rows make all of them differ a little
_SURE = 0.9  # share of the draws


def likely_reasons(
    plan: Plan, columns: Columns, confidence: Confidence, contradicted: Collection[str], *, lines_tested: bool
) -> list[Note]:
    """Reasons for residuals that are correlated or sites that differ.

    Parameters
    ----------
    contradicted
        Codes of the notes of what is contradicted.
    lines_tested
        Whether it was tested that effects are straight lines.
    """
    codes = set(contradicted)
    if not codes & (_OF_SITES | {"unexplained"}):
        return []
    shown: list[Note] = []
    unseen: list[Note] = []
    unlikely: list[Note] = []
    if codes & _OF_SITES:
        odd = confidence.odd_site
        (shown if odd else unseen).append(
            note("reason_sites", site=odd, told=next(set_at_sites(plan, sites=[odd]), ""))
        )
    if not plan.dictionary.rows.group:
        widely = bool(codes & _OF_SITES) and _widely(confidence)
        alike = not widely and _by_chance(confidence)
        others = bool(codes & _OF_SITES)
        told = note("reason_rows", widely=widely, alike=alike, others=others)
        (unlikely if alike else shown if widely else unseen).insert(0, told)
    if plan.privacy is None and plan.preparation is not None and plan.preparation.outlying == "keep":
        unseen.append(note("reason_far"))
    if codes & _OF_CURVES:
        shown.append(note("reason_curves", seen=True))
    elif not lines_tested:
        unseen.append(note("reason_curves", seen=False))
    pairs = _headed(columns, confidence)
    (shown if pairs else unseen).append(note("reason_hidden", pairs=pairs))
    if "unexplained" in codes:
        i, j = confidence.unexplained[0].tolist()
        mask = EdgeMask(plan.knowledge, columns).allowed
        allowed, noisy = bool(mask[i, j] or mask[j, i]), bool(confidence.noise_std)
        told = note("reason_edge", allowed=allowed, hidden=noisy)
        shown.insert(0, told) if noisy or not allowed else unseen.append(told)
    return [*shown, *unseen, *unlikely]


def set_at_sites(
    plan: Plan, *, sites: Collection[str] | None = None, variables: Collection[str] | None = None
) -> Iterator[Note]:
    """What the plan says was set, site by site; of these sites, and of these variables, None: of all."""
    for one in plan.interventions:
        names = [name for name in one.variables if variables is None or name in variables]
        if names and (sites is None or one.site in sites):
            yield note("set_at_site", variables=names, site=one.site)


def _widely(confidence: Confidence) -> bool:
    """Whether sites differ a little in most coefficients, as they seem to do where rows depend on each other."""
    tested = confidence.degrees > 0
    p = chi_square_tails(confidence.q[tested], confidence.degrees[tested])
    return bool(p.size >= _FEWEST and (p < _LEVEL).mean() >= _WIDELY)


def _by_chance(confidence: Confidence) -> bool:
    """Whether coefficients of sites, but for single ones, scatter by chance, as those of dependent rows do not."""
    tested = confidence.degrees > 0
    q, degrees = confidence.q[tested], confidence.degrees[tested]
    rest = chi_square_tails(q, degrees) >= _CLEARLY
    q, degrees = q[rest].sum(keepdims=True), degrees[rest].sum(keepdims=True)
    return bool(rest.sum() >= _FEWEST and chi_square_tails(q, degrees)[0] >= _LEVEL)


def _headed(columns: Columns, confidence: Confidence) -> list[str]:
    """Pairs that a hidden cause joins in nearly all draws."""
    if not confidence.draws or not confidence.pag_headed.size:
        return []
    pairs = np.argwhere(np.triu(confidence.pag_headed >= _SURE * confidence.draws)).tolist()
    return [f"{columns.variables[i]} and {columns.variables[j]}" for i, j in pairs]
