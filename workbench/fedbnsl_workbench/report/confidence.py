"""How sure a run is of its edges and variables, as its result.json says; nothing is computed here.

Every number is optional: older results and runs without a search have none, and a coordinator that never saw a site's
own moments cannot compare the sites. `unknown` says so in words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbnsl_workbench.report.run_files import ReportedRun

Interval = tuple[float, float]
_DECIMALS = 3
_MORE = 4
# Beyond these, a number in another unit is easier to read as 1.23e-09: nobody counts zeros.
_MOST_DECIMALS = 8
_FINE, _LARGE, _HUGE = 0.01, 1e4, 1e7
# Smaller shares are what is left of a subtraction: no draw has them.
_LEAST = 1e-9


@dataclass(frozen=True)
class Sites:
    """How an edge's weight differs over the sites.

    Attributes
    ----------
    p
        Of Cochran's test that all sites have one weight.
    i2
        0 to 1: the part of the spread that sampling error does not explain.
    estimates
        Weight and standard error of each site, in the tables' units.
    """

    p: float | None
    i2: float | None
    estimates: Mapping[str, tuple[float, float | None]]


@dataclass(frozen=True)
class Confidence:
    """What is known of an edge beside its weight; None: not known.

    Attributes
    ----------
    interval, standardised_interval
        95 %, of the weight and of the weight without units, given the graph.
    adjacent, forward, backward
        Shares of the bootstrap draws: the pair is adjacent, source -> target, target -> source.
    without_a_site
        In how many searches that left out one site the pair is adjacent, and how many there were.
    """

    standard_error: float | None = None
    interval: Interval | None = None
    standardised_interval: Interval | None = None
    adjacent: float | None = None
    forward: float | None = None
    backward: float | None = None
    sites: Sites | None = None
    without_a_site: tuple[int, int] | None = None

    @property
    def undirected(self) -> float | None:
        """Share of the draws in which the pair is adjacent without a direction."""
        if self.adjacent is None:
            return None
        return max(0.0, self.adjacent - (self.forward or 0.0) - (self.backward or 0.0))


@dataclass(frozen=True)
class UnsurePair:
    """A pair that is not in the graph, and the shares of the draws that have it."""

    source: str
    target: str
    adjacent: float
    forward: float
    backward: float

    @property
    def undirected(self) -> float:
        """Share of the draws in which the pair is adjacent without a direction."""
        return max(0.0, self.adjacent - self.forward - self.backward)


def confidence_of(edge: Mapping[str, Any]) -> Confidence:
    """What result.json says of one of its edges."""
    shares: Mapping[str, float] = edge.get("bootstrap") or {}
    sites, without = edge.get("sites"), edge.get("without_a_site")
    return Confidence(
        standard_error=edge.get("standard_error"),
        interval=_interval(edge.get("interval")),
        standardised_interval=_interval(edge.get("standardised_interval")),
        adjacent=shares.get("adjacent"),
        forward=shares.get("forward"),
        backward=shares.get("backward"),
        sites=None
        if sites is None
        else Sites(sites["p"], sites["i2"], {site: (w, se) for site, (w, se) in sites["estimates"].items()}),
        without_a_site=None if without is None else (without["adjacent"], without["of"]),
    )


def _interval(found: Sequence[float | None] | None) -> Interval | None:
    low, high = found or (None, None)
    return None if low is None or high is None else (low, high)


def unsure_pairs(run: ReportedRun) -> list[UnsurePair]:
    """Pairs that are not in the graph, as result.json orders them: by falling share."""
    found: Sequence[Mapping[str, Any]] = run.result.get("unsure") or ()
    return [
        UnsurePair(pair["source"], pair["target"], pair["adjacent"], pair["forward"], pair["backward"])
        for pair in found
    ]


def fits(run: ReportedRun) -> list[dict[str, Any]]:
    """Every variable that result.json has a fit of, in the order of the variables; None: not known."""
    found: Mapping[str, Any] = run.result.get("fit") or {}
    unknown = dict.fromkeys(("r2", "intercept", "residual_variance"))
    return [{"name": name, **unknown, **found[name]} for name in run.variables if found.get(name)]


def no_intercept(run: ReportedRun) -> str:
    """What a missing intercept means."""
    kind = "none" if run.plan.preparation is None else run.plan.preparation.intercept
    return {"site": "each site its own", "none": "none in the model"}.get(kind, "not known")


def estimation_words(run: ReportedRun) -> str:
    """What intervals and shares are, and from what; empty where the run has none."""
    told: Mapping[str, Any] | None = run.result.get("estimation")
    known = [confidence_of(edge) for edge in run.result["edges"]]
    words: list[str] = []
    if any(one.interval for one in known):
        noise = " and the noise of privacy" if told and told.get("noise_std") else ""
        words.append(
            f"Intervals cover 95 % and count sampling error{noise}, given the graph: they do not count that the graph "
            "was chosen with the same data."
        )
    if any(one.adjacent is not None for one in known):
        draws = f" {told['draws']:,}" if told and told.get("draws") else ""
        words.append(
            f"Bootstrap shares say in which part of{draws} graphs, each searched from moments drawn anew, the pair is "
            "linked, and which way it points there."
        )
    if any(one.without_a_site for one in known):
        words.append("“Without a site” counts the searches that left out one site and still link the pair.")
    return " ".join(words)


def unknown(run: ReportedRun) -> list[str]:
    """Sentences on what no edge of the run has."""
    known = [confidence_of(edge) for edge in run.result["edges"]]
    if not known:
        return []
    intervals = any(one.interval for one in known)
    shares = any(one.adjacent is not None for one in known)
    sites = any(one.sites for one in known)
    without = any(one.without_a_site for one in known)
    if not (intervals or shares or sites or without):
        why = (
            "its result.json has none"
            if run.searched
            else "these need a search with moments (moments_rounds), which the plan does not have"
        )
        return [f"No standard errors, bootstrap shares or comparisons of sites are given: {why}."]
    found: list[str] = []
    if not intervals:
        found.append("Standard errors and intervals are not known in this run.")
    if not shares:
        why = "the plan asks for no draws (bootstrap = 0)" if not run.plan.bootstrap else "the run made no draws"
        found.append(f"There are no bootstrap shares: {why}.")
    if not sites:
        found.append(
            "Whether effects differ between sites is not known: that needs each site's own moments, which the "
            "coordinator of this run does not have."
        )
    if not without:
        found.append("How far the graph rests on one single site is not known: no search left out a site.")
    return found


def heterogeneity(known: Confidence) -> str:
    """I^2 and p of an edge, in short."""
    if known.sites is None or known.sites.i2 is None or known.sites.p is None:
        return "not known"
    p = "p\u00a0<\u00a00.001" if known.sites.p < 0.001 else f"p\u00a0=\u00a0{known.sites.p:.2g}"
    return f"I\u00b2\u00a0{percent(known.sites.i2)}, {p}"


def signed(value: float | None, interval: Interval | None = None) -> str:
    """A weight with three decimals, or as many as its interval needs; very small and large ones with three digits."""
    if value is None:
        return "not known"
    if interval is not None:
        places = _places(interval)
    elif value and not _FINE <= abs(value) < _LARGE:
        places = 2 - math.floor(math.log10(abs(value)))
    else:
        places = _DECIMALS
    return _rounded(value, places if abs(value) >= _LARGE else max(_DECIMALS, places), "+")


def between(interval: Interval, digits: int = 2) -> str:
    """An interval, with two digits of its width; an end near zero has more, so that its sign is seen."""
    places = _places(interval, digits)
    return " to ".join(_rounded(end, places) for end in interval)


def _rounded(value: float, places: int, sign: str = "") -> str:
    """A number rounded to a place; as 1.23e-09 where nobody would count the zeros."""
    shown = round(value, places) + 0.0
    if shown and (places > _MOST_DECIMALS or abs(shown) >= _HUGE):
        return f"{shown:{sign}.{max(1, math.floor(math.log10(abs(shown))) + 1 + places)}g}"
    return f"{shown:{sign}.{min(_MOST_DECIMALS, max(0, places))}f}"


def _places(interval: Interval, digits: int = 2) -> int:
    """Decimals that show so many digits of the width; below 0 for tens, hundreds, ..."""
    width = interval[1] - interval[0]
    places = digits - 1 - math.floor(math.log10(width)) if 0 < width < math.inf else _DECIMALS
    enough = (more for more in range(_MORE) if all(round(end, places + more) or not end for end in interval))
    places += next(enough, 0)
    return places if max(map(abs, interval)) >= _HUGE else max(0, places)


def percent(share: float) -> str:
    """A share in whole per cent, which says of a small one that it is not nothing."""
    return "<1\u00a0%" if 0 < share < 0.005 else f"{100 * share:.0f}\u00a0%"


def ways(of: Confidence | UnsurePair) -> str:
    """Which way a pair points in the draws; a dash where there are none."""
    parts = ((of.forward, "\u2192"), (of.backward, "\u2190"), (of.undirected, "\u2014"))
    return ", ".join(f"{sign}\u00a0{percent(share)}" for share, sign in parts if share and share > _LEAST) or "\u2013"
